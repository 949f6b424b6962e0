"""A trial on a real CUDA device. Skipped, with a reason, where there is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lp_sweep.storage.store import Store
from lp_sweep.trials.fast.forward import forward
from lp_sweep.trials.measures.pairs import Rule
from lp_sweep.trials.train import steps as passes
from lp_sweep.trials.train.graphs import GraphPass
from lp_sweep.trials.train.steps import train_step
from tests.support.fastnets import (
    assert_graphs_learn_alike,
    network,
    setting,
    split_of,
    with_dropout,
)
from tests.support.kindworlds import token_world
from tests.support.plain_jobs import done, run_speed, run_trial
from tests.support.staging import assert_same, cut_off
from tests.support.toyworld import jobs, save_world

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def test_a_seed_fixes_the_result_on_cuda(tmp_path: Path) -> None:
    world = save_world(tmp_path)
    job = {**jobs(world, "k=0")[0], "device": "cuda"}
    first, second = run_trial(job), run_trial(job)
    assert first["predictions"] == second["predictions"]
    assert first["record"]["train_losses"] == second["record"]["train_losses"]
    assert first["record"]["device_type"] == "cuda"
    assert first["record"]["peak_memory_bytes"] > 0


def test_auto_precision_is_bf16_where_the_gpu_has_it(tmp_path: Path) -> None:
    job = {**jobs(save_world(tmp_path), "k=0", "recipe.precision=auto")[0], "device": "cuda"}
    record = run_trial(job)["record"]
    expected = "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    assert record["precision_used"] == expected
    assert record["last"] > record["majority"]


def test_out_of_memory_on_cuda_halves_the_micro_batch(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(model: Any, split: Any, rows: Any, *rest: Any, **how: Any) -> Any:
        if model.training and len(rows) > 8:
            torch.empty(2**50, device="cuda")  # a real refusal of the allocator
        return forward(model, split, rows, *rest, **how)

    monkeypatch.setattr(passes, "forward", full)
    (job,) = jobs(save_world(tmp_path), "k=2", "recipe.epochs=1", "recipe.compute=reference")
    record = done(store, {**job, "device": "cuda"})
    assert (record["micro_batch"], record["out_of_memory_retries"]) == (8, 1)
    assert dict(record["versions"])["nvidia_driver"]


def test_a_checkpoint_on_cuda_goes_on_with_the_same_result(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = {**jobs(save_world(tmp_path), "k=2")[0], "device": "cuda"}
    undisturbed = run_trial(job)
    cut_off(job, store, monkeypatch, 21)
    done(store, {**job, "checkpoint_every": 3600.0})
    assert assert_same(store, job, undisturbed)["resumed_from_step"] == 21


@pytest.mark.parametrize("name", ["bert", "roberta", "distilbert", "electra"])
def test_a_graph_learns_as_the_reference_does(name: str) -> None:
    assert_graphs_learn_alike(name, torch.device("cuda"))


def test_a_trial_by_graphs_says_so_and_its_seed_fixes_the_result(tmp_path: Path) -> None:
    (job,) = jobs(save_world(tmp_path), "k=2", "recipe.compute=fast", "recipe.precision=auto")
    first, second = (run_trial({**job, "device": "cuda"}) for _ in range(2))
    assert first["record"]["compute_used"] == "graphs"
    assert first["record"]["deterministic"] is True
    assert first["record"]["train_losses"] == second["record"]["train_losses"]
    assert first["predictions"] == second["predictions"]
    assert first["record"]["last"] > first["record"]["majority"]


def test_tags_are_learned_by_graphs(tmp_path: Path) -> None:
    (job,) = jobs(token_world(tmp_path / "world"), "k=0", "recipe.compute=fast")
    record = run_trial({**job, "device": "cuda"})["record"]
    assert record["compute_used"] == "graphs"
    assert record["last"] > 0.8


def test_a_step_that_waits_is_noted_and_cannot_be_recorded() -> None:
    """In a process of its own, which can't use the device afterwards."""
    program = """
import torch
from lp_sweep.storage.errors import GraphRecordingError
from lp_sweep.trials.train.graphs import CudaRecorder

def run():
    torch.ones(1, device="cuda").item()
    return torch.zeros((), device="cuda")

recorder, current = CudaRecorder(torch.device("cuda")), torch.cuda.current_stream()
recorder.warm_up(run)
assert len(recorder.waits) == 1, recorder.waits
try:
    recorder.record(run)
except GraphRecordingError as error:
    print(error)
assert torch.cuda.current_stream() == current
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "could not be recorded: CUDA error" in done.stdout


def test_dropout_of_a_graph_is_drawn_anew_for_each_step() -> None:
    gpu = torch.device("cuda")
    model = with_dropout(network("bert"), 0.3).train().to(gpu)
    learn, still = (
        GraphPass(model, setting("graphs", device=gpu)),
        torch.optim.SGD(model.parameters(), lr=0.0),
    )
    split, rows = split_of([3, 9, 5, 7]), np.arange(4)
    train_step(learn, still, split, rows, 0)  # the first goes without a graph
    losses = [float(train_step(learn, still, split, rows, step)) for step in (0, 1, 2, 0)]
    assert learn._held
    assert losses[0] == losses[3]
    assert len(set(losses)) == 3


def test_a_speed_on_cuda_is_of_both_batches(tmp_path: Path) -> None:
    world = save_world(tmp_path, measure={"speed": "cuda", "speed_length": 16})
    job = next(job for job in jobs(world, "k=2") if job["kind"] == "speed") | {"device": "cuda"}
    record = run_speed(job, Rule(warm_ups=2, pairs=4, most=4))
    assert (record["device_type"], record["kept_layers"]) == ("cuda", [1, 2])
    assert {(t["quantity"], t["batch"]) for t in record["timings"]} == {
        (quantity, batch) for quantity in ("inference", "finetune") for batch in (32, 256)
    }
    assert all(t["full_ms"] > 0 < t["pruned_ms"] for t in record["timings"])
