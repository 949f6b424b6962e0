"""Measures artefacts of one task as they are shipped: their answers for the whole dev set, the time
of one text and of many, and their memory. Starts the processes of `runner`, and reads no store.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lp_sweep.storage.errors import ExportError
from lp_sweep.storage.printable import say, short
from lp_sweep.trials.deploy.runner import BATCH, ArtefactAnswers, Columns

_TOKENIZER = ("tokenizer.json", "tokenizer_config.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Artefact:
    """A network as it is shipped. `graph`: an ONNX file; None: `folder` has weights for torch.
    `scored`: whether its answers for the dev set are wanted, beside its times. `name`: for people;
    `seconds`: that it took to make."""

    id: str
    name: str = ""
    folder: Path
    graph: Path | None = None
    scored: bool = True
    seconds: float = 0.0

    def weights(self) -> list[Path]:
        """The files of its weights."""
        if self.graph is None:
            return sorted(self.folder.glob("*.safetensors"))
        return [self.graph, *sorted(self.graph.parent.glob(f"{self.graph.name}[._]data"))]

    def files(self) -> list[Path]:
        """All files that serving needs. A graph has the settings of the network in it."""
        if self.graph is not None:
            return [*self.weights(), *(self.folder / name for name in _TOKENIZER)]
        inside = (path for path in self.folder.rglob("*") if path.is_file())
        return sorted(path for path in inside if path.suffix in (".json", ".safetensors"))

    def sha256(self) -> str:
        """That of its weights; "" without any."""
        whole = hashlib.sha256()
        for path in (weights := self.weights()):
            with path.open("rb") as stream:
                hashlib.file_digest(stream, lambda: whole)
        return whole.hexdigest() if weights else ""

    def bytes(self) -> int:
        return sum(path.stat().st_size for path in self.files() if path.is_file())


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The work that all artefacts are given. `texts`: one or two columns of n rows, one of them for
    embeddings; `singles`: the first rows, of which single ones are timed; `loads`: the class of
    transformers; `pooling` and `after`: of embeddings, as in `trials.model.plainload`; `words`:
    a row is a list of words; `seconds`: for the turns of each artefact; `at_once`: processes that
    answer at a time."""

    texts: Columns
    singles: int
    loads: str
    max_length: int
    pooling: Sequence[str] = ()
    after: Sequence[Sequence[str]] = ()
    words: bool = False
    device: str = "cpu"
    threads: int = 1
    seconds: float = 3.0
    at_once: int = 1


class ArtefactMeasurement(NamedTuple):
    """One artefact's answers, then columns of DEPLOYMENTS: its times and sizes. Times are in
    milliseconds of wall time, of one row with its tokenizer."""

    answers: ArtefactAnswers | None  # None if none were wanted
    pieces: int
    sha256: str
    bytes: int
    ms: float
    ms_p95: float
    tokenizer_ms: float
    texts_per_second: float
    rounds: int
    peak_memory_bytes: int
    others_busy_cores: float | None
    seconds_total: float  # to make it, for its answers, and for its turns


class ArtefactRun(NamedTuple):
    """One artefact in a process of its own. `facts`: fields of `ArtefactMeasurement`."""

    answers: ArtefactAnswers | None  # None if none were wanted
    seconds: float
    facts: dict[str, Any]


def run_each(artefacts: Sequence[Artefact], work: Workload) -> dict[str, ArtefactRun | str]:
    """Runs each in a process of its own. By id: its answers, or the reason if that fails."""
    with ThreadPoolExecutor(work.at_once) as pool:
        ran = pool.map(lambda artefact: _run_alone(artefact, work), artefacts)
        return {each.id: own for each, own in zip(artefacts, ran, strict=True)}


def measure(artefacts: Sequence[Artefact], work: Workload) -> dict[str, ArtefactMeasurement | str]:
    """The measurement of each artefact by its id, or why it could not be run. Says what it does.

    Those that answered in processes of their own then share one, in which nothing else computes.
    Raises ExportError if that one fails as a whole, as for lack of memory.
    """
    found: dict[str, Any] = {**run_each(artefacts, work)}
    able = [each for each in artefacts if not isinstance(found[each.id], str)]
    if not able:
        return found
    arrays, shared = _run(able, work, alone=False)
    for number, artefact in enumerate(able):
        answers, seconds, facts = found[artefact.id]
        if artefact.sha256() != facts["sha256"]:
            changed = artefact.weights()[0].name
            found[artefact.id] = f"{changed} was changed while it was measured. Measure it again."
            continue
        single, batch = arrays[f"single{number}"], arrays[f"batch{number}"]
        turns = float(single[:, 1].sum() + batch.sum()) / 1e3
        found[artefact.id] = ArtefactMeasurement(
            answers=answers,
            ms=float(np.median(single[:, 1])),
            ms_p95=float(np.percentile(single[:, 1], 95)),
            tokenizer_ms=float(np.median(single[:, 0])),
            texts_per_second=1e3 * BATCH / float(np.median(batch)),
            rounds=shared["rounds"],
            others_busy_cores=shared["others_busy_cores"],
            seconds_total=artefact.seconds + seconds + turns,
            **facts,
        )
    return found


def _run_alone(artefact: Artefact, work: Workload) -> ArtefactRun | str:
    """Its answers, or the reason if it fails."""
    try:
        files = {"sha256": artefact.sha256(), "bytes": artefact.bytes()}
        arrays, told = _run([artefact], work, alone=True)
    except (ExportError, OSError) as error:
        return str(error)
    answers = ArtefactAnswers(**arrays) if arrays else None
    return ArtefactRun(answers, told.pop("seconds"), files | told)


def _run(
    artefacts: Sequence[Artefact], work: Workload, *, alone: bool
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Raises ExportError with the last line that a process said which failed."""
    plain = [asdict(artefact) for artefact in artefacts]
    for artefact in plain:
        for name in ("folder", "graph"):
            artefact[name] = artefact[name] and str(artefact[name].absolute())
    request = {**asdict(work), "alone": alone, "artefacts": plain}
    program = ["-m", "lp_sweep.trials.deploy.runner"]
    arrays = in_new_process(program, request, say, threads=work.threads)
    return arrays, json.loads(str(arrays.pop("told")))


def in_new_process(
    program: Sequence[str],
    request: Mapping[str, Any],
    told: Callable[[str], object] = lambda line: None,
    *,
    threads: int | None = None,
) -> dict[str, np.ndarray]:
    """The arrays of ANSWER.npz, which `python -P PROGRAM REQUEST.json ANSWER.npz` writes in a
    scratch folder. `told` gets each line that it prints. Raises ExportError with the last line on
    stderr of a program that fails."""
    with tempfile.TemporaryDirectory(prefix="lp-sweep-") as name, tempfile.TemporaryFile() as said:
        scratch = Path(name)
        places = [scratch / "request.json", scratch / "answer.npz"]
        places[0].write_text(json.dumps(request), encoding="utf-8")
        running = subprocess.Popen(
            # -P: a program's folder may have modules with the names of standard ones
            [sys.executable, "-P", *program, *map(str, places)],
            env=_environment(scratch, threads),
            cwd=scratch,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            errors="replace",
        )
        with running:
            try:
                for line in running.stdout or ():
                    told(line.rstrip())
            except BaseException:  # as Ctrl-C: it would go on alone
                running.kill()
                raise
        if running.returncode:
            said.seek(0)
            lines = said.read().decode(errors="replace").strip().splitlines()
            ended = f"its process ended with exit code {running.returncode}"
            raise ExportError(short(lines[-1] if lines and running.returncode > 0 else ended))
        with np.load(places[1]) as answer:
            return dict(answer)


_HIDDEN = ("HF_", "HUGGING", "TRANSFORMERS_", "LP_SWEEP_", "AWS_")  # tokens, caches


def _environment(scratch: Path, threads: int | None) -> dict[str, str]:
    """This one without secrets and settings: no network is ever asked."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(_HIDDEN)}
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(scratch), "TOKENIZERS_PARALLELISM": "false"}
    return clean | offline | ({"OMP_NUM_THREADS": str(threads)} if threads else {})
