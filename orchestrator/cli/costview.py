"""What a sweep takes on a cluster, as people and programs read it."""

from __future__ import annotations

from typing import Any

from lp_sweep.orchestrator.cli.output import two_digits
from lp_sweep.orchestrator.cluster.clusterfile import PRICES
from lp_sweep.orchestrator.estimate.cost import Band, Cost


def cost_json(cost: Cost) -> dict[str, Any]:
    """One object; `price` and `price_per_hour` are null where the file does not say all prices."""
    return {
        "file": str(cost.file.path),
        "slots": cost.slots,
        "machines": cost.machines,
        "same_device": cost.same_device,
        "wall_hours": cost.hours._asdict(),
        "price_per_hour": cost.per_hour,
        "price": cost.price._asdict() if cost.price else None,
        "unpriced": list(cost.unpriced),
        "idle_timeout_minutes": cost.file.idle_minutes,
    }


def cost_lines(cost: Cost) -> list[str]:
    """Lines of a plan: the wall time, and the price or how to state one."""
    machines = ", ".join(f"{count} {kind}" for kind, count in cost.machines.items())
    wall = f"{two_digits(cost.hours.expected)} h{_band(cost.hours)} of wall time"
    basis = "the estimate is of another kind of device than the cluster's: CPUs beside GPUs"
    return [
        f"  cluster    {cost.slots:>9,}   slots on {machines}: {wall} with all of them at work",
        _price(cost),
        *([] if cost.same_device else [f"  note       {basis}"]),
    ]


def _price(cost: Cost) -> str:
    if cost.price is None:
        example = ", ".join(f"{kind}: 0.35" for kind in cost.unpriced)
        return (
            f"  price       not said   {cost.file.path} lacks what an hour of "
            f"{', '.join(cost.unpriced)} costs: metadata: {{{PRICES}: {{{example}}}}}"
        )
    return (
        f"  price      {two_digits(cost.price.expected):>9}  {_band(cost.price)} at "
        f"{cost.per_hour:,.2f} an hour for all machines from start to end; their boot, and "
        f"{cost.file.idle_minutes:g} idle minutes until they go, come on top"
    )


def _band(band: Band) -> str:
    if not band.expected:
        return ""
    if band.low is None or band.high is None:
        return " (at most)"
    return f" (80%: {two_digits(band.low)} to {two_digits(band.high)})"
