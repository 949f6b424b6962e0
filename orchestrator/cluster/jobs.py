"""Runs as jobs of a cluster, through Ray's job server (HTTP, on the head).

Every user of the cluster can read a job's command, metadata and environment until the cluster ends:
never put a secret there.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import logging
import os
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from lp_sweep.orchestrator.cluster.clusterfile import knock
from lp_sweep.orchestrator.flags import JOB_SERVER
from lp_sweep.storage.errors import PreflightError
from lp_sweep.storage.printable import short

STOP_SECONDS = 120  # from SIGTERM to SIGKILL; Ray's default of 3 s is too short for a run
_OURS = "lp_sweep"  # in a job's metadata: the version of the lp-sweep that made it
_CHATTY = (
    "dashboard.modules.dashboard_sdk",
    "dashboard.modules.job.sdk",
    "_private.runtime_env.packaging",
)
_SHOWN = 10  # runs that a message names
_OVER = ("SUCCEEDED", "FAILED", "STOPPED")


class Job(NamedTuple):
    """A run, from the job server. `status` is one of Ray's words; `driver_code` is the run's own
    exit code, None if it has none."""

    id: str
    status: str
    sweep: str
    began: str  # 2026-11-22 10:02 UTC
    driver_code: int | None
    message: str

    @property
    def over(self) -> bool:
        return self.status in _OVER

    @property
    def exit_code(self) -> int:
        """The run's own as in a shell, 3 if it was stopped, 4 if Ray has lost it."""
        if self.status == "STOPPED":
            return 3
        if self.driver_code is None:
            return 0 if self.status == "SUCCEEDED" else PreflightError.exit_code
        return self.driver_code if self.driver_code >= 0 else 128 - self.driver_code

    def sentence(self) -> str:
        return f"{self.id}: {self.status}, sweep {self.sweep!r}, since {self.began}"


class Jobs:
    """The runs among a cluster's jobs. Every method raises PreflightError if the server is
    unreachable or refuses."""

    def __init__(self, address: str | None) -> None:
        if find_spec("aiohttp") is None:
            raise PreflightError(
                "Ray's job API is not installed: pip install 'lp-sweep[cluster]', here and on the "
                "head."
            )
        self.address = address
        with self._answered():
            if address:
                knock(address)
                os.environ[JOB_SERVER] = address  # this and RAY_ADDRESS overrule the argument
            from ray.job_submission import JobSubmissionClient

            for name in _CHATTY:
                logging.getLogger(f"ray.{name}").setLevel(logging.WARNING)
            self._client: Any = JobSubmissionClient(address)

    def submit(self, id_: str, command: str, *, sweep: str, folder: Path | None = None) -> None:
        """`command` is for the head's shell. `folder` is sent, and the job starts in it."""
        environment: dict[str, Any] = {"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": str(STOP_SECONDS)}}
        if folder:
            environment["working_dir"] = str(folder)
        told = {_OURS: metadata.version("lp-sweep"), "sweep": sweep}
        with self._answered():
            self._client.submit_job(
                submission_id=id_, entrypoint=command, runtime_env=environment, metadata=told
            )

    def all(self) -> list[Job]:
        """The newest first."""
        with self._answered():
            found = [job for job in self._client.list_jobs() if _OURS in (job.metadata or {})]
        return [_job(job) for job in sorted(found, key=lambda job: -(job.start_time or 0))]

    def named(self, id_: str) -> Job:
        found = self.all()
        for job in found:
            if job.id == id_:
                return job
        raise PreflightError(f"no detached run {id_!r}. {_there_are(found)}")

    def last(self) -> Job:
        """The newest run that is still running, else the newest."""
        found = self.all()
        for job in sorted(found, key=lambda job: job.over):
            return job
        raise PreflightError(f"no run to follow. {_there_are(found)}")

    def only_running(self) -> Job:
        found = self.all()
        running = [job for job in found if not job.over]
        if len(running) == 1:
            return running[0]
        several = "several runs are at work: name one." if running else "no run is at work."
        raise PreflightError(f"{several} {_there_are(running or found)}")

    def follow(self, id_: str, write: Callable[[str], bool]) -> bool:
        """Writes all output of the job, from its beginning to its end. Returns False as soon as
        `write` does: nobody reads any more."""

        async def lines() -> bool:
            async for text in self._client.tail_job_logs(id_):
                if not write(text):
                    return False
            return True

        with self._answered():
            return asyncio.run(lines())

    def log(self, id_: str) -> str:
        with self._answered():
            return str(self._client.get_job_logs(id_))

    def stop(self, id_: str) -> Job | None:
        """Sends SIGTERM, and after STOP_SECONDS SIGKILL. Returns the ended job."""
        with self._answered():
            self._client.stop_job(id_)
        return self.ended(id_, STOP_SECONDS + 30)

    def ended(self, id_: str, seconds: float) -> Job | None:
        """Waits for the job to end. Returns None if it has not ended after so many seconds."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            job = next((job for job in self.all() if job.id == id_), None)
            if job is None or job.over:
                return job
            time.sleep(1.0)
        return None

    @contextlib.contextmanager
    def _answered(self) -> Iterator[None]:
        """Turns the many errors of Ray and its HTTP clients into a PreflightError."""
        from aiohttp import ClientError
        from ray.exceptions import RayError

        try:
            yield
        except (ClientError, OSError, RayError, RuntimeError, ValueError) as error:
            where = f"at {self.address}" if self.address else "on this machine"
            why = short(" ".join(str(error).split())) or type(error).__name__
            raise PreflightError(f"can't use a job server {where}: {why} {_NEXT}") from error


_NEXT = (
    "Use it on the head: ray exec cluster.yaml 'lp-sweep ...'; or from here with `ray dashboard "
    "cluster.yaml` at work in another terminal, RAY_AUTH_MODE=token, and --address "
    "http://127.0.0.1:8265."
)


def _there_are(jobs: list[Job]) -> str:
    if not jobs:
        return "On this cluster none was started with `lp-sweep run --detach`."
    more = f"\n... and {len(jobs) - _SHOWN} before" if len(jobs) > _SHOWN else ""
    return "\n".join(["There are:", *(job.sentence() for job in jobs[:_SHOWN])]) + more


def _job(told: Any) -> Job:
    began = dt.datetime.fromtimestamp((told.start_time or 0) / 1000, dt.UTC)
    return Job(
        id=str(told.submission_id),
        status=str(told.status.value),
        sweep=str(told.metadata.get("sweep", "")),
        began=f"{began:%Y-%m-%d %H:%M} UTC",
        driver_code=told.driver_exit_code,
        message=str(told.message or ""),
    )
