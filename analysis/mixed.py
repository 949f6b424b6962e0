"""Sweeps whose recipe, data or model changed: what the tables then compare or leave out.

A sweep file that is amended, and then run in part, leaves cells that were trained in more than one
way: the tables compare them all the same. After a whole run the earlier cells are not shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lp_sweep.storage.catalog import Catalog
from lp_sweep.storage.hidden import hidden_notes
from lp_sweep.storage.printable import listed
from lp_sweep.storage.redact import redact_text

_WORDS = {
    "data_fingerprint": "other data",
    "model_fingerprint": "another model of that name",
    "task": "rows read or scored in another way",
}
_ASK = "FROM recipe_differences"
_MEND = "Run the whole sweep again, or give each way a `name:` of its own."
# from what the cells say themselves: a table has no time to read how each trial was trained
_MIXED = """
WITH unlike AS (
    SELECT sweep, model, procedure, task
    FROM store.sweeps
    WHERE (len($models::VARCHAR[]) = 0 OR list_contains($models::VARCHAR[], model))
        AND coalesce(sweep = $sweep::VARCHAR, true) AND coalesce(task = $task::VARCHAR, true)
    GROUP BY ALL
    HAVING min(setup) < max(setup)
)
SELECT DISTINCT sweep, task
FROM store.sweeps
JOIN unlike USING (sweep, model, procedure, task)
JOIN trials USING (trial_id)
GROUP BY sweep, model, procedure, task
HAVING min(setup) < max(setup)
ORDER BY ALL
"""


def mixed(catalog: Catalog) -> Iterator[str]:
    """A sentence for each sweep of which cells of one model, procedure and task differ in more than
    their layers and seed, with in what."""
    rows = catalog.query(f"{_ASK} ORDER BY ALL").to_pylist()
    for sweep in dict.fromkeys(row["sweep"] for row in rows):
        own = [row for row in rows if row["sweep"] == sweep]
        tasks = listed(dict.fromkeys(row["task"] for row in own))
        ways = dict.fromkeys(
            _WORDS.get(row["setting"]) or f"{row['setting']} {listed(row['found'])}" for row in own
        )
        yield (
            f"Cells of sweep {sweep} were trained in more than one way ({'; '.join(ways)}), and "
            f"its tables compare them: {tasks}. {_MEND}"
        )


def mixed_notes(
    catalog: Catalog,
    models: Sequence[str] = (),
    *,
    sweep: str | None = None,
    task: str | None = None,
) -> Iterator[str]:
    """For below a table of these models, none named: of all. Needs the view `trials` alone."""
    wanted = {"models": list(models), "sweep": sweep, "task": task}
    rows = catalog.query(_MIXED, wanted).to_pylist()
    for sweep in dict.fromkeys(row["sweep"] for row in rows):
        tasks = listed(row["task"] for row in rows if row["sweep"] == sweep)
        yield (
            f"Not comparable: cells of sweep {sweep} were trained in more than one way ({tasks}): "
            f'`lp-sweep query "{_ASK}"` says in what. {_MEND}'
        )


def setup_notes(catalog: Catalog) -> Iterator[str]:
    """Names the results that the tables of this catalog leave out, or the setup they show."""
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
