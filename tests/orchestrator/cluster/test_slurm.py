"""examples/slurm-array.sh on a real Slurm of this machine: munged, slurmctld and slurmd."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.support.faults import wait_for
from tests.support.program import sweep
from tests.support.toyworld import RECIPE, save_world

ROOT = Path(__file__).parents[3]
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
ABSENT = [name for name in PROGRAMS if not shutil.which(name)]
SETTINGS = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthInfo=socket={folder}/munge.sock
StateSaveLocation={folder}
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=1,sched_interval=2
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 RealMemory=4000
PartitionName=main Nodes={host} Default=YES
"""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        bool(ABSENT) or os.geteuid() != 0,
        reason=f"needs root and Debian's slurm-wlm and munge; missing: {ABSENT}",
    ),
]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A Slurm of one node with four CPUs, whose commands find it by SLURM_CONF."""
    folder = tmp_path / "slurm"
    (folder / "spool").mkdir(parents=True)
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    host = socket.gethostname().partition(".")[0]
    settings = folder / "slurm.conf"
    settings.write_text(SETTINGS.format(host=host, folder=folder, ports=(free_port(), free_port())))
    monkeypatch.setenv("SLURM_CONF", str(settings))
    places = {"key-file": key} | {
        name: folder / f"munge.{name.partition('-')[0]}"
        for name in ("socket", "pid-file", "log-file", "seed-file")
    }
    places["socket"] = folder / "munge.sock"
    munge = ["munged", "--force", "--foreground", *(f"--{n}={path}" for n, path in places.items())]
    daemons = []
    with (folder / "daemons.log").open("w") as said:
        for command in (munge, ["slurmctld", "-D"], ["slurmd", "-D"]):
            daemons.append(subprocess.Popen(command, stdout=said, stderr=said))
            time.sleep(1)
        try:
            wait_for(lambda: "idle" in told("sinfo", "--noheader"), "an idle node", 60)
            yield
        finally:
            for daemon in reversed(daemons):
                daemon.send_signal(signal.SIGTERM)
                daemon.wait(30)


def told(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def submitted(folder: Path) -> str:
    """The number of the array; its script is the example, on CPUs and with this environment."""
    text = (ROOT / "examples" / "slurm-array.sh").read_text(encoding="utf-8")
    text = text.replace("#SBATCH --gres=gpu:1\n", "").replace("per-task=4", "per-task=1")
    text = text.replace("--mem=16G", "--mem=900M")
    (folder / "array.sh").write_text(text, encoding="utf-8")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    words = ["sbatch", "--parsable", f"--export=PATH={path},OMP_NUM_THREADS=1", "array.sh"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def done_in(folder: Path) -> dict[str, bytes]:
    """Trial -> its answers, bit for bit."""
    files = (folder / "lp-sweep-store" / "predictions").glob("t*.parquet")
    return {file.stem: str(pq.read_table(file).to_pylist()).encode() for file in files}


def test_an_array_shares_a_sweep_through_cancelled_and_requeued_tasks(
    tmp_path: Path, slurm: None
) -> None:
    """30 trials, each done once, with the values of a run that nothing disturbs."""
    folder = tmp_path / "world"
    save_world(folder, seeds=[*range(1, 16)], recipe=RECIPE | {"epochs": 15})
    job = submitted(folder)
    wait_for(lambda: len(done_in(folder)) >= 4, "trials", 300)
    told("scancel", f"{job}_0")
    told("scontrol", "requeue", f"{job}_1")
    told("scancel", "--batch", "--signal=USR1", f"{job}_2")  # as before the end of its time
    wait_for(lambda: not told("squeue", "--noheader").strip(), "the end of the array", 600)
    logs = "".join(file.read_text() for file in folder.glob("lp-sweep-*.log"))
    assert "Traceback" not in logs
    assert "stopped by SIGUSR1" in logs
    found = done_in(folder)
    assert len(found) == 30, logs[-3000:]
    done = [line for line in logs.splitlines() if " done " in line and "accuracy" in line]
    assert len(done) == 30
    other = tmp_path / "other"
    save_world(other, seeds=[*range(1, 16)], recipe=RECIPE | {"epochs": 15})
    assert sweep("run", "sweep.yaml", "--inline", cwd=other).returncode == 0
    assert done_in(other) == found
