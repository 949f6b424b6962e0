"""On the path of a sweep's processes: a trial is a record without any training.

What is left is the driver, Ray Tune, the claims, the worker's ledger and the store: all but the
model. `LP_SWEEP_TEST_NOOP` switches it on.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_MODULE = "lp_sweep.trials.run"


def _noop_trial(job: Any, *_: Any) -> dict[str, Any]:
    from lp_sweep.storage.plain import trial_spec_from_plain
    from lp_sweep.trials.record import identity_columns

    spec = trial_spec_from_plain(job["spec"])
    scores = {"metric": "accuracy", "last": 0.5, "seconds_total": 0.001}
    sizes = {"train_examples": 1, "dev_examples": 1}
    return {"record": {**identity_columns(job, spec), **scores, **sizes}}


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        module.run_trial = _noop_trial


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None:
            spec.loader = _Loader(spec.loader)
        return spec


if os.environ.get("LP_SWEEP_TEST_NOOP"):
    sys.meta_path.insert(0, _Finder())
