"""Is a strategy better than chance: each beside the mean of the draws of `random` at its K."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from lp_sweep.storage.catalog import Catalog

_CONTROL = """
FROM random_control
WHERE (len($models::VARCHAR[]) = 0 OR list_contains($models::VARCHAR[], model))
    AND (len($strategies::VARCHAR[]) = 0 OR list_contains($strategies::VARCHAR[], strategy))
ORDER BY sweep, model, procedure, feed_forward, k, tasks, position
"""


def control_rows(
    catalog: Catalog, *, models: Sequence[str] = (), strategies: Sequence[str] = ()
) -> pa.Table:
    """The view's rows; `strategies` are those beside the control, which is there for each."""
    return catalog.query(_CONTROL, {"models": list(models), "strategies": list(strategies)})
