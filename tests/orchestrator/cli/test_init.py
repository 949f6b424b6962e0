"""`lp-sweep init`: from a file of rows to a sweep file that runs as it is."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split

from lp_sweep.orchestrator.options import InitOptions
from lp_sweep.orchestrator.service.init import DEV_SHARE, parted, split, write_sweep
from lp_sweep.orchestrator.service.initrows import LENGTHS, look_at
from lp_sweep.orchestrator.sweepfile.load import load_sweep
from lp_sweep.storage.errors import LpSweepError
from lp_sweep.trials.data.readers import column_names, read_file
from tests.support.kindworlds import WRITERS, collection
from tests.support.kindworlds import write as write_parts
from tests.support.program import sweep

MODEL = str(Path(__file__).parents[3] / "quickstart" / "model")
Rows = list[dict[str, Any]]
DATA = ["--data", "data.csv"]
COLUMNS = ["--text", "text", "--label", "verdict"]
HOSTILE = ['a "quoted" word', "two, fields", "naïve ☕", "'", "# no comment", "- item: x", "=1+1"]


def rows(n: int = 300) -> Rows:
    """Texts of a third each: good, good, bad; users of three rows each."""
    return [
        {
            "id": i,
            "text": f"{HOSTILE[i % len(HOSTILE)]} {i}",
            "verdict": "bad" if i % 3 == 2 else "good",
            "user": f"u{i % (n // 3)}",
            "stars": i / 7,
            "name": f"n{i}",
        }
        for i in range(n)
    ]


def write(path: Path, content: Rows) -> None:
    columns = {name: [row[name] for row in content] for name in content[0]}
    WRITERS[path.suffix.removeprefix(".")](path, columns)


def read(path: Path, names: Sequence[str]) -> list[tuple[str, ...]]:
    table = read_file(str(path), names)
    return [tuple(map(str, row.values())) for row in table.to_pylist()]


def init(folder: Path, *words: str, code: int = 0) -> str:
    """Runs the command and returns its standard error."""
    done = sweep("init", *words, cwd=folder)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def sweep_of(folder: Path, data: str, text: str = "text", model: str = MODEL) -> Path:
    """The sweep file that `init` makes, in this process."""
    file, told = folder / "sweep.yaml", {"text": [text], "label": ["label"], "model": model}
    write_sweep(InitOptions(file=file, data=folder / data, force=True, **told))
    return file


def planned(folder: Path, *words: str) -> str:
    done = sweep("plan", "sweep.yaml", "--offline", *words, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def of_task(folder: Path, file: str = "sweep.yaml") -> dict[str, Any]:
    content = yaml.safe_load((folder / file).read_text(encoding="utf-8"))
    return dict(content["tasks"][0])


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_rows_become_a_sweep_that_can_be_planned(tmp_path: Path, suffix: str) -> None:
    data = tmp_path / f"my reviews{suffix}"
    write(data, rows())
    told = init(tmp_path, "--data", data.name, *COLUMNS, "--model", MODEL)
    assert "lp-sweep plan sweep.yaml" in told
    lines = (tmp_path / "sweep.yaml").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "# yaml-language-server: $schema=lp-sweep.schema.json"
    assert json.loads((tmp_path / "lp-sweep.schema.json").read_bytes())["title"] == "SweepSpec"
    assert len(lines) <= 19
    assert yaml.safe_load("\n".join(lines))["models"] == [MODEL], "an absolute path stays one"
    task = of_task(tmp_path)
    names = column_names(str(tmp_path / task["train"]))
    sides = {side: read(tmp_path / task[side], names) for side in ("train", "dev")}
    assert sorted(sides["train"] + sides["dev"]) == sorted(read(data, names)), "no row is changed"
    assert len(sides["dev"]) == 60
    assert Counter(row[names.index("verdict")] for row in sides["dev"]) == {"good": 40, "bad": 20}
    assert "also occur in train" not in planned(tmp_path)


def test_groups_and_repeated_texts_stay_on_one_side(tmp_path: Path) -> None:
    content = rows()
    for row in content[::10]:
        row["text"] = " the same "
    write(tmp_path / "data.csv", content)
    told = init(tmp_path, *DATA, *COLUMNS, "--group", "user")
    assert "29 rows repeat the text of another (with another label: 1)" in told
    task = of_task(tmp_path)
    for name in ("user", "text"):
        train, dev = ({*read(tmp_path / task[side], [name])} for side in ("train", "dev"))
        assert not train & dev
        assert dev


def test_a_metric_that_fits_the_labels_and_empty_texts_that_are_reported(tmp_path: Path) -> None:
    content = rows()
    for row in content[:280]:
        row["verdict"] = "good"
    content[3]["text"] = content[5]["text"] = "  "
    write(tmp_path / "data.csv", content)
    told = init(tmp_path, *DATA, *COLUMNS)
    assert of_task(tmp_path)["metric"] == "macro_f1"
    assert "macro_f1" in told
    assert "column 'text' is empty in 2 of 300 rows" in told
    init(tmp_path, "two.yaml", *DATA, "--text", "text", "--label", "stars", "--force")
    task = of_task(tmp_path, "two.yaml")
    assert (task["kind"], task["metric"]) == ("regression", "pearson")


@pytest.mark.parametrize(
    "name",
    ["6e01", "no", "12:30", "a: b", "#", "a\tb", "é" * 99],
)
def test_any_name_of_a_column_a_file_or_a_label_can_be_planned(tmp_path: Path, name: str) -> None:
    content = [{name: f"t {i}", "label": [[], [name], [name, "b"]][i % 3]} for i in range(60)]
    write(tmp_path / f"{name}.jsonl", content)
    made = sweep_of(tmp_path, f"{name}.jsonl", name)
    file = load_sweep(made, [f"task={load_sweep(made).spec.name}"])
    [task] = file.spec.tasks
    assert (task.text, sorted(task.labels or ())) == ([name], sorted([name, "b"]))
    assert [task.train] == [path.name for path in tmp_path.glob("*-train.jsonl")]


def test_a_dev_set_of_your_own_is_used(tmp_path: Path) -> None:
    write(tmp_path / "data.csv", [*rows(), *rows()[:9]])
    (tmp_path / "elsewhere").mkdir()
    write(tmp_path / "elsewhere" / "held-out.csv", rows(30))
    dev = ["--dev", "elsewhere/held-out.csv", "--model", "a, b"]
    told = init(tmp_path, "elsewhere/s.yaml", *DATA, *COLUMNS, *dev)
    assert "one side" not in told, "nothing is split"
    task = of_task(tmp_path / "elsewhere", "s.yaml")
    assert (task["train"], task["dev"]) == ("../data.csv", "held-out.csv")
    assert not [*tmp_path.glob("**/*-train.csv")]
    assert load_sweep(tmp_path / "elsewhere" / "s.yaml").spec.models[0].id == "a, b"


def test_without_data_it_is_for_glue(tmp_path: Path) -> None:
    init(tmp_path)
    assert load_sweep(tmp_path / "sweep.yaml").spec.tasks[0].name == "rte"
    (tmp_path / "short").mkdir()
    config = {"model_type": "bert", "max_position_embeddings": 64}
    (tmp_path / "short" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    init(tmp_path, "short.yaml", "--model", str(tmp_path / "short"))
    assert load_sweep(tmp_path / "short.yaml").spec.recipe.max_length == 64


def test_nothing_is_overwritten_unasked(tmp_path: Path) -> None:
    write(tmp_path / "data.csv", rows())
    words = [*DATA, *COLUMNS]
    init(tmp_path, *words)
    init(tmp_path, *words)  # the same content
    (tmp_path / "data-dev.csv").write_text("mine")
    refused = init(tmp_path, *words, code=2)
    assert "data-dev.csv" in refused
    assert "--force" in refused
    assert (tmp_path / "data-dev.csv").read_text() == "mine"
    init(tmp_path, *words, "--force")
    (tmp_path / "link.yaml").symlink_to("/dev/null")
    assert "link.yaml: not a file" in init(tmp_path, *words, "link.yaml", "--force", code=2)
    assert (tmp_path / "link.yaml").is_symlink()


def test_a_file_named_as_a_glue_task_is_a_task_of_your_own(tmp_path: Path) -> None:
    write(tmp_path / "SST-2.csv", rows())
    init(tmp_path, "--data", "SST-2.csv", *COLUMNS, "--model", MODEL)
    assert of_task(tmp_path)["name"] == "my-SST-2"
    planned(tmp_path)


def test_odd_names_of_columns_are_names_and_all_columns_are_kept(tmp_path: Path) -> None:
    lines = "".join(f"{i},good film {i},{'ab'[i % 2]},,\n" for i in range(60))
    (tmp_path / "data.csv").write_text(f",What did you like?,Recommend?,,\n{lines}")
    columns = ["--text", "What did you like?", "--label", "Recommend?"]
    assert "'What did you like?', 'Recommend?'" in init(tmp_path, *DATA, code=2)
    init(tmp_path, *DATA, *columns, "--model", MODEL)
    sides = [(tmp_path / of_task(tmp_path)[side]).read_text() for side in ("train", "dev")]
    first, *made = [line for side in sides for line in side.splitlines()]
    assert sorted(made) == sorted([first, *lines.splitlines()])


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("Bob\tB-PER\nran\tO\n\nNo\tO\n", ".conll"),
        ("this film was rather good\tpos\n", "names above it"),
    ],
    ids=["entities", "text"],
)
def test_a_file_without_a_header(tmp_path: Path, content: str, named: str) -> None:
    (tmp_path / "data.tsv").write_text(content * 9)
    told = init(tmp_path, "--data", "data.tsv", code=2)
    assert named in told
    assert "Its columns are" not in told


def test_a_pattern_of_text_files(tmp_path: Path) -> None:
    for part in (1, 2):
        write(tmp_path / f"p-{part}.csv", rows(9))
    assert "Join its 2 files" in init(tmp_path, "--data", "p-*.csv", *COLUMNS, code=4)


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
@pytest.mark.parametrize(
    ("nested", "column"),
    [({"label": {"name": "a"}}, "label"), ({"label": [["a"]]}, "label"), ({"user": [0]}, "user")],
    ids=["object", "lists", "group-list"],
)
def test_values_that_are_no_names(
    tmp_path: Path, suffix: str, nested: dict[str, Any], column: str
) -> None:
    content = [{"text": f"t {i}", "label": "ab"[i % 2], "user": i} | nested for i in range(60)]
    data = tmp_path / f"rows.{suffix}"
    write(data, content)
    asked = {"text": ("text",), "label": ("label",), "group": "user", "model": MODEL}
    with pytest.raises(LpSweepError, match=f"^{data}: column '{column}' holds "):
        write_sweep(InitOptions(file=tmp_path / "sweep.yaml", data=data, **asked))


@pytest.mark.parametrize("known", [True, False], ids=["tokenizer", "no-tokenizer"])
def test_a_length_for_texts_without_blanks(tmp_path: Path, known: bool) -> None:
    """By the model's tokenizer, else as if each character were a token."""
    letters = Tokenizer(WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    letters.pre_tokenizer = Split("", "isolated")
    if known:
        (tmp_path / "model").mkdir()
        letters.save(str(tmp_path / "model" / "tokenizer.json"))
    long = 3 * "这家餐厅的服务非常好，食物也很美味，我们一定会再来的。"
    data = tmp_path / "rows.jsonl"
    write(data, [{"text": f"{long}{i}", "label": i % 2} for i in range(40)])
    options = InitOptions(data=data, text=("text",), label=("label",), model=f"{tmp_path}/model")
    length = look_at(options, data).max_length
    assert len(long) <= length <= 4 * len(long)
    assert length in LENGTHS


def test_a_length_that_the_model_takes(tmp_path: Path) -> None:
    write(tmp_path / "rows.jsonl", [{"text": f"{'word ' * i}", "label": i % 2} for i in range(300)])
    made = sweep_of(tmp_path, "rows.jsonl")
    assert load_sweep(made).spec.recipe.max_length == 64  # its positions
    assert (
        load_sweep(sweep_of(tmp_path, "rows.jsonl", model="no/such")).spec.recipe.max_length == 512
    )


def test_the_home_folder_in_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    write(tmp_path / "home" / "data.csv", rows())
    init(tmp_path, "--data=~/data.csv", *COLUMNS, "--model", MODEL)
    task = of_task(tmp_path)
    assert task["train"] == "data-train.csv"
    for side in ("train", "dev"):
        (tmp_path / task[side]).rename(tmp_path / "home" / task[side])
    sweep_file = tmp_path / "sweep.yaml"
    sweep_file.write_text(sweep_file.read_text().replace(": data-", ": ~/data-"))
    planned(tmp_path)


def test_a_long_text(tmp_path: Path) -> None:
    content = rows()
    content[0] |= {COLUMNS[1]: "word " * 40_000}
    write(tmp_path / "data.csv", content)
    init(tmp_path, *DATA, *COLUMNS, "--model", MODEL)


def test_many_classes_of_two_rows_leave_most_rows_to_train() -> None:
    strata = [f"class {i // 2}" for i in range(20_000)] + ["large"] * 200
    in_dev = split(strata, range(len(strata)))
    assert in_dev.sum() == pytest.approx(DEV_SHARE * len(strata), abs=1)
    assert len({name for name, dev in zip(strata, in_dev, strict=True) if not dev}) == len(
        {*strata}
    )


def test_rows_enough_set_some_aside(tmp_path: Path) -> None:
    """A tenth, of at least 5,000 rows; equal texts stay on one side of all three."""
    content = rows(5_000)
    made = [row | {"text": f"{row['text']} {i // 2}"} for i, row in enumerate(content)]
    for count, most in ((4_990, 0), (5_000, 500)):
        write(tmp_path / "data.csv", made[:count])
        told = init(tmp_path, *DATA, *COLUMNS, "--force")
        task = of_task(tmp_path)
        assert ("test" in task) == bool(most) == ("are set aside (`test:`)" in told)
    texts = {
        side: {row[0] for row in read(tmp_path / task[side], ["text"])}
        for side in ("train", "dev", "test")
    }
    parts = {side: len(read(tmp_path / task[side], ["text"])) for side in texts}
    assert sum(parts.values()) == 5_000
    assert parts["test"] == pytest.approx(500, abs=5)
    assert not texts["test"] & (texts["train"] | texts["dev"])


def test_all_rows_are_on_one_side() -> None:
    for count in (4_999, 5_000, 40_000):
        parts = parted(["a", "b"] * (count // 2) + ["a"] * (count % 2), range(count))
        assert sorted(np.concatenate([*parts.values()]).tolist()) == list(range(count))
        assert len(parts.get("test", ())) == {4_999: 0, 5_000: 500, 40_000: 2_000}[count]


def test_a_class_of_one_row_is_trained_on() -> None:
    in_dev = split(["rare", "a", "a", "b", "b"], range(5))
    assert in_dev.sum() > 0
    assert not in_dev[0]


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 60)), min_size=10, max_size=200),
    st.booleans(),
)
def test_split_rule(drawn: list[tuple[str, int]], alone: bool) -> None:
    """No group is cut, and each class gives its share of single rows."""
    strata = [stratum for stratum, _ in drawn]
    groups = [*range(len(drawn))] if alone else [group for _, group in drawn]
    in_dev = split(strata, groups)
    assert (in_dev == split(strata, groups)).all()
    by_group: dict[int, set[bool]] = {}
    for group, side in zip(groups, in_dev.tolist(), strict=True):
        by_group.setdefault(group, set()).add(side)
    assert all(len(sides) == 1 for sides in by_group.values())
    for stratum, count in Counter(strata).items() if alone else ():
        found = int(np.sum(in_dev & (np.array(strata) == stratum)))
        assert abs(found - DEV_SHARE * count) <= 1


@pytest.mark.parametrize(
    ("width", "precision"), [(64, None), (384, "auto"), ("wide", "auto"), (None, "auto")]
)
def test_narrow_networks_train_in_fp32(
    tmp_path: Path, width: int | str | None, precision: str | None
) -> None:
    write(tmp_path / "data.csv", rows())
    (tmp_path / "own").mkdir()
    config = json.dumps({"model_type": "bert", "hidden_size": width})
    (tmp_path / "own" / "config.json").write_text(config, encoding="utf-8")
    init(tmp_path, *DATA, *COLUMNS, "--model", str(tmp_path / "own"))
    content = yaml.safe_load((tmp_path / "sweep.yaml").read_text(encoding="utf-8"))
    assert content["recipe"].get("precision") == precision


def test_large_groups_are_no_likelier_in_dev() -> None:
    groups = [*np.repeat(np.arange(100), 20).tolist(), *range(100, 2_100)]  # half in groups of 20
    in_dev = split(["a"] * len(groups), groups)
    assert in_dev.mean() == pytest.approx(DEV_SHARE, abs=0.05)
    assert in_dev[:2_000].mean() == pytest.approx(DEV_SHARE, abs=0.08)


def test_pairs_of_a_bi_encoder(tmp_path: Path) -> None:
    """Each text is a row of tokens, and the file runs without labels in train."""
    pairs = [{**row, "other": f"w{i} " * 30, "text": "a b"} for i, row in enumerate(rows())]
    write(tmp_path / "data.csv", pairs)
    texts = ["--kind", "embedding", "--text", "text"]
    init(tmp_path, *DATA, *texts, "--text", "other", "--label", "stars")
    content = yaml.safe_load((tmp_path / "sweep.yaml").read_text(encoding="utf-8"))
    assert content["models"] == ["sentence-transformers/all-MiniLM-L6-v2"]
    assert content["procedures"] == ["untrained", "direct"]
    assert content["bridge"] == ["none", "linear"]
    assert content["exclude"] == [{"procedure": "direct"}], "training starts from the bridge"
    assert [entry["name"] for entry in content["strategies"]] == ["block-influence", "greedy"]
    assert content["recipe"]["max_length"] == 64
    task = of_task(tmp_path)
    assert (task["kind"], task["metric"]) == ("embedding", "spearman")
    assert task["text"] == ["text", "other"]
    planned(tmp_path, f"model={MODEL}")


@pytest.mark.parametrize(
    ("scores", "words", "kind"),
    [
        ([0.0, 0.25, 3.5], "", "embedding"),
        ([0, 1], "", "classification"),
        ([0.0, 0.25, 3.5], "--kind regression", "regression"),
    ],
)
def test_pairs_for_a_model_that_makes_vectors(
    tmp_path: Path, scores: list[Any], words: str, kind: str
) -> None:
    shutil.copytree(MODEL, tmp_path / "model")
    parts = [("0", "", "Transformer"), ("1", "1_Pooling", "Pooling")]
    modules = [{"idx": i, "path": path, "type": f"st.models.{name}"} for i, path, name in parts]
    (tmp_path / "model" / "modules.json").write_text(json.dumps(modules))
    pairs = [{"a": f"a {i}", "b": f"b {i}", "y": scores[i % len(scores)]} for i in range(60)]
    write(tmp_path / "data.csv", pairs)
    columns = ["--text", "a", "--text", "b", "--label", "y", "--model", "model"]
    told = init(tmp_path, *DATA, *columns, *words.split())
    assert of_task(tmp_path).get("kind", "classification") == kind
    assert ("--kind" in told) == (kind == "embedding")


def test_a_collection_to_search(tmp_path: Path) -> None:
    tables = collection()
    tables["queries"]["_id"].append("lonely")
    tables["queries"]["text"].append("w1")
    files = write_parts(tmp_path, tables)
    words = [word for part, path in files.items() for word in (f"--{part}", path)]
    told = init(tmp_path, *words)
    for noun in ("40 documents, 9 queries, 18 judgements", "1 queries have no relevant"):
        assert noun in told
    task = of_task(tmp_path)
    assert (task["kind"], task["unjudged"], task["qrels"]) == ("embedding", "skip", "qrels.parquet")
    load_sweep(tmp_path / "sweep.yaml")
    for wrong, named in (
        (words[:4], "--qrels"),
        ([*words, "--kind", "classification"], "--kind classification"),
        ([*words, "--data", "rows.csv"], "--data and --corpus"),
    ):
        assert named in init(tmp_path, *wrong, "--force", code=2)


def test_several_labels(tmp_path: Path) -> None:
    """From a column of lists, and from several columns. Empty lists are counted and allowed."""
    sets = [["good"], ["good", "rare"], [], ["bad", "good"]]
    content = [{**row, "labels": sets[i % 4]} for i, row in enumerate(rows())]
    write(tmp_path / "lists.jsonl", content)
    columns = ["--text", "text", "--label", "labels", "--kind", "multi_label", "--model", MODEL]
    told = init(tmp_path, "--data", "lists.jsonl", *columns)
    assert "75 rows have no label" in told
    assert "3 labels: 'good' 75%" in told
    task = of_task(tmp_path)
    assert (task["kind"], task["metric"]) == ("multi_label", "micro_f1")
    assert task["tune_thresholds"], "at 0.5 a rare label is never given"
    assert (task["label"], task["labels"]) == ("labels", ["bad", "good", "rare"])
    dev = [json.loads(line) for line in (tmp_path / "lists-dev.jsonl").read_text().splitlines()]
    assert Counter(map(str, (row["labels"] for row in dev))) == dict.fromkeys(map(str, sets), 15)
    assert "3 labels: 'good' 75%, 'bad' 25%, 'rare' 25%" in planned(tmp_path)

    marks = [{"text": row["text"], "good": i % 2, "bad": int(i % 3 == 0)} for i, row in
             enumerate(content)]  # fmt: skip
    write(tmp_path / "data.csv", marks)
    init(tmp_path, "two.yaml", *DATA, "--text", "text", "--label", "good", "--label", "bad")
    task = of_task(tmp_path, "two.yaml")
    assert (task["kind"], task["label"]) == ("multi_label", ["good", "bad"])
    assert "labels" not in task


def test_tags_of_words(tmp_path: Path) -> None:
    """Entities by BIO are scored as such; other tags by accuracy."""
    lines = ["Ann\tB-x\nLee\tI-x\n\n", "no\tO\n\n", "w{0}\tO\nw{0}\tO\n\n"]
    people = "".join(lines[i % 3].format(i) for i in range(60))
    (tmp_path / "people.conll").write_text(people)
    columns = ["--text", "tokens", "--label", "tags", "--model", MODEL]
    told = init(tmp_path, "--data", "people.conll", *columns, "--kind", "tokens")
    assert "60 rows, 3 tags: 'O' 60%, 'B-x' 20%, 'I-x' 20%" in told
    task = of_task(tmp_path)
    assert (task["kind"], task["metric"]) == ("tokens", "entity_f1")
    train, dev = (
        read_file(str(tmp_path / task[side]), ["tokens", "tags"]).to_pylist()
        for side in ("train", "dev")
    )
    assert len(dev) + len(train) == 60
    assert {"tokens": ["Ann", "Lee"], "tags": ["B-x", "I-x"]} in [*dev, *train]
    assert "words in train" in planned(tmp_path)

    content = [{"tokens": ["a", f"b{i}"], "tags": ["DET", "NOUN"]} for i in range(30)]
    write(tmp_path / "parts.jsonl", content)
    assert "accuracy" in init(tmp_path, "two.yaml", "--data", "parts.jsonl", *columns)
    task = of_task(tmp_path, "two.yaml")
    assert (task["kind"], task["metric"]) == ("tokens", "accuracy")


@pytest.mark.parametrize("group", [[], ["--group", "n"]], ids=["by text", "by number"])
def test_candidates_of_a_query_are_on_one_side(tmp_path: Path, group: list[str]) -> None:
    content = [
        {"q": f"text {i // 5}", "n": i // 5, "p": f"passage {i}", "r": int(i % 5 == 1)}
        for i in range(200)
    ]
    write(tmp_path / "data.csv", content)
    columns = ["--kind", "ranking", "--text", "q", "--text", "p", "--label", "r"]
    init(tmp_path, *DATA, *columns, *group, "--model", MODEL)
    task = of_task(tmp_path)
    assert (task["kind"], task["metric"], task["text"]) == ("ranking", "ndcg@10", ["q", "p"])
    assert task.get("group") == ("n" if group else None)
    train, dev = ({*read(tmp_path / task[side], ["q"])} for side in ("train", "dev"))
    assert (len(train), len(dev), train & dev) == (32, 8, set())
    assert "   # 8 queries" in (tmp_path / "sweep.yaml").read_text(encoding="utf-8")
    shown = planned(tmp_path)
    assert "160 train rows, 8 dev queries" in shown
    assert "a random order scores" in shown


def test_odd_cells(tmp_path: Path) -> None:
    """Several labels in a cell between semicolons, an empty one, and rows without a text."""
    cells = ["late,broken", "late", "broken", ""]
    lines = [f"text {i};{cells[i % 4]};{i}" for i in range(80)] + [";late;80", ";;81"]
    (tmp_path / "data.csv").write_text("\n".join(["text;labels;id", *lines]))
    columns = ["--text", "text", "--label", "labels", "--model", MODEL, "--drop-missing"]
    told = init(tmp_path, *DATA, *columns)
    assert "--kind classification" in told, "the way to read a cell as one class"
    assert "80 rows" in told
    task = of_task(tmp_path)
    assert (task["kind"], task["label_separator"]) == ("multi_label", ",")
    assert task["labels"] == ["broken", "late"]
    sides = [read(tmp_path / task[side], ["text", "labels", "id"]) for side in ("train", "dev")]
    made = [row for side in sides for row in side]
    assert sorted(made) == sorted(tuple(line.split(";")) for line in lines[:80])
    assert "2 labels: " in planned(tmp_path)

    one = [*DATA, *columns, "--kind", "classification"]
    assert "60 rows" in init(tmp_path, "one.yaml", *one, "--force")
    assert "label_separator" not in of_task(tmp_path, "one.yaml")
    (tmp_path / "data.csv").write_text("\n".join(["text;labels;id", *lines[:80:2]]))  # none alone
    told = init(tmp_path, "two.yaml", *DATA, *columns, "--force")
    assert "--label-separator ','" in told, "the way to read a class as several labels"


def test_the_loss_that_the_dev_rows_can_show(tmp_path: Path) -> None:
    write(tmp_path / "data.csv", rows())
    told = init(tmp_path, *DATA, *COLUMNS)
    assert "60 dev rows can't tell" in told
    asked = "--within 30"
    assert "dev rows can't tell" not in init(tmp_path, *DATA, *COLUMNS, *asked.split(), "--force")
    file = load_sweep(tmp_path / "sweep.yaml")
    assert all(entry.within == [30] for entry in file.spec.strategies)
    assert file.spec.recipe.epochs == 20, "few rows: 1,000 steps, or 20 epochs"
