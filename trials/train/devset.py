"""What a dev set can't tell, whatever a network has learned. Reads rows, trains nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from lp_sweep.storage.printable import listed, shown
from lp_sweep.trials.data.columns import Labels
from lp_sweep.trials.data.datasource import LoadedTask
from lp_sweep.trials.kinds import kind_of
from lp_sweep.trials.kinds.rankmetrics import by_query
from lp_sweep.trials.spec.specs import TaskDefinition
from lp_sweep.trials.train.metrics import positive_label

_FEWEST = 3  # rows: with fewer, a score is all, nothing or half
_NAMED = 5


def blindness(definition: TaskDefinition, labels: Labels, names: Sequence[str] = ()) -> str | None:
    """Why scores on dev rows with these labels can't show what a network learned; None if they
    can."""
    kind = kind_of(definition)
    rows = len(kind.stored_labels(labels))
    found = None
    if names:
        found = _of_classes(definition, kind.counts(labels, len(names)), names)
    elif kind.ranks:
        if not _in_order(labels):
            found = "in each dev query any order of the passages is right"
    elif not kind.searches and rows > 1 and np.ptp(labels) == 0:
        found = f"all {rows:,} dev {kind.scored_by} have the number {float(labels[0]):g}"
    if found is None and rows < _FEWEST:
        unit = _ONE[kind.scored_by] if rows == 1 else kind.scored_by
        return f"the dev set has only {rows} {unit}"
    return found


def _of_classes(
    definition: TaskDefinition, counts: npt.NDArray[np.intp], names: Sequence[str]
) -> str | None:
    kind = kind_of(definition)
    there = [name for name, count in zip(names, counts, strict=True) if count]
    if not there:
        return f"no dev row has one of the {kind.called}"
    if definition.metric == "entity_f1" and there == ["O"]:
        return "the dev sentences have no entity: every tag is 'O'"
    if definition.metric == "f1" and not counts[positive := positive_label(definition, names)]:
        return f"no dev row has the label {shown(names[positive])}, which f1 scores"
    if len(there) == 1 and len(names) > 1 and kind.called != "labels":  # a text may have none
        return f"all {counts.sum():,} dev {'words' if kind.words else 'rows'} are {shown(there[0])}"
    return None


_ONE = {"rows": "row", "pairs": "pair", "queries": "query", "sentences": "sentence"}


def _in_order(labels: Labels) -> int:
    """Queries whose passages differ in relevance. (n, 2) relevance and query."""
    return sum(bool(np.ptp(labels[rows, 0])) for rows in by_query(labels))


def gaps(task: LoadedTask) -> Iterator[str]:
    """Yields notes on a dev set: why it is blind, or else what its scores leave out."""
    definition, names = task.definition, task.label_names
    kind, train, dev = kind_of(definition), task.train.labels, task.dev[task.main_split].labels
    if why := blindness(definition, dev, names):
        yield f"{why}, so scores can't show what a network learned. Give other or more dev rows"
        return
    if kind.ranks and (alike := len(by_query(dev)) - _in_order(dev)):
        yield f"in {alike:,} dev queries all passages are equally relevant: any order is right"
    if not names:
        return
    learned, scored = (kind.counts(part, len(names)) for part in (train, dev))
    for chosen, said in (
        ((learned == 0) & (scored > 0), "only in dev: no network can learn it"),
        ((learned > 0) & (scored == 0), "only in train: the score says nothing about it"),
        ((learned == 1) & (scored > 0), "in a single train row: hardly any network can learn it"),
        ((scored == 1) & (learned > 1), "in a single dev row: its score is all or nothing"),
    ):
        if found := [names[at] for at in np.flatnonzero(chosen)]:
            yield f"of the {kind.called}, {listed(map(shown, found), _NAMED)}: {said}"
