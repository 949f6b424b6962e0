"""A speed, from its specification to its record, with tiny real networks."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.models.bert.modeling_bert import BertLayer

from lp_sweep.storage.errors import DeviceOutOfMemoryError
from lp_sweep.storage.store import Store
from lp_sweep.trials.measures import speed as timing
from lp_sweep.trials.measures.pairs import Rule, RunTime
from lp_sweep.trials.measures.speed import Bystanders, Load, compare_networks, random_rows
from lp_sweep.trials.worker import profile as speeding
from lp_sweep.trials.worker import run as running
from tests.support.networks import load, network
from tests.support.plain_jobs import assert_fails, execute, run_speed
from tests.support.toyworld import jobs, save_world

QUICK = Rule(warm_ups=1, pairs=2, most=2)
Job = dict[str, Any]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_world(
        tmp_path_factory.mktemp("world"),
        strategies=[{"name": "top", "k": [2]}],
        feed_forward=["none", "all"],
        measure={"speed": "cpu", "speed_length": 16},
    )


@pytest.fixture
def speeds(world: Path) -> list[Job]:
    """Speed jobs of layers 1 and 2, with and without their feed-forwards."""
    return [job for job in jobs(world) if job["kind"] == "speed"]


# -- a job


def test_a_speed_is_measured_and_stored_as_a_profile(
    speeds: list[Job], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "run_speed", partial(speeding.run_speed, rule=QUICK))
    job = speeds[0]
    told = execute(job, store.location)
    assert (told["id"], told["status"]) == (job["id"], "done")
    (row,) = store.find("profiles", job["id"]) or ()
    may_be_null = {"trial_id", "against", "seed", "task", "data_fingerprint", "limit_dev"}
    may_be_null |= {"layers", "values", "dev_examples"}  # of measurements layer by layer
    assert {name for name, value in row.items() if value is None} == may_be_null
    assert (row["measure"], row["kept_layers"], row["depth"]) == ("speed", [1, 2], 4)
    assert (row["device_type"], row["threads"], row["precision_used"]) == ("cpu", 1, "fp32")
    assert (row["max_length"], row["task"], row["seed"]) == (16, None, None)
    assert row["params_full"] > row["params_total"] > 0
    assert [(t["quantity"], t["batch"]) for t in row["timings"]] == [
        ("inference", 32),
        ("finetune", 32),
    ]
    for item in row["timings"]:
        assert item["pairs"] == QUICK.pairs
        assert item["speedup_q25"] <= item["speedup"] <= item["speedup_q75"]
        assert item["full_ms"] > 0 < item["pruned_ms"]
        assert item["full_wall_ms"] > 0 < item["pruned_wall_ms"]

    monkeypatch.setattr(running, "run_speed", None)
    assert execute(job, store.location) == told  # what the store has is not measured again


def test_the_ratio_is_of_the_full_network_to_the_pruned_one(
    speeds: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that counts the layers that a batch goes through."""
    passed = []

    def count(module: nn.Module, *_: Any) -> None:
        passed.extend([module] * isinstance(module, BertLayer))

    def took(once: Callable[[], None], device: torch.device) -> RunTime:
        passed.clear()
        once()
        return RunTime(len(passed), len(passed))

    monkeypatch.setattr(timing, "_timed", took)
    hook = nn.modules.module.register_module_forward_hook(count)
    try:
        rule = Rule(warm_ups=0, pairs=2, most=2)
        whole, reduced = (run_speed(job, rule) for job in speeds)
    finally:
        hook.remove()
    for row in (whole, reduced):
        assert {t["speedup"] for t in row["timings"]} == {2.0}
        assert {(t["full_ms"], t["pruned_ms"]) for t in row["timings"]} == {(4, 2)}
    assert (whole["removed_feed_forwards"], reduced["removed_feed_forwards"]) == ([], [1, 2])
    of_a_feed_forward = 2 * 32 * 64 + 64 + 32
    assert whole["params_total"] - reduced["params_total"] == 2 * of_a_feed_forward
    assert whole["params_full"] == reduced["params_full"] > whole["params_total"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"device_type": "cuda"}, "this slot has no GPU"),
        ({"length": 128}, "Set measure.speed_length to 64 or less"),
    ],
    ids=["no GPU", "too long"],
)
def test_what_can_not_be_measured_here_is_a_failure_that_says_why(
    speeds: list[Job], store: Store, changes: dict[str, Any], message: str
) -> None:
    job = {**speeds[0], "spec": {**speeds[0]["spec"], **changes}}
    assert_fails(store, job, "missing_input", message)
    (attempt,) = store.read_all("attempts").rows.to_pylist()
    assert (attempt["trial_id"], attempt["task"], attempt["micro_batch"]) == (job["id"], None, 32)


def test_a_batch_without_room_is_not_tried_again_as_a_smaller_one(
    speeds: list[Job], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(job: Job) -> None:
        raise DeviceOutOfMemoryError("no room")

    monkeypatch.setattr(running, "run_speed", full)
    assert_fails(store, speeds[0] | {"halvings": 1}, "out_of_memory", "no room")
    (attempt,) = store.read_all("attempts").rows.to_pylist()
    assert (attempt["micro_batch"], attempt["final"]) == (32, True)


# -- the networks


def test_another_family_can_be_timed() -> None:
    full, pruned = network("modernbert"), network("modernbert", kept=(1,))
    found = compare_networks(full, pruned, Load(length=8, batches=[2]), QUICK)
    assert [item.quantity for item in found] == ["inference", "finetune"]


@pytest.fixture
def two(world: Path) -> list[PreTrainedModel]:
    """The same network twice."""
    return [load(world.parent / "model") for _ in range(2)]


def test_no_row_has_padding(world: Path) -> None:
    model = load(world.parent / "model")
    rows = random_rows(model, 64, 16)
    assert rows["input_ids"].shape == (64, 16)
    assert rows["attention_mask"].all()
    assert not (rows["input_ids"] == model.config.pad_token_id).any()
    assert rows["input_ids"].unique().numel() > 20
    assert torch.equal(rows["input_ids"], random_rows(model, 64, 16)["input_ids"])


def test_inference_keeps_no_graph_and_fine_tuning_learns(
    two: list[PreTrainedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, seen = two[0], []

    def weight() -> torch.Tensor:
        return next(model.parameters()).detach()

    def compare(full: Callable[[], RunTime], pruned: Any, rule: Rule) -> None:
        seen.append((model.training, weight().clone()))
        full()

    monkeypatch.setattr(timing, "compare", compare)
    before = weight().clone()
    compare_networks(*two, Load(length=8, batches=[2]), QUICK)
    (evaluated, of_inference), (trained, of_step) = seen
    assert (evaluated, trained) == (False, True)
    assert torch.equal(of_inference, before)
    assert torch.equal(of_step, before), "inference changed nothing"
    assert not torch.equal(weight(), before), "the step did"


def with_room(monkeypatch: pytest.MonkeyPatch, **largest: int) -> None:
    """A device that runs out of memory in the midst of what goes beyond the largest batch."""

    def short(real: Callable[..., Callable[[], None]], most: int) -> Callable[..., Any]:
        def make(model: nn.Module, rows: dict[str, torch.Tensor], precision: str) -> Any:
            once, batch = real(model, rows, precision), len(rows["input_ids"])

            def scarce() -> None:
                if batch > most:
                    model(**rows).logits.sum().backward()
                    raise torch.OutOfMemoryError("CUDA out of memory")
                once()

            return scarce

        return make

    for name, most in largest.items():
        monkeypatch.setattr(timing, name, short(getattr(timing, name), most))


@pytest.mark.slow
@pytest.mark.parametrize(("of_inference", "of_finetuning"), [(8, 2), (2, 8)])
def test_what_has_no_room_at_a_larger_batch_is_left_out_alone(
    two: list[PreTrainedModel],
    monkeypatch: pytest.MonkeyPatch,
    of_inference: int,
    of_finetuning: int,
) -> None:
    with_room(monkeypatch, _inference=of_inference, _finetuning=of_finetuning)
    found = compare_networks(*two, Load(length=8, batches=[8, 2, 4]), QUICK)
    told = {(item.quantity, item.batch) for item in found}
    batches = {"inference": of_inference, "finetune": of_finetuning}
    assert told == {
        (what, size) for what, most in batches.items() for size in (2, 4, 8) if size <= most
    }
    assert all(p.grad is None for model in two for p in model.parameters())


def test_the_smallest_batch_has_to_fit(
    two: list[PreTrainedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_room(monkeypatch, _finetuning=1)
    with pytest.raises(torch.OutOfMemoryError):
        compare_networks(*two, Load(length=8, batches=[2, 64]), QUICK)


# -- others on the machine


def stat(folder: Path, user: int, idle: int = 0) -> Path:
    path = folder / "stat"
    path.write_text(f"cpu  {user} 0 0 {idle} 7 0 0 0 0 0\ncpu0 1 2 3\n", encoding="ascii")
    return path


def test_what_others_do_is_what_the_machine_does_without_us(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = {"wall": 100.0, "own": 5.0}
    monkeypatch.setattr(time, "perf_counter", lambda: now["wall"])
    monkeypatch.setattr(time, "process_time", lambda: now["own"])
    monkeypatch.setattr("os.sysconf", lambda name: 100)
    bystanders = Bystanders(stat(tmp_path, user=1000))
    now |= {"wall": 110.0, "own": 13.0}
    stat(tmp_path, user=1000 + 2300, idle=9999)  # 23 s busy, 8 of them ours, in 10 s
    assert bystanders.busy_cores() == pytest.approx(1.5)


@pytest.mark.parametrize("text", ["", "cpu  0 0 0 0 0 0 0 0 0 0\n", "cpu  a b\n"])
def test_a_system_that_does_not_say_is_not_called_idle(tmp_path: Path, text: str) -> None:
    (tmp_path / "stat").write_text(text, encoding="ascii")
    assert Bystanders(tmp_path / "stat").busy_cores() is None
    assert Bystanders(tmp_path / "none").busy_cores() is None
