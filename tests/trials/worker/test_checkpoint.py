"""Checkpoints: a training that was cut off goes on, and ends as if nothing had been."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import random
import subprocess
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from lp_sweep.storage import underway
from lp_sweep.storage.runs import machine_key
from lp_sweep.storage.specs import Recipe
from lp_sweep.storage.store import Store
from lp_sweep.trials.model.prune import load_pruned
from lp_sweep.trials.train import finetune as finetuning
from lp_sweep.trials.train.steps import make_optimizer
from lp_sweep.trials.worker import checkpoint
from lp_sweep.trials.worker.job import announce, announced
from lp_sweep.trials.worker.run import execute
from lp_sweep.trials.worker.trial import Try
from tests.support.cutoff import STEPS, CutOff, assert_same, cut_off, other_network, write_state
from tests.support.everyday import few
from tests.support.families import CASES, Family, save_pretrained
from tests.support.plain_jobs import run_trial
from tests.support.toyworld import jobs

EPOCHS = 3


def job_of(world: Path, rows: int = 4 * STEPS, **settings: Any) -> dict[str, Any]:
    """48 steps, with dropout."""
    recipe = (f"recipe.limit_train={rows}", "recipe.batch_size=4", f"recipe.epochs={EPOCHS}")
    return {**jobs(world, "k=2", *recipe)[0], **settings}


@pytest.fixture(scope="module")
def undisturbed(world: Path) -> dict[int, dict[str, Any]]:
    """Halvings -> what a training gives that nothing interrupts."""
    return {times: run_trial(job_of(world), Try(halvings=times)) for times in (0, 1)}


# -- killed


@pytest.mark.slow
@pytest.mark.parametrize("halvings", [0, 1], ids=["whole", "micro-batches"])
def test_killed_at_random_moments_it_ends_as_if_nothing_had_been(
    world: Path, store: Store, halvings: int
) -> None:
    rows = 256  # so that it does not end before it is killed
    undisturbed = run_trial(job_of(world, rows), Try(halvings=halvings))
    job = job_of(world, rows, checkpoint_every=0.02, halvings=halvings)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["lp_sweep.trials.worker.run"])
    draw = random.Random(halvings)
    kills = 0
    while kills < 3:
        before = _modified(store)
        process = context.Process(target=execute, args=(job, store.location))
        process.start()
        while process.is_alive() and _modified(store) == before:  # it has trained, and written
            time.sleep(0.001)
        time.sleep(draw.uniform(0, 0.03))
        process.kill()
        process.join()
        assert process.exitcode == -9, "it ended before it was killed"
        kills += 1
    assert not store.names("trials")
    assert execute(job, store.location)["status"] == "done"
    record = assert_same(store, job, undisturbed)
    assert record["resumed_from_step"] > 0
    assert record["micro_batch"] == (4, 2)[halvings]
    assert record["out_of_memory_retries"] == halvings
    assert not store.names("attempts")


def _modified(store: Store) -> float:
    return max((item.modified for item in store.listing("checkpoints")), default=0.0)


# -- cut off at a given step


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(STEPS + 7, id="mid-epoch"),
        pytest.param(EPOCHS * STEPS - 1, id="before the very last step"),
    ],
)
def test_it_goes_on_from_the_step_it_was_at(
    world: Path,
    store: Store,
    undisturbed: dict[int, dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    step: int,
) -> None:
    job = job_of(world, checkpoint_every=3600.0)
    cut_off(job, store, monkeypatch, step)
    execute(job, store.location)
    assert assert_same(store, job, undisturbed[0])["resumed_from_step"] == step


def test_lost_in_an_evaluation_it_goes_on_at_the_evaluation(
    world: Path,
    store: Store,
    undisturbed: dict[int, dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And an evaluation that takes longer than from one checkpoint to the next breaks nothing."""
    job, real, calls = job_of(world, checkpoint_every=0.01), finetuning.evaluate, []

    def slow(*args: Any, **settings: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise CutOff
        time.sleep(0.05)
        return real(*args, **settings)

    def save_always(self: Any) -> bool:
        return True

    monkeypatch.setattr(finetuning, "evaluate", slow)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.Checkpoints, "due", save_always)
        with pytest.raises(CutOff):
            execute(job, store.location)
    execute(job, store.location)
    assert assert_same(store, job, undisturbed[0])["resumed_from_step"] == 3 * STEPS


def test_seconds_are_of_all_tries(
    world: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(world, checkpoint_every=3600.0)
    cut_off(job, store, monkeypatch, 2 * STEPS + 10)
    text = checkpoint.read_state(next((Path(store.location) / "checkpoints").iterdir()))
    header = checkpoint.Header.parse(text)
    assert header.seconds_total > header.seconds_train > 0
    began = time.perf_counter()
    execute(job, store.location)
    elapsed = time.perf_counter() - began
    record = store.read("trials", job["id"])[0]
    assert record["seconds_train"] > header.seconds_train
    assert record["seconds_evaluate"] > header.seconds_evaluate
    assert header.seconds_total < record["seconds_total"] < header.seconds_total + elapsed


# -- when to write


def test_a_short_training_writes_none(
    world: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Any] = []
    monkeypatch.setattr(checkpoint, "write_state", lambda *args: written.append(args))
    execute(job_of(world, checkpoint_every=300.0), store.location)
    assert not written


@pytest.mark.parametrize("every", [None, 0])
def test_off_is_off(world: Path, store: Store, every: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint.Checkpoints, "__init__", None)
    assert execute(job_of(world, checkpoint_every=every), store.location)["status"] == "done"


def steps_written(job: dict[str, Any], store: Store, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps after which a trial writes, with a clock that goes on by a second for each look."""
    clock = iter(range(10_000))
    monkeypatch.setattr(checkpoint.time, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(underway.Teller, "__call__", lambda *_: None)  # it looks there, too
    steps: list[int] = []
    monkeypatch.setattr(
        checkpoint, "write_state", lambda path, text, *rest: steps.append(json.loads(text)["step"])
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nothing was written, so nothing can be put
        execute(job, store.location)
    return steps


def test_the_interval_counts_from_the_start_and_from_the_last_one(
    world: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = steps_written(job_of(world, checkpoint_every=30.0), store, monkeypatch)
    assert [second - first for first, second in zip([0, *steps], steps, strict=False)] == [30]


def test_on_a_machine_that_will_soon_be_taken_they_come_more_often(
    world: Path, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(world, checkpoint_every=3600.0, cache_dir=str(tmp_path / "cache"))
    announce(tmp_path / "cache", 600.0)
    steps = steps_written(job, store, monkeypatch)
    assert [second - first for first, second in itertools.pairwise([0, *steps])] == [20, 20]


def test_a_notice_is_of_its_time(tmp_path: Path) -> None:
    """The machine may come back."""
    cache = tmp_path / "cache"
    assert not announced(cache)
    for seconds in (600.0, -1.0, 600.0):
        announce(cache, seconds)
        assert announced(cache) == (seconds > 0)


def test_a_checkpoint_that_cannot_be_written_is_a_warning(
    world: Path, store: Store, undisturbed: dict[int, dict[str, Any]]
) -> None:
    (Path(store.location) / "checkpoints").write_text("in the way", encoding="utf-8")
    job = job_of(world, checkpoint_every=0.1)
    with pytest.warns(UserWarning, match=f"checkpoint of {job['id']}: not written: can't write"):
        assert execute(job, store.location)["status"] == "done"
    (Path(store.location) / "checkpoints").unlink()
    assert_same(store, job, undisturbed[0])


# -- what is not gone on from


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def _flip(path: Path) -> None:
    """One bit of one weight."""
    content = bytearray(path.read_bytes())
    content[-1000] ^= 1
    path.write_bytes(content)


def _foreign(path: Path) -> None:
    save_file({"a": torch.zeros(3)}, path, metadata={"format": "pt"})


def _change(**header: Any) -> Any:
    """Another header, with a checksum that is right."""

    def change(path: Path) -> None:
        text = json.loads(checkpoint.read_state(path)) | header
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        write_state(path, json.dumps(text), tensors)

    return change


OTHER_TRIAL = ["t1-00000000000000000000", 1, "{}", "fp32", "cpu"]


@pytest.mark.parametrize(
    ("harm", "reason"),
    few(
        [
            pytest.param(_truncate, "", id="truncated"),
            pytest.param(_flip, "its checksum is wrong", id="a bit flipped"),
            pytest.param(_foreign, "lp-sweep did not write it", id="foreign"),
            pytest.param(_change(format=2), "its format is 2", id="another format"),
            pytest.param(
                _change(subject=OTHER_TRIAL), "its trial_id is 't1-0000", id="another trial"
            ),
            pytest.param(_change(more=1), "unexpected keyword", id="an unknown field"),
            pytest.param(other_network, "not those of this network", id="another network"),
        ],
        4,
    ),
)
def test_what_is_torn_or_foreign_is_ignored_with_a_warning(
    world: Path,
    store: Store,
    undisturbed: dict[int, dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    harm: Any,
    reason: str,
) -> None:
    job = job_of(world, checkpoint_every=3600.0)
    cut_off(job, store, monkeypatch, STEPS + 7)
    harm(Path(store.location) / "checkpoints" / f"{job['id']}.safetensors")
    with pytest.warns(UserWarning, match=f"{job['id']}: ignored, .*{reason}"):
        execute(job, store.location)
    assert assert_same(store, job, undisturbed[0])["resumed_from_step"] == 0


def test_of_another_precision_it_is_ignored(
    world: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record says one precision: all of its steps are of that one."""
    job = job_of(world, checkpoint_every=3600.0)
    cut_off(job, store, monkeypatch, 5)
    path = Path(store.location) / "checkpoints" / f"{job['id']}.safetensors"
    subject = checkpoint.Header.parse(checkpoint.read_state(path)).subject
    _change(subject=list(subject._replace(precision="bf16")))(path)
    with pytest.warns(UserWarning, match="its precision is 'bf16'"):
        execute(job, store.location)
    assert store.read("trials", job["id"])[0]["resumed_from_step"] == 0


# -- with micro-batches


def test_halvings_of_the_checkpoint_are_taken_over(
    world: Path,
    store: Store,
    undisturbed: dict[int, dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The worker that ran out of memory was killed later, and nobody knows but the checkpoint."""
    cut_off(job_of(world, halvings=1), store, monkeypatch, 40)
    job = job_of(world, checkpoint_every=3600.0)
    execute(job, store.location)
    record = assert_same(store, job, undisturbed[1])
    assert (record["resumed_from_step"], record["out_of_memory_retries"]) == (40, 1)


def test_a_checkpoint_of_larger_micro_batches_is_not_gone_on_from(
    world: Path,
    store: Store,
    undisturbed: dict[int, dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Out of memory after a checkpoint: the record's micro-batch is that of all its steps."""
    cut_off(job_of(world), store, monkeypatch, 40)
    job = job_of(world, checkpoint_every=3600.0, halvings=1)
    execute(job, store.location)
    assert assert_same(store, job, undisturbed[1])["resumed_from_step"] == 0


def test_one_of_a_training_that_diverged_is_deleted(world: Path, store: Store) -> None:
    job = jobs(world, "k=0", "recipe.lr=1e30")[0] | {"checkpoint_every": 1e-9}
    assert execute(job, store.location)["error_type"] == "diverged"
    assert store.listing("checkpoints") == []


# -- the node's copies, in a folder that machines may share


def _pid_of_the_dead() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


DAY = 86_400.0


@pytest.mark.parametrize(
    ("name", "age", "stays"),
    [
        pytest.param("{here}.{dead}.t1-a.safetensors", 0.0, False, id="dead"),
        pytest.param("{here}.{alive}.t1-a.safetensors", 0.0, True, id="alive"),
        pytest.param("{there}.{dead}.t1-a.safetensors", DAY / 2, True, id="another machine's"),
        pytest.param("{there}.{dead}.t1-a.safetensors", 2 * DAY, False, id="another's, old"),
        pytest.param("{dead}.t1-a.safetensors", 0.0, True, id="of nobody knows which machine"),
        pytest.param(".0123abcd.tmp", DAY / 2, True, id="a download"),
        pytest.param(".0123abcd.tmp", 2 * DAY, False, id="a killed download"),
        pytest.param("notes.txt", 2 * DAY, True, id="not ours"),
    ],
)
def test_only_the_copies_of_who_is_dead_go(
    store: Store, tmp_path: Path, name: str, age: float, stays: bool
) -> None:
    folder = tmp_path / "cache" / "checkpoints"
    folder.mkdir(parents=True)
    there = "0" * len(machine_key())
    path = folder / name.format(
        here=machine_key(), there=there, dead=_pid_of_the_dead(), alive=os.getpid()
    )
    path.write_bytes(b"state")
    os.utime(path, (time.time() - age,) * 2)
    subject = checkpoint.Subject("t1-b", 1, "{}", "fp32", "cpu")
    tries = checkpoint.Checkpoints(
        store.location, tmp_path / "cache", subject, every=1.0, batch_size=4
    )
    assert tries.find(0) == 0
    assert path.exists() == stays


# -- every family


@pytest.mark.parametrize("family", CASES)
def test_every_familys_state_comes_back(family: Family, tmp_path: Path) -> None:
    folder = save_pretrained(family, 3, tmp_path / "model")
    rows = torch.randint(2, 30, (4, 6), generator=torch.Generator().manual_seed(0))

    def load() -> tuple[Any, Any]:
        model = load_pruned(
            folder,
            kept_layers=None,
            num_labels=2,
            problem_type="single_label_classification",
            seed=0,
        ).train()
        return model, make_optimizer(model, Recipe(learning_rate=1e-2))

    def step(model: Any, optimizer: Any) -> None:
        torch.manual_seed(1)
        model(input_ids=rows, attention_mask=torch.ones_like(rows)).logits[:, 0].sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    model, optimizer = load()
    step(model, optimizer)
    checkpoint.write_state(tmp_path / "state", "text", model, optimizer, torch.tensor([0.5]))
    assert checkpoint.read_state(tmp_path / "state") == "text"
    again, its_optimizer = load()
    assert checkpoint.load_state(tmp_path / "state", again, its_optimizer).tolist() == [0.5]
    for one, other in ((model, optimizer), (again, its_optimizer)):
        step(one, other)
    for name, value in model.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name
