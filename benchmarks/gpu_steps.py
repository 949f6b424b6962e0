"""The steps of gpu_day.py, each of which runs in a process of its own. Not a benchmark by itself.

A step is a function of a `Setup` and gives a plain dictionary: a line of results.jsonl. It prints
what it has so far after each part, which remains if the step is stopped. Networks have random
weights, which take as long as learned ones, and rows come from the bundle as tokens; only the sweep
has real ones. So nothing is read from a hub, and of other packages only torch, transformers and
accelerate.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import hashlib
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification, set_seed

from benchmarks.clocks import CpuClock, GpuClock
from lp_sweep.storage.errors import DeviceOutOfMemoryError
from lp_sweep.trials.data.batches import BatchSizes, EncodedSplit, EncodedTask, Padding
from lp_sweep.trials.device import (
    device_name,
    forget_frames,
    free_memory,
    memory_errors,
    reproducible,
)
from lp_sweep.trials.spec.procedures import Phase
from lp_sweep.trials.spec.specs import Recipe, TaskDefinition
from lp_sweep.trials.train.finetune import Saver, finetune
from lp_sweep.trials.train.steps import Setting

BATCH, LENGTH, RATE = 32, 128, 2e-5
PADDING = Padding(0, 0, False)
COMPUTES = ("reference", "graphs")
TINY = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
CPU_ROWS = BATCH * 6 + 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Where and how large. On a CPU all is tiny: it rehearses, and measures nothing."""

    device: torch.device
    bundle: Path
    out: Path

    @property
    def gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def precision(self) -> str:
        return "bf16" if self.gpu else "fp32"

    def of(self, gpu: Any, cpu: Any) -> Any:
        return gpu if self.gpu else cpu

    def wait(self) -> None:
        if self.gpu:
            torch.cuda.synchronize(self.device)

    def each(self, names: Sequence[str], run: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
        """Runs each and returns their results by name; prints after each. Raises after the last."""
        found: dict[str, Any] = {}
        errors = {}
        for name in names:
            try:
                found[name] = run(name)
            except Exception as error:
                errors[name] = f"{name}: {type(error).__name__}: {str(error)[:1000]}"
            gc.collect()
            say(found)
        if errors:
            raise RuntimeError("\n".join(errors.values()))
        return found


def say(found: dict[str, Any]) -> None:
    print(json.dumps(found, default=str), flush=True)


def task(setup: Setup, name: str, steps: int | None = None) -> EncodedTask:
    """The bundle's rows of a task; the last 200 are the dev rows."""
    found = np.load(setup.bundle / "tokens" / f"{name}.npz")
    labels = found["labels"]
    split = EncodedSplit(
        tokens=found["tokens"].astype(np.int32),
        offsets=found["offsets"].astype(np.int64),
        token_types=found["types"],
        labels=labels.astype(np.float32 if labels.dtype.kind == "f" else np.int64),
    )
    dev = setup.of(200, 20)
    train = len(split) - dev
    train = min(train, setup.of(train, CPU_ROWS), BATCH * steps if steps else train)
    return EncodedTask(
        train=split.take(range(train)),
        dev={"dev": split.take(range(len(split) - dev, len(split)))},
        label_names=(),
        num_labels=1 if labels.dtype.kind == "f" else int(labels.max()) + 1,
        from_cache=True,
    )


def network(setup: Setup, data: EncodedTask, shape: str = "bert-base", family: str = "") -> Any:
    settings = json.loads((setup.bundle / "configs" / f"{shape}.json").read_text("utf-8"))
    settings.pop("model_type")
    settings.pop("classifier_dropout", None)  # null, which ModernBERT refuses
    if not setup.gpu:
        settings |= TINY | {"num_hidden_layers": 2}
    if family == "distilbert":
        names = {"hidden_size": "dim", "num_attention_heads": "n_heads"}
        names |= {"intermediate_size": "hidden_dim", "num_hidden_layers": "n_layers"}
        settings = {names.get(name, name): value for name, value in settings.items()}
    elif family:  # positions after the padding's
        settings |= {"max_position_embeddings": 514}
    if family == "deberta-v2":
        settings |= {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
    if family:  # else no answer depends on its text, and any two ways agree
        settings |= {"initializer_range": setup.of(0.1, 0.5)}
    config = AutoConfig.for_model(family or "bert", **settings, num_labels=data.num_labels)
    config.problem_type = "regression" if data.num_labels == 1 else "single_label_classification"
    set_seed(1)
    return AutoModelForSequenceClassification.from_config(config)


class Window:
    """A part of a training, from after step `first` to after step `last`: transfers, libraries that
    start and recordings of graphs lie before it, the evaluation after it."""

    def __init__(self, setup: Setup, inside: AbstractContextManager[Any]) -> None:
        self.first, self.last = setup.of((20, 40), (1, 4))
        self._setup, self._inside = setup, inside
        self._step = 0
        self.found: Any = None  # what `inside` gave
        self.seconds = 0.0

    @property
    def steps(self) -> int:
        return self.last - self.first

    def end_of_step(self) -> None:
        self._step += 1
        if self._step == self.first:
            self._setup.wait()
            self.found = self._inside.__enter__()
            self._begun = time.perf_counter()
        elif self._step == self.last:
            self._setup.wait()
            self.seconds = time.perf_counter() - self._begun
            self._inside.__exit__(None, None, None)


class _Watch(Saver):
    """Asked after each step whether it is time to save: it only looks at the clock."""

    def __init__(self, clock: Any, window: Window | None) -> None:
        self.clock, self.window = clock, window

    def due(self) -> bool:
        self.clock.mark()
        if self.window is not None:
            self.window.end_of_step()
        return False


def trial(
    setup: Setup,
    model: Any,
    data: EncodedTask,
    compute: Any,
    *,
    precision: str = "",
    dropout: bool = True,
    epochs: int = 1,
    micro_batch: int = BATCH,
    window: Window | None = None,
) -> dict[str, Any]:
    """One training as a trial does it: deterministic, evaluated after each epoch."""
    if not dropout:
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
    depth = model.config.num_hidden_layers
    kind: dict[str, Any] = {"kind": "regression", "metric": "pearson"}
    setting = Setting(
        definition=TaskDefinition(text_columns=("text",), **(kind if data.num_labels == 1 else {})),
        recipe=Recipe(
            learning_rate=RATE, batch_size=BATCH, epochs=epochs, max_length=LENGTH, compute=compute
        ),
        seed=1,
        device=setup.device,
        padding=PADDING,
        precision=precision or setup.precision,
        batches=BatchSizes(micro_batch, 64).on(setup.device),
        phases=(Phase(tuple(range(1, depth + 1)), epochs),),
    )
    clock = GpuClock() if setup.gpu else CpuClock()
    setup.wait()
    begun = time.perf_counter()
    with reproducible(None, strict=setup.gpu):
        trained = finetune(model, data, setting, _Watch(clock, window))
    setup.wait()
    return {
        "capture_seconds": [*trained.recordings.values()],
        "wall_seconds": time.perf_counter() - begun,
        "step_seconds": clock.steps(),
        "losses": trained.progress.train_losses,
        "step_losses": trained.progress.step_losses.cpu().tolist(),
        "compute_used": trained.compute,
        "logits": trained.logits["dev"],
    }


def trainer(
    setup: Setup,
    model: Any,
    data: EncodedTask,
    *,
    epochs: int = 1,
    dynamic: bool = False,
    compiled: bool = False,
) -> dict[str, Any]:
    """The Hugging Face Trainer over the same rows: padded to 128, or each batch to its longest. It
    does not evaluate, which a trial does after each epoch."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    clock = GpuClock() if setup.gpu else CpuClock()

    class Look(TrainerCallback):
        def on_step_end(self, *args: Any, **settings: Any) -> None:
            clock.mark()

    def collate(rows: list[int]) -> dict[str, torch.Tensor]:
        batch = data.train.batch(rows, PADDING)
        beyond = 0 if dynamic else LENGTH - batch["input_ids"].shape[1]
        padded: dict[str, Any] = {
            name: np.pad(array, ((0, 0), (0, beyond))) for name, array in batch.items()
        }
        padded["labels"] = data.train.labels[rows]
        return {name: torch.from_numpy(array) for name, array in padded.items()}

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=BATCH,
            num_train_epochs=epochs,
            learning_rate=RATE,
            use_cpu=not setup.gpu,
            bf16=setup.gpu,
            torch_compile=compiled,
            optim="adamw_torch_fused",
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            seed=1,
            remove_unused_columns=False,
        )
        rows: Any = list(range(len(data.train)))
        setup.wait()
        begun = time.perf_counter()  # the network's transfer is part of a trial also
        run = Trainer(
            model=model,
            args=arguments,
            train_dataset=rows,
            data_collator=collate,
            callbacks=[Look()],
        )
        run.train()
        setup.wait()
    return {"wall_seconds": time.perf_counter() - begun, "step_seconds": clock.steps()}


# ---- stage 1


def machine(setup: Setup) -> dict[str, Any]:
    """Versions, and what the device can do at most."""
    names = ("torch", "transformers", "accelerate", "numpy", "pydantic", "ray", "duckdb", "pytest")
    versions = {"python": platform.python_version()}
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    size, repeats = setup.of((8192, 20), (256, 2))
    dtype = setup.of(torch.bfloat16, torch.float32)
    left, right = (torch.randn(size, size, device=setup.device).to(dtype) for _ in range(2))
    product = _seconds(setup, lambda: left @ right, repeats)
    source = torch.empty(setup.of(2**30, 2**20), dtype=torch.uint8, device=setup.device)
    target = torch.empty_like(source)
    copied = _seconds(setup, lambda: target.copy_(source), repeats)
    number = torch.zeros(1, device=setup.device)
    launched = _seconds(setup, lambda: number.add_(1), setup.of(5000, 5))
    return {
        "device": device_name(setup.device),
        "cpu_count": os.cpu_count(),
        "versions": versions,
        "cudnn": torch.backends.cudnn.version(),
        "tflops": 2 * size**3 / product / 1e12,
        "copy_gb_per_second": 2 * source.numel() / copied / 1e9,
        "microseconds_a_launch": 1e6 * launched,
        "attention": _attention(setup),
    }


def _seconds(setup: Setup, work: Callable[[], object], repeats: int) -> float:
    work()
    setup.wait()
    begun = time.perf_counter()
    for _ in range(repeats):
        work()
    setup.wait()
    return (time.perf_counter() - begun) / repeats


def _attention(setup: Setup) -> dict[str, Any]:
    """Milliseconds of attention with a mask and dropout, forward and backward, by backend."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    shape = setup.of((8, 12, 128, 64), (2, 2, 16, 8))
    dtype = setup.of(torch.bfloat16, torch.float32)
    found: dict[str, float | str] = {}
    for backend in (SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH):
        values = torch.randn(shape, device=setup.device, dtype=dtype, requires_grad=True)
        mask = torch.zeros(shape[0], 1, shape[2], shape[2], device=setup.device, dtype=dtype)

        def both(values: Any = values, mask: Any = mask, backend: Any = backend) -> None:
            with sdpa_kernel(backend):
                torch.nn.functional.scaled_dot_product_attention(
                    values, values, values, attn_mask=mask, dropout_p=0.1
                ).sum().backward()

        try:
            with reproducible(None, strict=setup.gpu):
                found[backend.name] = 1e3 * _seconds(setup, both, 5)
        except Exception as error:
            found[backend.name] = str(error).splitlines()[0]
    return found


def smoke(setup: Setup) -> dict[str, Any]:
    """One training of each `compute`, and how often its host waits once it runs steadily."""

    def run(compute: str) -> dict[str, Any]:
        data = task(setup, "sst2", setup.of(50, 5))
        window = Window(setup, _waits(setup))
        with warnings.catch_warnings(record=True) as other:
            warnings.simplefilter("always")
            took = trial(setup, network(setup, data), data, compute, window=window)
        said = [(str(w.message), f"{Path(w.filename).name}:{w.lineno}") for w in window.found]
        waits = [place for text, place in said if "synchroniz" in text]
        return {
            "compute_used": took["compute_used"],
            "losses": took["losses"],
            "capture_seconds": took["capture_seconds"],
            "waits_a_step": len(waits) / window.steps,
            "waits_at": {place: waits.count(place) for place in sorted(set(waits))},
            "warnings": sorted({str(w.message)[:200] for w in other})[:10],
        }

    return setup.each(COMPUTES, run)


@contextlib.contextmanager
def _waits(setup: Setup) -> Iterator[list[warnings.WarningMessage]]:
    """The warnings inside; one for each wait of the host for a GPU."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        if setup.gpu:
            torch.cuda.set_sync_debug_mode("warn")
        try:
            yield said
        finally:
            if setup.gpu:
                torch.cuda.set_sync_debug_mode("default")


def tests(setup: Setup) -> dict[str, Any]:
    """The tests that need a GPU; on a CPU one file of others. Other plug-ins of this machine's
    pytest stay out."""
    root = Path(__file__).parents[1]
    chosen = setup.of(
        ["tests/trials/fast/test_gpu.py", "-m", "gpu"],
        ["tests/trials/fast/test_launches.py", "-k", "neither_waits and bert"],
    )
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "junit.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "pytest_timeout", "--timeout=60"]
        done = subprocess.run(
            [*command, f"--junitxml={report}", *chosen],
            cwd=root,
            env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        if not report.exists():
            raise RuntimeError((done.stdout + done.stderr)[-3000:])
        return _outcomes(report) | {"rc": done.returncode}


def _outcomes(report: Path) -> dict[str, Any]:
    from xml.etree import ElementTree

    passed, failed, skipped = [], {}, []
    for case in ElementTree.parse(report).iter("testcase"):
        name = case.get("name", "")
        problem = next((c for c in case if c.tag in ("failure", "error")), None)
        if problem is not None:
            failed[name] = (problem.get("message") or problem.text or "")[:400]
        elif case.find("skipped") is not None:
            skipped.append(name)
        else:
            passed.append(name)
    return {"passed": len(passed), "failed": failed, "skipped": skipped}


def determinism(setup: Setup) -> dict[str, Any]:
    """Twice the same training, with dropout and long rows: equal weights bit for bit?"""

    def run(compute: str) -> dict[str, Any]:
        data = task(setup, "rte", setup.of(20, 4))
        found = []
        for _ in range(2):
            model = network(setup, data)
            losses = trial(setup, model, data, compute)["step_losses"]
            digest = hashlib.sha256()
            for value in model.state_dict().values():
                digest.update(value.float().cpu().numpy().tobytes())
            found.append((digest.hexdigest()[:16], losses))
        pairs = enumerate(zip(found[0][1], found[1][1], strict=True))
        return {
            "equal": found[0] == found[1],
            "weights": [one[0] for one in found],
            "first_difference": next((i for i, (a, b) in pairs if a != b), None),
        }

    return setup.each(COMPUTES, run)


Side = Callable[[Any, EncodedTask], dict[str, Any]]


def whole(setup: Setup, shape: str, name: str) -> dict[str, Any]:
    """Whole trials of three epochs over all rows of the bundle, with the transfer of the network,
    recordings and evaluations; and the median of their steps."""
    epochs = setup.of(3, 1)
    sides: dict[str, Side] = {
        "trainer": lambda model, data: trainer(setup, model, data, epochs=epochs),
        "dynamic": lambda model, data: trainer(setup, model, data, epochs=epochs, dynamic=True),
        "graphs": lambda model, data: trial(setup, model, data, "graphs", epochs=epochs),
    }
    few = task(setup, name, 4)
    for run in sides.values():  # libraries start with their first call
        run(network(setup, few, shape), few)
    data = task(setup, name)
    found = _each_side(network(setup, data, shape), data, sides, setup.of(20, 1))
    return {name: found | {"tokens_a_row": data.train.token_count / len(data.train)}}


def _each_side(model: Any, data: EncodedTask, sides: dict[str, Side], skip: int) -> dict[str, Any]:
    found: dict[str, list[dict[str, Any]]] = {}
    for side, run in sides.items():
        took = run(copy.deepcopy(model), data)
        found[side] = [
            {
                "ms_a_step": 1e3 * statistics.median(took["step_seconds"][skip:]),
                "wall_seconds": took["wall_seconds"],
                "steps": len(took["step_seconds"]) + 1,
                "capture_seconds": took.get("capture_seconds", []),
            }
        ]
        gc.collect()
    return {"sides": found}


def profile(setup: Setup) -> dict[str, Any]:
    """Kernels of 20 steps, and the share of their time in which the GPU had work."""
    from torch.profiler import ProfilerActivity, profile

    own = ProfilerActivity.CUDA if setup.gpu else ProfilerActivity.CPU
    with profile(activities=[own]):  # starts CUPTI, which has to be there when a graph is recorded
        torch.ones(1, device=setup.device).add_(1)

    def run(compute: str) -> dict[str, Any]:
        data = task(setup, "mrpc", setup.of(50, 5))
        window = Window(setup, profile(activities=[own]))
        trial(setup, network(setup, data), data, compute, window=window)
        key = "self_device_time_total" if setup.gpu else "self_cpu_time_total"
        events = sorted(window.found.key_averages(), key=lambda event: -getattr(event, key))
        return {
            "calls_a_step": sum(event.count for event in events) / window.steps,
            "busy_share": sum(getattr(event, key) for event in events) / 1e6 / window.seconds,
            "top": [
                {
                    "name": e.key[:80],
                    "ms_a_step": getattr(e, key) / 1e3 / window.steps,
                    "calls": e.count,
                }
                for e in events[:20]
            ],
        }

    return setup.each(("graphs",), run)


# ---- stage 2


def compiled(setup: Setup, *names: str) -> dict[str, Any]:
    """The strongest Trainer: dynamic padding, torch.compile, fused AdamW. On a CPU not compiled."""
    sides: dict[str, dict[str, Side]] = {
        "graphs": {"graphs": lambda model, data: trial(setup, model, data, "graphs")},
        "dynamic": {"dynamic": lambda model, data: trainer(setup, model, data, dynamic=True)},
        "compiled": {
            "compiled": lambda model, data: trainer(
                setup, model, data, dynamic=True, compiled=setup.gpu
            )
        },
    }

    def one(part: str) -> dict[str, Any]:
        name, side = part.split()
        data = task(setup, name)
        return _each_side(network(setup, data), data, sides[side], setup.of(30, 1))

    # what compiles comes last: it takes the longest
    return setup.each([f"{name} {side}" for side in sides for name in names], one)


def out_of_memory(setup: Setup) -> dict[str, Any]:
    """A real shortage, smaller micro-batches, then a good training in the same process."""
    data = task(setup, "rte", setup.of(8, 4))
    tried = []
    with _little_memory(setup) as refuse:
        for times in range(4):
            micro_batch = BatchSizes.halved(BATCH, times).training
            try:
                with memory_errors(micro_batch):
                    refuse(micro_batch)
                    trial(setup, network(setup, data), data, "graphs", micro_batch=micro_batch)
                tried.append([micro_batch, "done"])
                break
            except DeviceOutOfMemoryError as error:
                tried.append([micro_batch, str(error)[:200]])
                forget_frames(error)
            free_memory()
    after = trial(setup, network(setup, data), data, "graphs")["losses"]
    return {"tried": tried, "after": after}


@contextlib.contextmanager
def _little_memory(setup: Setup) -> Iterator[Callable[[int], None]]:
    """On a GPU a limit for this process, that a batch of 32 does not fit; on a CPU a refusal."""

    def refuse(micro_batch: int) -> None:
        if not setup.gpu and micro_batch > 16:
            raise torch.OutOfMemoryError("rehearsed")

    if not setup.gpu:
        yield refuse
        return
    torch.cuda.init()  # else the memory statistics are refused
    peaks = []
    for micro_batch in (BATCH, BATCH // 8):
        torch.cuda.reset_peak_memory_stats(setup.device)
        data = task(setup, "rte", 8)
        trial(setup, network(setup, data), data, "graphs", micro_batch=micro_batch)
        peaks.append(torch.cuda.max_memory_reserved(setup.device))
        free_memory()
    most = sum(peaks) / 2
    total = torch.cuda.get_device_properties(setup.device).total_memory
    torch.cuda.set_per_process_memory_fraction(most / total, setup.device)
    try:
        yield refuse
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, setup.device)


def family(setup: Setup, *names: str) -> dict[str, Any]:
    """The same losses by each `compute`, without dropout, in fp32; and the time of a step."""

    def run(name: str) -> dict[str, Any]:
        data = task(setup, "mrpc", setup.of(20, 4))
        found, losses = {}, {}
        for compute in COMPUTES:
            model = network(setup, data, family=name)
            took = trial(setup, model, data, compute, precision="fp32", dropout=False)
            losses[compute] = np.array(took["step_losses"])
            found[compute] = {
                "compute_used": took["compute_used"],
                "ms_a_step": 1e3 * statistics.median(took["step_seconds"][setup.of(10, 1) :]),
                "largest_difference": float(np.abs(losses[compute] - losses["reference"]).max()),
            }
        return found

    return setup.each(names, run)


# ---- stage 3


def side_by_side(setup: Setup) -> dict[str, Any]:
    """Steps a second of several processes on one GPU, with NVIDIA's MPS or without; whole trials
    with recordings."""

    def run(name: str) -> dict[str, Any]:
        count, mps = int(name.split()[0]), name.endswith("MPS")
        with _mps(setup) if mps else contextlib.nullcontext():
            return {"steps_a_second": _together(setup, count)}

    return setup.each(("1", "4 MPS", "4", "2 MPS"), run)


@contextlib.contextmanager
def _mps(setup: Setup) -> Iterator[None]:
    control = "nvidia-cuda-mps-control"
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    if setup.gpu:  # the daemon keeps the files open that it is started with
        subprocess.run([control, "-d"], stdin=subprocess.DEVNULL, **quiet, check=True, timeout=20)
    try:
        yield
    finally:
        if setup.gpu:
            subprocess.run([control], input="quit\n", text=True, **quiet, check=False, timeout=20)


def _together(setup: Setup, count: int) -> float:
    """Steps a second of all workers, who begin when the last of them is ready."""
    command = [sys.executable, "-m", "benchmarks.gpu_steps", "worker"]
    command += [str(setup.device), str(setup.bundle), str(setup.out)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    workers = [subprocess.Popen(command, **pipes) for _ in range(count)]
    try:
        for worker in workers:
            worker.stdout.readline()
        printed = [worker.stdout for worker in workers]
        for worker in workers:
            worker.stdin.write("\n")
            worker.stdin.flush()
        found = [json.loads(one.read().splitlines()[-1]) for one in printed]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    return sum(one["steps"] / one["seconds"] for one in found)


def worker(setup: Setup) -> dict[str, Any]:
    """Trains one trial after another from the moment a line can be read."""
    data = task(setup, "sst2")
    model = network(setup, data)
    trial(setup, copy.deepcopy(model), task(setup, "sst2", 4), "graphs")
    print("ready", flush=True)
    sys.stdin.readline()
    begun, steps = time.perf_counter(), 0
    for _ in range(setup.of(3, 1)):
        took = trial(setup, copy.deepcopy(model), data, "graphs", epochs=setup.of(3, 1))
        steps += len(took["step_seconds"]) + 1
    return {"steps": steps, "seconds": time.perf_counter() - begun}


def depth_speed(setup: Setup) -> dict[str, Any]:
    """Measure as `measure: {speed: cuda}` does: the full network against half of its layers."""
    from lp_sweep.trials.measures.pairs import RULE, Rule
    from lp_sweep.trials.measures.speed import Load, compare_networks
    from lp_sweep.trials.model.prune import keep_layers

    data = task(setup, "mrpc", 4)
    full = network(setup, data).to(setup.device)
    pruned = copy.deepcopy(full)
    keep_layers(pruned, tuple(range(1, full.config.num_hidden_layers // 2 + 1)))
    load = Load(length=setup.of(LENGTH, 16), batches=(BATCH,), precision=setup.precision)
    rule = setup.of(RULE, Rule(warm_ups=1, pairs=2, most=2))
    with reproducible(None):  # not strict, as in a sweep
        timings = compare_networks(full, pruned, load, rule)
    return {"speedups": {one.quantity: one.comparison.speedup for one in timings}}


def precisions(setup: Setup) -> dict[str, Any]:
    """Losses of the same steps in bf16 and fp32."""

    def run(precision: str) -> dict[str, Any]:
        data = task(setup, "sst2", setup.of(90, 4))
        model, epochs = network(setup, data), setup.of(4, 1)
        took = trial(setup, model, data, "graphs", precision=precision, epochs=epochs)
        return {"losses": took["losses"], "wall_seconds": took["wall_seconds"]}

    return setup.each(("fp32", "bf16"), run)


def sweep(setup: Setup, *chosen: str) -> dict[str, Any]:
    """The bundle's sweep of a real network on real rows, or a part of it, by several inline runs
    that share its store. The store stays."""
    from lp_sweep.storage.store import Store

    few = ["k=0,5", "seed=1", "task=sst2", "recipe.epochs=1", "recipe.limit_train=64"]
    chosen = chosen if setup.gpu else (*few, "recipe.limit_dev=32")
    folder = setup.out / "sweep"
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "lp_sweep.orchestrator.cli", "run"]
    command += [str(setup.bundle / "sweep" / "sweep.yaml"), *chosen]
    command += ["--even-if-not-learned", "--inline", "--offline", "--store", str(folder / "store")]
    # the trials that end in this time are in the line; the step's own limit would cut it off
    command += ["--max-hours", str(setup.of(200, 1200) / 3600)]
    begun = time.perf_counter()
    pipes: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    runs = [subprocess.Popen(command, cwd=folder, **pipes) for _ in range(setup.of(3, 2))]
    errors = [run.communicate()[1] for run in runs]
    seconds = time.perf_counter() - begun
    for run, said in zip(runs, errors, strict=True):
        if run.returncode not in (0, 3):  # 3: out of time
            raise RuntimeError(f"exit code {run.returncode}: {said[-2000:]}")
    records = Store(str(folder / "store")).read_all("trials").rows.to_pylist()
    told = ("task", "k", "seed", "last", "compute_used", "precision_used", "deterministic")
    return {
        "seconds": seconds,
        "trials": [{name: row[name] for name in (*told, "device_name")} for row in records],
    }


STEPS: dict[str, Callable[..., dict[str, Any]]] = {
    function.__name__: function
    for function in (
        *(machine, smoke, tests, determinism, whole, profile),
        *(compiled, out_of_memory, family),
        *(side_by_side, depth_speed, precisions, sweep),
    )
}


def main() -> None:
    """`gpu_steps.py STEP DEVICE BUNDLE OUT [ARGUMENT in JSON ...]`. Prints JSON last."""
    name, device, bundle, out, *arguments = sys.argv[1:]
    if device == "cpu":
        torch.set_num_threads(1)
    # calls that set a limit of memory want the number of a GPU
    where = torch.device("cuda", 0) if device.startswith("cuda") else torch.device(device)
    setup = Setup(device=where, bundle=Path(bundle), out=Path(out))
    function = worker if name == "worker" else STEPS[name]
    say(function(setup, *map(json.loads, arguments)))


if __name__ == "__main__":
    main()
