"""Whatever bytes a sweep file or an override holds: a checked sweep or one good message, soon."""

from __future__ import annotations

import copy
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import strategies as st

from lp_sweep.orchestrator.sweepfile.load import SweepFile, load_sweep
from lp_sweep.orchestrator.sweepfile.spec import SweepSpec
from lp_sweep.storage.errors import LpSweepError, SpecError
from tests.support.fuzzing import assert_good_message, awkward, fuzz, outcome
from tests.support.sweepfiles import PLAIN

FULL: dict[str, Any] = yaml.safe_load("""\
schema_version: 1
name: full
models: [./model, {id: bert-base-cased, k: [0, 2], revision: main}]
distill: [none, logits+hidden T=4, {from: ./teacher, alpha: 1}]
procedures: [direct, iterative 3, {name: finetune_then_drop, freeze_dropped: true}]
feed_forward: [none, top 3, [9, 10], {remove: all, second_norm: drop}]
measure: {probes: [pretrained, full], cka: pruned, probe_rows: 10}
tasks:
  - rte
  - {name: mine, train: t.csv, dev: d.csv, text: [a, b], label: y, labels: ['no', 'yes'],
     kind: classification, metric: f1}
  - {name: hub, dataset: o/d, config: c, revision: '0000000000000000000000000000000000000000',
     text: t}
seeds: [1, 3-5, {from: 7, count: 2}]
strategies:
  - {name: top, k: all}
  - {name: symmetric, k: [0, 2]}
  - {name: contribution, threshold: [0.9, 0.95], measured_on: rte}
  - {name: random, k: 2, draws: [0, 1]}
  - {name: drop, layers: [3, 5]}
recipe: {freeze: {layers: [1]}, lr: 2.0e-5, epochs: 3, batch_size: 8, limit_dev: 9}
contribution: {measured_on: own}
include: [{strategy: top, k: 5, task: rte, seed: 1}]
exclude: [{model: '*', k: [2], seed: 99}]
data_dir: glue
store: store
resources_per_trial: {cpu: 1, gpu: 0.5}
""")
PLACE = r"sweep\.yaml:\d+: \S|override ['\"].*['\"]?(\.\.\.)?: \S"
SPECIAL = "abk013: -[]{}&*!|>'\"%@`#,?\n\t .\\~=<\x00\x1b\x85é\u2028\ufeff"

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 20),
    st.integers(),
    st.floats(),
    st.sampled_from([2**31, 2**63, 2**64, 10**40, -(10**40), 1e308, float("nan"), float("inf")]),
    awkward,
    st.sampled_from(
        ["top", "bottom", "contribution", "all", "own", "rte", "RTE", "mine", "direct"]
    ),
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from([*SweepSpec.model_fields, "id", "k", "1"]), inner, max_size=4
        )
    ),
    max_leaves=8,
)


def locations(content: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [at]
    if isinstance(content, dict | list):
        for key, value in content.items() if isinstance(content, dict) else enumerate(content):
            found += locations(value, (*at, key))
    return found


@st.composite
def mutated(draw: Any) -> str:
    """A file that says everything, with some values dropped, swapped, doubled or replaced."""
    content = copy.deepcopy(FULL)
    for _ in range(draw(st.integers(1, 4))):
        *way, last = draw(st.sampled_from(locations(content)[1:] or [("name",)]))
        place: Any = content
        for part in way:
            place = place[part]
        change = draw(st.sampled_from(["drop", "replace", "replace", "rename", "wrap", "number"]))
        if not isinstance(place, dict | list) or (isinstance(place, dict) and last not in place):
            continue
        if change == "drop":
            del place[last]
        elif change == "rename" and isinstance(place, dict):
            place[draw(awkward)] = place.pop(last)
        elif change == "wrap":
            place[last] = [place[last], place[last]]
        elif change == "number":
            place[last] = draw(st.integers(-1, 30) | st.floats(-2, 2))
        else:
            place[last] = draw(values)
    return str(yaml.safe_dump(content, sort_keys=False, allow_unicode=draw(st.booleans())))


def lawful(folder: Path, content: bytes, overrides: list[str]) -> None:
    file = folder / "sweep.yaml"
    file.write_bytes(content)
    result = outcome(lambda: load_sweep(Path("sweep.yaml"), overrides))
    if isinstance(result, LpSweepError):
        assert isinstance(result, SpecError)
        assert_good_message(result, PLACE, " ".join([content.decode(errors="replace"), *overrides]))
    else:
        assert isinstance(result, SweepFile)


def read(folder: Path, content: bytes) -> None:
    lawful(folder, content, [])


def overridden(folder: Path, overrides: list[str]) -> None:
    lawful(folder, yaml.safe_dump(FULL).encode(), overrides)


test_mutated_file = fuzz(read, 10_000, content=mutated().map(str.encode))
test_bytes = fuzz(
    read,
    5_000,
    content=st.binary(max_size=80)
    | st.tuples(st.integers(0, len(PLAIN)), st.binary(max_size=6)).map(
        lambda at: PLAIN.encode()[: at[0]] + at[1] + PLAIN.encode()[at[0] :]
    )
    | st.sampled_from(["utf-16", "utf-32", "utf-8-sig", "utf-16-le"]).map(PLAIN.encode),
)

KEYS = """
model models task tasks strategy procedure seed k threshold name store recipe recipe.lr
recipe.learning_rate recipe.epochs models.0 models.1.k models.99.id tasks.1.text include
exclude.0.k schema_version . .. recipe. seeds.0.from contribution.measured_on
"""
keys = st.sampled_from(KEYS.split())
some_yaml = st.one_of(awkward, values.map(lambda v: yaml.safe_dump(v, default_flow_style=True)))
test_overrides = fuzz(
    overridden,
    10_000,
    overrides=st.lists(
        st.tuples(keys | awkward, st.sampled_from(["=", "=", "=", "==", ""]), some_yaml).map(
            "".join
        )
        | st.text(SPECIAL, max_size=30)
        | st.text(max_size=10),
        min_size=1,
        max_size=3,
    ),
)

BOMBS = {
    "deep-lists": "a: " + "[" * 1_000,
    "deep-blocks": "".join(" " * depth + "a:\n" for depth in range(400)),
    "laughs": "a: &a [x,x,x,x,x,x,x,x,x]\n"
    + "".join(f"{b}: &{b} [{','.join(['*' + a] * 9)}]\n" for a, b in pairwise("abcdefghij")),
    "huge-number": "name: 0x" + "f" * 125_000,
    "many-seeds": PLAIN.replace("[42, 43]", str([f"{n}0000-{n}9999" for n in range(1, 6000)])),
    "many-mistakes": PLAIN.replace("[42, 43]", "[" + "x," * 9_000 + "]"),
    "long-seed": PLAIN.replace("[42, 43]", "9" * 9_000 + "-" + "9" * 9_001),
    "long-procedure": f"{PLAIN}procedures: {'x' * 50_000}",
    "long-count": f"{PLAIN}feed_forward: [top {'9' * 3000}]",
    "nul": "\0" * 125_000,
}


@pytest.mark.parametrize("text", BOMBS.values(), ids=BOMBS)
def test_a_bomb_is_refused_soon(tmp_path: Path, text: str, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sweep.yaml").write_text(text)
    result = outcome(lambda: load_sweep(Path("sweep.yaml")))
    assert isinstance(result, SpecError)
    assert_good_message(result, PLACE)
    assert all(len(line) < 700 for line in str(result).splitlines())
