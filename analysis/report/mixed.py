"""Cells of one sweep that were trained in more than one way: its tables compare them all the same.

A sweep file that is amended, and then run in part, leaves such a sweep.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from lp_sweep.storage.catalog import Catalog
from lp_sweep.storage.printable import listed
from lp_sweep.storage.specs import Recipe

_OF_EACH_NETWORK = "freeze_layers"  # a trial's recipe has those that it keeps
_INPUTS = {"data_fingerprint": "other data", "model_fingerprint": "another model of that name"}
_RECIPE = [field.name for field in fields(Recipe) if field.name != _OF_EACH_NETWORK]
_NO_LIMIT = ("limit_train", "limit_dev")  # null in any other is a file of before that column
_COLUMNS = [*_RECIPE, *_INPUTS]


def _text(name: str) -> str:
    text = f"trials.{name}::VARCHAR"
    return f"coalesce({text}, 'none') AS {name}" if name in _NO_LIMIT else f"{text} AS {name}"


_WAYS = f"""
WITH trained AS (
    SELECT cells.sweep, cells.model, cells.procedure, cells.task,
        {", ".join(map(_text, _COLUMNS))}
    FROM cells JOIN trials ON trials.trial_id = cells.trial_id
)
SELECT sweep, model, task, name, list(DISTINCT value ORDER BY value) AS ways
FROM (UNPIVOT trained ON {", ".join(_COLUMNS)} INTO NAME name VALUE value)
GROUP BY sweep, model, procedure, task, name
HAVING count(DISTINCT value) > 1
ORDER BY ALL
"""


def mixed(catalog: Catalog) -> Iterator[str]:
    """A sentence for each sweep of which cells of one model, procedure and task differ in more than
    their layers and seed."""
    rows = catalog.query(_WAYS).to_pylist()
    for sweep in dict.fromkeys(row["sweep"] for row in rows):
        own = [row for row in rows if row["sweep"] == sweep]
        tasks = listed(dict.fromkeys(row["task"] for row in own))
        ways = dict.fromkeys(
            _INPUTS.get(row["name"]) or f"{row['name']} {listed(row['ways'])}" for row in own
        )
        yield (
            f"Cells of sweep {sweep} were trained in more than one way ({'; '.join(ways)}), and "
            f"its tables compare them: {tasks}. Run the whole sweep again, or give each way a "
            "`name:` of its own."
        )
