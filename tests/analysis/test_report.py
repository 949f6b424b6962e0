"""`lp-sweep report`: the page says what the commands say, whatever the names; it needs nothing."""

from __future__ import annotations

import base64
import hashlib
import itertools
import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from lp_sweep.analysis.report.answer import TaskAnswer, answers, closing_lines
from lp_sweep.analysis.report.writing import gather, write_report
from lp_sweep.analysis.tables import TABLES
from lp_sweep.analysis.views import VIEWS, open_views
from lp_sweep.orchestrator.watch.states import sweep_states
from lp_sweep.storage.errors import SpecError, StoreError
from lp_sweep.storage.places import options_of, run_with
from lp_sweep.storage.store import Store
from tests.support.answered import network, right
from tests.support.fake_records import FakeSweep
from tests.support.program import Done, sweep
from tests.support.reading_pages import Reading

MODEL = "bert-base-cased"  # the paper has it
COLOURS = {"FORCE_COLOR": "1", "TERM": "xterm"}  # of a build: its logs are no terminals


def demo(folder: Path) -> Store:
    """Two tasks and two seeds with their answers, one failure, one cell missing, two speeds."""
    fake = FakeSweep(folder / "store")
    for task, seed in itertools.product(("sst2", "rte"), (1, 2)):
        for k, n_right in {0: 90, 2: 89, 4: 80}.items():
            network(fake, right(n_right + seed), k=k, task=task, seed=seed, model=MODEL)
        network(fake, right(70), k=2, strategy="bottom", task=task, seed=seed, model=MODEL)
    fake.cell(k=6, task="rte", seed=1, model=MODEL, state="failed")
    fake.cell(k=6, task="sst2", seed=1, model=MODEL, state="pending")
    fake.speed(1.0, 1.0, model=MODEL, kept_layers=list(range(1, 13)))
    fake.speed(1.2, 1.15, model=MODEL, kept_layers=list(range(1, 11)))
    fake.store.put_text("sweeps", "demo.yaml", "name: demo\nhub_token: hf_abcdefghijklmnop\n")
    return fake.publish()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return demo(tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def done(store: Store) -> Done:
    """`lp-sweep report`, beside its store."""
    asked = ("report", "--store", store.location, "--out", "new/report.html")
    return sweep(*asked, "--figures", "figures", cwd=Path(store.location).parent, env=COLOURS)


@pytest.fixture(scope="module")
def written(store: Store, done: Done) -> Path:
    assert done.returncode == 0, done.stderr
    return Path(store.location).parent / "new" / "report.html"


@pytest.fixture(scope="module")
def page(written: Path) -> Reading:
    return Reading(written.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def short(store: Store) -> list[str]:
    return closing_lines(store, "demo", 1.0)


def page_of(
    store: Store, sweep: str | None = None, within: tuple[float, ...] = (1, 2, 3)
) -> dict[str, Any]:
    """The content of a page without its layout."""
    with open_views(store, sweep=sweep, deltas=within, only=VIEWS) as catalog:
        return gather(catalog, store, sweep, within, None)


# -- the page needs nothing, and lets nothing in


def needs_nothing(read: Reading) -> None:
    assert all(value.startswith("#") for value in read.values("href"))
    assert all(value.startswith("data:image/svg+xml;base64,") for value in read.values("src"))
    assert not read.values("srcset", "action", "style")
    assert not [name for _, name, _ in read.attributes if name.startswith("on")]
    assert "@import" not in read.texts["style"]
    assert set(re.findall(r"url\((.)", read.texts["style"])) <= {"#"}


def well_built(read: Reading) -> None:
    """Headings go down by one; identifiers are unique, and what is linked is there."""
    levels = [level for level, _ in read.headings]
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    assert len(read.ids) == len(set(read.ids))
    inside = {value[1:] for value in read.values("href") if value.startswith("#")}
    assert inside <= set(read.ids)


def test_the_page_is_well_built_and_nothing_is_asked_of_any_place(page: Reading) -> None:
    needs_nothing(page)
    well_built(page)
    assert page.texts["title"].startswith("demo – lp-sweep report")
    assert ("html", "lang", "en") in page.attributes


def test_the_policy_allows_its_own_script_and_style_alone(page: Reading) -> None:
    (policy,) = [value for value in page.values("content") if "default-src" in value]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert page.tags["script"] == page.tags["style"] == 1
    for kind in ("script", "style"):
        digest = hashlib.sha256(page.texts[kind].encode()).digest()
        assert rules[f"{kind}-src"] == f"'sha256-{base64.b64encode(digest).decode()}'"


@pytest.mark.usefixtures("written")
def test_figures_are_files(store: Store) -> None:
    folder = Path(store.location).parent / "figures"
    assert set(folder.iterdir()) == {folder / f"figure-2-3.{kind}" for kind in ("svg", "png")}


# -- first what to decide from


def test_the_answer_its_candidates_and_its_figures_come_first(page: Reading) -> None:
    """With the answer's own network in each, and its values where the pointer is."""
    assert "sst2: needs 6–10 of 12 layers to lose at most 1 point" in " ".join(
        page.texts["answer"].split()
    )
    grid = page.tables["task-1"]
    answer = next(row for row in grid.rows if row[-1].startswith("1"))
    assert dict(zip(grid.columns, answer, strict=True)) | {"change": ""} == {
        **{"kept": "10 of 12", "layers": "1-10", "strategy": "top", "score": "90.50"},
        **{"seeds": "2", "parameters": "93.0 M", "of full": "86.9%", "change": ""},
        **{"times as fast": "1.15", "answer within": "1, 2, 3"},
    }
    assert page.tags["circle"] > 4
    assert page.texts["task-1"].count("layers 1-10, top: 90.50 (−1.00)") == 2
    drawn = [base64.b64decode(src.partition(",")[2]).decode() for src in page.values("src")]
    assert sum("10 of 12 (−1.00)" in svg for svg in drawn) == 4, (
        "labelled in both plots of each task"
    )


def test_candidates_and_hostile_dev_rows(tmp_path: Path) -> None:
    """Texts of dev rows are in the page only if asked for, and only as text."""
    fake = FakeSweep(tmp_path / "store")
    network(fake, right(90), k=0, task="a")
    smaller = right(88)
    smaller[95] = 1.0
    network(fake, smaller, k=2, task="a", strategy="bottom")
    store, hostile = fake.publish(), "<script>alert(1)</script>"
    asked: list[str] = []

    def texts(trial: str) -> tuple[list[list[str]], list[str]]:
        asked.append(trial)
        return [[f"{hostile} {n}"] for n in range(100)], ["no", "<b>yes"]

    without = write_report(store, tmp_path / "a.html", within=[5])
    written = write_report(store, tmp_path / "b.html", within=[5], texts=texts)
    assert "alert" not in without.page.read_text(encoding="utf-8")
    page = written.page.read_text(encoding="utf-8")
    assert "2 rows; 1 others only the full model gets wrong" in page
    read = Reading(page)
    assert (len(asked), read.tags["script"]) == (1, 1)
    rows = read.tables["wrong-task-1"].rows
    assert [row[0] for row in rows] == ["88", "89"]
    assert rows[0][1] == f"{hostile} 88"
    assert {label for _, _, *labels in rows for label in labels} == {"no", "<b>yes"}


# -- it says what the commands say


def markdown(text: str) -> list[list[str]]:
    """The cells of a Markdown table, its heading first."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines]
    return [[re.sub(r"\\(.)", r"\1", item).strip() for item in line] for line in cells]


def command_below(written: Path, name: str) -> list[str]:
    """The command that the page prints below a table."""
    text = written.read_text(encoding="utf-8")
    after = text.split(f'id="table-{name}"')[1].split('class="command"')[1]
    after = after.split("<code>")[1].split("</code>")[0]
    return shlex.split(after.replace("&#39;", "'").replace("&#34;", '"').replace("&amp;", "&"))


@pytest.mark.parametrize("name", ["tasks", "min-layers-interval", "speed"])
def test_a_table_is_what_the_command_below_it_prints(
    page: Reading, written: Path, name: str, tmp_path: Path
) -> None:
    program, *arguments = command_below(written, name)
    done = sweep(*arguments, "--format", "markdown", cwd=tmp_path)
    assert (program, done.returncode, done.stderr) == ("lp-sweep", 0, "")
    heading, *rows = markdown(done.stdout)
    assert page.tables[name].columns == heading
    assert page.tables[name].rows == rows
    assert rows


# -- the answer


# the tables that an answer is read from
READ = ("min-layers", "min-layers-interval", "speed", "tasks")


def answers_of(store: Store, deltas: tuple[float, ...] = (1, 2, 3)) -> dict[str, TaskAnswer]:
    views = {view for name in READ for view in TABLES[name].views}
    with open_views(store, deltas=deltas, only=views) as catalog:
        made = {name: TABLES[name](catalog) for name in READ}
        return {item.task: item for item in answers(made, catalog)}


def test_the_smallest_network_of_all_strategies(fake: FakeSweep) -> None:
    fake.curve({0: 90.0, 2: 89.5, 4: 85.0}, task="a")
    fake.curve({2: 88.0, 4: 89.2}, task="a", strategy="bottom")
    one, two, _ = answers_of(fake.publish())["a"].choices
    assert one.line == (
        "8 of 12 layers are enough to lose at most 1 point (bottom with 8 layers, −0.80, one seed; "
        "1 to 7 layers were not tried)"
    )
    assert "can't be estimated: no predictions" in one.sure["luck"]
    assert "bottom with 8 layers" in two.line
    fake.cell(k=0, score=90.0, task="a", seed=43)
    fewer = answers_of(fake.publish())["a"].choices[0]
    assert "−0.80, 1 of the 2 seeds that the sweep lists" in fewer.line
    assert shlex.split(one.export) == [
        *("lp-sweep", "export", "--best", "--task", "a", "--within", "1"),
        *("--out", "smaller", "--store", fake.store.location, "--sweep", "demo"),
    ]


def test_a_command_names_what_it_needs_of_ones_own(tmp_path: Path) -> None:
    """The sweep file says where model and data are, if it is still there."""
    file = tmp_path / 'it\'s "mine"' / "sweep.yaml"
    file.parent.mkdir()
    file.write_text("name: demo")
    fake = FakeSweep(tmp_path / "store")
    fake.curve({0: 90.0, 2: 89.5}, task="own")
    text = run_with(str(file), tmp_path / "glue") + "name: demo"
    fake.store.put_text("sweeps", "demo.yaml", text)
    sections = page_of(fake.publish())["sections"]
    found = {of["answer"].task: of["answer"].choices[0].export for of in sections}
    where = ["--file", str(file), "--data-dir", str(tmp_path / "glue")]
    assert shlex.split(found["own"])[-4:] == where
    assert options_of(run_with("quickstart", None) + "name: q") == ["--file", "quickstart"]
    file.unlink()
    for without in (text, None, "", "name: demo", "# lp-sweep: [1]", "# lp-sweep: {"):
        assert options_of(without) == []


def test_of_two_models_one_is_named_and_a_loss_is_exact(fake: FakeSweep) -> None:
    for model in ("bert", "./other"):
        fake.curve({0: 90.0, 2: 89.9}, task="a", model=model)
    with open_views(fake.publish(), deltas=(0.12345678,)) as catalog:
        made = {name: TABLES[name](catalog) for name in READ}
        found = answers(made, catalog)
    commands = [shlex.split(item.choices[0].export) for item in found]
    assert [words[words.index("--model") + 1] for words in commands] == ["./other", "bert"]
    assert all(words[words.index("--within") + 1] == "0.12345678" for words in commands)


def test_an_answer_that_is_open_says_why(fake: FakeSweep) -> None:
    fake.cell(k=0, score=90.0, task="early")  # in a run: nothing else has a score yet
    fake.cell(k=2, task="early", strategy="bottom")
    for task in ("failed", "procedure"):
        fake.curve({0: 90.0, 2: 89.5}, task=task)
    fake.cell(k=6, task="failed", strategy="bottom", state="failed")
    fake.cell(k=4, task="procedure", procedure="iterative", state="pending")
    fake.cell(k=2, score=89.0, task="no full model")
    found = answers_of(fake.publish(), (1,))
    early, failed, procedure, without = (answer.choices[0] for answer in found.values())
    assert "needs 10–12 of 12 layers" in early.line
    assert "needs 6–10 of 12 layers" in failed.line
    assert "top with 10 layers" in failed.line
    assert "missing trials may bring a smaller one" in failed.line
    assert "--strategy top" in failed.export, "without it the answer is not known"
    assert "needs 8–10 of 12 layers" in procedure.line
    assert procedure.export == "", "it can't name a procedure, so it would find no answer"
    assert found["no full model"].said == "No score with all 12 layers."
    assert without.export == ""
    assert "no score with all layers to compare with" in without.line


def test_missing_trials_are_counted_as_status_counts_them(tmp_path: Path) -> None:
    """The network of all layers is one, whichever strategies list it and lack it."""
    fake = FakeSweep(tmp_path)
    for strategy in ("top", "bottom"):
        fake.curve({0: 90.0, 2: 89.5}, task="a", strategy=strategy)
        for k in (0, 2):
            fake.cell(k=k, task="a", strategy=strategy, seed=43)
    store = fake.publish()
    (counts,) = sweep_states(store).sweeps
    assert counts["trials_pending"] == 3
    missing = page_of(store)["counts"]
    assert [missing[name] for name in ("n_open", "n_cells", "n_open_networks")] == [4, 8, 3]


def test_the_answer_in_short(tmp_path: Path, short: list[str]) -> None:
    """As a run ends with it."""
    one, more, *_ = short
    assert one.startswith(
        "sst2: needs 6–10 of 12 layers to lose at most 1 point (top with 10 layers, −1.00, "
    )
    assert all(
        part in more for part in ("at most 7 or 9 to 12 layers", "87% of the size", "1.1 times")
    ), more
    fake = FakeSweep(tmp_path)
    fake.curve({0: 90.0, 2: 89.5, 4: 85.0}, task="a")
    fake.curve({0: 50.0, 11: 49.9}, task="b")
    fake.curve({2: 49.9}, task="c")
    lines = closing_lines(fake.publish(), "demo", 2.0)
    needed, how = (
        "a: needs 9–10 of 12 layers to lose at most 2 points",
        "top with 10 layers, −0.50, one seed",
    )
    assert lines[:2] == [
        f"{needed} ({how}; 9 layers were not tried; only top was tried)",
        "  accuracy 89.5 (all 12: 90.0). 87% of the size.",
    ]
    assert closing_lines(fake.store, "demo", 0.1)[0].startswith("a: needs 11–12 of 12 layers to")
    unanswered = [line.partition(":")[0] for line in lines if "no answer yet: " in line]
    assert unanswered == ["b", "c"]
    commands = [shlex.split(line.partition(": ")[2])[:2] for line in lines[-2:]]
    assert commands == [["lp-sweep", "report"], ["lp-sweep", "export"]]


@pytest.mark.parametrize(
    "scores", [{0: 90.0, 1: 50.0}, {0: 50.0, 4: 50.0}], ids=["nothing is smaller", "none learned"]
)
def test_no_smaller_network_no_export(fake: FakeSweep, scores: dict[int, float]) -> None:
    fake.curve(scores)
    assert "export" not in "".join(closing_lines(fake.publish(), "demo", 1.0))


# -- what is missing is said


def test_a_pruned_network_that_learned_nothing_is_no_answer_without_a_word(fake: FakeSweep) -> None:
    fake.curve({0: 52.5, 2: 51.9, 4: 50.0}, task="a")  # always the same answer scores 50
    one, more = (closing_lines(fake.publish(), "demo", loss)[0] for loss in (1.0, 3.0))
    assert "top with 10 layers" in one
    assert "majority" not in one
    assert "top with 8 layers: no better than the majority class" in more


def test_a_huge_sweep_has_its_answer_without_reading_all_predictions(
    store: Store, short: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lp_sweep.analysis.report.answer._MOST_READ", 3)
    quick = closing_lines(store, "demo", 1.0)
    assert quick[0] == short[0]
    assert ("(90%)" in short[1], "(90%)" in quick[1]) == (True, False)


def test_failures_and_missing_cells_are_said(page: Reading) -> None:
    assert page.tables["failures"].rows[0][:2] == ["out_of_memory", "1"]
    open_cells = [row[-4:] for row in page.tables["open-cells"].rows]
    assert open_cells == [
        ["6 of 12", "rte", "failed", "1"],
        ["6 of 12", "sst2", "pending", "1"],
    ]
    gaps = page.texts["gaps"]
    assert "Without a score: 2 of 18 cells" in gaps
    assert "of one seed" not in gaps
    assert "lp-sweep retry" in gaps


def test_cells_of_two_recipes_are_said(fake: FakeSweep) -> None:
    for k, epochs in ((0, 1), (2, 3)):
        fake.cell(k=k, score=90.0, epochs=epochs)
    (sheet,) = (of for of in page_of(fake.publish())["gaps"] if of.name == "differences")
    assert sheet.table.rows == (("demo", "bert", "direct", "SST-2", "epochs", "1, 3"),)


def test_dev_rows_that_occur_in_train_are_said(fake: FakeSweep) -> None:
    fake.curve({0: 90.0, 2: 89.5}, dev_in_train=37, dev_relabelled=2)
    (table,) = (of.table for of in page_of(fake.publish())["sources"] if of.name == "data")
    (row,) = (dict(zip(table.columns, row, strict=True)) for row in table.rows)
    assert (row["of these also in train"], row["with another label"]) == ("37", "2")


def test_where_it_comes_from_without_secrets(page: Reading) -> None:
    assert "hf_" not in page.said
    assert "name: demo\nhub_token: REMOVED" in page.texts["asked"]
    assert page.tables["recipes"].columns[:3] == ["sweep", "learning rate", "batch"]
    assert page.tables["models"].rows == [[MODEL, "12", page.tables["models"].rows[0][2], "16"]]
    assert ["lp_sweep", "0.1.0", "16"] in page.tables["versions"].rows
    assert "2026-01-05 09:30 UTC" in page.texts["origin"]


# -- stores of every kind


def test_an_empty_store_is_a_page(tmp_path: Path) -> None:
    """Written where a link leads to."""
    (tmp_path / "real.html").write_text("")
    (tmp_path / "mine.html").symlink_to("real.html")
    write_report(Store(tmp_path / "store", create=True), tmp_path / "mine.html")
    assert (tmp_path / "mine.html").is_symlink()
    read = Reading((tmp_path / "real.html").read_text(encoding="utf-8"))
    assert read.texts["title"].startswith("an empty store – lp-sweep report")
    assert "no sweep of this store has a cell" in read.texts["answer"]
    assert read.tags["img"] == 0


@pytest.mark.slow
def test_several_sweeps_are_one_page_or_one_is_chosen(tmp_path: Path) -> None:
    for name, model in (("one", "bert"), ("two", "xlnet")):
        fake = FakeSweep(tmp_path / "store", name)
        fake.curve({0: 90.0, 2: 89.5}, model=model)
        fake.publish()
    both = page_of(fake.store)
    assert both["title"] == "one, two"
    tasks = next(item.table for item in both["tables"] if item.name == "tasks")
    assert {row[0] for row in tasks.rows} == {"one", "two"}
    export = both["sections"][0]["answer"].choices[0].export
    assert "--task SST-2 --within 1 --model bert --out smaller" in export
    alone = page_of(fake.store, "two", (0.5,))
    assert (alone["title"], [of["answer"].model for of in alone["sections"]]) == ("two", ["xlnet"])
    assert "--sweep two" in alone["sections"][0]["answer"].choices[0].export
    min_layers = alone["tables"][0].command
    assert min_layers.startswith("lp-sweep table min-layers --within 0.5 --store ")
    assert min_layers.endswith(" --sweep two")


# -- files


def test_a_place_that_takes_no_page(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", create=True)
    (tmp_path / "file").write_text("")
    (tmp_path / "dev.csv").write_text("text,label\n")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/null")
    refused: dict[str, tuple[type[Exception], str]] = {
        "": (SpecError, "exists and is not a report"),
        "dev.csv": (SpecError, "dev.csv exists and is not a report. Name another file with --out"),
        "pipe": (SpecError, "pipe exists and is not a report"),
        "link": (SpecError, "null exists and is not a report"),
        "file/report.html": (StoreError, "can't write .*Name another with --out"),
        "a\0b": (SpecError, "can't be the name of a file"),
        "a" * 300 + "/x": (StoreError, "can't write "),
    }
    for out, (error, message) in refused.items():
        with pytest.raises(error, match=message):
            write_report(store, tmp_path / out)
    assert (tmp_path / "dev.csv").read_text() == "text,label\n"
    assert (tmp_path / "pipe").is_fifo()
    assert (tmp_path / "link").is_symlink()


def test_the_command(done: Done, written: Path, store: Store, tmp_path: Path) -> None:
    size, figures = written.stat().st_size, written.parents[1] / "figures"
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1] == f"wrote new/report.html ({size / 1e3:,.0f} kB)"
    assert "\x1b" not in done.stderr
    assert done.stderr.count("wrote figures/figure-") == len(list(figures.iterdir()))
    asked = ("report", "--store", store.location, "--sweep", "demo")
    for extra, code in ((["--sweep", "x"], 2), (["--within", "one"], 2), (["--store", "x"], 4)):
        done = sweep(*asked, *extra, cwd=tmp_path)
        assert (done.returncode, done.stdout, "error: " in done.stderr) == (code, "", True)
    assert not (tmp_path / "report.html").exists()
