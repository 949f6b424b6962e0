"""The worker's functions over jobs as plain data, which tests change key by key. Not a test."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lp_sweep.storage.store import Store
from lp_sweep.trials.measures.pairs import RULE, Rule
from lp_sweep.trials.train.finetune import Saver
from lp_sweep.trials.worker import inputs, profile, run, trial
from lp_sweep.trials.worker.fetch import Supplies
from lp_sweep.trials.worker.inputs import Inputs
from lp_sweep.trials.worker.job import Job
from lp_sweep.trials.worker.tries import Way

Plain = Mapping[str, Any]


def execute(job: Plain, store_location: str) -> dict[str, Any]:
    return run.execute({**job, "store": store_location})


def done(store: Store, *jobs: Plain) -> dict[str, Any]:
    """The stored record of the last, after a worker has done all of them in this order."""
    for job in jobs:
        told = execute(job, store.location)
        assert told["status"] == "done", told
    table = "trials" if jobs[-1]["kind"] == "trial" else "profiles"
    (record,) = store.read(table, jobs[-1]["id"])
    return record


def assert_fails(store: Store, job: Plain, error_type: str, nouns: str) -> str:
    """`nouns`: a pattern in the message, which is returned."""
    told = execute(job, store.location)
    assert (told["status"], told["error_type"]) == ("failed", error_type)
    message = str(told["message"])
    assert re.search(nouns, message), message
    return message


def run_trial(job: Plain, *, halvings: int = 0, start: Path | None = None) -> dict[str, Any]:
    given = Supplies(Job.from_plain(job), start=start)
    return trial.run_trial(given, Way(halvings=halvings), Saver())._asdict()


def run_profile(job: Plain, halvings: int = 0) -> dict[str, Any]:
    return profile.run_profile(Job.from_plain(job), Way(halvings=halvings)).record


def run_speed(job: Plain, rule: Rule = RULE) -> dict[str, Any]:
    return profile.run_speed(Job.from_plain(job), rule).record


def load_inputs(job: Plain, *args: Any) -> Inputs:
    return inputs.load_inputs(Job.from_plain(job), *args)
