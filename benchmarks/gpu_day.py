"""Runs everything worth measuring in the first half hour on a GPU, the most valuable first.

    make gpu-bundle MODEL=FOLDER GLUE=FOLDER
    python -m benchmarks.gpu_day --stage 1 --out DIR
    python -m benchmarks.gpu_report DIR/results.jsonl

The machine needs torch, transformers and accelerate, and no network: everything else is in the
bundle. lp-sweep need not be installed. Each step is a process with its own time limit, and adds one
line to `results.jsonl` when it ends; a failed step does not stop the others. `--device cpu`
rehearses every step with tiny shapes; its figures mean nothing. No GPU has run it yet.
"""

from __future__ import annotations

import argparse
import json
import os
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


@dataclass(frozen=True, slots=True)
class Step:
    stage: int
    seconds: int  # the limit
    name: str  # a function of gpu_steps.py
    arguments: tuple[Any, ...] = ()


STEPS = (
    Step(1, 60, "machine"),
    *(Step(1, 60, "smoke", (compute,)) for compute in ("reference", "fast", "graphs")),
    Step(1, 150, "tests"),
    *(Step(1, 60, "determinism", (compute,)) for compute in ("graphs", "fast", "reference")),
    *(Step(1, 120, "speed", (task,)) for task in ("sst2", "rte", "mrpc")),
    Step(1, 120, "whole", ("sst2",)),
    *(Step(1, 60, "profile", (compute,)) for compute in ("graphs", "fast")),
    *(Step(2, 120, "speed", (task,)) for task in ("qnli", "mnli", "qqp", "stsb")),
    *(Step(2, 180, "compiled", (task,)) for task in ("sst2", "rte")),
    Step(2, 60, "out_of_memory"),
    *(Step(2, 60, "family", (name,)) for name in ("roberta", "electra", "distilbert")),
    Step(2, 120, "speed", ("sst2", "minilm")),
    *(
        Step(3, 120, "side_by_side", (count, mps))
        for count, mps in ((1, False), (4, True), (4, False), (2, True))
    ),
    Step(3, 60, "depth_speed"),
    Step(3, 120, "precisions"),
    Step(3, 180, "sweep"),
    Step(3, 120, "speed", ("sst2",)),
)


def packages(bundle: Path, folder: Path) -> dict[str, str]:
    """The environment of a step: links to this checkout for lp-sweep, and the bundle's wheels for
    the packages that this Python lacks."""
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


def run(step: Step, options: Any, environment: dict[str, str]) -> dict[str, Any]:
    """Run a step, and return its line."""
    arguments = [options.device, str(options.bundle.resolve()), *map(json.dumps, step.arguments)]
    command = [sys.executable, "-m", "benchmarks.gpu_steps", step.name, *arguments]
    line = {"stage": step.stage, "step": step.name, "arguments": step.arguments}
    begun = time.perf_counter()
    try:
        done = subprocess.run(
            command,
            env=environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=step.seconds * (10 if options.device == "cpu" else 1),
            check=False,
        )
    except subprocess.TimeoutExpired:
        return line | {"status": "timeout", "seconds": round(time.perf_counter() - begun, 1)}
    line["seconds"] = round(time.perf_counter() - begun, 1)
    if done.returncode:
        return line | {"status": "failed", "error": done.stderr[-4000:]}
    return line | {"status": "done", "found": json.loads(done.stdout.splitlines()[-1])}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--stage", type=int, choices=[1, 2, 3], help="default: all")
    parser.add_argument("--only", nargs="+", metavar="STEP", help="such as: speed smoke")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--bundle", type=Path, default=ROOT / ".gpu")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    options = parser.parse_args()
    if not (options.bundle / "tokens").is_dir():
        raise SystemExit(f"{options.bundle} is not there: make gpu-bundle MODEL=... GLUE=...")
    options.out.mkdir(parents=True, exist_ok=True)
    results = options.out / "results.jsonl"
    with tempfile.TemporaryDirectory() as folder:
        environment = packages(options.bundle, Path(folder))
        for step in STEPS:
            if step.stage != (options.stage or step.stage):
                continue
            if options.only and step.name not in options.only:
                continue
            line = {
                "device": options.device,
                "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            }
            line |= run(step, options, environment)
            with results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
                file.flush()
                os.fsync(file.fileno())
            print(step.name, *step.arguments, line["status"], line["seconds"], "s", flush=True)


if __name__ == "__main__":
    main()
