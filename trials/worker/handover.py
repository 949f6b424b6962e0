"""Hands a job's results over: its record, measurements of its network, failed tries, checkpoints,
and the network itself if it is to stay (`keep: none`, `best` or `all`).

A kept network is a folder of the store, `weights/<trial_id>/`, that plain transformers loads:
safetensors, the pruned config, the tokenizer. `storage/networks.py` decides which ones stay.
"""

from __future__ import annotations

import warnings
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from lp_sweep.storage.errors import StoreError, SweepWarning, lines_of
from lp_sweep.storage.networks import (
    ALL,
    BEST,
    KEPT_BY,
    NEED,
    has_network,
    is_best,
    keep_for_good,
    keep_while_needed,
    settle,
    write_sums,
)
from lp_sweep.storage.printable import metric_name
from lp_sweep.storage.spool import Outbox, Record
from lp_sweep.storage.store import Store
from lp_sweep.storage.underway import Teller
from lp_sweep.trials.model.load import quiet
from lp_sweep.trials.spec.specs import TEACHER
from lp_sweep.trials.worker.inputs import Inputs
from lp_sweep.trials.worker.job import Job, Place, Result, Spec

CHECKPOINTS = "checkpoints"  # a folder of the store
# a training that continues after one of these ends the same way
_HOPELESS = ("diverged", "out_of_memory")


def checkpoint_name(trial: str) -> str:
    return f"{trial}.safetensors"


def send_checkpoint(place: Place, name: str, source: Path) -> None:
    """Does not wait for an unreachable store. Raises StoreError."""
    Store(place.store).put_file(CHECKPOINTS, name, source)


class Handover:
    """One job's way to the store. Its answers are those of `run.execute`."""

    def __init__(self, job: Job) -> None:
        mode = job.place.keep
        self.outbox = Outbox(job.place.store, job.place.cache_dir, job.place.store_patience)
        self._job = job
        self._table = "trials" if job.kind == "trial" else "profiles"
        self._keep = NEED if job.network and mode != ALL else mode
        self._unkept = ""  # why the network could not be saved
        self._is_beaten = False  # by another seed; then the network is not saved
        self._measures_failed: dict[str, str] = {}  # identifier -> error type

    def stored(self) -> dict[str, Any] | None:
        """The job's record, from the store or the node's spool."""
        return self._found(self._table, self._job.id, self._job.spec)

    def unmeasured(self) -> Job:
        """The job with those of its measurements alone that are not stored."""
        missing = [
            item
            for item in self._job.measures
            if self._found("profiles", item.id, item.spec) is None
        ]
        return replace(self._job, measures=tuple(missing))

    def _found(self, table: str, id_: str, spec: Spec) -> dict[str, Any] | None:
        """A teacher's measurement may be stored without its logits, as after a store's repair."""
        rows = self.outbox.find(table, id_)
        taught = spec.kind == "profile" and spec.measure == TEACHER
        if not rows or (taught and self.outbox.find("teacher_logits", id_) is None):
            return None
        return rows[0]

    def lacks_network(self) -> bool:
        """Whether other trials need the network of a recorded trial and the store lacks it. Marks a
        stored one as needed. Raises StoreError."""
        store, trial = self.outbox.store, self._job.id
        if not self._job.network or store is None:
            return False
        if self._keep == NEED:
            keep_while_needed(store, trial)
        return not has_network(store, trial)

    def telling(self) -> closing[Teller]:
        """Tells the store how far a training is."""
        return closing(Teller(self.outbox.store, self._job.id))

    def keep(self, inputs: Inputs, record: dict[str, Any]) -> None:
        """Saves the trained network to the node's spool, if it is to be kept. If it can't, the
        answer says why: the record is worth more."""
        self._is_beaten = self._keep == BEST and self._beaten(record)
        if self._keep == "none" or self._is_beaten:
            return

        def save(folder: Path) -> None:
            save_network(inputs, folder)
            write_sums(folder)  # before KEPT_BY, which changes later
            (folder / KEPT_BY).write_text(f"{self._keep}\n", encoding="utf-8")

        try:
            self.outbox.spool.put_network(record["trial_id"], save)
        except torch.AcceleratorError:
            raise
        except Exception as error:
            self._unkept = lines_of(error)[0]

    def _beaten(self, record: dict[str, Any]) -> bool:
        try:
            return self.outbox.store is not None and not is_best(self.outbox.store, record)
        except Exception:
            return False  # it can be deleted later

    def send_attempt(self, row: dict[str, Any]) -> None:
        """Stores a failed try at the job or at a measurement of its network."""
        if row["final"] and row["trial_id"] != self._job.id:
            self._measures_failed[row["trial_id"]] = row["error_type"]
        try:
            self.outbox.send(Record("attempts", row["attempt_id"], [row]))
        except StoreError as error:  # the driver hears of the failure anyway
            warnings.warn(str(error), SweepWarning, stacklevel=2)

    def failed(self, attempt: dict[str, Any]) -> dict[str, Any]:
        """The answer after a job's last try."""
        if attempt["error_type"] in _HOPELESS:
            self.outbox.delete(CHECKPOINTS, checkpoint_name(self._job.id))
        told = {name: attempt[name] for name in ("error_type", "message")}
        return {"id": self._job.id, "status": "failed", **told}

    def done(self, result: Result, *, is_new: bool) -> dict[str, Any]:
        """Stores a result and answers. `is_new`: the store had no record of the job; one that is
        there is never rewritten. Raises StoreError if neither store nor spool takes it."""
        records = [Record(*other) for other in result.others]
        if is_new and (stored := self._overtaken()) is not None:
            is_new, result = False, result._replace(record=stored)
            records = [each for each in records if not self.outbox.find(each.table, each.name)]
        if is_new or self.outbox.spool.find(self._table, self._job.id):
            records.append(Record(self._table, self._job.id, [result.record]))
        # the job's own record last: its presence means done
        self.outbox.send(*records, network=self._job.id)
        told = self.finished(result.record)
        failed = self._measures_failed
        return told | {"measures_failed": failed} if failed else told

    def _overtaken(self) -> dict[str, Any] | None:
        """The record of another run that took this one's claim for lost, and was faster. It stays,
        as its answers and its network do: they belong together, and another kind of GPU may have
        made them. Deletes this worker's own network."""
        if self.outbox.store is None:
            return None
        store, id_ = self.outbox.store.asked_once(), self._job.id
        with suppress(StoreError):
            if rows := store.find(self._table, id_):
                if has_network(store, id_):
                    self.outbox.spool.drop_network(id_)
                return rows[0]
        return None

    def finished(self, record: dict[str, Any]) -> dict[str, Any]:
        """Reports a record and deletes what it replaces, also when an earlier worker was lost right
        after storing it."""
        told = {"id": self._job.id, "status": "done", "seconds": record["seconds_total"]}
        told["unkept"] = self._unkept
        if self._job.kind == "trial":
            metric = metric_name(record["metric"], record.get("positive"))
            told |= {"last": record["last"], "metric": metric}
        if self.outbox.refusal is not None:
            return told | {"status": "spooled", "message": self.outbox.refusal}
        if self._job.kind == "trial":
            self._settle(record)
            self.outbox.delete(CHECKPOINTS, checkpoint_name(self._job.id))
        return told

    def _settle(self, record: dict[str, Any]) -> None:
        """Deletes the networks of its group that are not the best. Only warns if it can't: the
        trial is done."""
        store = self.outbox.store
        if store is None:
            return
        try:
            if self._keep == ALL:
                keep_for_good(store, record["trial_id"])
            elif self._keep == BEST:
                settle(store, record, look=not self._is_beaten)
        except Exception as error:
            warnings.warn(
                f"networks beside {record['trial_id']}: {error}", SweepWarning, stacklevel=2
            )


def save_network(inputs: Inputs, folder: Path) -> None:
    """Config, weights and tokenizer, as plain transformers loads them. A network that lost
    feed-forwards needs `feedforward.load_network`."""
    config = inputs.model.config
    if inputs.encoded.label_names:
        config.id2label = dict(enumerate(inputs.encoded.label_names))
        config.label2id = {label: index for index, label in config.id2label.items()}
    with quiet():
        inputs.model.save_pretrained(folder)
        inputs.tokenizer.save_pretrained(folder)
