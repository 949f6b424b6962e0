"""TensorBoard: a folder of one event file per trial, `<sweep>/<name>--<key>`, below
TENSORBOARD_LOGGING_DIR or `runs`.

Uses tensorboardX, which Ray Tune installs. A folder gets its name when it is complete.
"""

from __future__ import annotations

import os
import re
import shutil
import time
import uuid
from pathlib import Path

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.summary import hparams, scalar, text

from lp_sweep.orchestrator.mirrors.kinds import Mirror, MirroredRun, MirrorKind, answering

_BEFORE_KEY = "--"


def opened(sweep: str) -> Mirror:
    with answering(MirrorKind.tensorboard, OSError):
        return TensorBoardMirror(Path(os.environ.get("TENSORBOARD_LOGGING_DIR") or "runs") / sweep)


class TensorBoardMirror:
    """One sweep's folder. The constructor raises OSError."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        names = (path.name.rpartition(_BEFORE_KEY) for path in folder.iterdir())
        self._keys = {key for _, sign, key in names if sign}

    def has(self, key: str) -> bool:
        return key in self._keys

    def write(self, run: MirroredRun) -> None:
        with answering(MirrorKind.tensorboard, OSError):
            scratch = self._folder / f".{uuid.uuid4().hex}"
            scratch.mkdir()
            try:
                _write_events(scratch, run)
                name = re.sub(r"[^\w.+-]+", "_", run.name).lstrip("._")[:150]
                scratch.rename(self._folder / f"{name}{_BEFORE_KEY}{run.key}")
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
        self._keys.add(run.key)


def _write_events(folder: Path, run: MirroredRun) -> None:
    wall_time = run.ended_at.timestamp() if run.ended_at else time.time()
    status = {"status": f"FAILED {run.failure}" if run.failure else "FINISHED"}
    told = {**run.params, **status}
    writer = EventsWriter(str(folder / "events"))
    try:
        for summary in hparams(told, dict(run.results)):
            writer.write_event(Event(wall_time=wall_time, summary=summary))
        for name, value in {**run.tags, **told}.items():
            summary = text(name, str(value))
            writer.write_event(Event(wall_time=wall_time, summary=summary))
        points = [
            *run.curves,
            *((name, run.last_epoch, value) for name, value in run.results.items()),
        ]
        for name, step, value in points:
            event = Event(wall_time=wall_time, step=step, summary=scalar(name, value))
            writer.write_event(event)
    finally:
        writer.close()
