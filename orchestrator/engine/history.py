"""What became of the work of a run: done, failed, tried so often, or waiting in a spool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from lp_sweep.orchestrator.plan.known import Known
from lp_sweep.orchestrator.plan.plan import Plan
from lp_sweep.orchestrator.plan.policy import policy
from lp_sweep.trials.select import Measured

BLOCKED = "missing_input"  # how work fails that waits for a network of what failed


class History:
    """All by identifier. What failed and was done after, or before, is done."""

    def __init__(self) -> None:
        self.done: set[str] = set()
        self.done_elsewhere: set[str] = set()  # of `done`, by another run
        self.failed: dict[str, str] = {}  # with the error type; measurements too
        self.spooled: dict[str, str] = {}  # recorded on a node, and why the store did not take it
        self.begun: set[str] = set()  # ever, by this run
        self._measured: set[str] = set()  # of trained networks, and speeds
        self._tries: Counter[tuple[str, str]] = Counter()

    @property
    def ended(self) -> int:
        """How many have come to an end."""
        return len(self.done) + len(self.failed)

    def succeeded(self, id_: str, plan: Plan) -> None:
        """Done, with the measurements that it lacked."""
        self.done.add(id_)
        self._measured |= {item.id for item in plan.missing_measures(id_)}
        self._measured |= {id_} & plan.speeds.keys()

    def has_tries(self, id_: str, error_type: str) -> bool:
        """A try more has failed in a way that may pass. Whether it may be tried again."""
        self._tries[id_, error_type] += 1
        return self._tries[id_, error_type] <= policy(error_type).retries

    def halvings(self, id_: str) -> int:
        """How often the piece took a whole host's memory: it starts with smaller micro-batches."""
        return self._tries[id_, "out_of_memory"]

    def forgive(self, ids: Iterable[str]) -> set[str]:
        """Those that had failed, and have not any more."""
        return {id_ for id_ in ids if self.failed.pop(id_, None) is not None}

    def unblock(self, needs: set[str], plan: Plan) -> list[str]:
        """What had failed for want of these networks, and has not any more."""
        back = [
            id_ for id_, kind in self.failed.items() if kind == BLOCKED and plan.needs(id_) & needs
        ]
        for id_ in back:
            del self.failed[id_]
        return back

    def given_up(self) -> set[str]:
        """Failed, and not done."""
        return self.failed.keys() - self.done

    def known(self, plan: Plan) -> Known:
        """What is known by now, with what the plan knew before."""
        known = plan.known
        failed = {**known.failed, **self.failed}
        return known._replace(
            trials=known.trials | self.done,
            profiles={
                **dict.fromkeys(self._measured - failed.keys(), Measured({})),
                **known.profiles,
            },
            failed={id_: kind for id_, kind in failed.items() if id_ not in self.done},
        )
