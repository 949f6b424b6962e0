"""On the path of a sweep's processes: trials that cost nothing, or that take their time.

`LP_SWEEP_TEST_NOOP`: a trial is a record without any training. What is left is the driver, Ray
Tune, the claims, the worker's ledger and the store: all but the model. It takes
`LP_SWEEP_TEST_SECONDS`. With seed `LP_SWEEP_TEST_LEAK` it prints the variables that are listed in
`LP_SWEEP_TEST_SECRETS`, and fails with them in its message. `LP_SWEEP_TEST_STEP_SECONDS`: a
training rests so long after each step.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import sys
import time
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def _train_nothing(run: Any) -> None:
    run.run_trial = _noop_trial


def _noop_trial(given: Any, *_: Any) -> Any:
    from lp_sweep.trials.worker.trial import TrialResult, asked_columns

    job = given.job

    time.sleep(float(os.environ.get("LP_SWEEP_TEST_SECONDS", "0")))
    if str(job.trial.seed) == os.environ.get("LP_SWEEP_TEST_LEAK"):
        known = [os.environ[name] for name in os.environ["LP_SWEEP_TEST_SECRETS"].split(",")]
        print("a library says", *known, flush=True)
        raise RuntimeError(f"refused: {known}")
    scores = {"metric": "accuracy", "last": 0.5, "seconds_total": 0.001}
    sizes = {"train_examples": 1, "dev_examples": 1}
    return TrialResult({**asked_columns(job), **scores, **sizes}, [], None)


def _rest_after_each_step(checkpoint: Any) -> None:
    due = checkpoint.Checkpoints.due  # asked after each

    def rested(self: Any) -> Any:
        time.sleep(float(os.environ["LP_SWEEP_TEST_STEP_SECONDS"]))
        return due(self)

    checkpoint.Checkpoints.due = rested


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: Any, change: Callable[[Any], None]) -> None:
        self._loader, self._change = loader, change

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._change(module)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, module: str, change: Callable[[Any], None]) -> None:
        self._module, self._change = module, change

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != self._module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None:
            spec.loader = _Loader(spec.loader, self._change)
        return spec


if os.environ.get("LP_SWEEP_TEST_NOOP"):
    sys.meta_path.insert(0, _Finder("lp_sweep.trials.worker.run", _train_nothing))
if os.environ.get("LP_SWEEP_TEST_STEP_SECONDS"):
    sys.meta_path.insert(0, _Finder("lp_sweep.trials.worker.checkpoint", _rest_after_each_step))
