"""The work of each verb, for the command line and Python alike: typed options in, results out.

A module is loaded when it is first used, as in `service.tables.make_table`: `lp-sweep --help` and
`import lp_sweep` need none of them.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lp_sweep.orchestrator.service import export as export
    from lp_sweep.orchestrator.service import init as init
    from lp_sweep.orchestrator.service import plan as plan
    from lp_sweep.orchestrator.service import run as run
    from lp_sweep.orchestrator.service import smaller as smaller
    from lp_sweep.orchestrator.service import store as store
    from lp_sweep.orchestrator.service import tables as tables

_MODULES = ("export", "init", "plan", "run", "smaller", "store", "tables")


def __getattr__(name: str) -> ModuleType:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")
