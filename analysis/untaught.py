"""Networks that learned nothing with all their layers, by the view `min_layers`: the mark of an
answer that hangs on one, and what is said of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from lp_sweep.analysis.legend import Note
from lp_sweep.storage.printable import listed, metric_name

Row = Mapping[str, Any]
_PLACE = ("sweep", "model", "procedure")

LEARNED_NOTHING = "†"
_NOTHING_TO_LOSE = (
    "What learned nothing has nothing to lose, so this says little of the task. Try more rows, "
    "more epochs or another learning rate first."
)


def _no_better(row: Row) -> str:
    """`2 of 3 seeds`: of those with all layers, by the view `min_layers`."""
    some, every = row["n_learned_nothing"], row["n_full"]
    if every == 1:
        return "the one seed"
    return f"{some} of {every} seeds" if some < every else f"all {every} seeds"


def untaught(row: Row) -> str:
    """Sentences, or "" where each seed with all layers is better than the constant answer."""
    if not row["n_learned_nothing"]:
        return ""
    verb = "scores" if row["n_learned_nothing"] == 1 else "score"
    return (
        f"With all layers {_no_better(row)} {verb} no better than the constant answer. "
        f"{_NOTHING_TO_LOSE}"
    )


def is_untaught(record: Row) -> bool:
    """Judges one trial's record as the view `min_layers` counts them."""
    last, majority = record["last"], record["majority"]
    if majority is None:
        return False
    return last is None or not math.isfinite(last) or 100 * last < 100 * majority + 0.005


def untaught_network(record: Row, full: Row | None) -> str:
    """Sentences, or "" where this network and the one with all layers are better than guessing.
    `full`: the record of the same recipe and seed with all layers; None: it is this one, or not
    there."""
    said = [
        f"{name} scores {_points(row['last'])} "
        f"{metric_name(row['metric'], row.get('positive'))}, no better than always giving "
        f"{_one_answer(row)} ({100 * row['majority']:.2f}): it did not learn the task."
        for name, row in (("This network", record), ("The same seed with all layers", full))
        if row is not None and is_untaught(row)
    ]
    said += ["Try more rows, more epochs or another learning rate first."] if said else []
    return " ".join(said)


def _one_answer(row: Row) -> str:
    """What `majority` is the score of."""
    if row["metric"] != "f1":
        return "the most common answer"
    return f"the answer {row['positive']!r}" if row.get("positive") else "the answer 1"


def _points(share: float | None) -> str:
    return f"{100 * share:.2f}" if share is not None and math.isfinite(share) else "no"


def where_nothing_was_learned(rows: Sequence[Row]) -> tuple[Note, ...]:
    """The note to the mark, which tells the tasks; none without the mark."""
    several = [name for name in _PLACE if len({row[name] for row in rows}) > 1]
    found = dict.fromkeys(
        f"{_no_better(row)} of {_task_of(row, several)}" for row in rows if row["n_learned_nothing"]
    )
    if not found:
        return ()
    said = f"{LEARNED_NOTHING}: no better than the constant answer with all layers"
    return (Note(f"{said}: {listed(found)}. {_NOTHING_TO_LOSE}"),)


def _task_of(row: Row, several: Sequence[str]) -> str:
    place = ", ".join(str(row[name]) for name in several)
    return f"{row['task']} ({place})" if place else str(row["task"])
