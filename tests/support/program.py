"""`lp-sweep` as its user types it: in this process (fast), or in one of its own."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest

from lp_sweep.orchestrator.cli.__main__ import main
from lp_sweep.storage.store import Store


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


class Terminal(io.StringIO):
    """Taken for a terminal."""

    def isatty(self) -> bool:
        return True


def sweep(
    *arguments: str,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    stdin: str = "",
    screen: bool = False,
) -> Done:
    """`lp-sweep ARGUMENTS` in `cwd`, without what the caller has in LP_SWEEP_*. `screen`:
    stdout is a terminal."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("LP_SWEEP_")}
    environment = {**clean, "LP_SWEEP_OFFLINE": "1", **(env or {})}
    out, err = Terminal() if screen else io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.dict(os.environ, environment, clear=True),
        mock.patch.object(sys, "argv", ["lp-sweep", *arguments]),
        mock.patch.object(sys.modules["__main__"], "__package__", None),  # else "python -m pytest"
        mock.patch.object(sys, "unraisablehook", sys.unraisablehook),
        mock.patch.object(sys, "stdin", io.StringIO(stdin)),
        pytest.raises(SystemExit) as end,
    ):
        main()
    return Done(int(end.value.code or 0), out.getvalue(), err.getvalue())


def process(*arguments: str, cwd: Path, stdout: Any = subprocess.PIPE) -> subprocess.Popen[str]:
    """The same, in a process of its own."""
    return subprocess.Popen(
        command(*arguments),
        cwd=cwd,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
    )


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "lp_sweep.orchestrator.cli", *map(str, arguments)]


Ended = subprocess.CompletedProcess[str]


def run(*arguments: str | Path, cwd: Path, code: int = 0, **settings: str) -> Ended:
    """`lp-sweep ARGUMENTS` in a process of its own, to its end."""
    return ended(command(*arguments), cwd, code, environment(cwd) | settings)


def python(
    program: str, *arguments: str, cwd: Path, code: int = 0, typed: str = "", **settings: str
) -> Ended:
    """A program in Python."""
    words = [sys.executable, "-c", program, *arguments]
    return ended(words, cwd, code, environment(cwd) | settings, typed)


def ended(words: list[str], cwd: Path, code: int, env: Mapping[str, str], typed: str = "") -> Ended:
    done = subprocess.run(
        words,
        cwd=cwd,
        env=env,
        input=typed,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


def environment(cwd: Path) -> dict[str, str]:
    settings = {"LP_SWEEP_CACHE_DIR": str(cwd / "cache"), "RAY_worker_niceness": "0"}
    return os.environ | settings | {"OMP_NUM_THREADS": "1"}


def record_path(store: Store, name: str) -> Path:
    return Path(store.location, "trials", f"{name}.parquet")


def cells(folder: Path, *overrides: str) -> list[dict[str, Any]]:
    plan = json.loads(run("plan", "sweep.yaml", *overrides, "--json", cwd=folder).stdout)
    return list(plan["cells"])
