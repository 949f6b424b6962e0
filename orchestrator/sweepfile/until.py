"""`until: min_layers` of a strategy: which settings go with it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from lp_sweep.trials.select import STRATEGIES, find_strategy

if TYPE_CHECKING:
    from lp_sweep.orchestrator.sweepfile.axes import StrategyEntry

WITHIN = (1.0, 2.0, 3.0)  # points, where `within:` is not given
ASSUMED = (
    "a search never trained some K; its answers assume that the loss does not dip there: "
    "`lp-sweep table min-layers` names them after 'unless'"
)


def check_until(
    strategy: str, until: str | None, within: Sequence[float] | None, max_seeds: int | None
) -> None:
    """Raises ValueError."""
    if until is None:
        for key, value in (("within", within), ("max_seeds", max_seeds)):
            if value is not None:
                raise ValueError(f"`{key}:` is for `until: min_layers`: add that, or remove it")
        return
    found = find_strategy(strategy) or STRATEGIES.get(strategy)
    if found is not None and found.takes != "k":
        raise ValueError(
            f"strategy {strategy!r} has no K to choose among: remove `until:`, or take a strategy "
            "with `k:`"
        )
    for loss in within or ():
        if loss < 0:
            raise ValueError(f"`within:` takes losses of 0 points or more, got {loss:g}")


def searched_losses(strategies: Iterable[StrategyEntry]) -> list[float]:
    """The losses, in points and ascending, that the searches of a sweep are for; none without a
    search."""
    return sorted({loss for entry in strategies if entry.until for loss in entry.within or WITHIN})


def used_seeds(seeds: Sequence[int], max_seeds: int | None) -> Sequence[int]:
    """The first `max_seeds` of a sweep's seeds, or all."""
    return seeds if max_seeds is None else seeds[:max_seeds]
