"""The sweep file: what it may say, and one good message for everything that it may not."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from lp_sweep.orchestrator.plan.cells import asked_cells
from lp_sweep.orchestrator.sweepfile.load import load_sweep
from lp_sweep.orchestrator.sweepfile.spec import SweepSpec
from lp_sweep.orchestrator.sweepfile.yamlfile import parse_value, parse_yaml, read_yaml
from lp_sweep.storage.errors import LpSweepError, PreflightError, SpecError
from tests.support.sweepfiles import DEMO, PLAIN, find, make_inputs, make_model, planned

# what PLAIN says at the lines that the mistakes are made at
MODEL, TASKS, SEEDS = "  - ./folder/of/a/model", "tasks: [rte, mrpc]", "seeds: [42, 43]"  # 4, 5, 6
TOP = "{name: top, k: [0, 2]}"  # 8
LAST = f"  - {TOP}\n"  # what is added after it is line 9
OWN = "name: x, train: a.csv, dev: b.csv"


def cells(file: Path, *overrides: str) -> list[Any]:
    return asked_cells(find(file, overrides))


def mistake(file: Path, *overrides: str) -> str:
    with pytest.raises(LpSweepError) as caught:
        planned(file, *overrides)
    assert type(caught.value) in (SpecError, PreflightError)
    return str(caught.value)


# -- YAML


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2e-5", 2e-5),
        ("1e5", 1e5),
        ("-0.25", -0.25),
        ("1_000", 1000),
        ("3", 3),
        ("0x1f", 31),
        ("042", "042"),
        ("1:30", "1:30"),
        ("2e", "2e"),
        ("2024-01-01", "2024-01-01"),
        ("true", True),
        ("~", None),
        ("'3'", "3"),
    ],
)
def test_scalars(text: str, value: object) -> None:
    parsed = parse_yaml(f"a: {text}\n", "f").content["a"]
    assert parsed == parse_value(text, "f") == value
    assert type(parsed) is type(value)


def test_every_value_knows_its_line() -> None:
    document = parse_yaml("# comment\na: 1\nb:\n  - x: 2\n    y: 3\n  -\n    z\n", "s.yaml")
    assert document.content == {"a": 1, "b": [{"x": 2, "y": 3}, "z"]}
    lines = {("a",): 2, ("b",): 3, ("b", 0): 4, ("b", 0, "y"): 5, ("b", 1): 7}
    assert {at: document.where(at) for at in lines} == {
        at: f"s.yaml:{line}" for at, line in lines.items()
    }
    assert document.where(("b", 0, "missing")) == "s.yaml:4"
    assert document.where(("missing",)) == "s.yaml:2"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("a: [1\nb: 2\n", r"s\.yaml:2: not valid YAML: ", id="unclosed"),
        pytest.param("a: 1\n\tb: 2\n", r"s\.yaml:2: not valid YAML: a tab\. .*spaces", id="tab"),
        pytest.param('a: "1\nb: 2\nc: 3\n', r"s\.yaml:1: not valid YAML: a quote", id="quote"),
        pytest.param("a: 1\n---\nb: 2\n", r"s\.yaml:2: not valid YAML: .*document", id="two"),
        pytest.param("a: 1\nb: '\x01'\n", r"s\.yaml:2: not valid YAML: .*#x0001", id="control"),
        pytest.param("a: 1\nb: 2\na: 3\n", r"s\.yaml:3: the key 'a' is listed twice", id="twice"),
        pytest.param("", r"s\.yaml:1: a sweep file is a mapping", id="empty"),
        pytest.param("- a\n", r"s\.yaml:1: a sweep file is a mapping", id="list"),
        pytest.param("a: 1\nb: !x y\n", r"s\.yaml:2: '!x' is not known here", id="tag"),
        pytest.param("a: !!python/name:os.system ''\n", r"s\.yaml:1: .*python", id="python-tag"),
        pytest.param("a: 1\nb: {<<: {c: 1}}\n", r"s\.yaml:2: .*not known here", id="merge"),
        pytest.param("a: 1\nb: !!int x\n", r"s\.yaml:2: .*int", id="not-an-int"),
        pytest.param("a: 1\nb: &x [*x]\n", r"s\.yaml:2: .*may not hold itself", id="recursive"),
    ],
)
def test_bad_yaml_names_the_line(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse_yaml(text, "s.yaml")


@pytest.mark.parametrize(
    "value", ["!!python/object/apply:os.system [ls]", "!!omap [a: 1]", "!x {}"]
)
def test_a_tag_is_refused_and_calls_nothing(value: str) -> None:
    with pytest.raises(SpecError, match=r"s\.yaml:1: .*is not known here"):
        parse_yaml(f"a: {value}\n", "s.yaml")


def test_aliases_are_copies() -> None:
    assert parse_yaml("a: &x [1]\nb: *x\n", "f").content == {"a": [1], "b": [1]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(None, r"no sweep file at .*sweep\.yaml.*lp-sweep init", id="missing"),
        pytest.param(
            b"a: 1\nb: \xff\xfe", r"sweep\.yaml:2: can't read it.*as UTF-8", id="not-utf-8"
        ),
    ],
)
def test_unreadable_file(tmp_path: Path, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / "sweep.yaml").write_bytes(content)
    with pytest.raises(SpecError, match=message):
        read_yaml(tmp_path / "sweep.yaml")


def test_a_folder_is_no_sweep_file(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="can't read"):
        read_yaml(tmp_path)


def test_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_bytes(b"\xef\xbb\xbfname: x\n")
    assert read_yaml(tmp_path / "sweep.yaml").content == {"name": "x"}


# -- a file like that of docs/sweep-file.md


def test_demo_works_as_it_stands(tmp_path: Path) -> None:
    file = make_inputs(tmp_path, DEMO)
    asked = cells(file)
    by_model = {
        model: [cell for cell in asked if cell.model == model]
        for model in ("bert-base-cased", "distilbert-base-cased", "./folder/of/a/model")
    }
    assert sum(map(len, by_model.values())) == len(asked) == (7 + 6 + 7) * 2 * 2
    for model, own in by_model.items():
        k = [1, 2, 3] if model == "distilbert-base-cased" else [0, 2, 4, 6]
        one = [cell for cell in own if (cell.task, cell.seed) == ("rte", 42)]
        assert [cell.k for cell in one if cell.strategy == "top"] == k
        assert [c.threshold for c in one if c.strategy == "contribution"] == [0.95, 0.925, 0.9]
        assert {(cell.task, cell.seed) for cell in own} == {
            (task, seed) for task in ("rte", "mrpc") for seed in (42, 43)
        }
    plan = planned(file)
    assert plan.totals()["cells_deferred"] == 3 * 3 * 4
    assert plan.totals()["profiles"] == 3 * 2
    assert len(plan.trials) == (4 + 3 + 4) * 4
    assert plan.sweep.recipe.learning_rate == 2e-5
    assert {model.depth for model in plan.sweep.models} == {12, 6}


# -- mistakes

MISTAKES = [
    # unknown keys, at each level
    (SEEDS, "sedes: [1]", 6, "unknown key 'sedes'.*Allowed: .*Did you mean 'seeds'", "top-level"),
    (TOP, "{name: top, kk: [1]}", 8, "'kk' in strategies.0. Allowed: name, k,", "strategy-key"),
    (LAST, LAST + "recipe: {epoch: 3}\n", 9, "'epoch' in recipe.*mean 'epochs'", "recipe-key"),
    (LAST, LAST + "include: [{tsk: a}]\n", 9, "'tsk' in include.0.*mean 'task'", "include-key"),
    (
        LAST,
        LAST + "resources_per_trial: {gpu: 0.5}\ntrials_per_gpu: 2\n",
        10,
        "trials_per_gpu is 2 and resources_per_trial.gpu 0.5: .*Keep one",
        "two-shares",
    ),
    (
        LAST,
        LAST + "resources_per_trial: {gpu: 0, accelerator_type: A10G}\n",
        9,
        "accelerator_type is a kind of GPU, and gpu is 0. Keep one",
        "kind-without-gpu",
    ),
    # wrong types
    (f"models:\n{MODEL}", "models: 3", 3, "models must be a mapping of id, .*got 3", "models"),
    (LAST, LAST + "recipe: 3\n", 9, "recipe must be a mapping of learning_rate, ", "recipe"),
    (LAST, LAST + "recipe: {lr: fast}\n", 9, "recipe.lr must be a number, got 'fast'", "lr-text"),
    (LAST, LAST + "recipe: {lr: .inf}\n", 9, "recipe.lr must be a finite number", "lr-infinite"),
    (LAST, LAST + "recipe: {epochs: 1.5}\n", 9, "must be a whole number, got 1.5", "epochs"),
    (LAST, LAST + "recipe: {schedule: linaer}\n", 9, "'linear' or 'constant'.*n 'linear'", "enum"),
    (LAST, LAST + "recipe: {lr: 1e-5, learning_rate: 1e-5}\n", 9, "are one key", "lr-twice"),
    (TOP, "{name: top, k: [0, two]}", 8, "k: 'two' is not a whole number", "k-text"),
    (TOP, "{name: top, k: al}", 8, "must be 'all' or a list of whole numbers.*'all'", "k-word"),
    (SEEDS, "seeds: many", 6, "seeds must be a whole number, got 'many'", "seeds-text"),
    (SEEDS, "seeds: {from: a, to: 3}", 6, "a range of seeds is", "seeds-from-text"),
    (SEEDS, "seeds: 5-3", 6, "from 5 to 3 are not", "seeds-backwards"),
    (SEEDS, "seeds: 0-20000", 6, "are not 1 to 10000", "seeds-too-many"),
    ("name: plain", "name: a b", 2, "name 'a b': a text of letters", "name"),
    ("name: plain", "name: 2024", 2, "name 2024: .*Quote a number", "name-number"),
    ("name: plain", "name: ../up", 2, "name '../up': a text of letters", "name-path"),
    # names
    (MODEL, "  - bert-base-casd", 4, "unknown model 'bert-base-casd'.*n 'bert-base-cased'", "mod"),
    (MODEL, "  - ./folder/of/a/modl", 4, "no model folder at .*Did you mean 'model'", "folder"),
    (MODEL, "  - ./folder/of", 4, "has no readable config.json", "folder-without-config"),
    (MODEL, f"  - {'x' * 300}", 4, "is neither a name nor a folder", "model-too-long"),
    (TASKS, "tasks: [rtee]", 5, "unknown task 'rtee'.*Choose one of: sst2.*mean 'rte'", "task"),
    (TOP, "{name: botom, k: [0]}", 8, "unknown strategy 'botom'.*mean 'bottom'", "strategy"),
    (TASKS, f"{TASKS}\nprocedures: dirct", 6, "unknown procedure.*mean 'direct'", "procedure"),
    (TASKS, f"tasks: [{{{OWN}, text: t, metric: acuracy}}]", 5, "mean 'accuracy'", "metric"),
    (TASKS, "tasks: [{name: rte, metric: f1}]", 5, "is GLUE's, its metric can't be set", "glue"),
    (TASKS, f"tasks: [{{{OWN}}}]", 5, "needs `text:`", "no-text"),
    (TASKS, f"tasks: [{{{OWN}, text: [a, b, c]}}]", 5, "needs `text:`", "three-texts"),
    (TASKS, "tasks: [{name: x, train: a.csv, text: t}]", 5, "needs `train:` and `dev:`", "no-dev"),
    (TASKS, f"tasks: [{{{OWN}, text: t}}]", 5, "a.csv: no such file", "no-file"),
    (TASKS, "tasks: [cola]", 5, "no file .*cola/train.parquet", "no-data"),
    (LAST, LAST + "contribution: {measured_on: rt}\n", 9, "own, rte, mrpc.*mean 'rte'", "on"),
    (LAST, LAST + "include: [{strategy: top, k: 1, task: cola}]\n", 9, "rte, mrpc", "include-task"),
    (LAST, LAST + "include: [{strategy: top, k: 1, model: m}]\n", 9, "unknown model", "include-m"),
    # impossible K and thresholds
    ("[0, 2]", "[12]", 8, "top can't drop K=12 of the 12.*0 <= K < depth.*Possible K: 0, 1", "K=L"),
    (TOP, "{name: symmetric, k: [3]}", 8, "depth - K is even.*: 0, 2, 4, 6, 8, 10", "parity"),
    (TOP, "{name: even-alternate, k: [7]}", 8, "2 K <= depth.*0, 1, 2, 3, 4, 5, 6", "2K>L"),
    (MODEL, "  - {id: ./folder/of/a/model, k: [0, 12]}", 4, "can't drop K=12", "own-K"),
    (LAST, LAST + "include: [{task: rte}]\n", 9, "needs `strategy:` and `k:`", "include-no-k"),
    (TOP, "{name: contribution, threshold: 95}", 8, "from -1 to 1, got 95", "threshold"),
    (TOP, "{name: contribution, k: [1]}", 8, "needs `threshold:`", "k-for-threshold"),
    (TOP, "{name: top, threshold: [0.9]}", 8, "needs `k:`", "threshold-for-k"),
    (TOP, "{name: top, k: 0, threshold: 0.9}", 8, "takes `k:`, not `threshold:`", "both"),
    (TOP, "{name: top, k: 0, measured_on: rte}", 8, "measures nothing", "measured-on"),
    (TOP, "top", 8, "strategy 'top' needs `k:`", "no-k"),
    # missing and empty
    ("schema_version: 1\n", "", 1, "the key 'schema_version' is missing", "no-version"),
    (MODEL, "  - {k: [1]}", 4, "the key 'id' is missing in models.0", "no-id"),
    (f"models:\n{MODEL}", "models: []", 3, "models must not be empty", "empty-models"),
    ("[0, 2]", "[]", 8, "strategies.0.k must not be empty", "empty-k"),
    (LAST, LAST + "exclude: [{model: '*'}]\n", 9, "every one is excluded", "nothing-left"),
    # versions, doubles
    ("version: 1", "version: 2", 1, "schema_version is 2; this lp-sweep reads 1", "version-2"),
    (MODEL, f"{MODEL}\n{MODEL}", 3, "model is listed twice", "model-twice"),
    (SEEDS, "seeds: [42, 40-44]", 6, "42 is listed twice", "seed-twice"),
]


@pytest.mark.parametrize(
    ("old", "new", "line", "message"), [pytest.param(*item[:4], id=item[4]) for item in MISTAKES]
)
def test_mistake(tmp_path: Path, old: str, new: str, line: int, message: str) -> None:
    assert PLAIN.count(old) == 1
    file = make_inputs(tmp_path, PLAIN.replace(old, new))
    said = mistake(file)
    assert said.startswith(f"{file}:{line}: ")
    assert re.search(message, said), said
    assert "\n" not in said
    assert "pydantic" not in said
    assert "Entry" not in said


# -- forms


@pytest.mark.parametrize(
    ("form", "seeds"),
    [
        ("42", [42]),
        ("42-44", [42, 43, 44]),
        ("{from: 42, to: 44}", [42, 43, 44]),
        ("{from: 42, count: 2}", [42, 43]),
        ("[1, 3-5, {from: 9, count: 2}]", [1, 3, 4, 5, 9, 10]),
        ("0", [0]),
    ],
)
def test_seeds(tmp_path: Path, form: str, seeds: list[int]) -> None:
    file = make_inputs(tmp_path, PLAIN.replace(SEEDS, f"seeds: {form}"))
    assert load_sweep(file).spec.seeds == seeds


@pytest.mark.parametrize(
    ("form", "counts"),
    [("2-4", {2, 3, 4}), ("[0, 3-5]", {0, 3, 4, 5}), ("{from: 2, count: 2}", {2, 3}), ("1", {1})],
)
def test_a_range_of_k(tmp_path: Path, form: str, counts: set[int]) -> None:
    """For a strategy, and for a model in its place; in the file and on the command line."""
    file = make_inputs(tmp_path, PLAIN.replace("k: [0, 2]", f"k: {form}"))
    assert {cell.k for cell in cells(file)} == counts
    file = make_inputs(tmp_path, PLAIN.replace("- ./folder/of/a/model", "- {id: ./folder/of/a/mod"
                       f"el, k: {form}}}"))  # fmt: skip
    assert {cell.k for cell in cells(file)} == counts
    if "{" not in form:
        assert {cell.k for cell in cells(make_inputs(tmp_path), f"k={form}")} == counts


def test_short_forms(tmp_path: Path) -> None:
    text = """\
schema_version: 1
name: short
models: ./folder/of/a/model
tasks: RTE
strategies: {name: top, k: 3}
"""
    asked = cells(make_inputs(tmp_path, text))
    assert [tuple(cell) for cell in asked] == [
        ("./folder/of/a/model", "direct", "top", 3, None, "rte", 42, "none")
    ]


def test_k_all(tmp_path: Path) -> None:
    text = PLAIN.replace(TOP, "{name: symmetric, k: all}")
    assert [c.k for c in cells(make_inputs(tmp_path, text), "task=rte", "seed=1")] == [
        *range(0, 12, 2)
    ]


def test_include_and_exclude(tmp_path: Path) -> None:
    text = PLAIN + (
        "include:\n"
        "  - {strategy: [bottom, top], k: 5, task: RTE, seed: 1}\n"
        "  - {strategy: top, k: 0}\n"  # there already
        "exclude:\n"
        "  - {task: MRPC, seed: 43}\n"
        "  - {model: '*/model', k: 2, task: m*}\n"
        "  - {strategy: symmetric}\n"  # matches nothing
    )
    plan = planned(make_inputs(tmp_path, text))
    assert [(c.asked.strategy, c.asked.k, c.asked.task, c.asked.seed) for c in plan.cells] == [
        ("top", 0, "rte", 42),
        ("top", 0, "rte", 43),
        ("top", 0, "mrpc", 42),
        ("top", 2, "rte", 42),
        ("top", 2, "rte", 43),
        ("bottom", 5, "rte", 1),
        ("top", 5, "rte", 1),
    ]
    assert plan.sweep.notes == [f"{tmp_path / 'sweep.yaml'}:15: this exclude matches no cell"]


def test_a_task_of_ones_own(tmp_path: Path) -> None:
    text = PLAIN.replace(
        TASKS, "tasks: [{name: my reviews, train: t.csv, dev: d.csv, text: review, label: stars}]"
    )
    file = make_inputs(tmp_path, text)
    (tmp_path / "t.csv").write_text("review,stars\ngood,5\nbad,1\n")
    (tmp_path / "d.csv").write_text("review,stars\nfine,5\npoor,1\n")
    task = find(file).tasks["my reviews"]
    assert task.definition.text_columns == ("review",)
    assert task.definition.label_column == "stars"
    assert {cell.task for cell in cells(file)} == {"my reviews"}


CLAIMS = "{name: claims, train: t.csv, dev: %s, text: text%s}"
CLAIMS_MISTAKES = {
    "one-file": (CLAIMS % ("./t.csv", ""), "claims.*one file.*t.csv.*other rows"),
    "one-link": (CLAIMS % ("link.csv", ""), "claims.*one file.*link.csv"),
    "same-bytes": (CLAIMS % ("copy.csv", ""), "claims.*same content.*t.csv.*copy.csv"),
    "one-split": (
        f"{{name: a, dataset: b/c, revision: '{'0' * 40}', text: t, dev_split: train}}",
        "one split, 'train'",
    ),
    "which-class": (
        CLAIMS % ("d.csv", ", labels: [fraud, ok], metric: f1"),
        "'fraud' and 'ok'.*`positive: 'fraud'` or `positive: 'ok'`",
    ),
    "no-such-class": (
        CLAIMS % ("d.csv", ", labels: [fraud, ok], metric: f1, positive: frod"),
        "`positive: frod`.*fraud, ok.*mean 'fraud'",
    ),
    "accuracy": (CLAIMS % ("d.csv", ", positive: fraud"), "positive.*accuracy.*`metric: f1`"),
    "glue": ("{name: rte, positive: entailment}", "positive can't be set"),
}


@pytest.mark.parametrize(("task", "message"), CLAIMS_MISTAKES.values(), ids=CLAIMS_MISTAKES)
def test_a_task_that_would_mislead_is_refused(tmp_path: Path, task: str, message: str) -> None:
    file = make_inputs(tmp_path, PLAIN.replace(TASKS, f"tasks: [{task}]"))
    for name in ("t.csv", "copy.csv"):
        (tmp_path / name).write_text("text,label\na,ok\nb,fraud\n")
    (tmp_path / "d.csv").write_text("text,label\nc,ok\nd,fraud\n")
    (tmp_path / "link.csv").symlink_to("t.csv")
    said = mistake(file)
    assert said.startswith(f"{file}:5: ")
    assert re.search(message, said), said


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2", "n_layer": 12}, "gpt2 is a decoder.*encoders only"),
        ({"model_type": "qwen3"}, "qwen3 is a decoder"),
        ({"is_decoder": True}, "bert is a decoder"),
        ({"model_type": "t5", "is_encoder_decoder": True}, "t5 is an encoder-decoder"),
        ({"model_type": "bret"}, "type 'bret'.*mean 'bert'"),
    ],
    ids=["gpt2", "qwen3", "is_decoder", "t5", "unknown"],
)
def test_what_is_no_encoder_is_refused(tmp_path: Path, changes: Any, message: str) -> None:
    file = make_inputs(tmp_path)
    config = tmp_path / "folder/of/a/model/config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | changes))
    said = mistake(file)
    assert said.startswith(f"{file}:4: model './folder/of/a/model': ")
    assert re.search(message, said), said


def test_the_positive_class_is_part_of_the_task(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("text,label\na,1\nb,0\n")
    (tmp_path / "d.csv").write_text("text,label\nc,1\nd,0\n")
    ids = {}
    for positive in ("", ", positive: 1", ", positive: '1'"):
        task = CLAIMS % ("d.csv", f", metric: f1{positive}")
        file = make_inputs(tmp_path, PLAIN.replace(TASKS, f"tasks: [{task}]"))
        assert find(file).tasks["claims"].definition.positive == ("1" if positive else "")
        ids[positive] = {cell.trial_id for cell in planned(file).cells}
    assert ids[", positive: 1"] == ids[", positive: '1'"] != ids[""]


# -- overrides


@pytest.mark.parametrize(
    ("override", "meant"),
    [
        ("task=revews", "reviews"),
        ("task=mrcp", "mrpc"),
        ("model=./folder/of/a/modle", "model"),
        ("lr=1e-4", "recipe.learning_rate"),
        ("epoch=3", "recipe.epochs"),
        ("seedz=3", "seed"),
        ("task.metric=f1", "tasks.0.metric"),
    ],
)
def test_an_override_that_is_nearly_one(tmp_path: Path, override: str, meant: str) -> None:
    own = "{name: reviews, train: a.csv, dev: b.csv, text: t}"
    file = make_inputs(tmp_path, PLAIN.replace(TASKS, f"tasks: [rte, {own}]"))
    for name in "ab":
        (tmp_path / f"{name}.csv").write_text(f"t,label\n{name},0\n{name} {name},1\n")
    assert f"Did you mean {meant!r}?" in mistake(file, override)


def test_an_override_in_the_place_of_the_file_is_told() -> None:
    with pytest.raises(SpecError, match=r"'task=rte'.*override.*sweep.yaml task=rte"):
        load_sweep(Path("task=rte"))


@pytest.mark.parametrize(
    ("overrides", "axis", "values"),
    [
        (["task=mrpc"], "task", {"mrpc"}),
        (["seed=1,2"], "seed", {1, 2}),
        (["seeds=3-5"], "seed", {3, 4, 5}),
        (["strategy=contribution"], "strategy", {"contribution"}),
        (["k=1,3"], "k", {1, 3, None}),
        (["k=all"], "k", {*range(12), None}),
        (["threshold=0.5"], "threshold", {0.5, None}),
        (["strategy=bottom", "k=1"], "strategy", {"bottom"}),
        (["k=1", "strategy=bottom"], "k", {1}),
        (["model=./other"], "model", {"./other"}),
        (["model=./it's a 'model'; echo foo"], "model", {"./it's a 'model'; echo foo"}),
        (["model='./a,b'"], "model", {"./a,b"}),
        (["model=./ünï=1"], "model", {"./ünï=1"}),
        (["model={id: ./other, k: [1]}"], "k", {1, None}),
        (["exclude=[{task: rte}]"], "task", {"mrpc"}),
        (["task=rte", "task=mrpc"], "task", {"mrpc"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_override(tmp_path: Path, overrides: list[str], axis: str, values: set[Any]) -> None:
    file = make_inputs(tmp_path, PLAIN + "  - {name: contribution, threshold: [0.9]}\n")
    for name in ("other", "it's a 'model'; echo foo", "a,b", "ünï=1"):
        make_model(tmp_path / name)
    assert {getattr(cell, axis) for cell in cells(file, *overrides)} == values


@pytest.mark.parametrize("written", ["", "recipe: {lr: 1e-5}", "recipe: {learning_rate: 1e-5}"])
@pytest.mark.parametrize("key", ["lr", "learning_rate"])
def test_override_of_the_learning_rate(tmp_path: Path, written: str, key: str) -> None:
    file = make_inputs(tmp_path, PLAIN + written)
    assert find(file, [f"recipe.{key}=3e-5"]).recipe.learning_rate == 3e-5


def test_override_of_the_recipe_keeps_the_rest(tmp_path: Path) -> None:
    file = make_inputs(tmp_path, PLAIN + "recipe: {epochs: 5, batch_size: 8}\n")
    recipe = find(file, ["recipe.epochs=1"]).recipe
    assert (recipe.epochs, recipe.batch_size) == (1, 8)


def test_overrides_keep_the_files_own_description(tmp_path: Path) -> None:
    text = (
        PLAIN.replace(TASKS, f"tasks: [rte, {{{OWN}, text: t}}]")
        + "  - {name: bottom, k: [7]}\n  - {name: contribution, threshold: 0.9, measured_on: rte}\n"
    )
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text("t,label\na,0\nb,1\n")
    spec = load_sweep(make_inputs(tmp_path, text), ["task=x,rte", "strategy=bottom,top"]).spec
    assert [(task.name, task.train) for task in spec.tasks] == [("x", "a.csv"), ("rte", None)]
    assert [(s.name, s.k) for s in spec.strategies] == [("bottom", [7]), ("top", [0, 2])]


def test_k_on_the_command_line_is_for_every_model(tmp_path: Path) -> None:
    file = make_inputs(tmp_path, DEMO)
    assert {c.k for c in cells(file, "k=5") if c.strategy == "top"} == {5}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("tasc=rte", "unknown key 'tasc'. Allowed: model, task.*Did you mean 'task'"),
        ("lr=1e-5", "unknown key 'lr'. Allowed: .*recipe.learning_rate"),
        ("recipe.epoch=3", "unknown key 'epoch' in recipe.*Did you mean 'epochs'"),
        ("task=rtee", "unknown task 'rtee'.*Did you mean 'rte'"),
        ("k=12", "top can't drop K=12"),
        ("strategy=bottom", "strategy 'bottom' needs `k:`"),
        ("threshold=0.9", "no strategy of .*sweep.yaml takes `threshold:`"),
        ("model=./nowhere", "no model folder"),
        ("task", "an override is key=value"),
        ("models.7.k=1", "models is a list of 1, counted from 0, and has no '7'"),
    ],
)
def test_override_mistake(tmp_path: Path, override: str, message: str) -> None:
    said = mistake(make_inputs(tmp_path), override)
    assert re.search(message, said), said
    assert said.startswith(f"override '{override}': ")


@pytest.mark.parametrize(
    ("override", "notes"),
    [
        pytest.param("task=RTE", [], id="the file's by another spelling"),
        pytest.param(
            "task=cola",
            ["task 'cola' is not in the file (rte, mrpc): GLUE's cola is planned instead"],
            id="another",
        ),
        pytest.param(
            "task=mrpc,cola,wnli",
            ["task 'cola', 'wnli' are not in the file (rte, mrpc): GLUE's cola, wnli are added"],
            id="one of the file's, and others",
        ),
        pytest.param(
            "strategy=[{name: bottom, k: 1}]", [], id="described in full",
        ),
        pytest.param(
            "strategy=drop 3",
            ["strategy 'drop 3' is not in the file (top): planned instead"],
            id="strategy",
        ),
        pytest.param("seed=7", [], id="a seed is a number"),
    ],
)  # fmt: skip
def test_a_name_that_the_file_does_not_have_is_noted(
    tmp_path: Path, override: str, notes: list[str]
) -> None:
    assert load_sweep(make_inputs(tmp_path, PLAIN), [override]).notes == notes


@pytest.mark.parametrize("entry", ["[a, b]", "{name: [a]}", "{name: {a: b}}", "~", "7", "{}"])
def test_what_an_override_replaces_is_not_looked_at(tmp_path: Path, entry: str) -> None:
    odd = PLAIN.replace("tasks: [rte, mrpc]", f"tasks: [{entry}, mrpc]")
    (note,) = load_sweep(make_inputs(tmp_path, odd), ["task=rte"]).notes
    assert note.startswith("task 'rte' is not in the file (mrpc): ")
    none = PLAIN.replace("tasks: [rte, mrpc]", f"tasks: [{entry}]")
    assert load_sweep(make_inputs(tmp_path, none), ["task=rte"]).notes == []


@pytest.mark.parametrize("number", ["042", "1:30", "0o52"])
def test_a_number_that_looks_like_another_is_refused(tmp_path: Path, number: str) -> None:
    """To YAML 1.1, and so to PyYAML, they are 34, 90 and a text."""
    assert f"seeds: '{number}' is not a whole number" in mistake(
        make_inputs(tmp_path), f"seed={number}"
    )


@pytest.mark.parametrize("text", ["[a", "{a: b", "!!int x", "a: b: c"])
def test_override_that_is_no_yaml(tmp_path: Path, text: str) -> None:
    assert "as a YAML value" in mistake(make_inputs(tmp_path), f"recipe.epochs={text}")


# -- what is published


def test_json_schema_is_valid_and_complete(tmp_path: Path) -> None:
    schema = json.loads(json.dumps(SweepSpec.model_json_schema()))
    assert schema["additionalProperties"] is False
    assert set(schema["required"]) == {"schema_version", "name", "models", "tasks", "strategies"}
    assert set(schema["properties"]) == set(SweepSpec.model_fields)
    for name in ("ModelEntry", "StrategyEntry", "TaskEntry", "RecipeEntry", "CellMatch"):
        assert schema["$defs"][name]["additionalProperties"] is False
    references = re.findall(r'"\$ref": "#/\$defs/(\w+)"', json.dumps(schema))
    assert set(references) == set(schema["$defs"])
