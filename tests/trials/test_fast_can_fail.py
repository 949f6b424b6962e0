"""The comparisons of tests/trials/test_fast.py see it where the fast path reads a text wrongly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lp_sweep.trials import forward as forward_module
from lp_sweep.trials.unpadded import families, xlnet
from lp_sweep.trials.unpadded.tokens import RealTokens
from tests.support.fastnets import (
    assert_same_gradients,
    assert_same_logits,
    network,
    of_two_texts,
    set_overhead,
    spelling_the_padding,
    split_of,
)

pytestmark = pytest.mark.slow


Patch = pytest.MonkeyPatch
PLAIN = split_of([3, 9, 5])
ROBERTAS = ("roberta", "xlm-roberta", "camembert")
BERT_LIKE = ("bert", "electra", "distilbert", *ROBERTAS)


def read_as(patch: Patch, change: Callable[[RealTokens], RealTokens]) -> None:
    real = forward_module.real_tokens
    patch.setattr(forward_module, "real_tokens", lambda *batch: change(real(*batch)))


def without_positions(patch: Patch) -> None:
    read_as(patch, lambda tokens: tokens._replace(positions=torch.zeros_like(tokens.positions)))


def without_distances(patch: Patch) -> None:
    """XLNet's positions."""
    real = xlnet._by_distance
    patch.setattr(xlnet, "_by_distance", lambda *scored: torch.zeros_like(real(*scored)))


def of_one_word(patch: Patch) -> None:
    read_as(patch, lambda tokens: tokens._replace(ids=torch.full_like(tokens.ids, 5)))


def without_types(patch: Patch) -> None:
    read_as(patch, lambda tokens: tokens._replace(types=None))


def without_masks(patch: Patch) -> None:
    """Attention over a grid's padding."""
    set_overhead(patch, 10**6)  # one group: only then is anything padded
    read_as(
        patch,
        lambda tokens: tokens._replace(
            groups=tuple(group._replace(mask=None) for group in tokens.groups)
        ),
    )


def counting_the_padding(patch: Patch) -> None:
    def counted(words: Any, tokens: RealTokens) -> torch.Tensor:
        return tokens.positions + 1 + words.padding_idx

    patch.setattr(families, "_counted", counted)


MUTATIONS = {
    "positions": (without_positions, PLAIN, BERT_LIKE),
    "distances": (without_distances, PLAIN, ("xlnet",)),
    "words": (of_one_word, PLAIN, (*BERT_LIKE, "xlnet")),
    "token types": (without_types, of_two_texts(PLAIN), ("bert", "electra", "xlnet")),
    "masks": (without_masks, PLAIN, (*BERT_LIKE, "xlnet")),
    "counts": (counting_the_padding, spelling_the_padding(PLAIN), ROBERTAS),
}


@pytest.mark.parametrize(
    ("mutation", "name"),
    [
        pytest.param(mutation, name, id=f"{mutation}-{name}")
        for mutation, (_, _, names) in MUTATIONS.items()
        for name in names
    ],
)
def test_a_wrong_reading_is_seen(
    mutation: str, name: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    break_it, split, _ = MUTATIONS[mutation]
    model = network(name, tmp_path)
    assert_same_logits(model, split)
    break_it(monkeypatch)
    with pytest.raises(AssertionError, match="not close"):
        assert_same_logits(model, split)


@pytest.mark.parametrize("wrong", ["off", "missing"])
def test_a_wrong_gradient_is_seen(wrong: str) -> None:
    """Also one that is small beside the others; noise where the true one is 0 is none."""
    expected = {"large": torch.full((3,), 2.0), "small": torch.full((3,), 1e-4)}
    expected |= {"none": torch.tensor([1e-8, -1e-8])}
    found = expected | {"none": torch.tensor([-2e-8, 1e-8])}
    assert_same_gradients(found, expected)
    if wrong == "off":
        found["small"] = found["small"] + 1e-5
    else:
        del found["small"]
    with pytest.raises(AssertionError, match="small"):
        assert_same_gradients(found, expected)
