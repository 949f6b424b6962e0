"""Which missing work a run does, and what the driver does after a failure, by its type.

Retries inside a trial, such as a smaller micro-batch after running out of memory, are the worker's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from typing import NamedTuple

from lp_sweep.orchestrator.plan.plan import Plan, Work, state_of
from lp_sweep.storage.errors import SpecError
from lp_sweep.trials.spec.specs import MAX_HALVINGS

_SHORT = {"oom": "out_of_memory"}


class Selection(NamedTuple):
    """`run` takes new work, and failures that time may have fixed. `retry` takes only failures:
    all, those of one type, or those named."""

    retry: bool = False
    error_type: str | None = None
    ids: frozenset[str] = frozenset()

    def wants(self, id_: str, failed_with: str | None) -> bool:
        if not self.retry:
            return failed_with is None or policy(failed_with).by_itself
        if self.ids:
            return id_ in self.ids
        return failed_with is not None and self.error_type in (None, failed_with)


def selected(
    plan: Plan, selection: Selection, lacking: Callable[[str], Set[str]]
) -> dict[str, None]:
    """The selected work in the plan's order, then the work whose networks it depends on, each once.
    `lacking`: the networks that work waits for."""
    found = {
        work.id: None
        for work in plan.missing()
        if plan.incomplete(work.id) and selection.wants(work.id, plan.failed_with(work.id))
    }
    look = [*found]
    while look:
        for need in sorted(lacking(look.pop())):
            if need in found:  # not `- found.keys()`, which would copy them all
                continue
            # a retry includes what it depends on, tried before or not
            if selection.retry or selection.wants(need, plan.known.failed.get(need)):
                found[need] = None
                look.append(need)
    return found


def taken_on(plan: Plan) -> list[Work]:
    """The work of a `run`, without work whose teacher or start will not exist."""
    taken = selected(plan, Selection(), plan.absent)
    coming = plan.known.networks | taken.keys()
    profiles = plan.known.profiles.keys()  # logits may be stored where their network is not

    def can_begin(work: Work) -> bool:
        lesson = work.lesson
        taught = lesson is None or lesson.logits in profiles or lesson.source in taken
        starts = work.start is None or work.start in coming
        return (taught and starts) or plan.has_network(work.id)

    return [work for work in map(plan.work, taken) if can_begin(work)]


def retry_selection(error_type: str | None, names: list[str], plan: Plan) -> Selection:
    """The selection of `retry`. A name may be the beginning of an identifier. A measurement of a
    trial's network selects the trial, whose worker takes it. Raises SpecError for a trial that has
    not failed, or an unknown type."""
    error_type = _SHORT.get(error_type or "", error_type)
    if error_type is not None and error_type not in POLICIES:
        raise SpecError(f"unknown type of failure {error_type!r}. Choose: {', '.join(POLICIES)}.")
    failed = failed_work(plan)
    return Selection(True, error_type, frozenset(_failed_id(name, failed, plan) for name in names))


def failed_work(plan: Plan) -> dict[str, str]:
    """Failed work -> the work that retries it: itself, or the trial of a measurement."""
    failed = plan.known.failed
    work = {id_: id_ for id_ in failed if id_ in plan.trials or plan.is_measurement(id_)}
    for trial, measures in plan.measures.items():
        for item in measures:
            if item.id in failed:
                work |= {item.id: trial, trial: trial}
    return work


def _failed_id(name: str, failed: Mapping[str, str], plan: Plan) -> str:
    """The work that retries the failure whose identifier begins with `name`. Raises SpecError."""
    matches = [id_ for id_ in failed if id_.startswith(name)]
    if len(matches) == 1:
        return failed[matches[0]]
    if matches:
        raise SpecError(f"{name!r} begins {len(matches)} failed trials. Give more characters.")
    for id_ in (*plan.trials, *plan.profiles, *plan.speeds):
        if id_.startswith(name):
            done = state_of(id_, plan.known) == "done"
            state = "is done" if done else "has not been tried yet: `lp-sweep run` does it"
            raise SpecError(f"{id_} has not failed: it {state}.")
    have = f"Failed: {', '.join(sorted(failed)[:5])}" if failed else "None of its trials has failed"
    raise SpecError(
        f"no trial {name!r} in this sweep. {have}. Give the sweep file and overrides of its run."
    )


class Policy(NamedTuple):
    """`retries`: within one run. `by_itself`: a later `run` tries again, without `lp-sweep retry`.
    `forgiven`: once other work ends, the tries count from zero."""

    retries: int
    by_itself: bool
    forgiven: bool = False


POLICIES: dict[str, Policy] = {
    # the same trial would fail again
    "diverged": Policy(0, False),
    "unsupported_model": Policy(0, False),
    "unsupported_device": Policy(0, False),
    "not_deterministic": Policy(0, False),
    "bug": Policy(0, False),
    # the driver sees only a host's memory; a device's is halved away inside the trial
    "out_of_memory": Policy(MAX_HALVINGS, False),
    # the user, or time, may have fixed it by the next run
    "missing_input": Policy(0, True),
    "worker_lost": Policy(3, True),
    "device_error": Policy(3, True),
    # other trials of the model began with graphs at the same time: each fails once
    "graph_not_recorded": Policy(1, True),
    # nobody's fault
    "node_lost": Policy(20, True, forgiven=True),
}


def policy(error_type: str) -> Policy:
    """The policy of an error type; that of a bug for a type of a later version."""
    return POLICIES.get(error_type, POLICIES["bug"])
