"""`Sweep(models=..., tasks=..., strategies=...)`: a sweep without a file."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pyarrow as pa
import pytest

import lp_sweep
from lp_sweep import LpSweepError, Sweep
from tests.support.toyworld import RECIPE, rows, save_model

STRATEGIES = [{"name": "top", "k": range(0, 3, 2)}]
TRAIN, DEV = rows(64, seed=1), rows(40, seed=2)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LP_SWEEP_CACHE_DIR", str(tmp_path / "cache"))
    save_model(tmp_path / "model")


def sweep(train: Any, dev: Any, **keys: Any) -> Sweep:
    return Sweep("model", {"mood": (train, dev)}, STRATEGIES, recipe=RECIPE, **keys)


def test_frames_are_trained_on_and_each_trial_is_told() -> None:
    entry = {"train": pd.DataFrame(TRAIN), "dev": pa.Table.from_pylist(DEV), "text": "text"}
    task = entry | {"metric": "average_precision", "positive": "neg"}
    made = Sweep("model", {"mood": task}, STRATEGIES, seeds=(1, 2), recipe=RECIPE, name="objects")
    told: list[dict[str, Any]] = []

    run = made.run(inline=True, on_trial=told.append)

    assert (run.exit_code, len(told)) == (0, 4)
    assert {trial["status"] for trial in told} == {"done"}
    assert {(trial["task"], len(trial["kept_layers"]), trial["seed"]) for trial in told} == {
        ("mood", layers, seed) for layers in (2, 4) for seed in (1, 2)
    }
    cells = made.results().sql("SELECT trial_id, score FROM cells ORDER BY k, seed")
    scores = {trial["id"]: trial["score"] for trial in told}
    assert {row["trial_id"]: row["score"] for row in cells} == pytest.approx(scores, abs=1e-3)
    assert cells[0] == next(iter(cells))
    assert [*cells[-2:]] == [*cells][-2:]
    assert cells[1:].df().score.tolist() == [row["score"] for row in cells][1:]
    with pytest.raises(IndexError):
        cells[4]
    assert "average precision of 'neg'" in repr(made.results().table("tasks"))
    found = [row["over"] for row in made.results().table("intervals")]
    assert found == ["seeds and rows"] * 2, "the stored logits give the score, and are resampled"


def test_the_same_rows_are_the_same_trials_whatever_holds_them() -> None:
    held: list[Any] = [TRAIN, pd.DataFrame(TRAIN), pa.Table.from_pylist(TRAIN)]
    held.append(datasets.Dataset.from_list(TRAIN))
    ids = {tuple(row["trial_id"] for row in sweep(train, DEV).plan().cells()) for train in held}
    assert len(ids) == 1
    other = sweep(TRAIN[1:], DEV).plan().cells()
    assert {row["trial_id"] for row in other}.isdisjoint(*ids)


def test_rows_can_be_set_aside() -> None:
    entry = {"train": TRAIN, "dev": DEV, "test": rows(40, seed=3)}
    made = Sweep("model", {"mood": entry}, STRATEGIES, recipe=RECIPE).plan().made.sweep
    assert made.tasks["mood"].test_fingerprint
    ids = {row["trial_id"] for row in sweep(TRAIN, DEV).plan().cells()}
    assert ids == {
        row["trial_id"]
        for row in Sweep("model", {"mood": entry}, STRATEGIES, recipe=RECIPE).plan().cells()
    }, "no trial reads them"


def test_the_classes_of_a_dataset_keep_their_order() -> None:
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["pos", "neg"])}
    )
    train, dev = (datasets.Dataset.from_list(part, features=features) for part in (TRAIN, DEV))
    task = sweep(train, dev).plan().made.sweep.tasks["mood"]
    assert task.definition.labels == ("pos", "neg")
    assert task.definition.text_columns == ("text",)


MISTAKES: dict[str, Callable[[], Any]] = {
    r"task 'mood': give \(train, dev\).*got list": lambda: Sweep("model", {"mood": TRAIN}, "top"),
    "task 'mood': dev: give a DataFrame.*got int": lambda: sweep(TRAIN, 7),
    "column holds no texts": lambda: sweep([{"text": b"x", "label": 1}], DEV),
    "task 'mood' needs `text:`, the name of one or two columns": lambda: sweep(
        [{"a": "x", "b": "x", "c": "x", "label": "pos"}], DEV
    ),
    "unknown strategy 'botom'": lambda: Sweep("model", "rte", [{"name": "botom", "k": [0]}]),
    "unknown key 'recipes'": lambda: sweep(TRAIN, DEV, recipes={}),
    "texts, numbers, lists and mappings": lambda: sweep(TRAIN, DEV, seeds=[object()]),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_a_mistake_is_one_message(message: str) -> None:
    with pytest.raises(LpSweepError, match=message):
        MISTAKES[message]()


def test_the_version_is_that_of_the_package() -> None:
    assert re.fullmatch(r"\d+\.\d+.*", lp_sweep.__version__)
