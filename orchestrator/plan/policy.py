"""What follows a failure, by its type. Pure: no Ray, no store.

Retries inside a trial (a smaller micro-batch after running out of memory) are the worker's; what
stands here is what the driver does when a worker reports a failure, or is lost.
"""

from __future__ import annotations

from typing import NamedTuple


class Policy(NamedTuple):
    """`retries` within one run; `of_the_node`: whether the machine may be to blame; `by_itself`:
    whether a later `run` tries again without being told to (`lp-sweep retry`)."""

    retries: int
    of_the_node: bool
    by_itself: bool


POLICIES: dict[str, Policy] = {
    # what the same trial would do again
    "diverged": Policy(0, False, False),
    "unsupported_model": Policy(0, False, False),
    "bug": Policy(0, True, False),
    # the driver sees only a host's memory; a device's is halved away inside the trial
    "out_of_memory": Policy(3, True, False),
    # what the user, or time, may have mended by the next run
    "missing_input": Policy(0, True, True),
    "worker_lost": Policy(3, True, True),
    "device_error": Policy(3, True, True),
    # nobody's fault
    "node_lost": Policy(20, False, True),
    "preempted": Policy(20, False, True),
}


def policy(error_type: str) -> Policy:
    """That of a bug for a type of a later version."""
    return POLICIES.get(error_type, POLICIES["bug"])
