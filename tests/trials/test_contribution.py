"""Each layer's contribution, against a calculation by hand on tiny real models."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from lp_sweep.trials.measures.influence import contribution_profile
from lp_sweep.trials.measures.states import layer_states
from tests.support.families import CASES, Family
from tests.support.sentences import LENGTHS, network, padded, sentences


@pytest.fixture(params=CASES)
def family(request: pytest.FixtureRequest) -> Family:
    chosen: Family = request.param
    return chosen


@pytest.fixture
def model(family: Family, tmp_path: Path) -> PreTrainedModel:
    return network(family.name, tmp_path)


def by_hand(family: Family, model: PreTrainedModel) -> list[float]:
    """One sentence at a time, without padding, from the layers' own inputs and outputs."""
    position = -1 if family.name == "xlnet" else 0
    sums = [0.0] * 4
    for row in sentences():
        seen: list[tuple[torch.Tensor, torch.Tensor]] = []
        handles = [
            layer.register_forward_hook(
                lambda _, inputs, output, seen=seen: seen.append(
                    (inputs[0], output if isinstance(output, torch.Tensor) else output[0])
                )
            )
            for layer in model.get_submodule(family.layers)
        ]
        with torch.no_grad():
            model.base_model(input_ids=row[None])
        for handle in handles:
            handle.remove()
        for i, states in enumerate(seen):
            # one sentence: dropping the batch axis, wherever it is, leaves (T, H)
            a, b = (s.reshape(len(row), -1)[position].double() for s in states)
            sums[i] += float(a @ b / (a.norm() * b.norm()))
    return [total / len(LENGTHS) for total in sums]


def test_profile_is_the_calculation_by_hand(family: Family, model: PreTrainedModel) -> None:
    left = family.name == "xlnet"
    expected = pytest.approx(by_hand(family, model), abs=1e-5)
    for size in (1, 2, 5):
        rows = sentences()
        batches = [padded(rows[i : i + size], left) for i in range(0, len(rows), size)]
        assert contribution_profile(layer_states(model, batches, only_sentence=True)) == expected


def test_hidden_states_agree_where_they_are_the_layers_own(
    family: Family, model: PreTrainedModel
) -> None:
    """All but the ends of ModernBERT (final norm) and of a first layer with a convolution."""
    inputs = padded(sentences(), left=family.name == "xlnet")
    del inputs["labels"]
    with torch.no_grad():
        states = model(**inputs, output_hidden_states=True).hidden_states
    last = inputs["attention_mask"].shape[1] - 1 - inputs["attention_mask"].flip(1).argmax(1)
    index = last if family.name == "xlnet" else torch.zeros(len(LENGTHS), dtype=torch.long)
    tokens = [s[torch.arange(len(LENGTHS)), index] for s in states]
    cosines = [float(torch.cosine_similarity(a, b).mean()) for a, b in pairwise(tokens)]
    profile = contribution_profile(layer_states(model, [inputs], only_sentence=True))
    assert profile[1:3] == pytest.approx(cosines[1:3], abs=1e-5)
    if family.name == "modernbert":
        assert profile[3] != pytest.approx(cosines[3], abs=1e-3)


def test_mode_and_hooks_are_as_before(model: PreTrainedModel) -> None:
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
    batches = [padded(sentences(), left=False)]
    expected = contribution_profile(layer_states(model.eval(), batches, only_sentence=True))
    assert not model.training
    assert (
        contribution_profile(layer_states(model.train(), batches, only_sentence=True)) == expected
    )  # no dropout
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())


def test_no_examples(model: PreTrainedModel) -> None:
    with pytest.raises(ValueError, match="no examples"):
        contribution_profile(layer_states(model, [], only_sentence=True))
