"""Similarity of a pre-trained and a fine-tuned network, against a calculation by hand."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from lp_sweep.trials.measures.influence import cosine_sums, mean_cosines, similarity_profile
from lp_sweep.trials.model.prune import keep_layers
from lp_sweep.trials.model.states import LayerStates, layer_states
from tests.support.sentences import LENGTHS, batches, network, sentences, shaken

KEPT = [1, 3, 4]


def two_networks(name: str, folder: Path) -> tuple[PreTrainedModel, PreTrainedModel]:
    """As it was pre-trained, and pruned and changed."""
    pretrained = network(name, folder)
    finetuned = copy.deepcopy(pretrained)
    keep_layers(finetuned, KEPT)
    return pretrained, shaken(finetuned)


def states(model: PreTrainedModel, row: torch.Tensor) -> list[torch.Tensor]:
    """(T, H) each: these families' hidden states are their layers' own."""
    with torch.no_grad():
        found = model(input_ids=row[None], output_hidden_states=True).hidden_states
    return [state[0].double() for state in found]


@pytest.mark.parametrize("name", ["bert", "xlnet"])
def test_similarity_is_the_calculation_by_hand(name: str, tmp_path: Path) -> None:
    pretrained, finetuned = two_networks(name, tmp_path)
    expected = np.zeros((4, 2))
    for row in sentences():
        old, new = states(pretrained, row), states(finetuned, row)
        for place, layer in enumerate([0, *KEPT]):
            cosines = torch.cosine_similarity(old[layer], new[place], dim=1)
            sentence = float(cosines[-1 if name == "xlnet" else 0])
            expected[place] += np.array([sentence, float(cosines.mean())]) / len(LENGTHS)
    for size in (1, 2, 5):
        rows = batches(sentences(), size, left=name == "xlnet")
        found = similarity_profile(
            layer_states(pretrained, rows), layer_states(finetuned, rows), KEPT[::-1]
        )
        assert [one.layer for one in found] == [0, *KEPT]
        np.testing.assert_allclose([one[1:] for one in found], expected, atol=1e-5)
    assert (np.abs(expected) < 0.999).all()


def test_layers_that_do_not_fit(tmp_path: Path) -> None:
    rows = batches(sentences(), 5)
    old, new = ([*layer_states(model, rows)] for model in two_networks("bert", tmp_path))
    for kept, message in (
        ([1, 3], "network of 3 layers"),
        ([1, 3, 3], "network of 3 layers"),
        ([1, 3, 5], r"out of range; layers are 1\.\.4"),
    ):
        with pytest.raises(ValueError, match=message):
            similarity_profile(old, new, kept)
    with pytest.raises(ValueError, match="no examples"):
        similarity_profile([], [], KEPT)


def test_the_two_means_over_tokens_have_two_names() -> None:
    """Two texts, of one token that stays and of three that turn at right angles: pooled, one token
    of four stays; by text, one text of two."""
    mask = torch.tensor([[True, False, False], [True, True, True]])
    before, after = torch.zeros(2, 3, 2), torch.zeros(2, 3, 2)
    before[..., 0] = 1.0
    after[0, :, 0] = after[1, :, 1] = 1.0
    old = LayerStates([before, before], [before], mask, torch.zeros(2, dtype=torch.int64))
    new = LayerStates([before, after], [before], mask, torch.zeros(2, dtype=torch.int64))
    assert mean_cosines([cosine_sums(new)]) == [0.25]
    assert similarity_profile([old], [new], [1])[1].tokens == 0.5
