"""Size and speed of a store's networks with the top layers dropped, as in the paper's Table 3.

Of each model the speeds of one device: the paper's are of one, and ratios of two are none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from lp_sweep.analysis.paper.models import Stand
from lp_sweep.storage.catalog import Catalog

_NETWORKS = """
FROM speed_table  -- of the batches the paper's; larger ones are for fast GPUs
WHERE list_contains($models::VARCHAR[], model) AND feed_forward = 'none'
    AND kept_layers = range(1, n_kept + 1) AND coalesce(batch, 32) = 32
ORDER BY sweep, model, device_name, threads, precision, length, k
"""
_WAY = ("model", "device_name", "threads", "precision", "length")  # of measuring

Row = Mapping[str, Any]
Key = tuple[str, int | None]  # the paper's model, K


class Size(NamedTuple):
    """Of one network; `n` trials counted it."""

    parameters_million: float | None
    n: int


class Speed(NamedTuple):
    """Of one network beside the full one; median of `n` pairs."""

    finetune_speedup: float | None
    inference_percent: float | None
    n: int


class Timed(NamedTuple):
    sizes: Mapping[Key, Size]
    speeds: Mapping[Key, Speed]
    notes: tuple[str, ...]


def load_timed(catalog: Catalog, stand: Stand) -> Timed:
    rows = catalog.query(_NETWORKS, {"models": list(stand.of)}).to_pylist()
    chosen = _of_one_device(rows)
    return Timed(
        sizes={
            (stand.of[row["model"]], row["k"]): _size(row)
            for row in sorted(rows, key=lambda row: row["n_trials"])  # the most trials last
        },
        speeds={(stand.of[row["model"]], row["k"]): _speed(row) for row in chosen},
        notes=tuple(sorted({_note(row, stand.of[row["model"]]) for row in chosen})),
    )


def _of_one_device(rows: Iterable[Row]) -> list[Row]:
    """Of each model what was measured in one way: the one with the most networks."""
    ways: dict[tuple[Any, ...], dict[int, Row]] = {}
    for row in rows:
        if row["profile_id"] is not None:
            ways.setdefault(tuple(row[name] for name in _WAY), {})[row["k"]] = row
    chosen: dict[str, dict[int, Row]] = {}
    for (model, *_), found in ways.items():
        if len(found) > len(chosen.get(model, ())):
            chosen[model] = found
    return [row for found in chosen.values() for row in found.values()]


def _size(row: Row) -> Size:
    parameters = row["params_total"]
    return Size(None if parameters is None else parameters / 1e6, row["n_trials"])


def _speed(row: Row) -> Speed:
    inference = row["inference_speedup"]
    saved = 100 * (1 - 1 / inference) if inference else None
    return Speed(row["finetune_speedup"], saved, row["pairs"])


def _note(row: Row, model: str) -> str:
    return (
        f"Speeds of {model}: measured on {row['device_name']}, {row['precision']}, {row['batch']} "
        f"rows of {row['length']} tokens; n counts pairs."
    )
