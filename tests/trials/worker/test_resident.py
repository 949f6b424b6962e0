"""A worker keeps things between trials, and still each trial is as in a fresh process."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from lp_sweep.storage.store import Store
from lp_sweep.trials.model.families import scalars
from lp_sweep.trials.model.prune import load_original, load_pruned
from lp_sweep.trials.train import steps as passes
from lp_sweep.trials.worker import resident as residing
from lp_sweep.trials.worker.resident import Head, Original, Resident, Source, resident
from tests.support.everyday import few
from tests.support.families import CASES, Family, save_pretrained
from tests.support.plain_jobs import assert_fails, done, execute
from tests.support.staging import Job, made, measurement
from tests.support.toyworld import save_data, save_model, save_world

TWO = Head(2, "single_label_classification")
QUICK = {"limit_train": 16}


@pytest.fixture(autouse=True)
def nothing_resident() -> Iterator[None]:
    resident().forget()
    yield
    resident().forget()


# -- a network


def same_network(one: PreTrainedModel, other: PreTrainedModel) -> None:
    """To the last bit, and in all that decides what it does or how it is saved."""
    assert type(one) is type(other)
    assert str(one) == str(other)
    assert one.config.to_dict() == other.config.to_dict()
    assert one.config._attn_implementation == other.config._attn_implementation
    for ours, theirs in (
        (dict(one.named_parameters()), dict(other.named_parameters())),
        (dict(one.named_buffers()), dict(other.named_buffers())),
    ):
        assert list(ours) == list(theirs)
        for name, tensor in ours.items():
            assert torch.equal(tensor, theirs[name]), name
            assert tensor.requires_grad == theirs[name].requires_grad
            assert tensor.dtype == theirs[name].dtype
    for (name, ours), theirs in zip(one.named_modules(), other.modules(), strict=True):
        assert scalars(ours) == scalars(theirs), name
        assert ours.training == theirs.training


def spoil(model: nn.Module) -> None:
    """Damages the network more than any trial would."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(torch.nan)
    model.train().requires_grad_(False)
    model.config.problem_type = "spoilt"


@pytest.mark.parametrize("family", few(CASES, 1))
def test_a_network_is_what_loading_gives(family: Family, tmp_path: Path) -> None:
    path = save_pretrained(family, 4, tmp_path)
    options: dict[str, Any] = {"local_files_only": True, **TWO._asdict()}
    original = Original(load_original(path, **options))
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    for kept, seed in ((None, 1), ([1, 4], 1), ([1, 4], 2), ([1, 2, 3], 1), (None, 1)):
        loaded = load_pruned(path, kept_layers=kept, seed=seed, from_here=True, **options)
        ours = original.network(kept, seed)
        assert torch.equal(torch.random.get_rng_state(), before)
        same_network(ours, loaded)
        spoil(ours)
    last = load_pruned(path, kept_layers=[1, 3], seed=3, from_here=True, **options)
    same_network(original.become([1, 3], 3), last)


# -- trials

TIMINGS = ("seconds", "_at", "_per_second", "peak_memory", "attempt_id", "traceback")


def outcome_of(store: Store, job: Job) -> dict[str, Any]:
    """All that a job left in a store, but for when and how long."""

    def rows(table: str, name: str) -> list[dict[str, Any]]:
        return [
            {name: value for name, value in row.items() if not any(t in name for t in TIMINGS)}
            for row in store.find(table, name) or []
        ]

    attempts = [row for n in sorted(store.names("attempts")) for row in rows("attempts", n)]
    weights = Path(store.location) / "weights" / job["id"]
    return {
        "error": next(
            (row["error_type"] for row in attempts if row["trial_id"] == job["id"]), None
        ),
        "record": rows("trials", job["id"]),
        "predictions": rows("predictions", job["id"]),
        "measures": [rows("profiles", item["id"]) for item in (job, *(job.get("measures") or ()))],
        "network": {path.name: path.read_bytes() for path in sorted(weights.glob("*"))},
    }


UNLIKE: dict[str, Any] = {  # in the order that they run in one process
    "diverged": {"recipe": {"learning_rate": 1e30}},
    "no feed-forward": {"removed_feed_forwards": (2,)},
    "iterative": {"procedure": "iterative", "epochs_per_layer": 1, "kept_layers": (1, 2)},
    "measured": {"seed": 3},
}


def unlike_jobs(world: Path) -> list[Job]:
    """Trials that do different things to their networks; the last one's is also measured."""
    short = {"limit_train": 16, "limit_dev": 20}
    found = [
        made(world, **{**changes, "recipe": short | changes.get("recipe", {})})
        for changes in UNLIKE.values()
    ]
    measures = [measurement(found[-1], name) for name in ("similarity", "cka")]
    return [*found[:-1], {**found[-1], "measures": measures, "keep": "all"}]


def last_of(job: Job, folder: Path) -> dict[str, Any]:
    """The records of a job in a store of its own."""
    store = Store(folder, create=True)
    execute(job, store.location)
    return outcome_of(store, job)


def test_no_trial_sees_what_came_before(world: Path, store: Store, tmp_path: Path) -> None:
    todo, expected = unlike_jobs(world), []
    for job in todo:
        execute(job, store.location)
    for number, job in enumerate(todo):
        resident().forget()
        expected.append(last_of(job, tmp_path / f"alone {number}"))
    assert expected[-1]["network"]
    assert all(expected[-1]["measures"][1:])
    assert [found["error"] for found in expected] == ["diverged", *[None] * 3]
    assert [outcome_of(store, job) for job in todo] == expected


# -- what it stands for


def rewrite(path: Path, old: bytes, new: bytes) -> None:
    """In place; the file's name, size and time stay."""
    content, times = path.read_bytes(), path.stat()
    assert old in content
    assert len(old) == len(new)
    path.write_bytes(content.replace(old, new))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_a_folder_that_changed_is_read_again(tmp_path: Path) -> None:
    job = made(save_world(tmp_path), recipe=QUICK)
    found = [last_of(job, tmp_path / "before")]
    rewrite(tmp_path / "model" / "config.json", b'"gelu"', b'"relu"')
    found.append(last_of(job, tmp_path / "config"))
    rewrite(tmp_path / "model" / "tokenizer.json", b'"good"', b'"GOOD"')
    after = last_of(job, tmp_path / "after")
    assert after not in found
    assert found[0] != found[1]
    resident().forget()
    assert last_of(job, tmp_path / "fresh") == after


def test_what_may_move_unseen_has_no_stamp(tmp_path: Path) -> None:
    assert Source("owner/name", "main", False).stamp() is None
    assert Source("owner/name", None, False).stamp() is None
    assert Source("owner/name", "0" * 40, False).stamp() is not None
    assert Source(str(save_model(tmp_path)), None, False).stamp() is not None


def test_rows_are_not_read_where_their_tokens_are(tmp_path: Path) -> None:
    world = save_world(tmp_path)
    later = made(world, recipe=QUICK)
    before = last_of(later, tmp_path / "before")
    (tmp_path / "train.csv").unlink()
    resident().forget()  # another process on the node
    assert last_of(later, tmp_path / "after") == before


def test_rows_that_changed_since_the_plan_are_refused(tmp_path: Path, store: Store) -> None:
    world = save_world(tmp_path)
    job = made(world, recipe=QUICK)
    save_data(tmp_path, train=40)
    assert_fails(store, job, "missing_input", "have changed since the run was planned")
    done(store, made(world, recipe=QUICK))


# -- how much


def test_encoders_stay_while_they_have_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heads of one encoder share its tensors, and so its room."""
    one, other = (Source(str(save_model(tmp_path / str(n))), None, True) for n in range(2))
    size = load_original(tmp_path / "0", **TWO._asdict()).model.num_parameters() * 4
    kept = Resident()
    monkeypatch.setattr(residing, "MAX_ENCODER_BYTES", int(1.1 * size))
    for head in (TWO, Head(1, "regression")):
        kept.network(one, head, [1], 1)
    assert len(kept._encoders.items) == 2
    kept.network(other, TWO, [1], 1)
    assert len(kept._encoders.items) == 1
    monkeypatch.setattr(residing, "MAX_ENCODER_BYTES", size - 1)
    kept.network(other, TWO, [1], 1)
    assert not kept._encoders.items


@pytest.mark.slow
def test_what_is_short_of_memory_gets_all(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*args: Any, **how: Any) -> Any:
        assert resident()._encoders.items
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(passes, "forward", no_room)
    found = last_of(made(world), tmp_path)
    assert found["error"] == "out_of_memory"
    assert not resident()._encoders.items


def test_a_network_is_gone_when_its_trial_is(world: Path, tmp_path: Path) -> None:
    """Without the collector: what was set aside from it must not hold one."""
    execute(made(world, recipe=QUICK), Store(tmp_path, create=True).location)
    source = Source(str(world.parent / "model"), None, False)
    gc.disable()
    try:
        network = weakref.ref(resident().network(source, TWO, [1, 2], 1))
        resident().forget()
        assert network() is None
    finally:
        gc.enable()
