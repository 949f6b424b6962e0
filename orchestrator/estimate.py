"""How long the missing work takes: from the store's own timings, else from a stated rule of thumb.

Also the order of the work: longest first, so that no long trial starts last on one slot while the
others idle.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from lp_sweep.orchestrator.plan import Plan, Work
from lp_sweep.storage.identity import ProfileSpec

RULE_FLOPS = 1e13  # sustained by one mid-size GPU; used only before the store has a timing
_TOKENS = 64  # mean length after dynamic padding, likewise
_LAYER_PARAMETERS = 7_077_888  # of bert-base
_OVERHEAD_LAYERS = 1  # embeddings, head and optimiser, in layers
_FORWARD_SHARE = 1 / 3  # a forward pass is a third of a training step


class Estimate(NamedTuple):
    """Hours on one slot. `basis` says what the figure stands on."""

    hours: float
    basis: str


def work_size(work: Work) -> float:
    """Example-layers, a forward pass counting a third of a training step."""
    dev = work.task.dev_rows
    if isinstance(work.spec, ProfileSpec):
        return min(dev, work.spec.limit_dev or dev) * work.model.depth * _FORWARD_SHARE
    recipe = work.spec.recipe
    train = work.task.train_rows
    rows = min(train, recipe.limit_train or train)
    scored = min(dev, recipe.limit_dev or dev)
    layers = len(work.spec.kept_layers) + _OVERHEAD_LAYERS
    return (rows + scored * _FORWARD_SHARE) * recipe.epochs * layers


class Rates:
    """Seconds per example-layer, by model; measured where the store has trials of the model."""

    def __init__(self, trials: Iterable[Mapping[str, Any]]) -> None:
        measured: dict[str, list[float]] = defaultdict(list)
        for row in trials:
            size = _recorded_size(row)
            if size and row["seconds_total"]:
                measured[row["model_fingerprint"]].append(row["seconds_total"] / size)
        self._measured = {model: statistics.median(values) for model, values in measured.items()}

    def seconds(self, work: Work) -> float:
        rate = self._measured.get(work.model.fingerprint)
        if rate is None:
            parameters = work.model.layer_parameters or _LAYER_PARAMETERS
            rate = 6 * parameters * _TOKENS / RULE_FLOPS
        return work_size(work) * rate

    def knows(self, work: Work) -> bool:
        return work.model.fingerprint in self._measured


def _recorded_size(row: Mapping[str, Any]) -> float:
    if not row["train_examples"]:
        return 0.0
    layers = len(row["kept_layers"]) + _OVERHEAD_LAYERS
    examples = row["train_examples"] + row["dev_examples"] * _FORWARD_SHARE
    return float(examples * row["epochs"] * layers)


def estimate(plan: Plan, rates: Rates) -> Estimate:
    """Slot-hours of what is missing; a deferred cell counts as a network of full depth."""
    missing = [*plan.missing_profiles(), *plan.missing_trials()]
    seconds = sum(rates.seconds(work) for work in missing)
    deferred = sum(cell.state == "deferred" for cell in plan.cells)
    if deferred and plan.trials:
        seconds += deferred * max(rates.seconds(work) for work in plan.trials.values())
    unknown = sum(not rates.knows(work) for work in missing)
    if not missing:
        basis = "nothing is missing"
    elif unknown:
        basis = f"rule of thumb: a GPU that sustains {RULE_FLOPS / 1e12:.0f} TFLOP/s"
    else:
        basis = "this store's own timings"
    return Estimate(seconds / 3600, basis)
