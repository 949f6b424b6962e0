"""Before anything starts: inputs, and space on disks."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from lp_sweep.orchestrator.inputs import checks
from lp_sweep.orchestrator.inputs.checks import check_small_files
from lp_sweep.orchestrator.inputs.prefetch import prefetch
from lp_sweep.orchestrator.inputs.resolve import resolve
from lp_sweep.orchestrator.plan.known import WorkHistory
from lp_sweep.orchestrator.plan.plan import Plan
from lp_sweep.orchestrator.plan.planning import make_plan
from lp_sweep.orchestrator.sweepfile.load import load_sweep
from lp_sweep.storage.errors import MissingInputError, PreflightError
from lp_sweep.storage.store import Store
from lp_sweep.trials.worker.inputs import load_inputs
from lp_sweep.trials.worker.job import Job
from tests.support.program import sweep
from tests.support.toyworld import WORDS, jobs, save_model, save_world, sweep_content


@pytest.fixture
def world(tmp_path: Path) -> Path:
    save_world(tmp_path)
    return tmp_path


def planned(folder: Path, *overrides: str, known: WorkHistory | None = None) -> Plan:
    sweep = resolve(load_sweep(folder / "sweep.yaml", overrides), offline=True)
    return make_plan(sweep, known or WorkHistory.nothing())


def check(folder: Path, plan: Plan | None = None, store: str = "store") -> list[str]:
    made = plan or planned(folder)
    notes, _ = checks.check(
        made.sweep, made.inputs_needed(), str(folder / store), folder / "cache", offline=True
    )
    return notes


def problems(folder: Path, plan: Plan | None = None, store: str = "store") -> list[str]:
    with pytest.raises(PreflightError) as caught:
        check(folder, plan, store)
    return str(caught.value).splitlines()


# -- it passes, and leaves nothing behind


def test_a_sweep_that_can_start(world: Path) -> None:
    before = sorted(world.rglob("*"))
    check(world, store="a/b/the 'store'")
    assert sorted(world.rglob("*")) == before
    Store(world / "store", create=True).put_text("sweeps", "toy.yaml", "x")
    before = [path for path in sorted(world.rglob("*")) if path.is_file()]
    check(world)
    assert [path for path in sorted(world.rglob("*")) if path.is_file()] == before
    (world / "empty").mkdir()
    check(world, store="empty")
    assert (world / "empty").is_dir()


def test_a_finished_sweep_needs_nothing(world: Path) -> None:
    """Not even its model: it may have been taken away since."""
    plan = planned(world)
    done = planned(world, known=WorkHistory(frozenset(plan.trials), {}, {}))
    (world / "model" / "model.safetensors").unlink()
    with_rows(world, "bad,\n")
    check(world, done)
    assert check_small_files(done.sweep, done.inputs_needed()) == ([], [])
    assert problems(world, plan)


# -- inputs


def test_everything_that_is_wrong_is_one_message(world: Path) -> None:
    plan = planned(world)
    (world / "model" / "tokenizer.json").unlink()
    weights = world / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    (world / "dev.csv").write_text("text,label\n")
    for name in ("store", "cache"):  # root may write where nobody else may, but not below a file
        (world / name).write_text("")
    told = problems(world, plan)
    assert "model.safetensors is not a whole" in told[0]
    assert "no tokenizer vocabulary" in told[0]
    assert "has no rows" in told[1]
    for name, said in zip(("cache", "store"), told[2:], strict=True):
        assert said.startswith(f"can't write to {world / name}: {world / name} is no folder")
        assert "--cache-dir" in said
    assert (world / "store").is_file()


def test_a_plan_names_a_model_that_can_not_be_loaded(world: Path) -> None:
    plan = planned(world)
    for name in ("model.safetensors", "tokenizer.json"):
        path = world / "model" / name
        path.write_bytes(path.read_bytes()[:-9])
        with pytest.raises(PreflightError, match=f"./model.*{name} is not"):
            check_small_files(plan.sweep, plan.inputs_needed())


def tokenizer_edited(file: str, change: Any) -> Any:
    def harm(model: Path) -> None:
        told = json.loads((model / file).read_text())
        change(told)
        (model / file).write_text(json.dumps(told))

    return harm


def with_added(content: str) -> Any:
    """As `tokenizer.add_tokens` without `resize_token_embeddings` leaves it."""
    flags = dict.fromkeys(("special", "single_word", "lstrip", "rstrip", "normalized"), False)
    added = {"id": 28, "content": content, **flags}
    return tokenizer_edited("tokenizer.json", lambda told: told["added_tokens"].append(added))


def types_of_one_text(model: Path) -> None:
    save_model(model, type_vocab_size=1)


def words_in_a_list(model: Path) -> None:
    """A folder of earlier days: a vocabulary, and no tokenizer.json."""
    types_of_one_text(model)
    letters = [f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"]
    (model / "vocab.txt").write_text("\n".join([*WORDS[:4], *letters, "good"]))
    (model / "tokenizer.json").unlink()
    (model / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')


BEYOND = [
    (
        tokenizer_edited("tokenizer.json", lambda told: told["model"]["vocab"].update(good=40)),
        "'good' the number 40, and its embedding has 28 rows.*resize_token_embeddings",
    ),
    (with_added("oo"), "'oo' the number 28, and its embedding has 28 rows"),
    (
        tokenizer_edited("tokenizer_config.json", lambda told: told.update(pad_token="<fill>")),
        "'<fill>' the number 28, and its embedding has 28 rows",
    ),
    (words_in_a_list, "'good' the number 30, and its embedding has 28 rows"),
    (types_of_one_text, "token type 1, and its table has 1 .*model_input_names"),
    (
        tokenizer_edited("tokenizer_config.json", lambda told: told.pop("pad_token")),
        "no padding token.*pad_token",
    ),
]


@pytest.mark.parametrize(("harm", "message"), BEYOND)
def test_rows_that_are_beyond_the_tables_of_a_model(
    tmp_path: Path, harm: Any, message: str
) -> None:
    task = {"name": "mood", "train": "train.csv", "dev": "dev.csv", "text": ["text", "more"]}
    save_world(tmp_path, tasks=[task])
    for name in ("train", "dev"):
        rows = (tmp_path / f"{name}.csv").read_text().splitlines()
        texts = ["more,text,label", *(f"good w1,{row}" for row in rows[1:])]
        (tmp_path / f"{name}.csv").write_text("\n".join(texts))
    harm(tmp_path / "model")
    plan = planned(tmp_path)
    with pytest.raises(PreflightError, match=f"./model.*mood.*{message}"):
        check_small_files(plan.sweep, plan.inputs_needed())
    (told,) = problems(tmp_path, plan)
    assert re.search(message, told)
    job = Job.from_plain(jobs(tmp_path / "sweep.yaml")[0])
    with pytest.raises(MissingInputError, match=message):
        load_inputs(job, job.trial, None, 1)


@pytest.mark.parametrize(
    "harm",
    [
        with_added("<url>"),
        tokenizer_edited("tokenizer.json", lambda told: told["model"]["vocab"].update(unused=40)),
        types_of_one_text,
    ],
)
def test_tokens_that_no_row_has_stop_nothing(world: Path, harm: Any) -> None:
    harm(world / "model")
    check(world)
    plan = planned(world)
    assert check_small_files(plan.sweep, plan.inputs_needed())[0] == []


def test_a_local_input_that_is_not_what_the_manifest_says(world: Path) -> None:
    """A folder that was copied badly; online that is no matter, offline nothing can fix it."""
    written = prefetch(load_sweep(world / "sweep.yaml"))
    assert written.manifest.local.keys() == {"./model", "task mood"}
    with_more(world, "text\nfine\n")
    more = "unlabelled texts of task mood"
    assert prefetch(load_sweep(world / "sweep.yaml")).manifest.local.keys() >= {more}
    check(world)
    (world / "more.csv").write_text("text\npoor\n")
    config = world / "model" / "config.json"
    config.write_text(config.read_text() + " ")
    (world / "train.csv").write_text((world / "train.csv").read_text() + "good w1,pos\n")
    told = problems(world, planned(world))
    assert [line.split(":")[0] for line in told] == ["./model", "task mood", more]


def test_offline_is_of_this_process_and_its_children(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets.config
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "0")
    check(world)
    assert constants.is_offline_mode()
    assert datasets.config.HF_HUB_OFFLINE
    assert os.environ["HF_HUB_OFFLINE"] == "1"


# -- the disks


def test_a_disk_without_space(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(free: int) -> list[str]:
        monkeypatch.setattr(checks.shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
        return list(checks.problems_here(str(world / "store"), world / "cache", 2**30))

    assert found(2**40) == []
    told = found(2**20)
    assert all(re.match("only 1 MiB are free for .*, and about .*--cache-dir", at) for at in told)
    assert ["1,224 MiB" in at for at in told] == [False, False, False, True]  # downloads


# -- a plan also reads small files


def with_rows(folder: Path, rows: str, name: str = "train.csv") -> None:
    (folder / name).write_text(f"text,label\n{rows}", encoding="utf-8")


def with_more(folder: Path, rows: str) -> None:
    """A sweep with students, and texts without labels for them."""
    content = sweep_content(distill=["none", "logits"])
    content["tasks"][0]["unlabelled"] = "more.csv"
    (folder / "sweep.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    (folder / "more.csv").write_text(rows, encoding="utf-8")


def test_a_plan_says_of_the_rows_what_a_run_would(world: Path) -> None:
    with_rows(world, "good,pos\nbad,\nfine,neg\npoor,\n")
    [said] = problems(world)
    assert "column 'label' is empty in 2 of 4 rows, first in row 2" in said
    told = sweep("plan", "sweep.yaml", cwd=world)
    assert (told.returncode, told.stdout) == (4, "")
    assert said in told.stderr


def test_empty_texts_and_rows_of_both_sets_are_noted(world: Path) -> None:
    with_rows(world, "good,pos\n,neg\n  ,neg\nfine,pos\n")
    note = f"{world / 'train.csv'}: column 'text' is empty in 2 of 4 rows, first in row 2"
    notes = check(world)
    assert notes == [note]
    told = sweep("plan", "sweep.yaml", "--json", cwd=world)
    assert (told.returncode, told.stderr) == (0, "")
    assert note in json.loads(told.stdout)["notes"]

    with_rows(world, "good,pos\nwell,pos\nbad,neg\n fine ,neg\n")
    (world / "dev.csv").write_text("text,label\nfine,pos\nbad ,neg\npoor,neg\nwell done,pos\n")
    said = "'mood': 2 of 4 dev rows also occur in train, 1 of them with another label"
    notes = check(world)
    assert [note for note in notes if said in note] == notes
    assert said in sweep("plan", "sweep.yaml", cwd=world).stdout


def test_rows_that_are_set_aside_are_checked_as_dev_rows_are(world: Path) -> None:
    file = world / "sweep.yaml"
    file.write_text(file.read_text().replace("dev: dev.csv", "dev: dev.csv\n  test: test.csv"))
    with_rows(world, "good,pos\nbad,neg\nfine,pos\n")
    with_rows(world, "poor w1,neg\nwell,pos\n", "dev.csv")
    with_rows(world, "w1 w2,neg\nw3 w4,pos\n", "test.csv")
    assert not [note for note in check(world) if "test rows" in note]
    with_rows(world, "w1 w2,neg\n poor w1,neg\nfine,neg\nbad,neg\n", "test.csv")
    found = re.findall(r"(\d) of 4 test rows also occur in (\w+)", "\n".join(check(world)))
    assert found == [("2", "train"), ("1", "dev")]
    with_rows(world, "w1 w2,neither\n", "test.csv")
    told = sweep("plan", "sweep.yaml", cwd=world)
    assert told.returncode == 4
    assert re.search("test.csv.*'neither'", told.stderr)


def test_texts_for_students_are_looked_at(world: Path) -> None:
    """How many they are, how many of the dev set; without students nobody reads them."""
    with_more(world, "text\nfine\n good w1 \nbad w2\n")
    with_rows(world, "bad w2,neg\ngood w1,pos\n", "dev.csv")
    note = "'mood': 2 of 3 unlabelled texts are also dev texts"
    assert [line for line in check(world) if note in line and "more.csv" in line]
    told = sweep("plan", "sweep.yaml", cwd=world).stdout
    assert note in told
    assert "3 unlabelled texts" in told
    with_more(world, "texts\nfine\n")
    told = sweep("plan", "sweep.yaml", cwd=world)
    assert (told.returncode, told.stdout) == (4, "")
    assert "no column 'text'" in told.stderr
    told = sweep("plan", "sweep.yaml", "distill=none", cwd=world)
    assert told.returncode == 0
    assert "unlabelled texts" not in told.stdout
    assert "`unlabelled:` of task 'mood' is not read" in told.stdout


def test_a_plan_looks_at_the_first_rows_of_large_files(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first rows refuse nothing: the run reads all."""
    monkeypatch.setattr(checks, "_WHILE_ONE_WAITS", 50)
    monkeypatch.setattr(checks, "_FIRST_ROWS", 2)
    with_rows(world, "good,pos\nbad,neg\nworse,\n")
    with_more(world, "text\nfine\npoor\nlast\n")
    made = planned(world)
    notes, [data] = check_small_files(made.sweep, made.inputs_needed())
    assert (notes, data.looked_at, sum(data.classes.values())) == ([], 2, 2)
    said = "\n".join(data.lines())
    assert "more than 2 train rows" in said
    assert "more than 2 unlabelled texts" in said
    assert "looked at the first 2 train rows" in said
    with_rows(world, "good,pos\nbetter,pos\nworse,neg\n")
    made = planned(world)
    [note], data = check_small_files(made.sweep, made.inputs_needed())
    assert "first 2 train rows of mood alone can't be judged: " in note
    assert data == []


def test_a_plan_tells_that_this_machine_has_no_gpu(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = "resources_per_trial.gpu=1"
    monkeypatch.setattr(checks, "_DEVICE_FILES", ("lp-sweep-none",))
    told = sweep("plan", "sweep.yaml", asked, cwd=world).stdout
    assert re.search("note: resources_per_trial .* 1 GPU .* this machine has none", told)
    assert "GPU" not in sweep("plan", "sweep.yaml", cwd=world).stdout
    monkeypatch.setattr(checks, "_DEVICE_FILES", ("null",))
    assert "GPU" not in sweep("plan", "sweep.yaml", asked, cwd=world).stdout
