"""Checkpoints of long trainings, in the store. Another try continues with the same result.

A checkpoint is one file, `checkpoints/<trial_id>.safetensors`. A file that is damaged or does not
fit is ignored with a warning; so is a failure to write one. Neither fails a trial.
"""

from __future__ import annotations

import json
import os
import time
import warnings
import zlib
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from lp_sweep.storage.errors import SweepWarning, lines_of
from lp_sweep.storage.runs import machine_key
from lp_sweep.storage.spool import Outbox
from lp_sweep.storage.store import Store
from lp_sweep.trials.device import pick_device, precision_used
from lp_sweep.trials.spec.identity import IDENTITY_VERSION, canonical_json
from lp_sweep.trials.spec.specs import MAX_HALVINGS
from lp_sweep.trials.train.finetune import Saver
from lp_sweep.trials.train.steps import EpochMetric, Progress
from lp_sweep.trials.worker.job import Job, announced

FOLDER = "checkpoints"
_ABANDONED_SECONDS = 86_400.0  # no try needs its local copy for that long
_LEAVING_SECONDS = 20.0  # between two checkpoints when the run ends soon
FORMAT = 1  # increase it when the saved state or the arithmetic of training changes


_IGNORED = "ignored, the training starts from the beginning"


def file_name(trial: str) -> str:
    return f"{trial}.safetensors"


class CheckpointSubject(NamedTuple):
    """Values that a checkpoint and the trial that continues from it must share."""

    trial_id: str
    identity_version: int
    spec: str  # canonical JSON
    precision: str  # as used: `auto` depends on the device
    device_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """A checkpoint's description of itself, as JSON in the file."""

    format: int
    subject: CheckpointSubject
    halvings: int  # of the micro-batch
    step: int
    epoch: int  # the current one, from 0
    train_losses: list[float]
    epoch_metrics: list[EpochMetric]
    seconds_train: float
    seconds_evaluate: float
    seconds_total: float

    @classmethod
    def parse(cls, text: str) -> Header:
        """Raises ValueError, TypeError or KeyError if it is no header of this format."""
        plain = json.loads(text)
        if plain["format"] != FORMAT:
            raise ValueError(f"its format is {plain['format']!r}; this lp-sweep reads {FORMAT}")
        if plain["halvings"] not in range(MAX_HALVINGS + 1):
            raise ValueError(f"it has {plain['halvings']!r} halvings")
        subject = CheckpointSubject(*plain["subject"])
        metrics = [EpochMetric(*item) for item in plain["epoch_metrics"]]
        return cls(**plain | {"subject": subject, "epoch_metrics": metrics})


def saver_of(job: Job, outbox: Outbox) -> Saver:
    """Saves the trainings of trials, if the run asks for it."""
    wanted = job.kind == "trial" and job.place.checkpoint_every
    return Checkpoints(job, outbox) if wanted else Saver()


class Checkpoints(Saver):
    """Reads and writes the checkpoint of one try at a trial. Reading waits for an unreachable
    store, as long as the job says; writing does not wait."""

    def __init__(self, job: Job, outbox: Outbox) -> None:
        spec, device = job.trial, pick_device(job.place.device)
        precision = precision_used(spec.recipe.precision, device)
        self.subject = CheckpointSubject(
            job.id, IDENTITY_VERSION, canonical_json(spec), precision, device.type
        )
        self.every = job.place.checkpoint_every or 0.0  # seconds of training
        self._location, self._patience = outbox.location, outbox.patience
        self._halvings = 0
        self._begun = self._last = time.monotonic()
        self._before = 0.0
        self._cache_dir, self._folder = outbox.cache_dir, outbox.cache_dir / FOLDER
        self._name = file_name(job.id)
        self._local = self._folder / f"{machine_key()}.{os.getpid()}.{self._name}"
        self._found: Header | None = None

    def find(self, halvings: int) -> int:
        """Finds a valid checkpoint of this trial whose micro-batch is not larger than this try's.
        Returns its halvings, else this try's: all steps of a record use one micro-batch."""
        self._halvings, header = halvings, self._fetch()
        if header is not None and header.halvings >= halvings:
            self._found, self._halvings = header, header.halvings
        return self._halvings

    def _fetch(self) -> Header | None:
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            _remove_orphans(self._folder)
        try:
            store = Store(self._location, patience=self._patience)
            if not store.fetch_file(FOLDER, self._name, self._local):
                return None
            header = Header.parse(read_state(self._local))
            _check_subject(header.subject, self.subject)
        except Exception as error:  # of the file or the network
            self._warn(_IGNORED, error)
            return None
        return header

    @property
    def epoch(self) -> int:
        return self._found.epoch if self._found else 0

    def restore(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> Progress:
        """Loads the state that `find` found into both; without one, starts from the beginning."""
        header, self._found = self._found, None
        self._last = time.monotonic()  # a training shorter than `every` writes nothing
        if header is None:
            return Progress()
        try:
            step_losses = load_state(self._local, model, optimizer)
        except (ValueError, OSError) as error:
            self._warn(_IGNORED, error)
            return Progress()
        finally:
            self.close()
        self._before = header.seconds_total
        return Progress(
            step=header.step,
            train_losses=list(header.train_losses),
            epoch_metrics=list(header.epoch_metrics),
            step_losses=step_losses,
            seconds_train=header.seconds_train,
            seconds_evaluate=header.seconds_evaluate,
            seconds_before=header.seconds_total,
            resumed_from_step=header.step,
        )

    def due(self) -> bool:
        """Whether `every` seconds have passed, or less if the run ends soon."""
        waited = time.monotonic() - self._last
        return waited >= self.every or (waited >= _LEAVING_SECONDS and announced(self._cache_dir))

    def save(self, model: nn.Module, optimizer: torch.optim.Optimizer, progress: Progress) -> None:
        """Writes the state. Only warns if it can't: the training continues."""
        text = json.dumps(asdict(self._header(progress)))
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_state(self._local, text, model, optimizer, progress.step_losses)
            Store(self._location).put_file(FOLDER, self._name, self._local)
        except torch.AcceleratorError:
            raise
        except Exception as error:
            self._warn("not written", error)
        finally:
            self.close()
        self._last = time.monotonic()

    def _header(self, progress: Progress) -> Header:
        return Header(
            format=FORMAT,
            subject=self.subject,
            halvings=self._halvings,
            step=progress.step,
            epoch=progress.epoch,
            train_losses=progress.train_losses,
            epoch_metrics=progress.epoch_metrics,
            seconds_train=progress.seconds_train,
            seconds_evaluate=progress.seconds_evaluate,
            seconds_total=self._before + time.monotonic() - self._begun,
        )

    def close(self) -> None:
        """Removes this try's local copy."""
        with suppress(OSError):
            self._local.unlink(missing_ok=True)

    def _warn(self, what: str, error: Exception) -> None:
        said = f"{what}: {lines_of(error)[0]}"
        warnings.warn(f"checkpoint of {self.subject.trial_id}: {said}", SweepWarning, stacklevel=3)


def _check_subject(found: CheckpointSubject, wanted: CheckpointSubject) -> None:
    for name, there, here in zip(CheckpointSubject._fields, found, wanted, strict=True):
        if there != here:
            raise ValueError(f"its {name} is {there!r}, this attempt's is {here!r}")


def _remove_orphans(folder: Path) -> None:
    """Deletes local copies and partial downloads of killed processes. Another machine may share the
    folder: its files are deleted only when they are old."""
    latest, here = time.time() - _ABANDONED_SECONDS, machine_key()
    for path in (*folder.glob("*.safetensors"), *folder.glob(".*.tmp")):
        machine, pid, *_ = path.name.split(".")
        dead = here and machine == here and pid.isdigit() and not _alive(int(pid))
        with suppress(OSError):  # gone meanwhile
            if dead or path.stat().st_mtime < latest:
                path.unlink()


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


_TEXT, _CHECKSUM = "lp_sweep.checkpoint", "lp_sweep.crc32"
_LOSSES = "step_losses"


def write_state(
    path: Path,
    text: str,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    step_losses: torch.Tensor,
) -> None:
    """Parameters, buffers and AdamW's averages by name, and `step_losses`."""
    state = {**_state(model, optimizer), _LOSSES: step_losses}
    tensors = {name: value.detach().cpu().contiguous() for name, value in state.items()}
    save_state(path, text, tensors)


def save_state(path: Path, text: str, tensors: dict[str, torch.Tensor]) -> None:
    checksum = zlib.crc32(text.encode())
    for name in sorted(tensors):
        checksum = _add(checksum, name, tensors[name])
    save_file(tensors, path, metadata={_TEXT: text, _CHECKSUM: f"{checksum:08x}"})


def read_state(path: Path) -> str:
    """The text of an intact file. Raises ValueError or SafetensorError for any other file."""
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        if not {_TEXT, _CHECKSUM} <= set(metadata):
            raise ValueError("lp-sweep did not write it")
        text: str = metadata[_TEXT]
        checksum = zlib.crc32(text.encode())
        for name in sorted(file.keys()):
            checksum = _add(checksum, name, file.get_tensor(name))
    if f"{checksum:08x}" != metadata[_CHECKSUM]:
        raise ValueError("its checksum is wrong")
    return text


def load_state(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> torch.Tensor:
    """Loads the file's state into both and returns its `step_losses`.

    Raises ValueError, and changes nothing, if the tensors are not those of this network.
    """
    targets = dict(_named(model))
    with safe_open(path, framework="pt") as file:
        stored = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        wanted = {f"model.{name}": tuple(value.shape) for name, value in targets.items()}
        if wanted != {name: shape for name, shape in stored.items() if name.startswith("model.")}:
            raise ValueError("its tensors are not those of this network")
        with torch.no_grad():
            for name, target in targets.items():
                target.copy_(file.get_tensor(f"model.{name}"))
        for name, parameter in model.named_parameters():
            prefix = f"optimizer.{name}:"
            state = {key[len(prefix) :]: key for key in stored if key.startswith(prefix)}
            if state:
                optimizer.state[parameter] = {
                    key: file.get_tensor(full).to(parameter.device) for key, full in state.items()
                }
        step_losses: torch.Tensor = file.get_tensor(_LOSSES)
        return step_losses


def _state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    found = {f"model.{name}": value for name, value in _named(model).items()}
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            found[f"optimizer.{names[id(parameter)]}:{key}"] = value
    return found


def _named(model: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers; tied weights once."""
    return dict(model.named_parameters()) | dict(model.named_buffers())


def _add(checksum: int, name: str, tensor: torch.Tensor) -> int:
    content = tensor.reshape(-1).view(torch.uint8).numpy()
    return zlib.crc32(content.data, zlib.crc32(name.encode(), checksum))
