"""examples/slurm-array.sh and slurm-ray.sh on a real Slurm: munged, slurmctld and slurmd. The array
runs on this machine as it is. The Ray runs on two machines that hosts.sh makes, since `ray
symmetric-run` ends with `ray stop`, which stops every Ray that it finds."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.faults import wait_for
from tests.support.program import sweep
from tests.support.stores import answers_in
from tests.support.toyworld import RECIPE, save_world

ROOT = Path(__file__).parents[3]
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "sshd", "ip")
ABSENT = [name for name in PROGRAMS if not shutil.which(name)]
SETTINGS = """\
ClusterName=test
SlurmctldHost={host}({address})
SlurmUser=root
SlurmdUser=root
AuthInfo=socket={folder}/munge.sock
StateSaveLocation={private}
SlurmdSpoolDir={private}/spool
SlurmctldPidFile={private}/slurmctld.pid
SlurmdPidFile={private}/slurmd.pid
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=1,sched_interval=2
NodeName=DEFAULT CPUs=4 RealMemory=4000
{nodes}
PartitionName=main Nodes=ALL Default=YES
"""
WORLD = {"recipe": RECIPE | {"epochs": 15}}  # with two trials for each seed
TWO = {"one": "10.78.0.10", "two": "10.78.0.11"}
NODE = """\
mkdir /run/spool
until [ -S /mnt/munge.sock ]; do sleep 0.1; done
exec slurmd -D
"""
# In a cluster of two nodes: a job is submitted, warned as before the end of its time, and runs on.
SCENE = """\
set -eu
cd /mnt/world
{munged} &
slurmctld -D > ../slurmctld.log 2>&1 &
until [ "$(sinfo --noheader --Node --states=idle | wc -l)" = 2 ]; do sleep 0.5; done
job=$(sbatch --parsable --export=ALL job.sh)
done_are() {{ find lp-sweep-store/predictions -name 't*.parquet' 2> /dev/null | wc -l; }}
until [ "$(done_are)" -ge 4 ]; do sleep 0.2; done
scancel --batch --signal=USR1 "$job"
while squeue --noheader | grep -q .; do sleep 0.5; done
scontrol show job "$job"
"""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(
        bool(ABSENT) or os.geteuid() != 0,
        reason=f"needs root and Debian's slurm-wlm and munge; missing: {ABSENT}",
    ),
]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def munged(folder: Path, files: Path) -> list[str]:
    """The command, with a key of its own in `folder`. It will see it as `files`."""
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    kinds = {"key-file": "key", "socket": "sock", "pid-file": "pid", "log-file": "log"}
    places = [f"--{option}={files}/munge.{kind}" for option, kind in kinds.items()]
    return ["munged", "--force", "--foreground", *places, f"--seed-file={files}/munge.seed"]


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A Slurm of one node with four CPUs, whose commands find it by SLURM_CONF."""
    folder = tmp_path / "slurm"
    (folder / "spool").mkdir(parents=True)
    host = socket.gethostname().partition(".")[0]
    text = SETTINGS.format(
        host=host,
        address="127.0.0.1",
        folder=folder,
        private=folder,
        ports=(free_port(), free_port()),
        nodes=f"NodeName={host} NodeAddr=127.0.0.1",
    )
    (folder / "slurm.conf").write_text(text)
    monkeypatch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
    daemons = []
    with (folder / "daemons.log").open("w") as said:
        for command in (munged(folder, folder), ["slurmctld", "-D"], ["slurmd", "-D"]):
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


def example(name: str, out: Path) -> None:
    """The example, for one CPU in place of its GPUs."""
    text = (ROOT / "examples" / name).read_text(encoding="utf-8")
    lines = [line for line in text.splitlines(keepends=True) if "--gres=gpu:" not in line]
    text = re.sub(r"(?<=^#SBATCH --cpus-per-task=)\d+", "1", "".join(lines), flags=re.MULTILINE)
    out.write_text(text.replace("--mem=16G", "--mem=900M"), encoding="utf-8")


def submitted(folder: Path) -> str:
    """The number of the array, with this environment."""
    example("slurm-array.sh", folder / "array.sh")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    words = ["sbatch", "--parsable", f"--export=PATH={path},OMP_NUM_THREADS=1", "array.sh"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def done_in(folder: Path) -> dict[str, str]:
    return answers_in(folder / "lp-sweep-store")


def assert_each_once(seeds: list[int], logs: str, folder: Path, undisturbed: Path) -> None:
    """Each trial is done once, with the values of a run that nothing disturbs."""
    assert "Traceback" not in logs
    assert "stopped by SIGUSR1" in logs
    found = done_in(folder)
    assert len(found) == 2 * len(seeds), logs[-3000:]
    done = [line for line in logs.splitlines() if " done " in line and "accuracy" in line]
    assert len(done) == len(found)
    save_world(undisturbed, seeds=seeds, **WORLD)
    assert sweep("run", "sweep.yaml", "--inline", cwd=undisturbed).returncode == 0
    assert done_in(undisturbed) == found


def test_an_array_shares_a_sweep_through_cancelled_and_requeued_tasks(
    tmp_path: Path, slurm: None
) -> None:
    folder, seeds = tmp_path / "world", [*range(1, 16)]
    save_world(folder, seeds=seeds, **WORLD)
    job = submitted(folder)
    wait_for(lambda: len(done_in(folder)) >= 4, "trials", 300)
    told("scancel", f"{job}_0")
    told("scontrol", "requeue", f"{job}_1")
    told("scancel", "--batch", "--signal=USR1", f"{job}_2")  # as before the end of its time
    wait_for(lambda: not told("squeue", "--noheader").strip(), "the end of the array", 600)
    logs = "".join(file.read_text() for file in folder.glob("lp-sweep-*.log"))
    assert_each_once(seeds, logs, folder, tmp_path / "other")


def test_a_ray_on_two_nodes_goes_on_after_the_end_of_its_time(tmp_path: Path) -> None:
    """`ray symmetric-run` starts it twice, since the job is warned and queued again."""
    shared, seen, seeds = tmp_path / "mnt", Path("/mnt"), [*range(1, 8)]
    save_world(shared / "world", seeds=seeds, **WORLD)
    example("slurm-ray.sh", shared / "world" / "job.sh")
    text = SETTINGS.format(
        host="laptop",
        address="10.78.0.254",
        folder=seen,
        private="/run",
        ports=(6817, 6818),
        nodes="\n".join(f"NodeName={name} NodeAddr={at}" for name, at in TWO.items()),
    )
    (shared / "slurm.conf").write_text(text)
    (shared / "node.sh").write_text(NODE)
    scene = SCENE.format(munged=" ".join(munged(shared, seen)))
    nodes = [f"{name}={at}" for name, at in TWO.items()]
    done = subprocess.run(
        [ROOT / "tests/support/hosts.sh", tmp_path, *nodes, "--", "bash", "-c", scene],
        env=os.environ
        | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
            "SLURM_CONF": "/mnt/slurm.conf",
            "HOSTS_SHARE": "1",
            "HOSTS_RUN": "bash /mnt/node.sh",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=800,
    )
    logs = (shared / "world" / "lp-sweep-ray.log").read_text()
    assert done.returncode == 0, done.stdout + done.stderr + logs
    assert "JobState=COMPLETED" in done.stdout
    assert_each_once(seeds, logs, shared / "world", tmp_path / "other")
    hosts = sweep("query", "SELECT DISTINCT host FROM trials", cwd=shared / "world").stdout
    assert {*TWO} <= {*hosts.split()}
