"""`compute: graphs`: a step over packed rows is the reference's step. What a CUDA graph does with
it is in test_gpu.py; here its operations run one by one, also out of a stand-in for a graph."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lp_sweep.trials.fast.forward import compute_used
from lp_sweep.trials.fast.networks import PASSES
from lp_sweep.trials.fast.tokens import Bins, packed_tokens
from lp_sweep.trials.model.familytable import FAMILIES as FAMILY_TABLE
from lp_sweep.trials.train.finetune import Saver, finetune
from lp_sweep.trials.train.graphs import GraphPass, Recorded, Run
from lp_sweep.trials.train.steps import EagerPass, make_optimizer, set_rate, train_step
from tests.support.everyday import few
from tests.support.families import daily
from tests.support.fastnets import (
    assert_same_gradients,
    assert_within_1e5,
    encoded,
    network,
    of_two_texts,
    one_pass,
    setting,
    spelling_the_padding,
    split_of,
)

HELD = [n for n, f in FAMILY_TABLE.items() if f.unpadded and PASSES[f.unpadded].on_device]


@pytest.mark.parametrize(
    "name",
    [case for case in daily("bert", "roberta", "electra", "distilbert") if case.id in HELD],
)
def test_a_pass_is_that_of_the_reference(name: str, tmp_path: Path) -> None:
    model = network(name, tmp_path).train()
    ragged = split_of([3, 9, 1, 5])
    for split in (
        ragged,
        of_two_texts(ragged),
        split_of([4, 4, 4]),
        split_of([20, 1]),  # a bin that one row fills
        spelling_the_padding(split_of([3, 9, 5])),
    ):
        rows = np.arange(len(split))[::-1].copy()
        loss, found = one_pass(GraphPass(model, setting("graphs")), split, rows)
        expected_loss, expected = one_pass(EagerPass(model, setting("reference")), split, rows)
        assert loss == pytest.approx(expected_loss, abs=1e-5)
        assert found.keys() == expected.keys()
        assert_same_gradients(found, expected)


RECIPE = setting("graphs").recipe
KEY_BIAS = "key.bias"  # its true gradient is 0, and AdamW makes full steps of the rounding


class Stand:
    """In place of CUDA graphs: a launch does what was recorded again, reading where it read."""

    def __init__(self, refuse: str = "") -> None:
        self.did: list[str] = []
        self.refuse = refuse

    def warm_up(self, run: Run) -> torch.Tensor:
        self.did.append("warm-up")
        return run()

    def record(self, run: Run) -> Recorded:
        self.did.append("record")
        if self.refuse:
            raise RuntimeError(self.refuse)
        loss = torch.zeros(())

        def launch() -> None:
            self.did.append("launch")
            loss.copy_(run())

        return Recorded(launch, loss)


@pytest.mark.parametrize(
    ("micro_batch", "recorder"),
    few([(4, Stand()), (3, Stand()), (4, None), (4, Stand("no graph"))], 1),
    ids=lambda value: f"{getattr(value, 'refuse', value) or 'held'}",
)
def test_forty_steps(micro_batch: int, recorder: Stand | None, tmp_path: Path) -> None:
    """The input of an earlier step leaves nothing behind: batches of other lengths, and one
    that is not full, come by turns. The rate falls from step to step."""
    draw = np.random.default_rng(3)
    split = split_of([int(n) for n in draw.integers(1, 20, 32)])
    batches = [draw.permutation(32)[: 2 if step % 7 == 6 else 4] for step in range(40)]
    found = []
    for compute in ("graphs", "reference"):
        model = network("bert", tmp_path / compute).train()
        how = setting(compute, micro_batch)
        held = compute == "graphs"
        learn = GraphPass(model, how, recorder) if held else EagerPass(model, how)
        optimizer = make_optimizer(model, how.recipe)
        if held:  # as on a device
            for group in optimizer.param_groups:
                group["lr"] = torch.tensor(group["lr"])
        losses = []
        for step, rows in enumerate(batches):
            set_rate(optimizer, how.recipe, step, len(batches))
            losses.append(float(train_step(learn, optimizer, split, rows, step)))
        weights = [p.detach().flatten() for n, p in model.named_parameters() if KEY_BIAS not in n]
        found.append((np.array(losses), torch.cat(weights).numpy()))
    for one, other in zip(*found, strict=True):
        assert_within_1e5(one, other)


def test_a_step_is_recorded_when_its_number_of_bins_comes_again(tmp_path: Path) -> None:
    model, stand = network("bert", tmp_path).train(), Stand()
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


@pytest.mark.filterwarnings("error")
def test_without_a_recording_it_goes_on_and_says_so(tmp_path: Path) -> None:
    model, stand = network("bert", tmp_path).train(), Stand("CUDA error: not permitted")
    learn, optimizer = GraphPass(model, setting("graphs"), stand), make_optimizer(model, RECIPE)
    split, rows = split_of([3, 9, 5, 7]), np.arange(4)
    train_step(learn, optimizer, split, rows, 0)
    with pytest.warns(UserWarning, match=r"graphs.*not permitted"):
        train_step(learn, optimizer, split, rows, 1)
    train_step(learn, optimizer, split, rows, 2)  # no second warning
    assert stand.did == ["warm-up", "record"]
    assert all(parameter.grad is None for parameter in model.parameters())


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
    assert all(one + other > 20 for one, other in pairwise(used))  # first fit
    mask = packed_tokens(bins.number, 20, *map(torch.from_numpy, bins.arrays())).groups[0].mask
    assert mask is not None
    own = bins.owner.reshape(-1, 20)
    np.testing.assert_array_equal(mask[:, 0].numpy() == 0, own[:, :, None] == own[:, None, :])


def test_what_a_gpu_holds(tmp_path: Path) -> None:
    used = {
        name: compute_used(network(name, tmp_path), "graphs", torch.device("cuda"))
        for name in ("bert", "distilbert", "xlnet", "modernbert")
    }
    assert used == {
        "bert": "graphs",
        "distilbert": "graphs",
        "xlnet": "unpadded",
        "modernbert": "padded",
    }
    assert {*HELD} == {"bert", "roberta", "xlm-roberta", "camembert", "electra", "distilbert"}


def test_without_a_gpu_a_training_is_that_of_fast(tmp_path: Path) -> None:
    data = encoded(split_of([2 + row % 8 for row in range(13)], seed=5))
    fast, graphs = (
        finetune(network("bert", tmp_path / compute), data, setting(compute), Saver())
        for compute in ("fast", "graphs")
    )
    assert graphs.progress.train_losses == fast.progress.train_losses
    np.testing.assert_array_equal(graphs.logits["validation"], fast.logits["validation"])
