"""A user at a shell: his folder with a sweep that has been run, and what the commands of a page do
there. Not a test."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from lp_sweep.storage.store import Store
from tests.support.docpages import ROOT, Block, Command, commands
from tests.support.fake_records import FakeSweep
from tests.support.toyworld import RECIPE, save_world

STORE = "lp-sweep-store"
_BETWEEN = "\x1e"


class Ran(NamedTuple):
    """How a block ended, and what each of its commands printed, on stdout and stderr."""

    code: int
    printed: list[str]


class User:
    """Somebody at a shell in `folder`, with lp-sweep on the path, and a home without secrets."""

    def __init__(self, folder: Path, home: Path, words: Mapping[str, str] | None = None) -> None:
        """`words` of the pages stand for those here, such as t1-0c1f for a trial of the store."""
        self.folder = folder
        self.words = dict(words or {})
        self.environment = _environment(home)

    def does(self, block: Block) -> Ran:
        """All commands of the block in one shell, up to the first that fails."""
        script = "".join(
            f"{self.here(command.typed)}\nprintf '\\036'\n" for command in commands(block)
        )
        done = subprocess.run(
            ["timeout", "300", "bash", "-e", "-o", "pipefail", "-c", script],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return Ran(done.returncode, done.stdout.removesuffix(_BETWEEN).split(_BETWEEN))

    def here(self, text: str) -> str:
        """The text of a page with the words of this folder."""
        words = "|".join(map(re.escape, self.words))
        if not words:
            return text
        return re.sub(rf"(?<![\w-])({words})(?![\w-])", lambda found: self.words[found[1]], text)

    def mismatch(self, command: Command, printed: str) -> str | None:
        """The difference between the real output of a command and the one on the page, or None."""
        if command.shown is None or pattern(self.here(command.shown)).fullmatch(_plain(printed)):
            return None
        return f"$ {command.typed}\nprints\n{printed}\nand not\n{command.shown}"


def pattern(shown: str) -> re.Pattern[str]:
    """`...` stands for any text in a line, and alone for any lines."""
    lines = (
        r"(?:.*\n)*?"
        if line.strip() == "..."
        else re.escape(line).replace(re.escape("..."), ".*") + r"\n"
        for line in _plain(shown).splitlines()
    )
    return re.compile("".join(lines))


def _plain(text: str) -> str:
    """Without blanks at the ends of lines, and blank lines at the ends."""
    lines = (line.rstrip() for line in text.strip("\n").splitlines())
    return "".join(f"{line}\n" for line in lines)


def _environment(home: Path) -> dict[str, str]:
    """This process's, but for what would reach beyond the home, or out of it."""
    programs = home / "bin"
    programs.mkdir(parents=True, exist_ok=True)
    script = programs / "lp-sweep"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m lp_sweep.orchestrator.cli "$@"\n')
    script.chmod(0o755)
    folders = os.environ.get("PYTHONPATH", "")
    return os.environ | {
        "HOME": str(home),
        "LP_SWEEP_CACHE_DIR": str(home / "cache"),
        "MPLCONFIGDIR": os.environ.get("MPLCONFIGDIR", str(Path.home() / ".cache/matplotlib")),
        "OMP_NUM_THREADS": "1",
        "PATH": os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.defpath]),
        # the folders of a source tree, as seen from the user's folder
        "PYTHONPATH": os.pathsep.join(str(Path(p).resolve()) for p in folders.split(":") if p),
        "RAY_worker_niceness": "0",
    }


def make_folder(folder: Path) -> None:
    """Makes a folder such as a reader has: the examples and results of a checkout, and a sweep. It
    has every strategy that a table is about; each network takes a second."""
    save_world(
        folder,
        seeds=[42, 43],
        strategies=[
            {"name": "top", "k": [0, 2]},
            {"name": "random", "k": [2], "draws": "0-1"},
            {"name": "contribution", "threshold": [0.999]},
        ],
        recipe=RECIPE | {"epochs": 1},
    )
    shutil.copytree(ROOT / "docs" / "studies", folder / "docs" / "studies")
    for name in ("benchmarks", "examples"):
        (folder / name).symlink_to(ROOT / name)


def words_of(folder: Path) -> dict[str, str]:
    """Real names in a folder whose sweep has been run, for the example names of the pages."""
    store = Store(folder / STORE)
    first, second = sorted(store.names("trials"))[:2]
    return {
        "t1-0c1f": first,
        "t1-77ab": second,
        "TRIAL": first,
        "p1-0c1f": min(store.names("profiles")),
        "NAME": "toy",
    }


def break_off_once(folder: Path) -> None:
    """One trial of the store, done by now, found too little memory at the first try."""
    fake, trial = FakeSweep(folder / STORE), words_of(folder)["TRIAL"]
    fake.failure(trial, fake.store.read("trials", trial)[0], final=False)
