"""lp-sweep for Python programs and notebooks.

    from lp_sweep import Sweep, open_store

    sweep = Sweep("bert-base-cased", "rte", [{"name": "top", "k": [0, 2, 4]}])
    sweep = Sweep.from_yaml("sweep.yaml", "task=rte")
    print(sweep.plan())
    sweep.run()
    sweep.results().table("min-layers")
    open_store("lp-sweep-store").sql("SELECT * FROM cells").df()

The names in this file are the public API; everything else may change.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from lp_sweep.orchestrator.service.export import prune_model as prune_model
    from lp_sweep.orchestrator.service.plan import SweepPlan as SweepPlan
    from lp_sweep.orchestrator.service.run import RunResult as RunResult
    from lp_sweep.orchestrator.service.tables import ResultRows as ResultRows
    from lp_sweep.orchestrator.service.tables import TableRows as TableRows
    from lp_sweep.pruning import prune as prune
    from lp_sweep.results import Results as Results
    from lp_sweep.results import open_store as open_store
    from lp_sweep.storage.errors import LpSweepError as LpSweepError
    from lp_sweep.sweep import Sweep as Sweep
    from lp_sweep.trials.plugins import metric as metric
    from lp_sweep.trials.plugins import strategy as strategy

_WHERE = {
    "LpSweepError": "storage.errors",
    "ResultRows": "orchestrator.service.tables",
    "Results": "results",
    "RunResult": "orchestrator.service.run",
    "Sweep": "sweep",
    "SweepPlan": "orchestrator.service.plan",
    "TableRows": "orchestrator.service.tables",
    "metric": "trials.plugins",
    "open_store": "results",
    "prune": "pruning",
    "prune_model": "orchestrator.service.export",
    "strategy": "trials.plugins",
}


__all__ = [*_WHERE]


def __getattr__(name: str) -> Any:
    """Imports a name at its first use: a worker that imports `lp_sweep.trials` needs none."""
    if name == "__version__":
        return import_module("importlib.metadata").version("lp-sweep")
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return __all__
