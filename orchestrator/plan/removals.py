"""Which removals of feed-forwards a sweep's networks have layers for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from lp_sweep.orchestrator.inputs.resolve import Sweep
from lp_sweep.orchestrator.sweepfile.axes import FeedForward
from lp_sweep.storage.errors import SpecError
from lp_sweep.storage.printable import shown
from lp_sweep.trials.feedforward_rules import NONE, needed_layers, some_removed
from lp_sweep.trials.select import dropped_layers, find_rule, kept_layers


class Reduced(NamedTuple):
    """What decides whether a cell's removal finds its layers."""

    model: str
    strategy: str
    k: int | None
    feed_forward: str


def check_removals(sweep: Sweep) -> None:
    """Raises SpecError where a model has too few layers, whichever of them are dropped."""
    for index, label in enumerate(sweep.spec.feed_forward):
        needed = needed_layers(FeedForward.parse(label).rule)
        for model in sweep.models:
            if needed > model.depth:
                raise SpecError(
                    f"{sweep.document.where(('feed_forward', index))}: feed_forward "
                    f"{shown(label)} can't go from the {model.depth} layers of {model.name} "
                    f"(it needs {shown(needed)}). "
                    f"Possible numbers: up to {model.depth}. A model of another depth belongs in a "
                    "sweep of its own: sweeps over one store share their trials."
                )


def empty_removals(sweep: Sweep, networks: Iterable[Reduced]) -> set[Reduced]:
    """Those whose strategy drops all that their feed-forwards could go from; a note names them.
    What a measurement chooses is known only later."""
    depths = {model.name: model.depth for model in sweep.models}
    asked = dict.fromkeys(networks)
    empty = [network for network in asked if _is_empty(network, depths[network.model])]
    points: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for model, strategy, k, label in empty:
        points[model, strategy, label].append(str(k))
    notes = [
        f"{model}: {strategy} leaves no network for feed_forward {shown(label)} at "
        f"K={', '.join(k)} (left out)"
        for (model, strategy, label), k in points.items()
    ]
    sweep.notes.extend(note for note in notes if note not in sweep.notes)  # of an earlier plan
    return set(empty)


def _is_empty(network: Reduced, depth: int) -> bool:
    rule = FeedForward.parse(network.feed_forward).rule
    if rule == NONE or network.k is None or find_rule(network.strategy) is None:
        return False
    kept = kept_layers(depth, dropped_layers(network.strategy, depth, network.k))
    try:
        some_removed(rule, kept)
    except ValueError:
        return True
    return False
