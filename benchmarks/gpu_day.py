"""Everything worth measuring in the first half hour on a GPU, most valuable first.

    make gpu-bundle MODEL=FOLDER GLUE=FOLDER
    python -m benchmarks.gpu_day --stage 1 --out DIR
    python -m benchmarks.gpu_report DIR/results.jsonl

Runs on a machine with torch, transformers, accelerate and pytest that reaches no network: all else
is in the bundle. lp-sweep need not be installed. Each step is a process with a time limit of its
own, and adds one line to `results.jsonl` when it ends: a failure is a line, not the end. A step
that did not end keeps what it had found. A step starts only if its limit fits into what is left of
`--budget`. The same command again skips the steps that are done; `--only` repeats a step.
`--device cpu` rehearses every step in tiny shapes; its figures mean nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("storage", "trials", "analysis", "orchestrator", "quickstart")
SWEEP = "sweep"  # the folder of the step of this name, and its archive
MPS = "nvidia-cuda-mps-control"


@dataclass(frozen=True, slots=True)
class Step:
    stage: int
    seconds: int  # the limit
    name: str  # of a function of gpu_steps.py
    arguments: tuple[Any, ...] = ()

    @property
    def key(self) -> str:
        return json.dumps([self.name, *self.arguments])


# of one stage the first steps fit into the budget even if each of them takes all of its limit
STEPS = (
    Step(1, 60, "machine"),
    Step(1, 90, "smoke"),
    Step(1, 150, "tests"),
    Step(1, 90, "determinism"),
    *(Step(1, 75, "whole", ("bert-base", task)) for task in ("sst2", "rte", "mrpc")),
    Step(1, 90, "profile"),
    Step(1, 60, "sweep", ("k=0,3", "seed=1", "task=sst2")),
    Step(2, 60, "out_of_memory"),
    *(Step(2, 85, "whole", ("bert-base", task)) for task in ("qnli", "mnli", "qqp", "stsb")),
    Step(2, 150, "compiled", ("sst2",)),
    Step(2, 120, "family", ("roberta", "electra", "distilbert")),
    Step(2, 120, "family", ("mpnet", "deberta-v2", "modernbert")),
    Step(2, 60, "whole", ("minilm", "sst2")),
    Step(3, 240, "side_by_side"),
    Step(3, 270, "sweep"),
    Step(3, 60, "depth_speed"),
    Step(3, 60, "precisions"),
)


def packages(bundle: Path, folder: Path) -> dict[str, str]:
    """The environment of a step: lp-sweep by links to this checkout, and the bundle's wheels where
    this Python lacks their packages."""
    ours = folder / "ours" / "lp_sweep"
    ours.mkdir(parents=True)
    for room in ROOMS:
        (ours / room).symlink_to(ROOT / room)
    for file in (ROOT / "api").glob("*.py"):
        (ours / file.name).symlink_to(file)
    for wheel in sorted((bundle / "wheels").glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder / "wheels")
    paths = [ROOT, folder / "ours"]
    tag = f"{sys.version_info.major}{sys.version_info.minor}"
    built = {path.name for path in (folder / "wheels").rglob(f"*cpython-{tag}-*.so")}
    if built:  # for this Python
        paths.append(folder / "wheels")
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}


def run(step: Step, options: Any, environment: dict[str, str], seconds: float) -> dict[str, Any]:
    """The line of a step, which has this long."""
    places = [options.device, str(options.bundle.resolve()), str(options.out.resolve())]
    command = [sys.executable, "-m", "benchmarks.gpu_steps", step.name, *places]
    command += map(json.dumps, step.arguments)
    line: dict[str, Any] = {"stage": step.stage, "step": step.name, "arguments": step.arguments}
    begun = time.perf_counter()
    # files: a process that a step leaves behind may hold a pipe open for ever
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command,
            env=environment,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
            start_new_session=True,
        )
        try:
            code = process.wait(seconds)
            line["status"] = "failed" if code else "done"
        except subprocess.TimeoutExpired:
            line["status"] = "timeout"
        finally:  # workers of a step would go on using the GPU
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        line["seconds"] = round(time.perf_counter() - begun, 1)
        for file in (out, errors):
            file.seek(0)
        found = _last_json(out.read())
        if found is not None:
            line["found"] = found
        if line["status"] != "done":
            line["error"] = errors.read().replace(f"{ROOT}/", "")[-4000:]
            _stop_mps()
    return line


def _last_json(printed: str) -> Any:
    """The last findings that a step printed; None without any."""
    for text in reversed([line for line in printed.splitlines() if line.startswith("{")]):
        with contextlib.suppress(ValueError):
            return json.loads(text)
    return None


def _stop_mps() -> None:
    """A daemon in a session of its own, which a step that was killed has left running."""
    if shutil.which(MPS):
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(
                [MPS],
                input="quit\n",
                text=True,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=20,
                check=False,
            )


@contextlib.contextmanager
def unpacked(out: Path) -> Any:
    """The sweep's folder inside; outside it one archive, since few files travel back."""
    folder, archive = out / SWEEP, out / f"{SWEEP}.tar.gz"
    if archive.exists() and not folder.exists():
        shutil.unpack_archive(archive, folder, filter="data")
    try:
        yield
    finally:
        if folder.exists():
            Path(shutil.make_archive(str(out / "new"), "gztar", folder)).replace(archive)
            shutil.rmtree(folder)


def ended(results: Path, device: str) -> set[str]:
    """The keys of the steps that need no repetition."""
    found = set()
    for text in results.read_text("utf-8").splitlines() if results.exists() else ():
        with contextlib.suppress(ValueError):  # cut off
            line = json.loads(text)
            if (line["status"], line["device"]) == ("done", device):
                found.add(json.dumps([line["step"], *line["arguments"]]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--stage", type=int, choices=[1, 2, 3], help="default: all")
    parser.add_argument("--only", nargs="+", metavar="STEP", help="again, such as: tests smoke")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--bundle", type=Path, default=ROOT / ".gpu")
    parser.add_argument("--budget", type=float, default=560, help="seconds in all (default: 560)")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    options = parser.parse_args()
    if not (options.bundle / "tokens").is_dir():
        raise SystemExit(f"{options.bundle} is not there: make gpu-bundle MODEL=... GLUE=...")
    options.out.mkdir(parents=True, exist_ok=True)
    results = options.out / "results.jsonl"
    slower = 10 if options.device == "cpu" else 1
    end = time.monotonic() + options.budget * slower
    done = ended(results, options.device)
    with tempfile.TemporaryDirectory() as folder:
        environment = packages(options.bundle, Path(folder))
        for step in STEPS:
            if step.stage != (options.stage or step.stage):
                continue
            if step.name not in options.only if options.only else step.key in done:
                continue
            if time.monotonic() + step.seconds * slower > end:
                print(step.name, *step.arguments, "skipped: over the budget", flush=True)
                continue
            line = {
                "device": options.device,
                "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            }
            with unpacked(options.out) if step.name == SWEEP else contextlib.nullcontext():
                line |= run(step, options, environment, step.seconds * slower)
                with results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
                    file.flush()
                    os.fsync(file.fileno())
            print(step.name, *step.arguments, line["status"], line["seconds"], "s", flush=True)


if __name__ == "__main__":
    main()
