"""`compute: graphs`: a step over packed rows is the reference's step. What a CUDA graph does with
it is in test_gpu.py; here its operations run one by one, also out of a stand-in for a graph."""

from __future__ import annotations

import re
import warnings
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lp_sweep.storage.errors import GraphRecordingError
from lp_sweep.storage.store import Store
from lp_sweep.trials.device import noted_waits
from lp_sweep.trials.fast.forward import compute_used, uses_graphs
from lp_sweep.trials.fast.networks import PASSES
from lp_sweep.trials.fast.tokens import Bins, packed_tokens
from lp_sweep.trials.kinds.embedding import COSENT, IMITATE_SIMILARITIES, IN_BATCH
from lp_sweep.trials.model.familytable import FAMILIES as FAMILY_TABLE
from lp_sweep.trials.spec.specs import Distillation
from lp_sweep.trials.train import finetune as finetuning
from lp_sweep.trials.train.distill import Teaching
from lp_sweep.trials.train.finetune import Saver, finetune
from lp_sweep.trials.train.graphs import GraphPass, Recording, Run, refuse_recording
from lp_sweep.trials.train.steps import EagerPass, make_optimizer, train_step
from tests.support.families import daily
from tests.support.fastnets import (
    CPU,
    PAIR,
    assert_graphs_learn_alike,
    assert_same_gradients,
    encoded,
    network,
    of_two_texts,
    one_pass,
    setting,
    spelling_the_padding,
    split_of,
)
from tests.support.plain_jobs import execute
from tests.support.toyworld import jobs, save_world

HELD = [n for n, f in FAMILY_TABLE.items() if f.unpadded and PASSES[f.unpadded].on_device]


@pytest.mark.parametrize(
    "name",
    [case for case in daily("bert", "roberta", "electra", "distilbert") if case.id in HELD],
)
def test_a_pass_is_that_of_the_reference(name: str) -> None:
    model = network(name).train()
    ragged = split_of([3, 9, 1, 5])
    for split in (
        ragged,
        of_two_texts(ragged),
        split_of([4, 4, 4]),
        split_of([20, 1]),  # a bin that one row fills
        split_of([20] * 9),  # a bin of fillers alone
        spelling_the_padding(split_of([3, 9, 5])),
    ):
        rows = np.arange(len(split))[::-1].copy()
        loss, found = one_pass(GraphPass(model, setting("graphs")), split, rows)
        expected_loss, expected = one_pass(EagerPass(model, setting("reference")), split, rows)
        assert loss == pytest.approx(expected_loss, abs=1e-5)
        assert found.keys() == expected.keys()
        assert_same_gradients(found, expected)


RECIPE = setting("graphs").recipe


class Stand:
    """In place of CUDA graphs: a launch does what was recorded again, reading where it read."""

    def __init__(self, waits: str = "") -> None:
        self.did: list[str] = []
        self.waits = [waits] * bool(waits)

    def warm_up(self, run: Run) -> torch.Tensor:
        self.did.append("warm-up")
        return run()

    def record(self, run: Run) -> Recording:
        self.did.append("record")
        loss = torch.zeros(())

        def launch() -> None:
            self.did.append("launch")
            loss.copy_(run())

        return Recording(launch, loss)


@pytest.mark.parametrize("name", ["bert", "roberta", "distilbert"])
def test_a_graph_learns_as_the_reference_does(name: str) -> None:
    stand = Stand()
    assert_graphs_learn_alike(name, recorder=stand)
    assert stand.did.count("launch") > 10


@pytest.mark.parametrize("loss", [COSENT, IN_BATCH, IMITATE_SIMILARITIES])
def test_a_loss_over_pairs_is_recorded(loss: str) -> None:
    """Pairs whose texts share a batch: it has twice as many rows as examples."""
    labels = np.array([0, 0, 1, 1, 3, 3, 2, 2], np.float32)
    split = replace(split_of([3, 9, 1, 5, 7, 2, 8, 4]), labels=labels)
    losses = []
    for compute in ("graphs", "reference"):
        model, stand = network("bert").train(), Stand()
        teaching = None
        if loss == IMITATE_SIMILARITIES:
            taught = np.random.default_rng(0).normal(size=(8, model.config.hidden_size))
            teaching = Teaching(settings=Distillation(alpha=1.0), logits=np.float32(taught))
        how = setting(compute, definition=PAIR, loss=loss, teaching=teaching)
        learn = GraphPass(model, how, stand) if compute == "graphs" else EagerPass(model, how)
        optimizer, rows = make_optimizer(model, how.recipe), np.arange(4 * how.rows_together)
        losses.append([float(train_step(learn, optimizer, split, rows, step)) for step in range(3)])
        if compute == "graphs":
            assert stand.did == ["warm-up", "record", "launch", "launch"]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)


def test_a_step_is_recorded_when_its_number_of_bins_comes_again() -> None:
    model, stand = network("bert").train(), Stand()
    learn, optimizer = GraphPass(model, setting("graphs"), stand), make_optimizer(model, RECIPE)
    split = split_of([20, 19, 3, 4, 5, 6])
    one, two = np.array([2, 3, 4, 5]), np.array([0, 1, 2, 3])
    took = []
    for step, rows in enumerate([one, two, one, one, two, two[:3]]):
        train_step(learn, optimizer, split, rows, step)
        took.append(stand.did.copy())
        stand.did.clear()
    first, again, later = ["warm-up"], ["record", "launch"], ["launch"]
    assert took == [first, first, again, later, again, []]
    assert learn.recordings.keys() == {1, 2}


@pytest.mark.filterwarnings("error")
def test_a_step_that_waits_is_never_recorded() -> None:
    model, stand = network("bert").train(), Stand("steps.py:7")
    learn, optimizer = GraphPass(model, setting("graphs"), stand), make_optimizer(model, RECIPE)
    split, rows = split_of([3, 9, 5, 7]), np.arange(4)
    assert learn.compute == "graphs"
    with pytest.warns(UserWarning, match=r"graphs.*steps.py:7"):
        train_step(learn, optimizer, split, rows, 0)
    for step in (1, 2):  # no second warning
        train_step(learn, optimizer, split, rows, step)
    assert stand.did == ["warm-up"]
    assert learn.compute == "packed"


def test_where_the_host_waits_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[Any] = []

    def switched(mode: Any) -> None:
        modes.append(mode)
        if mode == "warn":
            warnings.warn("Synchronization debug mode is a prototype feature", stacklevel=1)

    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", switched)
    with warnings.catch_warnings(record=True) as said, noted_waits() as waits:
        warnings.warn("called a synchronizing CUDA operation (Triggered ...)", stacklevel=1)
        warnings.warn("something else", stacklevel=1)
    assert [str(item.message) for item in said] == ["something else"]
    assert len(waits) == 1
    assert re.fullmatch(r".*test_graphs\.py:\d+", waits[0])
    assert modes == ["warn", 0]


def accelerator_error(text: str, code: int) -> torch.AcceleratorError:
    error = torch.AcceleratorError(text)
    error.error_code = code  # type: ignore[attr-defined]
    return error


WAITED = accelerator_error("CUDA error: operation not permitted when stream is capturing", 900)


@pytest.mark.parametrize(
    ("error", "refused"),
    [
        pytest.param(WAITED, True, id="in the step"),
        pytest.param(accelerator_error("an operation", 906), True, id="its code"),
        pytest.param(RuntimeError("not during capture"), True, id="PyTorch's own"),
        pytest.param(torch.OutOfMemoryError("16 GiB"), False, id="memory"),
        pytest.param(accelerator_error("illegal access", 700), False, id="a broken device"),
    ],
)
def test_what_fails_in_a_recording(error: RuntimeError, refused: bool) -> None:
    told = pytest.raises(GraphRecordingError, match=str(error))
    with told if refused else nullcontext():
        refuse_recording(error)


@pytest.mark.parametrize(
    ("strategy", "table"),
    [("{name: top, k: [2]}", "trials"), ("{name: greedy, k: [1]}", "profiles")],
    ids=["a trial", "a measurement that trains"],
)
def test_work_without_a_recording_runs_again_without_graphs(
    strategy: str, table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process is unfit; what the next one does is in the job."""

    class Refusing(Stand):
        def record(self, run: Run) -> Recording:
            refuse_recording(WAITED)
            raise AssertionError

    def made(model: Any, how: Any) -> GraphPass:
        return GraphPass(model, how, Refusing() if how.graphs else None)

    monkeypatch.setattr(finetuning, "GraphPass", made)
    monkeypatch.setattr(finetuning, "uses_graphs", lambda *_: True)
    optimizer = finetuning.make_optimizer  # a CPU has no capturable one
    monkeypatch.setattr(finetuning, "make_optimizer", lambda *of, capturable: optimizer(*of))
    store = Store(tmp_path / "store", create=True)
    recipe = ("recipe.compute=graphs", "recipe.epochs=1")
    (job,) = jobs(save_world(tmp_path), f"strategies=[{strategy}]", *recipe)
    with pytest.raises(GraphRecordingError, match="not permitted"):
        execute(job, store.location)
    assert execute(job | {"graphs": False}, store.location)["status"] == "done"
    (row,) = store.read(table, job["id"])
    assert row.get("compute_used", "packed") == "packed"


@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=12),
    draw=st.randoms(use_true_random=False),
)
def test_rows_lie_in_bins_each_by_itself(lengths: list[int], draw: Any) -> None:
    split, rows = split_of(lengths), np.array(draw.sample(range(len(lengths)), len(lengths)))
    bins = Bins.packed(split, rows, 20, filler=99, type_filler=0)
    for row, index in enumerate(rows):
        begin, end = bins.first[row], bins.last[row] + 1
        assert begin // 20 == (end - 1) // 20  # one bin
        own = slice(split.offsets[index], split.offsets[index + 1])
        np.testing.assert_array_equal(bins.ids[begin:end], split.tokens[own])
        np.testing.assert_array_equal(bins.positions[begin:end], np.arange(end - begin))
        assert (bins.owner[begin:end] == row).all()
    assert (bins.owner >= 0).sum() == sum(lengths)
    assert (bins.ids[bins.owner < 0] == 99).all()
    used = (bins.owner.reshape(-1, 20) >= 0).sum(1)
    used = used[: 1 + np.flatnonzero(used)[-1]]  # a bin of fillers is the last
    assert all(one + other > 20 for one, other in pairwise(used))  # first fit
    mask = packed_tokens(bins.number, 20, *map(torch.from_numpy, bins.arrays())).groups[0].mask
    assert mask is not None
    own = bins.owner.reshape(-1, 20)
    np.testing.assert_array_equal(mask[:, 0].numpy() == 0, own[:, :, None] == own[:, None, :])


def test_what_a_gpu_holds() -> None:
    used, gpu = {}, torch.device("cuda")
    for name in ("bert", "distilbert", "xlnet", "modernbert", "deberta-v2", "deberta-v2-conv"):
        model = network(name)
        recorded = uses_graphs(model, RECIPE, gpu)
        used[name] = "graphs" if recorded else compute_used(model, "graphs", gpu)
    assert used == {
        "bert": "graphs",
        "distilbert": "graphs",
        "xlnet": "unpadded",
        "modernbert": "graphs",
        "deberta-v2": "unpadded",
        "deberta-v2-conv": "padded",
    }
    like_roberta = {"roberta", "xlm-roberta", "camembert", "electra", "mpnet"}
    assert {*HELD} == {"bert", "distilbert", "modernbert", *like_roberta}


@pytest.mark.parametrize(
    ("compute", "length", "held"),
    [("fast", 512, True), ("fast", 1024, False), ("graphs", 1024, True), ("reference", 128, False)],
)
def test_a_gpu_has_graphs_unless_rows_may_be_long(compute: Any, length: int, held: bool) -> None:
    recipe = replace(RECIPE, compute=compute, max_length=length)
    assert uses_graphs(network("bert"), recipe, torch.device("cuda")) is held
    assert not uses_graphs(network("bert"), recipe, CPU)


def test_without_a_gpu_a_training_is_that_of_fast() -> None:
    data = encoded(split_of([2 + row % 8 for row in range(13)], seed=5))
    fast, graphs = (
        finetune(network("bert"), data, setting(compute), Saver()) for compute in ("fast", "graphs")
    )
    assert graphs.progress.train_losses == fast.progress.train_losses
    np.testing.assert_array_equal(graphs.logits["validation"], fast.logits["validation"])
