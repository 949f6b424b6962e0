"""Secrets in the environment of driver and workers, also in what a library prints and raises: after
a run, a failure and every verb that shows them, no file and no output has them."""

from __future__ import annotations

import base64
import io
import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import pyarrow.parquet as pq
import pytest

from tests.support.faults import sweep, wait_for, with_changes
from tests.support.program import command
from tests.support.toyworld import save_world

pytestmark = [pytest.mark.ray, pytest.mark.slow]

SECRETS = {
    "HF_TOKEN": "hf_PlantedTokenOfTheHub0123456789ab",
    "AWS_ACCESS_KEY_ID": "AKIAPLANTED0123456789",
    "AWS_SECRET_ACCESS_KEY": "plantedSecret/Key+OfTheCloud0123456789xy",
    "AWS_SESSION_TOKEN": "planted//session++token==0123456789",
    "WANDB_API_KEY": "9f1e0ab19f1e0ab19f1e0ab19f1e0ab19f1e0ab1",
}
READERS = (
    "status",
    "logs {trial}",
    "show {trial}",
    "query 'FROM attempts' --json",
    "table tasks --json",
    "report --out report.html",
    "doctor",
    "retry sweep.yaml",
)


def forms(secret: str) -> Iterator[bytes]:
    """As it is, in a URL, in JSON, in Base64 whatever comes before it, and in hexadecimal."""
    plain = secret.encode()
    yield from {plain, quote(secret, safe="").encode(), json.dumps(secret).strip('"').encode()}
    yield from (base64.b64encode(b"x" * before + plain)[4:-4] for before in range(3))
    yield plain.hex().encode()


def texts(folder: Path) -> Iterator[tuple[Path, bytes]]:
    """Every file, and of a Parquet file its values: its pages are compressed."""
    for path in folder.rglob("*"):
        if not path.is_file() or path.is_symlink():
            continue
        content = path.read_bytes()
        yield path, content
        if content[:4] == b"PAR1":
            rows: list[Any] = pq.read_table(io.BytesIO(content)).to_pylist()
            yield path, repr(rows).encode()


@pytest.fixture
def ray_folder() -> Iterator[Path]:
    """Where Ray keeps its session: a short path, for the sake of its sockets."""
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder:
        yield Path(folder)


def test_no_secret_leaves_the_environment(tmp_path: Path, ray_folder: Path) -> None:
    save_world(tmp_path, seeds=[1, 2])
    settings = with_changes(
        LP_SWEEP_TEST_NOOP="1",
        LP_SWEEP_TEST_SECONDS="1",
        LP_SWEEP_TEST_LEAK="2",
        LP_SWEEP_TEST_SECRETS=",".join(SECRETS),
        RAY_TMPDIR=str(ray_folder),
        HOME=str(tmp_path / "home"),
        **SECRETS,
    )
    tokens = set()
    with sweep(tmp_path, "sweep.yaml", **settings) as run:
        wait_for(lambda: " start " in run.text(), run.text())
        for process in run.relatives():
            tokens.add(process.environ().get("RAY_AUTH_TOKEN"))
        assert run.wait() == 1, run.text()
    said = run.text()
    trial = next(word for word in said.split() if word.startswith("t1-"))
    for line in READERS:
        done = subprocess.run(
            ["sh", "-c", f"{' '.join(command())} {line.format(trial=trial)}"],
            cwd=tmp_path,
            env={**psutil.Process().environ(), **settings},
            capture_output=True,
            text=True,
            check=False,
        )
        assert "Traceback (most" not in done.stderr, done.stderr
        said += done.stdout + done.stderr
    assert "refused: " in said  # the failure is shown, without its secrets
    [token] = tokens - {None}
    assert token
    wanted = {**SECRETS, "RAY_AUTH_TOKEN": token}
    found = {
        (name, str(path))
        for path, content in [
            *texts(tmp_path),
            *texts(ray_folder),
            (Path("printed"), said.encode()),
        ]
        for name, secret in wanted.items()
        if any(form in content for form in forms(secret))
    }
    looked = [path for path, _ in [*texts(tmp_path), *texts(ray_folder)]]
    print(f"{len(looked)} files: {sorted(found)}")
    assert len(looked) > 20
    assert found == set()
