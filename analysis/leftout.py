"""What the view `min_layers` leaves out, said under the tables that are made of it."""

from __future__ import annotations

from collections.abc import Sequence

from lp_sweep.analysis.legend import Note
from lp_sweep.storage.catalog import Catalog

_REDUCED = """
SELECT DISTINCT feed_forward
FROM cells
WHERE feed_forward <> 'none'
    AND (len($models::VARCHAR[]) = 0 OR list_contains($models::VARCHAR[], model))
    AND (len($strategies::VARCHAR[]) = 0 OR list_contains($strategies::VARCHAR[], strategy))
ORDER BY feed_forward
"""
ASK = "SELECT * FROM task_table WHERE feed_forward <> 'none'"


def left_out(
    catalog: Catalog, models: Sequence[str] = (), strategies: Sequence[str] = ()
) -> tuple[Note, ...]:
    """A note where there are networks without some of their feed-forwards, else none."""
    wanted = {"models": list(models), "strategies": list(strategies)}
    settings = catalog.query(_REDUCED, wanted)["feed_forward"].to_pylist()
    if not settings:
        return ()
    return (
        Note(
            "Left out: networks without some of their feed-forwards "
            f'({", ".join(settings)}). `lp-sweep query "{ASK}"` lists them.'
        ),
    )
