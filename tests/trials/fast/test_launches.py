"""A training step on a GPU has no operation that makes the host wait, and none that sorts when it
has to be deterministic. Shown on a CPU, with the layout that a GPU gets."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lp_sweep.storage.errors import UnsupportedDeviceError
from lp_sweep.trials.device import pick_device, precision_used
from lp_sweep.trials.fast import forward as forward_module
from lp_sweep.trials.fast import tokens as tokens_module
from lp_sweep.trials.fast.forward import compute_used, forward, unasked_mask, uses_graphs
from lp_sweep.trials.fast.networks import PASSES
from lp_sweep.trials.kinds.embedding import LOSSES as EMBEDDING_LOSSES
from lp_sweep.trials.model.familytable import FAMILIES as FAMILY_TABLE
from lp_sweep.trials.spec.specs import Distillation
from lp_sweep.trials.train.distill import Teaching
from lp_sweep.trials.train.graphs import GraphPass
from lp_sweep.trials.train.steps import EagerPass, make_optimizer, train_step
from tests.support.fastnets import (
    CPU,
    KINDS,
    PAIR,
    network,
    of_two_texts,
    padding_of,
    setting,
    split_of,
    with_dropout,
)

# CUDA waits for the first two; the others are sums into places, which are sorts when deterministic
COSTLY = (
    "_local_scalar_dense",
    "nonzero",
    "index_add",
    "index_copy",
    "index_put",
    "scatter_add",
    "masked_select",
)
# what is left, by family and compute: benchmarks/README.md has the same table
SLOW = {
    ("xlnet", "reference"): {"index_add"},
    ("xlnet", "fast"): {"scatter_add"},
    ("deberta-v2", "reference"): {"scatter_add"},
    ("deberta-v2", "fast"): {"scatter_add"},
}
COMPUTES = ("reference", "fast", "graphs")
ONES = torch.ones(2, 19, dtype=torch.int64)  # a mask without padding
NAMES = ("bert", "roberta", "xlnet", "distilbert", "mpnet", "deberta-v2", "modernbert")


class Costly(TorchDispatchMode):
    """Notes the costly operations that run inside, forward and backward."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().removeprefix("aten::")
        self.seen.add(name)
        self.found |= {costly for costly in COSTLY if name.startswith((costly, f"_{costly}"))}
        if name.startswith("index.Tensor") and any(
            index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        ):
            self.found.add("boolean indexing")
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def like_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (forward_module, tokens_module):
        monkeypatch.setattr(module, "bound_by_launches", lambda device: True)


def costly(model: Any, compute: Any, split: Any = None, **how: Any) -> set[str]:
    with_dropout(model.train(), 0.1)
    where = setting(compute, padding=padding_of(model.config.model_type), **how)
    learn = (GraphPass if compute == "graphs" else EagerPass)(model, where)
    optimizer = make_optimizer(model, where.recipe)
    with Costly() as mode:
        train_step(learn, optimizer, split or split_of([3, 9, 5, 17]), np.arange(4), 0)
    assert {"_fused_adamw_", "mm"} <= mode.seen  # it looks into both directions and the update
    return mode.found


@pytest.mark.parametrize("name", NAMES)
def test_a_step_neither_waits_nor_sorts(name: str) -> None:
    unpadded = FAMILY_TABLE[name].unpadded
    held = unpadded and PASSES[unpadded].on_device
    model = network(name)
    for compute in COMPUTES if held else COMPUTES[:2]:
        assert costly(model, compute) == SLOW.get((name, compute), set()), compute
        if name == "bert" and compute != "reference":  # BERT looks up its own types in an index
            assert costly(model, compute, of_two_texts(split_of([3, 9, 5, 17]))) == set(), compute


@pytest.mark.parametrize("name", KINDS)
def test_nor_does_the_loss_of_any_kind(name: str) -> None:
    definition, labels, outputs = KINDS[name]
    model = network("bert", num_labels=outputs)
    split = replace(split_of([3, 9, 5, 17]), labels=labels)
    teaching = Teaching(
        settings=Distillation(hidden_weight=1.0),
        logits=np.ones((4, outputs), np.float32),
        network=network("bert").eval().requires_grad_(False),
    )
    for compute, taught in itertools.product(COMPUTES, (None, teaching)):
        how = {"definition": definition, "teaching": taught}
        assert costly(model, compute, split, **how) == set(), (compute, taught)


@pytest.mark.parametrize("loss", EMBEDDING_LOSSES)
def test_nor_does_one_that_compares_texts(loss: str) -> None:
    model = network("bert")
    split = replace(split_of([3, 9, 5, 17]), labels=KINDS["regression"][1])
    taught = np.ones((4, model.config.hidden_size), np.float32)
    teaching = Teaching(settings=Distillation(alpha=1.0), logits=taught)
    named = "" if loss == "imitate" else loss  # the default
    for compute in COMPUTES:
        how = {"definition": PAIR, "loss": named, "teaching": teaching}
        assert costly(model, compute, split, **how) == set(), compute


@pytest.mark.parametrize("name", ["bert", "mpnet", "distilbert", "modernbert"])
def test_a_mask_that_is_not_asked_is_the_same_mask(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = network(name).eval()
    assert unasked_mask(model, ONES) is not ONES
    where: Any = (padding_of(), CPU, "reference")
    for lengths in ([3, 9, 5, 17], [6, 6]):
        split, rows = split_of(lengths), np.arange(len(lengths))
        found = forward(model, split, rows, *where)
        with monkeypatch.context() as patch:
            patch.setattr(forward_module, "unasked_mask", lambda model, real: real)
            plain = forward(model, split, rows, *where)
        torch.testing.assert_close(found, plain, atol=1e-5, rtol=1e-5)


def test_a_filler_far_from_all_text_looks_at_something() -> None:
    """Else its softmax is NaN where a kernel does not guard against that, and spreads."""
    model, real = network("modernbert"), ONES.clone()
    real[0, 3:] = 0  # beyond the window of any text
    masks = unasked_mask(model, real)
    assert isinstance(masks, dict)
    assert all((mask == 0).any(-1).all() for mask in masks.values())
    assert (masks["sliding_attention"][0, 0, :3, 3:] < 0).all()  # no text looks at a filler


def test_a_head_that_reads_the_mask_gets_its_own() -> None:
    model = network("modernbert")
    model.config.classifier_pooling = "mean"
    assert unasked_mask(model, ONES) is ONES


def test_another_device_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedDeviceError, match=r"xpu:0.*'cpu'"):
        pick_device("xpu:0")


def test_bf16_is_asked_of_no_gpu_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    old = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **how: False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla V100")
    assert precision_used("auto", old) == precision_used("fp32", old) == "fp32"
    with pytest.raises(UnsupportedDeviceError, match=r"bf16.*Tesla V100.*precision"):
        precision_used("bf16", old)
    assert precision_used("bf16", torch.device("cpu")) == "bf16"


def test_auto_is_bf16_on_a_cpu_with_instructions_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen(**has: bool) -> str:
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: has, raising=False)
        return precision_used("auto", torch.device("cpu"))

    assert chosen(avx512_bf16=True) == chosen(amx_bf16=True, avx512_f=True) == "bf16"
    assert chosen(avx512_bf16=False, amx_bf16=False, avx512_f=True) == chosen() == "fp32"
    monkeypatch.delattr(torch.cpu, "get_capabilities")  # PyTorch 2.8
    assert precision_used("auto", torch.device("cpu")) == "fp32"


def test_an_amd_gpu_takes_the_plain_path(monkeypatch: pytest.MonkeyPatch) -> None:
    model, gpu = network("bert"), torch.device("cuda")
    assert uses_graphs(model, setting("fast").recipe, gpu)
    monkeypatch.setattr(torch.version, "hip", "7.1")
    assert not uses_graphs(model, setting("fast").recipe, gpu)
    assert compute_used(model, "graphs", gpu) == "unpadded"


def test_the_docs_name_the_slow_families() -> None:
    text = (Path(__file__).parents[3] / "benchmarks" / "README.md").read_text(encoding="utf-8")
    table = text.partition("| family | `compute` | operation |")[2].partition("\n\n")[0]
    named = re.findall(r"^\| ([\w-]+) \| `(\w+)` \| `(\w+)`", table, re.MULTILINE)
    assert {(family, compute): {what} for family, compute, what in named} == SLOW
