"""Checkpoints of long trainings, in the store. Another try continues with the same result.

A checkpoint is one file, `checkpoints/<trial_id>.safetensors`. A file that is damaged or does not
fit is ignored with a warning; so is a failure to write one. Neither fails a trial.
"""

from __future__ import annotations

import json
import time
import warnings
import zlib
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from lp_sweep.storage.errors import SweepWarning, lines_of
from lp_sweep.trials.device import pick_device, precision_used
from lp_sweep.trials.spec.identity import IDENTITY_VERSION, canonical_json
from lp_sweep.trials.train.finetune import Saver
from lp_sweep.trials.train.steps import EpochMetric, TrainingProgress
from lp_sweep.trials.worker.fetch import announced, fetch_checkpoint, scratch
from lp_sweep.trials.worker.handover import CHECKPOINTS, checkpoint_name, send_checkpoint
from lp_sweep.trials.worker.job import Job

_LEAVING_SECONDS = 20.0  # between two checkpoints when the run ends soon
FORMAT = 3  # increase it when the saved state or the arithmetic of training changes

State = dict[str, Any]  # plain data and tensors
# of a TrainingProgress; the rest is of the try that reads it
_KEPT = ("step", "train_losses", "step_losses", "seconds_train", "seconds_evaluate")


def saver_of(job: Job) -> Saver:
    """Saves the trainings of trials, if the run asks for it."""
    wanted = job.kind == "trial" and job.place.checkpoint_every
    return Checkpoints(job) if wanted else Saver()


class Checkpoints(Saver):
    """Reads and writes the checkpoint of one job. Reading waits for an unreachable store, as long
    as the job says; writing does not wait."""

    def __init__(self, job: Job) -> None:
        self._job, self._place = job, job.place
        self._halvings = 0  # of this try's micro-batch
        self._begun = self._last = time.monotonic()
        self._earlier = 0.0  # seconds, of earlier tries
        self._name = checkpoint_name(job.id)
        # the name is the trial's, so that the next try removes what a killed one left
        self._local = job.place.cache_dir / CHECKPOINTS / self._name
        self._found = self._fetch()

    def _fetch(self) -> State | None:
        """The state in a valid checkpoint of this trial, whose file is then at `_local`."""
        try:
            scratch(self._place.cache_dir, CHECKPOINTS)
            if not fetch_checkpoint(self._place, CHECKPOINTS, self._name, self._local):
                return None
            found = read_state(self._local)
            for name, value in self._subject().items():
                there = found["subject"][name]
                if there != value:
                    raise ValueError(f"its {name} is {there!r}, this attempt's is {value!r}")
        except Exception as error:  # of the file, the network or the device
            self.close()
            self._ignored(error)
            return None
        return found

    def _subject(self) -> dict[str, Any]:
        """Values that a checkpoint and the trial that continues from it must share."""
        spec, device = self._job.trial, pick_device(self._place.device)
        return {
            "format": FORMAT,
            "trial_id": self._job.id,
            "identity_version": IDENTITY_VERSION,
            "spec": canonical_json(spec),
            # as used: `auto` depends on the device
            "precision": precision_used(spec.recipe.precision, device),
            "device_type": device.type,
        }

    @property
    def halvings(self) -> int:
        return self._found["halvings"] if self._found else 0

    @property
    def epoch(self) -> int:
        return len(self._found["progress"]["train_losses"]) if self._found else 0

    def begin(self, halvings: int) -> None:
        if self.halvings != halvings:
            self._found = None
        self._halvings = halvings

    def restore(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> TrainingProgress:
        """Loads the found state into both; without one, starts from the beginning."""
        found, self._found = self._found, None
        self._last = time.monotonic()  # a training shorter than `checkpoint_every` writes nothing
        if found is None:
            return TrainingProgress()
        try:
            load_state(found, model, optimizer)
        except ValueError as error:
            self._ignored(error)
            return TrainingProgress()
        finally:
            self.close()
        kept, self._earlier = found["progress"], found["seconds_total"]
        metrics = [EpochMetric(*item) for item in kept.pop("epoch_metrics")]
        return TrainingProgress(
            **kept,
            epoch_metrics=metrics,
            seconds_before=self._earlier,
            resumed_from_step=kept["step"],
        )

    def due(self) -> bool:
        """Whether `checkpoint_every` seconds have passed, or less if the run ends soon."""
        waited, every = time.monotonic() - self._last, self._place.checkpoint_every or 0.0
        return waited >= every or (waited >= _LEAVING_SECONDS and announced(self._place.cache_dir))

    def save(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, progress: TrainingProgress
    ) -> None:
        """Writes the state. Only warns if it can't: the training continues."""
        kept = {name: getattr(progress, name) for name in _KEPT}
        state = {
            "subject": self._subject(),
            "halvings": self._halvings,
            "seconds_total": self._earlier + time.monotonic() - self._begun,
            "progress": kept | {"epoch_metrics": [tuple(item) for item in progress.epoch_metrics]},
        }
        try:
            scratch(self._place.cache_dir, CHECKPOINTS)
            write_state(self._local, state, model, optimizer)
            send_checkpoint(self._place, self._name, self._local)
        except torch.AcceleratorError:
            raise
        except Exception as error:
            self._warn("not written", error)
        finally:
            self.close()
        self._last = time.monotonic()

    def close(self) -> None:
        with suppress(OSError):
            self._local.unlink(missing_ok=True)

    def _ignored(self, error: Exception) -> None:
        self._warn("ignored, the training starts from the beginning", error)

    def _warn(self, what: str, error: Exception) -> None:
        said = f"checkpoint of {self._job.id}: {what}: {lines_of(error)[0]}"
        warnings.warn(said, SweepWarning, stacklevel=3)


# -- the file: safetensors, since nothing of a store is unpickled; the rest of the state is JSON

_TEXT, _CHECKSUM = "lp_sweep.checkpoint", "lp_sweep.crc32"


def write_state(
    path: Path, state: State, model: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Adds parameters, buffers and AdamW's averages."""
    averages = optimizer.state_dict()["state"]
    save_state(path, {**state, "model": _named(model), "optimizer": averages})


def save_state(path: Path, state: State) -> None:
    """Writes what `read_state` returns."""
    plain = {**state, "progress": dict(state["progress"])}
    found = {"step_losses": plain["progress"].pop("step_losses")}
    found |= {f"model.{name}": value for name, value in plain.pop("model").items()}
    for place, averages in plain.pop("optimizer").items():
        found |= {f"optimizer.{place}.{key}": value for key, value in averages.items()}
    tensors = {name: value.detach().cpu().contiguous() for name, value in found.items()}
    text = json.dumps(plain)
    save_file(tensors, path, {_TEXT: text, _CHECKSUM: _checksum(text, tensors)})


def read_state(path: Path) -> State:
    """The content of an intact file. Raises ValueError for a damaged file, and other errors for one
    that is not ours."""
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    text = metadata.get(_TEXT)
    if text is None:
        raise ValueError("lp-sweep did not write it")
    if metadata.get(_CHECKSUM) != _checksum(text, tensors):
        raise ValueError("its checksum is wrong")
    state: State = json.loads(text)
    state["progress"]["step_losses"] = tensors.pop("step_losses")
    state |= {"model": {}, "optimizer": defaultdict(dict)}
    for name, value in tensors.items():
        part, _, rest = name.partition(".")
        if part == "model":
            state["model"][rest] = value
        else:
            place, _, key = rest.partition(".")
            state["optimizer"][int(place)][key] = value
    return state


def load_state(state: State, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Raises ValueError, and changes nothing, if the tensors are not those of this network."""
    found, own = state["model"], _named(model)
    if {name: value.shape for name, value in found.items()} != {
        name: value.shape for name, value in own.items()
    }:
        raise ValueError("its tensors are not those of this network")
    with torch.no_grad():
        for name, value in own.items():
            value.copy_(found[name])
    # the groups have the learning rate, for a CUDA graph as a tensor on the device
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state["optimizer"], "param_groups": groups})


def _named(model: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers; tied weights once."""
    return dict(model.named_parameters()) | dict(model.named_buffers())


def _checksum(text: str, tensors: dict[str, torch.Tensor]) -> str:
    found = zlib.crc32(text.encode())
    for name in sorted(tensors):
        content = tensors[name].reshape(-1).view(torch.uint8).numpy()
        found = zlib.crc32(content.data, zlib.crc32(name.encode(), found))
    return f"{found:08x}"
