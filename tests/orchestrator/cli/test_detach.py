"""`run --detach`, `attach` and `stop`, as far as no job server is needed: what a job is made of,
which run is meant, how it ended. test_jobs.py has the real server."""

from __future__ import annotations

import json
import os
import shlex
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from lp_sweep.orchestrator import flags
from lp_sweep.orchestrator.cli.__main__ import app
from lp_sweep.orchestrator.cli.root import options_of
from lp_sweep.orchestrator.cluster.jobs import Job, Jobs
from lp_sweep.orchestrator.engine.course import StopSignals
from lp_sweep.orchestrator.engine.runoptions import RunOptions
from lp_sweep.orchestrator.inputs.request import Request
from lp_sweep.orchestrator.service import detach as detaching
from lp_sweep.orchestrator.service.detach import drop_forgotten, job_words, write_settings
from lp_sweep.orchestrator.service.plan import planned
from lp_sweep.storage.errors import LpSweepError, PreflightError, SpecError
from tests.support.program import sweep as lp_sweep
from tests.support.toyworld import save_world, sweep_content

SERVER, TOKEN = "http://127.0.0.1:8265", "hf_aSecretOfMine1234"


class FakeServer:
    """Keeps what it is sent."""

    def __init__(self, kept: Path) -> None:
        self.address: str | None = None
        self.kept, self.command, self.sweep = kept, "", ""

    def submit(self, id_: str, command: str, *, sweep: str, folder: Path | None = None) -> None:
        self.id, self.command, self.sweep = id_, command, sweep
        if folder:
            folder.rename(self.kept)
            folder.mkdir()


class Laptop:
    """A user in a folder that has a sweep in a folder of it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.here, self.patch = folder / "the 'laptop'", monkeypatch
        self.sweep, self.cache = self.here / "my sweep", folder / "cache"
        self.server = FakeServer(folder / "unpacked")
        self.patch.setattr(detaching, "Jobs", lambda given: self.server)
        self.sweep.mkdir(parents=True)
        save_world(self.sweep)

    def change(self, **entries: Any) -> None:
        text = yaml.safe_dump(sweep_content(**entries))
        (self.sweep / "sweep.yaml").write_text(text, encoding="utf-8")

    def submit(self, *words: str, address: str | None = SERVER, **places: Any) -> FakeServer:
        """`lp-sweep run 'my sweep/sweep.yaml' WORDS --detach`"""
        self.server.address = address
        typed = ["run", "my sweep/sweep.yaml", *words, "--detach"]
        known = {"offline": True, "address": address, "cache_dir": self.cache} | places
        overrides = [word for word in words if "=" in word]
        options = RunOptions(file="my sweep/sweep.yaml", overrides=overrides, **known)
        sent = detaching.submit(options, typed)
        assert sent == (self.server.id, address)
        return self.server


@pytest.fixture
def laptop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Laptop:
    """No setting of ours is set there."""
    made = Laptop(tmp_path, monkeypatch)
    monkeypatch.chdir(made.here)
    clean = {key: value for key, value in os.environ.items() if not key.startswith("LP_SWEEP_")}
    monkeypatch.setattr(os, "environ", clean | {"HF_TOKEN": TOKEN})
    return made


# -- the command


def test_the_driver_gets_what_was_typed_but_for_the_terminal() -> None:
    typed = ["run", "--detach", "s.yaml", "--address", "10.0.0.1:6379", "seed=1", "--json"]
    assert job_words(typed) == ["run", "--address", "auto", "s.yaml", "seed=1"]
    assert job_words(["retry", "--address=x", "t1-0c"]) == ["retry", "--address", "auto", "t1-0c"]


# -- on the head


def test_settings_reach_the_driver_and_nobody_else(tmp_path: Path) -> None:
    """By a shell that is not bash, with values that it could take for its own words."""
    file = tmp_path / "jobs of mine" / "it's.sh"
    mine = {
        "LP_SWEEP_STORE": "s3://b/it's $HOME; `ls`",
        "HF_TOKEN": 'hf_"two\nlines"',
        "AWS_REGION": "us-west-2",
        "MLFLOW_TRACKING_URI": "https://me:secret@host",
        "WANDB_API_KEY": "0123456789",
        "TENSORBOARD_LOGGING_DIR": "/mnt/runs",
        "TRACKIO_DIR": "/mnt/trackio",
        "XDG_CACHE_HOME": "/mnt/cache",  # where the hub's cache is, and what no store has taken
    }
    others = {"PATH": "/nowhere", "HF_ODD-NAME": "x", "LP_SWEEP_": "x", "RAY_ADDRESS": "x"}
    write_settings(file, mine | others)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    read = "import json, os; print(json.dumps(dict(os.environ)))"
    command = f". {shlex.quote(str(file))} && exec {shlex.quote(sys.executable)} -c '{read}'"
    done = subprocess.run(["/bin/sh", "-c", command], env={"PATH": os.environ["PATH"]}, stdout=-1)
    seen = json.loads(done.stdout)
    assert {name: seen[name] for name in mine} == mine
    assert not (others.keys() - {"PATH"}) & seen.keys()
    assert seen["PATH"] != "/nowhere"
    assert not file.exists()


def test_settings_that_no_job_took_go_after_a_day(tmp_path: Path) -> None:
    old, new = tmp_path / "old.sh", tmp_path / "new.sh"
    for path in (old, new):
        write_settings(path, {"HF_TOKEN": "hf_secret"})
    os.utime(old, (0, 0))
    drop_forgotten(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["new.sh"]
    drop_forgotten(tmp_path / "not there")


def test_a_job_on_the_head_is_the_command_in_its_folder(laptop: Laptop) -> None:
    server = laptop.submit("k=0", address=None)
    settings = laptop.cache / "jobs" / f"{server.id}.sh"
    source, folder, run = map(shlex.split, server.command.split(" && "))
    assert (source, folder) == ([".", str(settings)], ["cd", str(laptop.here)])
    assert run[:4] == ["exec", sys.executable, "-m", "lp_sweep.orchestrator.cli"]
    assert run[4:] == ["run", "--address", "auto", "my sweep/sweep.yaml", "k=0"]
    assert TOKEN not in server.command
    assert TOKEN in settings.read_text(encoding="utf-8")
    assert server.sweep == "toy"


def test_the_command_prints_the_run_and_how_to_follow_it(laptop: Laptop) -> None:
    words = ["run", "my sweep/sweep.yaml", "--detach", "--cache-dir", str(laptop.cache)]
    laptop.server.address = "10.0.0.1:6379"
    done = lp_sweep(*words, cwd=laptop.here)
    run = laptop.server.id
    assert (done.returncode, done.stdout) == (0, f"{run}\n")
    for verb in ("attach", "stop"):
        assert f"lp-sweep {verb} {run} --address 10.0.0.1:6379" in done.stderr
    as_json = lp_sweep(*words, "--json", cwd=laptop.here).stdout
    assert json.loads(as_json) == {"run": laptop.server.id, "address": "10.0.0.1:6379"}


def test_no_settings_stay_where_no_job_was_made(
    laptop: Laptop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PreflightError("no job server")

    monkeypatch.setattr(FakeServer, "submit", refuse)
    with pytest.raises(PreflightError, match="no job server"):
        laptop.submit(address="auto")
    assert not [*(laptop.cache / "jobs").iterdir()]


@pytest.mark.parametrize("address", ["auto", SERVER])
def test_a_mistake_is_told_before_there_is_a_job(laptop: Laptop, address: str) -> None:
    (laptop.sweep / "dev.csv").unlink()
    with pytest.raises(LpSweepError, match=r"sweep\.yaml.*dev\.csv"):
        laptop.submit(address=address, store="/mnt/records")
    with pytest.raises(LpSweepError, match="credentials do not belong"):
        laptop.submit(address=address, store="s3://key:secret@bucket/x")


# -- from another machine


def test_what_is_sent_makes_the_same_trials(
    laptop: Laptop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing else of the folder is: a store, a .git, another model."""
    (laptop.sweep / ".git").mkdir()
    (laptop.sweep / ".gitignore").write_text("*.csv\n")
    (laptop.here / "lp-sweep-store").mkdir()
    (laptop.here / "lp-sweep-store" / "big.parquet").write_bytes(b"x")
    monkeypatch.setitem(os.environ, "LP_SWEEP_OFFLINE", "1")
    monkeypatch.setitem(os.environ, "LP_SWEEP_CACHE_DIR", "/home/me/cache")
    request = Request("my sweep/sweep.yaml", offline=True)
    ours = planned(request).plan
    server = laptop.submit("--store", "s3://bucket/p", store="s3://bucket/p")
    words = shlex.split(server.command)
    assert words[:4] == ["exec", "env", "LP_SWEEP_OFFLINE=1", "lp-sweep"]
    assert words[4:] == ["run", "--address", "auto", request.file, "--store", "s3://bucket/p"]
    assert TOKEN not in server.command
    sent = {str(path.relative_to(server.kept)) for path in server.kept.rglob("*") if path.is_file()}
    names = {"sweep.yaml", "train.csv", "dev.csv", "model/config.json", "model/model.safetensors"}
    assert {f"my sweep/{name}" for name in names} <= sent
    assert not [name for name in sent if ".git" in name or "store" in name]
    monkeypatch.chdir(server.kept)
    assert planned(request).plan.trials.keys() == ours.trials.keys()


def test_the_job_server_asked_for_is_the_one_that_ray_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ray lets its variables overrule an argument."""
    from ray.dashboard.utils import get_address_for_submission_client

    monkeypatch.setenv("RAY_ADDRESS", "http://elsewhere:1")
    monkeypatch.setenv(flags.JOB_SERVER, SERVER)
    assert get_address_for_submission_client("http://elsewhere:2") == SERVER
    of_attach = [o for o in options_of(typer.main.get_command(app)) if o.command == "attach"]
    assert any(flags.JOB_SERVER in (option.parameter.envvar or ()) for option in of_attach)


# of this terminal and this machine, or of the cluster that it joins
NOT_SENT = {"LP_SWEEP_ADDRESS", "LP_SWEEP_CACHE_DIR", "LP_SWEEP_INLINE", "LP_SWEEP_JSON"}


@pytest.mark.parametrize("verb", ["run", "resume", "retry"])
def test_an_option_by_its_variable_goes_along(verb: str) -> None:
    """Without LP_SWEEP_MANIFEST other revisions are trained, without LP_SWEEP_MAX_FAILURES a run
    spends on."""
    command = typer.main.get_command(app)
    ours = [option.parameter.envvar for option in options_of(command) if option.command == verb]
    names = {name for name in ours if isinstance(name, str)} - NOT_SENT
    assert names <= {*detaching._SAID}


@pytest.mark.parametrize(
    ("places", "told"),
    [
        pytest.param({}, "the store is not named", id="no store"),
        pytest.param({"store": "records"}, "the store is records, and the job's", id="relative"),
        pytest.param({"data_dir": Path("/glue")}, "--data-dir .* is /glue, a path of", id="data"),
        pytest.param({"cluster": Path("/c.yaml")}, "--cluster .* is /c.yaml", id="cluster file"),
    ],
)
def test_places_of_this_machine_are_refused(
    laptop: Laptop, places: dict[str, Any], told: str
) -> None:
    given = {"store": "/mnt/records"} | places if places else {}
    with pytest.raises(SpecError, match=told):
        laptop.submit(**given)


def test_what_is_outside_and_an_absolute_path_are_not_sent(laptop: Laptop) -> None:
    laptop.change(models=[str(laptop.sweep / "model")])
    with pytest.raises(PreflightError, match="paths of this machine, from / or ~"):
        laptop.submit(store="/mnt/records")

    (laptop.sweep / "train.csv").rename(laptop.here.parent / "train.csv")
    task = {"name": "mood", "train": "../../train.csv", "dev": "dev.csv", "text": ["text"]}
    laptop.change(tasks=[task])
    with pytest.raises(PreflightError, match=r"below the current folder.*train\.csv"):
        laptop.submit(store="/mnt/records")


def test_more_than_the_job_server_takes_is_not_sent(
    laptop: Laptop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detaching, "MOST_BYTES", 1000)
    with pytest.raises(PreflightError, match=r"my sweep/model/model\.safetensors.*ray rsync-up"):
        laptop.submit(store="/mnt/records")


# -- which run is meant, and how it ended


def job(id_: str, status: str, code: int | None = None) -> Job:
    return Job(id_, status, "toy", "2026-11-22 10:02 UTC", code, "")


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        ("SUCCEEDED", 0, 0),
        ("FAILED", 1, 1),
        ("FAILED", -9, 137),
        ("FAILED", None, 4),
        ("STOPPED", None, 3),
    ],
)
def test_the_exit_code_is_the_runs(status: str, code: int | None, expected: int) -> None:
    assert job("a", status, code).over
    assert job("a", status, code).exit_code == expected


def server_of(*known: Job) -> Jobs:
    """A job server's client that knows these runs."""
    client = object.__new__(Jobs)
    client.all = lambda: list(known)  # type: ignore[method-assign]
    return client


def test_which_run_is_followed_and_which_is_stopped() -> None:
    ended, at_work = job("new", "FAILED", 1), job("old", "RUNNING")
    assert server_of(ended, at_work).last() == at_work
    assert server_of(ended, job("older", "SUCCEEDED", 0)).last() == ended
    with pytest.raises(PreflightError, match="none was started with `lp-sweep run --detach`"):
        server_of().last()

    ended, one, two = job("a", "FAILED", 1), job("b", "RUNNING"), job("c", "PENDING")
    assert server_of(ended, one).only_running() == one
    with pytest.raises(PreflightError, match="several runs are at work: name one") as told:
        server_of(ended, one, two).only_running()
    assert "b: RUNNING, sweep 'toy', since 2026-11-22 10:02 UTC" in str(told.value)
    assert "a: FAILED" not in str(told.value)
    with pytest.raises(PreflightError, match=r"no run is at work.*\na: FAILED"):
        server_of(ended).only_running()
    with pytest.raises(PreflightError, match=r"no detached run 'x'.*\na: FAILED"):
        server_of(ended).named("x")


ATTACH = """
import contextlib
from lp_sweep.orchestrator.cli import jobcli
from lp_sweep.orchestrator.cluster import jobs

class Server(jobs.Jobs):
    def __init__(self, address):
        self.address, self._client = None, self
    def all(self):
        return [jobs.Job("a", "RUNNING", "toy", "", None, "")]
    def _answered(self):
        return contextlib.nullcontext()
    async def tail_job_logs(self, id_):
        while True:
            yield "a line of a run that takes days\\n"

jobs.Jobs = Server
jobcli.attach()
"""


def test_who_has_read_enough_of_a_run_need_not_wait_for_its_end() -> None:
    """`lp-sweep attach | head`"""
    with subprocess.Popen([sys.executable, "-c", ATTACH], stdout=-1, stderr=-1) as attached:
        assert attached.stdout is not None
        assert attached.stdout.readline().startswith(b"a line")
        attached.stdout.close()
        try:
            assert attached.wait(30) == 0
        finally:
            attached.kill()


def test_a_run_that_is_stopped_has_the_time_that_it_needs() -> None:
    """Ray's own handler of signals sets an alarm of 3 s that aborts the process."""
    with StopSignals().caught() as signals:
        signal.alarm(300)
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.received == ["SIGTERM"]
        assert signal.alarm(0) == 0


@pytest.mark.parametrize("command", ["run sweep.yaml --detach", "attach"])
def test_without_rays_job_api_one_sentence_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    save_world(tmp_path)
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    done = lp_sweep(*command.split(), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (4, "")
    (line,) = done.stderr.splitlines()
    assert "pip install 'lp-sweep[cluster]'" in line
