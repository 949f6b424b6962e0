"""The cautions of tables, reports and exports, in sentences made from rows.

If a sweep file is changed and then only partly run, its cells were trained in more than one way.
The tables still compare them, with a note. After a whole run, the earlier cells are not shown.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from lp_sweep.analysis.rows import Row, grouped
from lp_sweep.storage.printable import guess_name, listed
from lp_sweep.storage.redact import redact_text

if TYPE_CHECKING:
    from lp_sweep.storage.catalog import Catalog

NOT_ASKED = "–"
NOT_SEARCHED = "not searched"  # a search was not for this loss
LEARNED_NOTHING = "†"
_PLACE = ("sweep", "model", "procedure")
_NOTHING_TO_LOSE = "A model that did not learn has nothing to lose, so the answer means little."


def remedy(rows: Iterable[Row]) -> str:
    """Advice about full models that did not learn. Training can't help where the dev set is
    the cause. `rows`: of `min_layers`, or records."""
    blind = dict.fromkeys(row["dev_blind"] for row in rows if row.get("dev_blind"))
    if not blind:
        return "Try more rows, more epochs or another learning rate first."
    return f"The cause may be the data: {'; '.join(blind)}. Give other or more dev rows first."


def no_better(row: Row) -> str:
    """`2 of 3 seeds`: how many seeds of the full model did not learn. `row`: of `min_layers`."""
    return f"{row['n_learned_nothing']} of {row['n_full']} seed{'s' * (row['n_full'] > 1)}"


def guess(row: Row) -> str:
    """`the majority class`: names the score in `majority`."""
    return guess_name(row.get("kind"), row.get("metric"))


_GAIN = 5.0  # points of a smaller network above the full model, which no removal explains


def barely(row: Row) -> str:
    """A clause, or "" if the full model has learned enough to be compared with: it is well above
    guessing, and no network without a teacher is far above it. `row`: of the view `min_layers`."""
    if "near guessing" in row["caveats"]:
        lead = row["score_full"] - row["majority"]
        return f"the full model is only {lead:.1f} points above guessing"
    gain = -row["loss"] if row["unit"] == "points" and row["distill"] == "none" else 0.0
    if gain >= _GAIN:
        return f"the full model scores {gain:.1f} points less, so it needs more training first"
    return ""


def learned_nothing(record: Row) -> bool:
    """Whether one trial did not learn, by the same rule as the view `min_layers`."""
    last, majority = record["last"], record["majority"]
    if majority is None:
        return False
    return last is None or not math.isfinite(last) or no_better_than(100 * majority, 100 * last)


def no_better_than(majority: float, score: float) -> bool:
    """Both in points: two decimals show no difference to guessing, or a lower score."""
    return score < majority + 0.005


def network_not_learned(record: Row, full: Row | None) -> str:
    """A warning, or "" if this network and the full model are both better than guessing. `full`:
    the full model's record of the same recipe and seed; None if it is this one or does not
    exist."""
    both = {"This network": record, "The same seed with all layers": full}
    found = {name: row for name, row in both.items() if row and learned_nothing(row)}
    said = (
        f"{name} scores {100 * (math.nan if row['last'] is None else row['last']):.2f}, no better "
        f"than guessing ({100 * row['majority']:.2f}): it did not learn the task."
        for name, row in found.items()
    )
    return " ".join([*said, remedy(found.values())]) if found else ""


def did_not_learn(rows: Sequence[Row]) -> str:
    """A warning that names the tasks, from rows of `min_layers`; "" if each seed of the full model
    beats guessing."""
    several = [name for name in _PLACE if len({row[name] for row in rows}) > 1]
    found = [row for row in rows if row["n_learned_nothing"]]
    said = (
        f"No better than {answer} with all layers: "
        + listed(dict.fromkeys(f"{no_better(row)} of {_task_of(row, several)}" for row in alike))
        for answer, alike in grouped(found, guess).items()
    )
    return f"{'; '.join(said)}. {_NOTHING_TO_LOSE} {remedy(found)}" if found else ""


def where_nothing_was_learned(rows: Sequence[Row], *_: object) -> list[str]:
    """The note for the mark of a model that did not learn, with its tasks; none without the
    mark."""
    said = did_not_learn(rows)
    return [f"{LEARNED_NOTHING}: {said}"] if said else []


def _task_of(row: Row, several: Sequence[str]) -> str:
    place = ", ".join(str(row[name]) for name in several)
    return f"{row['task']} ({place})" if place else str(row["task"])


def baseline(row: Row) -> str:
    """Names the score in a task's `majority`."""
    answer = guess(row)
    return "Majority-class score" if answer == guess_name("") else f"Score of {answer}"


def majorities(rows: Sequence[Row], *_: object) -> list[str]:
    """One note with the majority-class score of each task that has one, or the score of what a
    network of its kind has to beat."""
    known = [row for row in rows if row["majority"] is not None]
    lists = []
    for what, alike in grouped(known, baseline).items():
        scores = dict.fromkeys(f"{row['task']} {row['majority']:.2f}" for row in alike)
        lists.append(f"{what}: {', '.join(scores)}.")
    return [" ".join(lists)] if known else []


_REDUCED = "SELECT * FROM task_table WHERE feed_forward <> 'none'"


def left_out(_: Sequence[Row], catalog: Catalog, *_more: object) -> list[str]:
    """A note if there are networks without some of their feed-forwards."""
    some = catalog.query("FROM cells WHERE feed_forward <> 'none' LIMIT 1").num_rows
    found = "Left out: networks without some of their feed-forwards."
    return [f'{found} `lp-sweep query "{_REDUCED}"` lists them.'] if some else []


_FIX = "Run the whole sweep again, or give each way its own `name:`."
_MIXED = """
SELECT DISTINCT sweep, task
FROM cells
WHERE mixed
    AND (len($models::VARCHAR[]) = 0 OR list_contains($models::VARCHAR[], model))
    AND coalesce(sweep = $sweep::VARCHAR, true) AND coalesce(task = $task::VARCHAR, true)
ORDER BY ALL
"""


def mixed_notes(
    catalog: Catalog,
    models: Sequence[str] = (),
    *,
    sweep: str | None = None,
    task: str | None = None,
) -> Iterator[str]:
    """A note for each sweep in which cells of one model, procedure and task differ in more than
    layers and seed. `models`: only theirs; none: of all."""
    wanted = {"models": list(models), "sweep": sweep, "task": task}
    rows = catalog.query(_MIXED, wanted).to_pylist()
    for sweep in dict.fromkeys(row["sweep"] for row in rows):
        tasks = listed(row["task"] for row in rows if row["sweep"] == sweep)
        yield (
            f"Not comparable: cells of sweep {sweep} were trained in more than one way ({tasks}): "
            f'`lp-sweep query "FROM recipe_differences"` shows the differences. {_FIX}'
        )


def setup_notes(catalog: Catalog) -> Iterator[str]:
    """Names the results that the tables of this catalog leave out, or the setup they show."""
    from lp_sweep.storage.setups import hidden_notes

    setups = catalog.earlier_setups()
    if catalog.setup is None:
        yield from hidden_notes(setups, redact_text(catalog.location))
        return
    for setup in setups:
        if setup.number == catalog.setup:
            ways = f" ({listed(setup.differences)})" if setup.differences else ""
            yield (
                f"Shown: the earlier setup {setup.number} of {setup.sweep!r}{ways}. Leave out "
                "--setup to see today's"
            )
