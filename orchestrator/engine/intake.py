"""Which of a plan's missing work a run takes on by now: what it was asked for, and the work whose
networks that lacks. `plan.selection.taken_on` says the same before a run."""

from __future__ import annotations

from collections.abc import Iterable

from lp_sweep.orchestrator.engine.networks import Networks
from lp_sweep.orchestrator.plan.plan import Plan
from lp_sweep.orchestrator.plan.selection import Selection


def taken_in(plan: Plan, selection: Selection, networks: Networks) -> Iterable[str]:
    """In the plan's order, then what goes along: each once."""
    wanted = [
        work.id
        for work in plan.missing()
        if plan.incomplete(work.id) and selection.wants(work.id, plan.failed_with(work.id))
    ]
    found, look = dict.fromkeys(wanted), [*wanted]
    while look:
        for need in sorted(networks.lacking(look.pop())):
            if need in found:  # `- found.keys()` would go through all of them
                continue
            # a retry takes along what it needs, tried before or not
            if selection.retry or selection.wants(need, plan.known.failed.get(need)):
                found[need] = None
                look.append(need)
    return found
