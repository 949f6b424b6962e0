"""Real trials on rows that a careful person would not have: they end in a record of true numbers,
or in one that says what is wrong with the rows. And names as hostile as they come: nothing is
written outside the store and the cache."""

from __future__ import annotations

import csv
import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from lp_sweep.storage.store import Store
from lp_sweep.trials.train.metrics import METRICS
from tests.support.fuzzing import fuzz
from tests.support.plain_jobs import done, execute
from tests.support.toyworld import jobs, rows, save_model, sweep_content

RECIPE = {"learning_rate": 2e-3, "batch_size": 8, "epochs": 2, "max_length": 16}
LONG = "good " * 20_000  # 100,000 characters
ODD = "a\0b 👨‍👩‍👧 \u202eשלום \x1b[31m"
Row = tuple[str, Any]
TOP = {"name": "top", "k": [0]}
CONTRIBUTION = {"name": "contribution", "threshold": 0.5}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"), depth=2)


def write(path: Path, lines: list[Row]) -> None:
    with path.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([("text", "label"), *lines])


def run(
    folder: Path, model: Path, train: list[Row], dev: list[Row], strategy: Any = TOP, **task: Any
) -> dict[str, Any]:
    """The answer of a worker that was given this task."""
    write(folder / "train.csv", train)
    write(folder / "dev.csv", dev)
    own = {"name": "own", "train": "train.csv", "dev": "dev.csv", "text": ["text"], **task}
    content = sweep_content(models=[str(model)], tasks=[own], recipe=RECIPE, strategies=[strategy])
    (folder / "sweep.yaml").write_text(json.dumps(content), encoding="utf-8")
    (job,) = jobs(folder / "sweep.yaml")
    return execute(job, Store(folder / "store", create=True).location)


def not_finite(value: Any, at: str = "") -> list[str]:
    """Where a NaN or an infinity stands."""
    if isinstance(value, float):
        return [] if math.isfinite(value) else [at]
    if isinstance(value, dict):
        return [found for key, item in value.items() for found in not_finite(item, f"{at}.{key}")]
    if isinstance(value, list):
        return [found for i, item in enumerate(value) for found in not_finite(item, f"{at}.{i}")]
    return []


PLAIN = [(row["text"], row["label"]) for row in rows(24, seed=1)]
NUMBERS = [(text, index % 5) for index, (text, _) in enumerate(PLAIN)]
REGRESSION = {"kind": "regression", "metric": "pearson"}

TRAINS: dict[str, tuple[list[Row], list[Row], dict[str, Any], float | None]] = {
    # train, dev, more of the task, the score where it is certain
    "empty-texts": ([("", label) for _, label in PLAIN], [("", "pos"), ("", "neg")], {}, 0.5),
    "long-and-odd-texts": ([*PLAIN, (LONG, "pos"), (ODD, "pos")], [(LONG, "pos")], {}, None),
    "one-class-dev-mcc": (PLAIN, [("good", "pos")] * 5, {"metric": "mcc"}, 0.0),
    "two-rows": ([("good", "pos"), ("bad", "neg")], [("good", "pos")], {}, None),
    "a-class-without-rows": (PLAIN, PLAIN[:8], {"labels": ["neg", "none", "pos"]}, None),
    "constant-predictions": (NUMBERS, [("w1", n) for n in range(4)], REGRESSION, 0.0),
    "names-as-labels": (
        [(text, f"\x1b[31m{label}\n") for text, label in PLAIN],
        [("good", "\x1b[31mpos\n")],
        {},
        None,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("train", "dev", "task", "score"), TRAINS.values(), ids=TRAINS.keys())
def test_the_record_holds_only_true_numbers(
    tmp_path: Path,
    model: Path,
    train: list[Row],
    dev: list[Row],
    task: dict[str, Any],
    score: float | None,
) -> None:
    answer = run(tmp_path, model, train, dev, **task)
    assert answer["status"] == "done", answer
    store = Store(tmp_path / "store")
    (record,) = store.read("trials", answer["id"])
    assert not_finite(record) == []
    assert score is None or record["last"] == score
    assert record["train_examples"] == len(train)
    predictions = store.read("predictions", answer["id"])
    assert not_finite(predictions) == []
    assert len(predictions) == len(dev) == record["dev_examples"]


@pytest.mark.parametrize("dev", [[("", "pos")] * 3, [("good", "pos")]], ids=["empty", "one"])
def test_a_profile_of_odd_rows_is_of_cosines(tmp_path: Path, model: Path, dev: list[Row]) -> None:
    answer = run(tmp_path, model, PLAIN, dev, CONTRIBUTION)
    assert answer["status"] == "done", answer
    (record,) = Store(tmp_path / "store").read("profiles", answer["id"])
    assert not_finite(record) == []
    assert all(-1 <= item["value"] <= 1 for item in record["layers"])


def finite_score(folder: Path, pairs: list[tuple[float, float]], metric: str) -> None:
    """Any finite predictions have a score that is a number."""
    labels, predicted = (np.array(column) for column in zip(*pairs, strict=True))
    value = METRICS[metric](labels, predicted)
    assert -1.000001 <= value <= 1.000001


numbers = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([0.0, 1.0, 1e308])
test_correlations = fuzz(
    finite_score,
    5_000,
    pairs=st.lists(st.tuples(numbers, numbers), min_size=1, max_size=6),
    metric=st.sampled_from(["pearson", "spearman"]),
)


# -- names


def test_no_name_leads_out_of_the_store(tmp_path: Path, model: Path) -> None:
    """The name of a task, of a model's folder and of a data folder."""
    name = '../../up it\'s "quoted" \\ 100%s {x} $(id);b&&c|*?[a] line\nbreak\x1b[31m\u202e 🙂'
    place = tmp_path / "a" / "b" / "place"
    as_folder = name.replace("/", "_")
    inside = place / as_folder
    inside.mkdir(parents=True)
    world = inside / "sweep.yaml"
    for part, own in (("train.csv", PLAIN[:8]), ("dev.csv", PLAIN[8:])):
        write(inside / part, own)
    shutil.copytree(model, inside / as_folder)
    content = sweep_content(
        models=[f"./{as_folder}"],
        tasks=[{"name": name, "train": "train.csv", "dev": "dev.csv", "text": "text"}],
        recipe={**RECIPE, "epochs": 1},
        strategies=[TOP],
    )
    world.write_text(json.dumps(content), encoding="utf-8")
    before = {*tmp_path.rglob("*")}
    (job,) = jobs(world, cache=place / "cache")
    assert {*tmp_path.rglob("*")} == before
    store = Store(place / "store", create=True)
    assert done(store, job)["task"] == name
    new = {*tmp_path.rglob("*")} - before
    assert {path.relative_to(place).parts[0] for path in new} == {"store", "cache"}
