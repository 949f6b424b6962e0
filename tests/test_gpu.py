"""A trial on a real CUDA device. Skipped, with a reason, where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lp_sweep.trials.run import run_trial
from tests.test_run import jobs
from tests.toyworld import save_world

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
