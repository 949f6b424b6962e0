"""Cosines of states against calculations by hand: contribution, block influence and angular
distances of one network, and the similarity of two."""

from __future__ import annotations

import copy
import math
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from lp_sweep.trials.measures.influence import (
    angular_distances,
    cosine_sums,
    mean_cosines,
    similarity_profile,
)
from lp_sweep.trials.model.prune import keep_layers
from lp_sweep.trials.model.states import LayerStates, layer_states
from tests.support.families import FAMILIES, NAMES
from tests.support.networks import LENGTHS, batches, network, sentences, shaken

DEPTH = 4


def seen(name: str, model: PreTrainedModel) -> list[list[tuple[np.ndarray, np.ndarray]]]:
    """Input and output of each layer, each (T, H): one sentence at a time, no padding."""
    found = []
    for row in sentences():
        states: list[tuple[np.ndarray, np.ndarray]] = []

        def note(_: nn.Module, given: tuple[torch.Tensor], output: object, to=states) -> None:
            output = output if isinstance(output, torch.Tensor) else output[0]
            # one sentence: dropping the batch axis, wherever it is, leaves (T, H)
            to.append(tuple(s.squeeze(1 if name == "xlnet" else 0).double().numpy()
                            for s in (given[0], output)))  # fmt: skip

        layers = model.get_submodule(FAMILIES[name].layers)
        handles = [layer.register_forward_hook(note) for layer in layers]
        with torch.no_grad():
            model.base_model(input_ids=row[None])
        for handle in handles:
            handle.remove()
        found.append(states)
    return found


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


@pytest.mark.parametrize("name", NAMES)
def test_contribution_block_influence_and_angles(name: str, tmp_path: Path) -> None:
    """Cosines of the sentence token; of every real token, each once; between sentence tokens."""
    model = network(name, tmp_path, DEPTH)
    left, place = (True, -1) if name == "xlnet" else (False, 0)
    contribution, influence = np.zeros(DEPTH), np.zeros(DEPTH)
    angles = np.zeros((DEPTH + 1, DEPTH + 1))
    for states in seen(name, model):
        for layer, (before, after) in enumerate(states):
            contribution[layer] += cosine(before[place], after[place]) / len(LENGTHS)
            influence[layer] += sum(map(cosine, before, after)) / sum(LENGTHS)
        vectors = [states[0][0][place], *(after[place] for _, after in states)]
        for low, high in combinations(range(DEPTH + 1), 2):
            angle = math.acos(cosine(vectors[low], vectors[high])) / math.pi
            angles[low, high] += angle / len(LENGTHS)
    for size in (1, 2, 5):
        whole = [*layer_states(model, batches(sentences(), size, left))]
        sentence = [*layer_states(model, batches(sentences(), size, left), only_sentence=True)]
        found = mean_cosines(map(cosine_sums, sentence))
        assert found == pytest.approx(contribution, abs=1e-5)
        assert mean_cosines(map(cosine_sums, whole)) == pytest.approx(influence, abs=1e-5)
        np.testing.assert_allclose(angular_distances(sentence), angles, atol=1e-5)
    assert (angles[np.triu_indices(DEPTH + 1, 1)] > 1e-3).all()  # so there was something to see


def test_a_layer_that_does_nothing(tmp_path: Path) -> None:
    """ModernBERT's: only its layers add to what they are given."""
    model = network("modernbert", tmp_path, DEPTH)
    layer = model.get_submodule(FAMILIES["modernbert"].layers)[1]
    with torch.no_grad():
        layer.attn.Wo.weight.zero_()
        layer.mlp.Wo.weight.zero_()
    seen = layer_states(model, batches(sentences(), 5))
    assert mean_cosines(map(cosine_sums, seen))[1] == pytest.approx(1.0)
    angle = angular_distances(layer_states(model, batches(sentences(LENGTHS * 8), 5)))[1, 2]
    assert angle == pytest.approx(0.0, abs=1e-7)  # and not nan: a cosine may be rounded beyond 1


@pytest.mark.parametrize("measure", [mean_cosines, angular_distances])
def test_no_examples(measure) -> None:
    with pytest.raises(ValueError, match="no examples"):
        measure([])


# -- two networks

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
