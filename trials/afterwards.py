"""What is done with a trained network before it is let go: it may be kept, and measured.

A measurement that fails is a failure of its own: the trial is none the worse for it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel

from lp_sweep.storage.outbox import Outbox
from lp_sweep.storage.specs import ProfileSpec
from lp_sweep.storage.spool import Record
from lp_sweep.trials.batches import EVALUATION_BATCH, MAX_HALVINGS, BatchSizes
from lp_sweep.trials.inputs import Inputs, load_other
from lp_sweep.trials.job import Failure, Job, Measure, attempt_row
from lp_sweep.trials.keep import Keeper
from lp_sweep.trials.kept import needed_network
from lp_sweep.trials.measures.registry import MEASURES
from lp_sweep.trials.memory import forget_frames, free_memory, memory_errors
from lp_sweep.trials.profile import keep_pass, make_subject, profile_row
from lp_sweep.trials.provenance import now, where
from lp_sweep.trials.resident import resident


class Afterwards:
    """Of one try. `records`: the measurements, to be stored before the trial's own record;
    `attempts`: those that failed."""

    def __init__(self, job: Job, outbox: Outbox, keeper: Keeper, halvings: int) -> None:
        self.job, self.outbox, self.keeper = job, outbox, keeper
        self.halvings = halvings
        self.batches = BatchSizes.halved(EVALUATION_BATCH, halvings)
        self.records: list[Record] = []
        self.attempts: list[dict[str, Any]] = []

    def __call__(self, inputs: Inputs, record: dict[str, Any], device: torch.device) -> None:
        self.keeper.keep(inputs, record)
        self.measure(inputs, device)

    def measure(self, inputs: Inputs, device: torch.device) -> None:
        for item in self.job.measures:
            while not self._tried(item, inputs, device):
                self.halvings += 1
                self.batches = BatchSizes.halved(EVALUATION_BATCH, self.halvings)
                resident().forget()
                free_memory()

    def _tried(self, item: Measure, inputs: Inputs, device: torch.device) -> bool:
        """Whether that was the last try: a smaller batch may find the memory."""
        started_at = now()
        try:
            with memory_errors(self.batches):
                self.records.append(self._measured(item, inputs, device))
        except torch.AcceleratorError:
            raise
        except Exception as error:
            forget_frames(error)
            failure = Failure.of(error)
        else:
            return True
        final = failure.error_type != "out_of_memory" or self.halvings >= MAX_HALVINGS
        self.attempts.append(
            attempt_row(
                item.id,
                self.job,
                failure,
                final=final,
                micro_batch=self.batches.evaluation,
                log="",
                **where(device, started_at),
            )
        )
        return final

    def _measured(self, item: Measure, inputs: Inputs, device: torch.device) -> Record:
        spec = item.spec
        started_at, begun = now(), time.perf_counter()
        with self._other(spec, inputs, device) as other:
            keep = None if spec.against else keep_pass(inputs, device, self.halvings)
            subject = make_subject(inputs, device, self.halvings, lambda: other, keep_other=keep)
            found = MEASURES[spec.measure](subject, spec)
        row = profile_row(self.job, spec, subject, found, device, started_at)
        seconds = time.perf_counter() - begun
        return Record(
            "profiles", item.id, [row | {"profile_id": item.id, "seconds_total": seconds}]
        )

    @contextmanager
    def _other(
        self, spec: ProfileSpec, inputs: Inputs, device: torch.device
    ) -> Iterator[PreTrainedModel]:
        """What the network is compared with: that of another trial, else the pre-trained one."""
        if spec.measure not in ("similarity", "cka"):
            yield inputs.model
            return
        with needed_network(self.outbox, spec.against or None) as folder:
            yield load_other(self.job, inputs, folder).to(device)
