"""A folder loaded in a process of its own, without lp_sweep, a network or anyone's cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lp_sweep.storage.errors import ExportError
from lp_sweep.storage.printable import short

_UNWANTED = ("HF_", "HUGGINGFACE_", "TRANSFORMERS_", "LP_SWEEP_")  # tokens and caches among them


class Answer(NamedTuple):
    """See `trials.plainload`."""

    values: np.ndarray
    missing: dict[str, list[str]]
    labels: list[str]


def ask(folder: Path, request: Mapping[str, Any]) -> Answer:
    """What the network in `folder` says. Raises ExportError where it can't be loaded."""
    program = files("lp_sweep.trials") / "plainload.py"
    with tempfile.TemporaryDirectory(prefix="lp-sweep-") as name:
        scratch = Path(name)
        (scratch / "request.json").write_text(json.dumps(request), encoding="utf-8")
        places = [str(scratch / "request.json"), str(scratch / "answer.npz")]
        done = subprocess.run(
            # -P: the folder of the program holds modules with names of Python's own
            [sys.executable, "-P", str(program), str(folder.absolute()), *places],
            env=_environment(scratch),
            cwd=scratch,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        if done.returncode:
            said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            raise ExportError(
                f"plain transformers can't load the folder in a new process: {short(said)}. "
                "Nothing was published."
            )
        with np.load(places[1]) as answer:
            told = json.loads(str(answer["told"]))
            return Answer(answer["values"], told["missing"], told["labels"])


def _environment(scratch: Path) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(_UNWANTED)}
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(scratch)}
    return clean | offline | {"TOKENIZERS_PARALLELISM": "false"}
