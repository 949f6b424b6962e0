"""The steps of gpu_day.py. Each runs in its own process. Not a benchmark by itself.

A step is a function of a `Setup` and returns a plain dictionary: a line of results.jsonl. Networks
have random weights, which take as long as learned ones, and rows come from the bundle as tokens. So
nothing is read from a hub, and the only other packages are torch, transformers and accelerate.
"""

from __future__ import annotations

import contextlib
import copy
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
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification, set_seed

from benchmarks.clocks import CpuClock, GpuClock
from lp_sweep.storage.errors import DeviceOutOfMemoryError
from lp_sweep.storage.specs import Recipe, TaskDefinition
from lp_sweep.trials.data.batches import BatchSizes, EncodedSplit, EncodedTask, Padding
from lp_sweep.trials.device import device_name, memory_errors, reproducible
from lp_sweep.trials.fast.forward import compute_used
from lp_sweep.trials.train.finetune import Saver, finetune
from lp_sweep.trials.train.procedures import Phase
from lp_sweep.trials.train.steps import Setting

BATCH, LENGTH, RATE = 32, 128, 2e-5
PADDING = Padding(0, 0, False)
COMPUTES = ("reference", "fast", "graphs")
TINY = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
CPU_ROWS = BATCH * 6 + 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The device and the sizes. On a CPU everything is tiny: a rehearsal that measures nothing."""

    device: torch.device
    bundle: Path

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
    if not setup.gpu:
        settings |= TINY | {"num_hidden_layers": 2}
    if family == "distilbert":
        names = {"hidden_size": "dim", "num_attention_heads": "n_heads"}
        names |= {"intermediate_size": "hidden_dim", "num_hidden_layers": "n_layers"}
        settings = {names.get(name, name): value for name, value in settings.items()}
    elif family:  # its positions start after the padding's position
        settings |= {"max_position_embeddings": 514}
    if family:  # else no answer depends on the text, and any two ways agree
        settings |= {"initializer_range": setup.of(0.1, 0.5)}
    config = AutoConfig.for_model(family or "bert", **settings, num_labels=data.num_labels)
    config.problem_type = "regression" if data.num_labels == 1 else "single_label_classification"
    set_seed(1)
    return AutoModelForSequenceClassification.from_config(config)


class _Watch(Saver):
    """Called after each step to ask whether to save. It only reads the clock."""

    def __init__(self, clock: Any) -> None:
        self.clock = clock

    def due(self) -> bool:
        self.clock.mark()
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
) -> dict[str, Any]:
    """One training, as in a trial: deterministic, and evaluated after each epoch."""
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
        course=(Phase(tuple(range(1, depth + 1)), epochs),),
    )
    clock = GpuClock() if setup.gpu else CpuClock()
    setup.wait()
    begun = time.perf_counter()
    with reproducible(None, strict=setup.gpu):
        trained = finetune(model, data, setting, _Watch(clock))
    setup.wait()
    return {
        "wall_seconds": time.perf_counter() - begun,
        "step_seconds": clock.steps(),
        "losses": trained.progress.train_losses,
        "step_losses": trained.progress.step_losses.cpu().tolist(),
        "compute_used": compute_used(model, compute, setup.device),
        "logits": trained.logits["dev"],
    }


def trainer(
    setup: Setup, model: Any, data: EncodedTask, *, dynamic: bool = False, compiled: bool = False
) -> dict[str, Any]:
    """The Hugging Face Trainer on the same rows, padded to 128 or to the batch's longest row."""
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
            num_train_epochs=1,
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
        run = Trainer(
            model=model,
            args=arguments,
            train_dataset=rows,
            data_collator=collate,
            callbacks=[Look()],
        )
        setup.wait()
        begun = time.perf_counter()
        run.train()
        setup.wait()
    return {"wall_seconds": time.perf_counter() - begun, "step_seconds": clock.steps()}


# ---- stage 1


def machine(setup: Setup) -> dict[str, Any]:
    """The versions, and the device's peak rates."""
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
    return {
        "device": device_name(setup.device),
        "cpu_count": os.cpu_count(),
        "versions": versions,
        "cudnn": torch.backends.cudnn.version(),
        "tflops": 2 * size**3 / product / 1e12,
        "copy_gb_per_second": 2 * source.numel() / copied / 1e9,
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


def smoke(setup: Setup, compute: str) -> dict[str, Any]:
    """One training with each `compute`, and how often its host waited."""
    data = task(setup, "sst2", setup.of(12, 4))
    if setup.gpu:
        torch.cuda.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = trial(setup, network(setup, data), data, compute)
    if setup.gpu:
        torch.cuda.set_sync_debug_mode("default")
    waits = [f"{Path(w.filename).name}:{w.lineno}" for w in said if "synchron" in str(w.message)]
    other = sorted({str(w.message)[:200] for w in said if "synchron" not in str(w.message)})
    return {
        "compute_used": found["compute_used"],
        "losses": found["losses"],
        "waits": len(waits),
        "waits_a_step": len(waits) / max(1, len(found["step_losses"])),
        "waits_at": {place: waits.count(place) for place in sorted(set(waits))},
        "warnings": other[:10],
    }


def tests(setup: Setup) -> dict[str, Any]:
    """The tests that need a GPU; on a CPU, one file of other tests."""
    root = Path(__file__).parents[1]
    chosen = setup.of(
        ["tests/trials/fast/test_gpu.py", "-m", "gpu"],
        ["tests/trials/fast/test_launches.py", "-k", "neither_waits and bert"],
    )
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "junit.xml"
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "--timeout=60", f"--junitxml={report}", *chosen],
            cwd=root,
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


def determinism(setup: Setup, compute: str) -> dict[str, Any]:
    """The same training twice, with dropout and long rows: are the weights equal bit for bit?"""
    data = task(setup, "rte", setup.of(20, 4))
    found = []
    for _ in range(2):
        model = network(setup, data)
        losses = trial(setup, model, data, compute)["step_losses"]
        digest = hashlib.sha256()
        for value in model.state_dict().values():
            digest.update(value.float().cpu().numpy().tobytes())
        found.append((digest.hexdigest()[:16], losses))
    return {
        "equal": found[0] == found[1],
        "weights": [one[0] for one in found],
        "first_difference": next(
            (i for i, (a, b) in enumerate(zip(found[0][1], found[1][1], strict=True)) if a != b),
            None,
        ),
    }


def speed(setup: Setup, name: str, shape: str = "bert-base") -> dict[str, Any]:
    """Milliseconds per step of each side, in turns in each round; and seconds of whole trainings
    with everything that a trial does, such as recording and evaluation."""
    steps, skip = setup.of(60, 4), setup.of(20, 1)
    data = task(setup, name, steps)
    model = network(setup, data, shape)
    sides: dict[str, Callable[[Any], dict[str, Any]]] = {
        "trainer": lambda model: trainer(setup, model, data),
        "fast": lambda model: trial(setup, model, data, "fast"),
        "graphs": lambda model: trial(setup, model, data, "graphs"),
    }
    tokens = data.train.token_count / len(data.train)
    return _by_turns(setup, model, sides, skip) | {"tokens_a_row": tokens}


def _by_turns(
    setup: Setup, model: Any, sides: dict[str, Callable[[Any], dict[str, Any]]], skip: int
) -> dict[str, Any]:
    rounds: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    for _ in range(setup.of(2, 1)):
        for side, run in sides.items():
            took = run(copy.deepcopy(model))
            steady = took["step_seconds"][skip:]
            rounds[side].append(
                {
                    "ms_a_step": 1e3 * statistics.median(steady),
                    "wall_seconds": took["wall_seconds"],
                    "steps": len(took["step_seconds"]) + 1,
                }
            )
    return {"sides": rounds}


def whole(setup: Setup, name: str) -> dict[str, Any]:
    """Whole trials on all rows of the bundle: steps, recording and evaluation."""
    data = task(setup, name)
    model = network(setup, data)
    found = {}
    for side in ("trainer", "fast", "graphs"):
        own = copy.deepcopy(model)
        took = trainer(setup, own, data) if side == "trainer" else trial(setup, own, data, side)
        found[side] = {"wall_seconds": took["wall_seconds"], "rows": len(data.train)}
    return found


def profile(setup: Setup, compute: str) -> dict[str, Any]:
    """The kernels of 5 steps, and the share of time in which the GPU was busy."""
    from torch.profiler import ProfilerActivity, profile

    data = task(setup, "mrpc", setup.of(30, 6))
    model = network(setup, data)
    own = ProfilerActivity.CUDA if setup.gpu else ProfilerActivity.CPU
    with profile(activities=[own]) as seen:
        took = trial(setup, model, data, compute)
    key = "self_device_time_total" if setup.gpu else "self_cpu_time_total"
    events = sorted(seen.key_averages(), key=lambda event: -getattr(event, key))
    busy = sum(getattr(event, key) for event in events) / 1e6
    steps = len(took["step_losses"])
    return {
        "calls_a_step": sum(event.count for event in events) / steps,
        "busy_share": busy / took["wall_seconds"],
        "top": [
            {"name": e.key[:80], "ms_a_step": getattr(e, key) / 1e3 / steps, "calls": e.count}
            for e in events[:20]
        ],
    }


# ---- stage 2


def compiled(setup: Setup, name: str) -> dict[str, Any]:
    """The fastest Trainer: dynamic padding, torch.compile, fused AdamW. Not compiled on a CPU."""
    data = task(setup, name, setup.of(60, 4))
    model = network(setup, data)
    sides = {
        "trainer dynamic": lambda model: trainer(setup, model, data, dynamic=True),
        "trainer dynamic compiled": lambda model: trainer(
            setup, model, data, dynamic=True, compiled=setup.gpu
        ),
        "graphs": lambda model: trial(setup, model, data, "graphs"),
    }
    return _by_turns(setup, model, sides, setup.of(30, 1))


def out_of_memory(setup: Setup) -> dict[str, Any]:
    """A real out-of-memory error, then smaller micro-batches, then a training that succeeds in the
    same process."""
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
                del error
            if setup.gpu:
                torch.cuda.empty_cache()
    after = trial(setup, network(setup, data), data, "graphs")["losses"]
    return {"tried": tried, "after": after}


@contextlib.contextmanager
def _little_memory(setup: Setup) -> Iterator[Callable[[int], None]]:
    """On a GPU, a memory limit that a batch of 32 does not fit; on a CPU, a simulated refusal."""

    def refuse(micro_batch: int) -> None:
        if not setup.gpu and micro_batch > 16:
            raise torch.OutOfMemoryError("rehearsed")

    if not setup.gpu:
        yield refuse
        return
    total = torch.cuda.get_device_properties(setup.device).total_memory
    torch.cuda.set_per_process_memory_fraction(3.4 * 2**30 / total, setup.device)
    try:
        yield refuse
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, setup.device)


def family(setup: Setup, name: str) -> dict[str, Any]:
    """The losses with each `compute`, without dropout, in fp32: they should agree. Step times."""
    data = task(setup, "mrpc", setup.of(20, 4))
    found, losses = {}, {}
    for compute in COMPUTES:
        model = network(setup, data, family=name)
        took = trial(setup, model, data, compute, precision="fp32", dropout=False)
        losses[compute] = np.array(took["step_losses"])
        skip = setup.of(10, 1)
        found[compute] = {
            "compute_used": took["compute_used"],
            "ms_a_step": 1e3 * statistics.median(took["step_seconds"][skip:]),
            "largest_difference": float(np.abs(losses[compute] - losses["reference"]).max()),
        }
    return found


# ---- stage 3


def side_by_side(setup: Setup, count: int, mps: bool) -> dict[str, Any]:
    """Steps per second of `count` processes on one GPU, with NVIDIA's MPS or without."""
    if mps and setup.gpu:
        subprocess.run(["nvidia-cuda-mps-control", "-d"], check=True, timeout=20)
    try:
        start = time.time() + setup.of(40, 25)
        command = [sys.executable, "-m", "benchmarks.gpu_steps", "worker"]
        command += [str(setup.device), str(setup.bundle)]
        workers = [
            subprocess.Popen([*command, str(start)], stdout=subprocess.PIPE, text=True)
            for _ in range(count)
        ]
        lines = [worker.communicate()[0] for worker in workers]
        found = [json.loads(line.splitlines()[-1]) for line in lines]
    finally:
        if mps and setup.gpu:
            subprocess.run(["nvidia-cuda-mps-control"], input="quit\n", text=True, check=False)
    return {
        "processes": count,
        "mps": mps,
        "late": [one["late_seconds"] for one in found],
        "steps_a_second": sum(one["steps"] / one["seconds"] for one in found),
    }


def worker(setup: Setup, start: float) -> dict[str, Any]:
    """Trains from a start time that all workers share, until it is done."""
    data = task(setup, "sst2", setup.of(None, 4))
    model = network(setup, data)
    trial(setup, copy.deepcopy(model), task(setup, "sst2", 4), "graphs")
    late = time.time() - start
    time.sleep(max(0.0, -late))
    took = trial(setup, model, data, "graphs")
    steps = len(took["step_losses"])
    return {"steps": steps, "seconds": took["wall_seconds"], "late_seconds": max(0.0, late)}


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
    rule = setup.of(RULE, Rule(warm_ups=1, pairs=2, rounds=1))
    timings = compare_networks(full, pruned, load, rule)
    return {"timings": json.loads(json.dumps(timings, default=asdict))}


def precisions(setup: Setup) -> dict[str, Any]:
    """The losses of the same steps in bf16 and in fp32."""
    data = task(setup, "sst2", setup.of(90, 4))
    found = {}
    for precision in ("fp32", "bf16"):
        took = trial(
            setup,
            network(setup, data),
            data,
            "graphs",
            precision=precision,
            epochs=setup.of(4, 1),
        )
        found[precision] = {"losses": took["losses"], "wall_seconds": took["wall_seconds"]}
    return found


def sweep(setup: Setup) -> dict[str, Any]:
    """A whole small sweep with the inline engine: the quickstart, from plan to table. The table
    needs DuckDB, which only a bundle with `--tables` has; the scores come from the records."""
    from lp_sweep.storage.store import Store

    ours = [sys.executable, "-m", "lp_sweep.orchestrator.cli"]
    few = ["k=0", "seed=1", "tasks=toy-sentiment", "recipe.epochs=1", "recipe.limit_train=64"]
    chosen = setup.of([], few)
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        begun = time.perf_counter()
        done = subprocess.run(
            [*ours, "run", "quickstart", *chosen, "--inline", "--store", store],
            capture_output=True,
            text=True,
            check=False,
            cwd=folder,
        )
        seconds = time.perf_counter() - begun
        # without DuckDB, everything is trained and stored; only the answer at the end fails
        if done.returncode and "No module named 'duckdb'" not in done.stderr:
            raise RuntimeError(f"exit code {done.returncode}: {done.stderr[-2000:]}")
        records = Store(store).read_all("trials").rows.to_pylist()
        table = subprocess.run(
            [*ours, "table", "tasks", "--store", store], capture_output=True, text=True, check=False
        )
    told = ("task", "k", "seed", "last", "compute_used", "precision_used", "deterministic")
    return {
        "seconds": seconds,
        "trials": [{name: row[name] for name in (*told, "device_name")} for row in records],
        "table": table.stdout[-3000:] or table.stderr[-300:],
    }


STEPS: dict[str, Callable[..., dict[str, Any]]] = {
    function.__name__: function
    for function in (
        *(machine, smoke, tests, determinism, speed, whole, profile),
        *(compiled, out_of_memory, family),
        *(side_by_side, depth_speed, precisions, sweep),
    )
}


def main() -> None:
    """`gpu_steps.py STEP DEVICE BUNDLE [ARGUMENT in JSON ...]`. The last line printed is JSON."""
    name, device, bundle, *arguments = sys.argv[1:]
    if device == "cpu":
        torch.set_num_threads(1)
    setup = Setup(device=torch.device(device), bundle=Path(bundle))
    function = worker if name == "worker" else STEPS[name]
    found = function(setup, *map(json.loads, arguments))
    print(json.dumps(found, default=str), flush=True)


if __name__ == "__main__":
    main()
