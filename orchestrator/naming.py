"""How a piece of work is named in a line: its model, layers, procedure, task and seed."""

from __future__ import annotations

from collections.abc import Sequence

from lp_sweep.orchestrator.plan import Work
from lp_sweep.storage.identity import ProfileSpec, TrialSpec
from lp_sweep.storage.printable import printable
from lp_sweep.trials.procedures import DIRECT, Procedure

_MOST_RANGES = 4  # in a line


def describe(work: Work) -> str:
    """`bert-base-cased layers 1-8 of 12 rte seed 42`, or a profile's model and task."""
    model, task = short_model(work.model.name), printable(work.task.name)
    if isinstance(work.spec, ProfileSpec):
        return f"{model} {work.spec.measure.replace('_', '-')} profile {task}"
    layers = _layers(work.spec.kept_layers, work.model.depth)
    return " ".join([model, layers, *_manner(work.spec), task, f"seed {work.spec.seed}"])


def _layers(kept: Sequence[int], depth: int) -> str:
    if len(kept) == depth:
        return f"all {depth} layers"
    return f"layer{'s' * (len(kept) > 1)} {ranges(kept, _MOST_RANGES)} of {depth}"


def _manner(spec: TrialSpec) -> list[str]:
    """How it is trained, and what else of it goes: nothing for the most usual."""
    label = Procedure(spec.procedure, spec.freeze_dropped, spec.epochs_per_layer).label
    words = [] if label == DIRECT else [label]
    if frozen := spec.recipe.freeze_layers:
        words.append(f"with {ranges(frozen, _MOST_RANGES)} frozen")
    if gone := spec.removed_feed_forwards:
        norm = " no norm" if spec.second_norm == "drop" else ""
        feed_forwards = f"feed-forward{'s' * (len(gone) > 1)} {ranges(gone, _MOST_RANGES)}"
        words.append(f"without {feed_forwards}{norm}")
    return words


def short_model(name: str) -> str:
    """A hub id as it is; of a folder its last two parts."""
    parts = printable(name).rstrip("/").split("/")
    return "/".join(parts if len(parts) <= 2 else parts[-2:])


def ranges(layers: Sequence[int], most: int | None = None) -> str:
    """`1-4,6` for (1, 2, 3, 4, 6); `1,3,...` where there are more than `most` such parts."""
    parts: list[list[int]] = []
    for layer in layers:
        if parts and parts[-1][1] == layer - 1:
            parts[-1][1] = layer
        else:
            parts.append([layer, layer])
    texts = [str(a) if a == b else f"{a}-{b}" for a, b in parts]
    return ",".join(texts if most is None or len(texts) <= most else [*texts[:most], "..."])
