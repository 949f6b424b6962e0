"""Checks that a folder, loaded as its users will load it, is the network that was scored.

Its logits are compared with the stored ones, and its score is computed again. The tolerance depends
on where the stored ones were computed, see `Nearness`.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lp_sweep.storage.errors import ExportError
from lp_sweep.storage.printable import metric_name, short
from lp_sweep.storage.specs import TaskDefinition
from lp_sweep.trials.kinds import kind_of
from lp_sweep.trials.train.metrics import score

_SAME_SCORE = 1e-9  # shares; from the same answers
_NEAR_SCORE = 1e-4  # for a correlation, which every rounding of a logit changes
# differences seen with 12 layers in bf16, loaded in fp32: 0.024 at most, root mean square 0.004
_BF16, _BF16_USUAL = 1e-1, 2e-2


class Nearness(NamedTuple):
    """How much a folder's logits may differ from the stored ones: each by `rounding` x the largest
    logit (at least 1), and their root mean square by `usual` x that. `same_labels`: no example may
    get another label. `correlation`: how much a correlation may differ."""

    rounding: float
    same_labels: bool
    usual: float = math.inf
    correlation: float = _NEAR_SCORE

    @classmethod
    def of(cls, record: Mapping[str, Any], device_type: str, device_name: str) -> Nearness:
        """Between logits stored with `record` and those of this device, in fp32."""
        if record["precision_used"] != "fp32":
            # no bound on a correlation holds both for few far values and for many close ones
            return cls(_BF16, False, _BF16_USUAL, math.inf)
        if record["device_type"] != device_type:
            return cls(1e-3, False)
        if device_type != "cpu":  # its kernels differ with and without padding
            return cls(1e-4, False)
        return cls(1e-5 if record["device_name"] == device_name else 1e-4, True)


class Scores(NamedTuple):
    """Scores as shares: from the stored answers, from the folder's answers, and how much rounding
    may change one."""

    stored: float
    found: float
    rounding: float


class Expected(NamedTuple):
    """The stored answers of the network."""

    definition: TaskDefinition
    label_names: tuple[str, ...]
    labels: np.ndarray  # (n,) of the main dev split
    logits: np.ndarray  # (n, classes), as the store has them; (n, 1) cosines of an embedding task
    score: float  # share, as the record has it
    nearness: Nearness
    compared: str = "logit"  # or cosine
    scores: Scores | None = None  # if the compared numbers do not determine the score


class Verified(NamedTuple):
    """The result of the comparison, as the folder's lp_sweep.json has it."""

    examples: int
    largest_difference: float  # of a logit, or of a cosine
    tolerance: float
    other_labels: int  # examples whose label differs
    score: float  # share, from the folder's answers
    recorded_score: float


def verify(answer: Answer, expected: Expected) -> Verified:
    """Compares a folder's answers with the stored ones. Raises ExportError for another network."""
    for kind, missing in answer.missing.items():
        if missing:
            _refuse(f"{kind} finds {len(missing)} weights missing, such as {missing[0]}")
    names = list(expected.label_names)
    if names and answer.labels != names:
        _refuse(f"its config names the classes {answer.labels}, the data {names}")
    if answer.values.shape != expected.logits.shape:
        shapes = f"{answer.values.shape}, expected are {expected.logits.shape}"
        _refuse(f"its {expected.compared}s are {shapes}")
    if not np.isfinite(answer.values).all():
        _refuse(f"some of its {expected.compared}s are no numbers")
    return _compare(answer.values, expected)


def _compare(logits: np.ndarray, expected: Expected) -> Verified:
    difference = float(np.abs(logits - expected.logits).max())
    largest = max(1.0, float(np.abs(expected.logits).max()))
    kind = kind_of(expected.definition)
    rounding = _SAME_SCORE if kind.counts_labels else expected.nearness.correlation
    scores = expected.scores or _scores(expected, logits, rounding)
    # a difference within the tolerance changes only the label of a near tie
    others = kind.other_labels(logits, expected.logits) if kind.counts_labels else 0
    found = Verified(
        examples=len(logits),
        largest_difference=difference,
        tolerance=expected.nearness.rounding * largest,
        other_labels=others,
        score=scores.found,
        recorded_score=expected.score,
    )
    if not difference <= found.tolerance:
        _refuse(
            f"a {expected.compared} differs from the stored one by {difference:.2g}, and rounding "
            f"explains {found.tolerance:.2g}"
        )
    squares = np.square(logits - expected.logits, dtype=np.float64)
    usual, allowed = float(np.sqrt(squares.mean())), expected.nearness.usual * largest
    if not usual <= allowed:
        _refuse(
            f"the {expected.compared}s differ from the stored ones by {usual:.2g} (root mean "
            f"square), and rounding explains {allowed:.2g}"
        )
    if found.other_labels and expected.nearness.same_labels:
        _refuse(f"{found.other_labels} dev examples get another label")
    _check_score(found, expected, scores)
    return found


def _scores(expected: Expected, logits: np.ndarray, rounding: float) -> Scores:
    """The main metric from the stored logits and from the folder's."""
    task = expected.definition
    stored, found = (
        score(task, expected.labels, each, expected.label_names)[task.metric]
        for each in (expected.logits, logits)
    )
    return Scores(stored, found, rounding)


def _check_score(found: Verified, expected: Expected, scores: Scores) -> None:
    """The same labels must give the same score; other labels, which are counted, may change it."""
    if not abs(scores.stored - expected.score) <= _SAME_SCORE:
        _refuse(
            f"the stored {expected.compared}s give {100 * scores.stored:.4f}, the record "
            f"{100 * expected.score:.4f}"
        )
    if not found.other_labels and not abs(scores.found - expected.score) <= scores.rounding:
        metric = metric_name(expected.definition.metric, expected.definition.positive)
        _refuse(
            f"its {metric} on the dev set is {100 * scores.found:.4f}, the record says "
            f"{100 * expected.score:.4f}"
        )


def _refuse(what: str) -> None:
    raise ExportError(
        f"the folder is not the network that was scored: {what}. Nothing was published. If the "
        "store's network or its predictions are damaged, delete weights/<trial> there: the export "
        "then trains it again."
    )


_UNWANTED = ("HF_", "HUGGINGFACE_", "TRANSFORMERS_", "LP_SWEEP_")  # such as tokens and caches


class Answer(NamedTuple):
    """See `trials.model.plainload`."""

    values: np.ndarray
    missing: dict[str, list[str]]
    labels: list[str]


def ask(folder: Path, request: Mapping[str, Any]) -> Answer:
    """Runs the network in `folder` in a new process. Raises ExportError if it can't be loaded."""
    program = files("lp_sweep.trials.model") / "plainload.py"
    with tempfile.TemporaryDirectory(prefix="lp-sweep-") as name:
        scratch = Path(name)
        (scratch / "request.json").write_text(json.dumps(request), encoding="utf-8")
        places = [str(scratch / "request.json"), str(scratch / "answer.npz")]
        done = subprocess.run(
            # -P: the program's folder has modules with the names of standard ones
            [sys.executable, "-P", str(program), str(folder.absolute()), *places],
            env=_environment(scratch),
            cwd=scratch,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        if done.returncode:
            said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            raise ExportError(
                f"plain transformers can't load the folder in a new process: {short(said)}. "
                "Nothing was published."
            )
        with np.load(places[1]) as answer:
            told = json.loads(str(answer["told"]))
            return Answer(answer["values"], told["missing"], told["labels"])


def _environment(scratch: Path) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(_UNWANTED)}
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(scratch)}
    return clean | offline | {"TOKENIZERS_PARALLELISM": "false"}
