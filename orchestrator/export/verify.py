"""Checks that a folder, loaded as its users will load it, is the network that was scored.

Its logits are compared with the stored ones, and its score is computed again. The tolerance depends
on where the stored ones were computed, see `Nearness`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lp_sweep.analysis.phrases import signed
from lp_sweep.storage.errors import ExportError
from lp_sweep.storage.printable import metric_name
from lp_sweep.trials.deploy.measure import in_new_process
from lp_sweep.trials.kinds import kind_of
from lp_sweep.trials.spec.specs import TaskDefinition
from lp_sweep.trials.train.metrics import score

SAME_SCORE = 1e-9  # shares; how much rounding changes one
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


class ScorePair(NamedTuple):
    """The score, a share: from the stored answers, from the folder's answers, and how much rounding
    may change one."""

    stored: float
    found: float
    rounding: float


class AnswerPair(NamedTuple):
    """The stored answers and the folder's, both (n, C), scored as a task of this definition."""

    definition: TaskDefinition
    stored: np.ndarray
    found: np.ndarray
    scores: ScorePair | None = None  # if the compared numbers do not determine the score


class RecordedAnswers(NamedTuple):
    """Facts about the stored answers, from the record and its data."""

    label_names: tuple[str, ...]
    labels: np.ndarray  # (n,) of the main dev split
    score: float  # share
    nearness: Nearness
    compared: str = "logit"  # or cosine


class Verification(NamedTuple):
    """The result of the comparison, as the folder's lp_sweep.json has it."""

    examples: int
    largest_difference: float  # of a logit, or of a cosine
    tolerance: float
    other_labels: int  # examples whose label differs
    score: float  # share, from the folder's answers
    recorded_score: float


class ShippedGraph(NamedTuple):
    """A graph of the folder, and what it answers for the whole dev set, one row at a time."""

    file: str
    bytes: int
    score: float  # share
    largest_difference: float  # of a logit, or of a cosine, from the stored ones
    other_labels: int  # examples whose label differs from the stored one


class CutVocabulary(NamedTuple):
    """The vocabulary of a folder that has a part of its model's pieces."""

    pieces: int
    of: int
    words_cut: float  # share of the dev set's words that are cut up otherwise
    extra_texts: str  # fingerprints of texts that it was cut on, beyond the train rows
    score: float | None  # share, of the network for torch over the dev set; None: there is none


class HeldOutScore(NamedTuple):
    """Scores in points. `full`, that of the full model, and what is counted from it are None if its
    network was not kept, or if it is this one."""

    examples: int
    unit: str  # rows, queries
    metric: str
    score: float
    full: float | None
    change: float | None
    low: float | None  # the 95% interval of the change, over other rows
    high: float | None
    look: int | None  # how many artefacts these rows have scored, this one among them
    within: float | None = None  # the loss that the choice allowed

    def sentence(self) -> str:
        """`on 1,000 test rows, never used to choose: accuracy 84.1 (full model 85.0, ...)`"""
        against = []
        if self.full is not None:
            against = [f"full model {self.full:.1f}", f"change {signed(self.change, decimals=1)}"]
        if self.low is not None:
            low, high = (signed(limit, decimals=1) for limit in (self.low, self.high))
            against.append(f"95% {low} to {high}")
        later = (self.look or 1) > 1
        chosen = "" if later else ", never used to choose"
        text = f"on {self.examples:,} test {self.unit}{chosen}: {self.metric} {self.score:.1f}"
        text += f" ({', '.join(against)})" if against else ""
        if self.within is not None and round(self.change or 0.0, 1) < -self.within:
            text += (
                f". It loses more than the {self.within:g} allowed: the score on the dev rows may "
                "be luck. Give more dev rows or seeds, or allow less (--within)"
            )
        if later:
            text += (
                f". This is look {self.look} at these {self.unit}: the best of "
                "several looks is optimistic"
            )
        return text


def verify(answer: FolderAnswers, pair: AnswerPair, expected: RecordedAnswers) -> Verification:
    """Compares a folder's answers with the stored ones. Raises ExportError for another network."""
    what, (_, stored, values, _) = expected.compared, pair
    for kind, missing in answer.missing.items():
        if missing:
            _refuse(f"{kind} finds {len(missing)} weights missing, such as {missing[0]}")
    names = list(expected.label_names)
    if names and answer.labels != names:
        _refuse(f"its config names the classes {answer.labels}, the data {names}")
    if values.shape != stored.shape:
        _refuse(f"its {what}s are {values.shape}, expected are {stored.shape}")
    if not np.isfinite(values).all():
        _refuse(f"some of its {what}s are no numbers")
    return _compare(pair, expected)


def measured(pair: AnswerPair, expected: RecordedAnswers) -> Verification:
    """How a folder's answers compare with the stored ones, whatever they are."""
    definition, stored, values, _ = pair
    kind = kind_of(definition)
    return Verification(
        examples=len(values),
        largest_difference=float(np.abs(values - stored).max()),
        tolerance=expected.nearness.rounding * _largest(stored),
        # a difference within the tolerance changes only the label of a near tie
        other_labels=kind.other_labels(values, stored) if kind.counts_labels else 0,
        score=_scores(pair, expected).found,
        recorded_score=expected.score,
    )


def _largest(stored: np.ndarray) -> float:
    return max(1.0, float(np.abs(stored).max()))


def _scores(pair: AnswerPair, expected: RecordedAnswers) -> ScorePair:
    definition, stored, values, scores = pair
    if scores is not None:
        return scores
    both = [
        score(definition, expected.labels, each, expected.label_names)[definition.metric]
        for each in (stored, values)
    ]
    counts = kind_of(definition).counts_labels
    return ScorePair(both[0], both[1], SAME_SCORE if counts else expected.nearness.correlation)


def _compare(pair: AnswerPair, expected: RecordedAnswers) -> Verification:
    definition, stored, values, _ = pair
    what, nearness, found = expected.compared, expected.nearness, measured(pair, expected)
    scores = _scores(pair, expected)
    if not found.largest_difference <= found.tolerance:
        _refuse(
            f"a {what} differs from the stored one by {found.largest_difference:.2g}, and rounding "
            f"explains {found.tolerance:.2g}"
        )
    usual = float(np.sqrt(np.square(values - stored, dtype=np.float64).mean()))
    if not usual <= nearness.usual * _largest(stored):
        _refuse(
            f"the {what}s differ from the stored ones by {usual:.2g} (root mean square), and "
            f"rounding explains {nearness.usual * _largest(stored):.2g}"
        )
    if found.other_labels and nearness.same_labels:
        _refuse(f"{found.other_labels} dev examples get another label")
    # the same labels must give the same score; other labels, which are counted, may change it
    if not abs(scores.stored - expected.score) <= SAME_SCORE:
        _refuse(
            f"the stored {what}s give {100 * scores.stored:.4f}, the record "
            f"{100 * expected.score:.4f}"
        )
    if not found.other_labels and not abs(scores.found - expected.score) <= scores.rounding:
        metric = metric_name(definition.metric, definition.positive)
        _refuse(
            f"its {metric} on the dev set is {100 * scores.found:.4f}, the record says "
            f"{100 * expected.score:.4f}"
        )
    return found


def _refuse(what: str) -> None:
    raise ExportError(
        f"the folder is not the network that was scored: {what}. Nothing was published. If the "
        "store's network or its predictions are damaged, delete weights/<trial> there: the export "
        "then trains it again."
    )


class FolderAnswers(NamedTuple):
    """See `trials.model.plainload`."""

    values: np.ndarray
    missing: dict[str, list[str]]
    labels: list[str]


def ask(folder: Path, request: Mapping[str, Any]) -> FolderAnswers:
    """Runs the network in `folder` in a new process. Raises ExportError if it can't be loaded."""
    failure = "plain transformers can't load the folder in a new process"
    answer = answered_by("lp_sweep.trials.model", "plainload.py", folder, request, failure)
    told = json.loads(str(answer["told"]))
    return FolderAnswers(answer["values"], told["missing"], told["labels"])


def answered_by(
    room: str, name: str, folder: Path, request: Mapping[str, Any], failure: str
) -> dict[str, np.ndarray]:
    """The arrays that a program of `room` answers for the folder. Raises ExportError, which begins
    with `failure`, if it ends with an error."""
    program = [str(files(room) / name), str(folder.absolute())]
    try:
        return in_new_process(program, request)
    except ExportError as error:
        raise ExportError(f"{failure}: {error}. Nothing was published.") from None
