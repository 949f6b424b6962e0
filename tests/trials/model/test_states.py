"""Every layer's states, against `output_hidden_states`, the layers' own code and unpadded runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedModel

from lp_sweep.storage.errors import UnsupportedModelError
from lp_sweep.trials.model import states as states_module
from lp_sweep.trials.model.feedforward import remove_feed_forwards
from lp_sweep.trials.model.states import LayerStates, Site, layer_states
from tests.support.families import NAMES, VOCABULARY
from tests.support.fastnets import with_dropout
from tests.support.networks import LENGTHS, batches, checkpoint, load, padded, sentences

DEPTH = 4


@pytest.fixture(scope="module", params=[*NAMES, pytest.param("deberta", marks=pytest.mark.slow)])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model(name: str) -> PreTrainedModel:
    return load(checkpoint(name, DEPTH))


def states_of(
    model: PreTrainedModel, site: Site = "layer", only_sentence: bool = False
) -> LayerStates:
    batch = padded(sentences(), left=model.config.model_type == "xlnet")
    (found,) = layer_states(model, [batch], site, only_sentence=only_sentence)
    return found


def hooks_of(model: PreTrainedModel) -> list[list[int]]:
    """There may be some: `output_hidden_states` leaves its own."""
    return [list(module._forward_hooks) for module in model.modules()]


def alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b, atol=1e-4, rtol=1e-4)


def test_layers_are_the_hidden_states_where_these_are_the_layers_own(
    name: str, model: PreTrainedModel
) -> None:
    batch = padded(sentences(), left=name == "xlnet")
    del batch["labels"]
    with torch.no_grad():
        expected = model(**batch, output_hidden_states=True).hidden_states
    found = states_of(model)
    assert len(found.layers) == len(expected) == DEPTH + 1
    strangers = {"modernbert": DEPTH, "deberta-v2-conv": 1}  # final norm, convolution
    for index, (ours, theirs) in enumerate(zip(found.layers, expected, strict=True)):
        assert alike(ours, theirs) == (index != strangers.get(name)), index
    for index, (given, before) in enumerate(zip(found.inputs, found.layers[:-1], strict=True)):
        assert torch.equal(given, before) == ((name, index) != ("deberta-v2-conv", 1)), index


REST: dict[str, Callable[[nn.Module, torch.Tensor], torch.Tensor]] = {
    "distilbert": lambda layer, a: layer.output_layer_norm(layer.ffn(a) + a),
    "xlnet": lambda layer, a: layer.ff(a),
    "modernbert": lambda layer, a: a + layer.mlp(layer.mlp_norm(a)),
}


def test_the_rest_of_a_layer_turns_attention_into_its_output(
    name: str, model: PreTrainedModel
) -> None:
    found, layers = states_of(model, "attention"), states_module.find_layers(model).layers
    rest = REST.get(name, lambda layer, a: layer.output(layer.intermediate(a), a))
    outputs = states_of(model).layers[1:]
    assert len(found.layers) == len(found.inputs) == DEPTH
    with torch.no_grad():
        for layer, attention, output in zip(layers, found.layers, outputs, strict=True):
            assert alike(rest(layer, attention), output)


def test_without_a_feed_forward_a_layer_is_its_attention(name: str) -> None:
    reduced = load(checkpoint(name, DEPTH))
    remove_feed_forwards(reduced, [2], second_norm="drop")
    attention, layers = states_of(reduced, "attention").layers, states_of(reduced).layers[1:]
    for index, (inside, after) in enumerate(zip(attention, layers, strict=True)):
        assert alike(inside, after) == (index == 1), index


@pytest.mark.parametrize("site", ["layer", "attention"])
def test_padding_does_not_matter_nor_what_else_is_kept(
    name: str, model: PreTrainedModel, site: Site
) -> None:
    left = name == "xlnet"
    alone = list(layer_states(model, batches(sentences(), 1, left), site))
    together, only = states_of(model, site), states_of(model, site, only_sentence=True)
    assert only.mask.shape == (len(LENGTHS), 1)
    assert [len(one) for one in only.inputs] == [len(LENGTHS)] * DEPTH
    for index in range(len(together.layers)):
        assert alike(together.tokens()[index], torch.cat([one.tokens()[index] for one in alone]))
        expected = [one.layers[index][0, -1 if left else 0] for one in alone]
        assert alike(together.sentence()[index], torch.stack(expected))
        assert torch.equal(only.sentence()[index], together.sentence()[index])
        assert torch.equal(only.tokens()[index], together.sentence()[index])


def test_model_is_as_before_between_batches(name: str) -> None:
    model = load(checkpoint(name, DEPTH))
    expected = states_of(model).layers
    with_dropout(model, 0.5).train()
    states_module.find_layers(model).layers[0].eval()  # a part in another mode stays in it
    modes, hooks = [module.training for module in model.modules()], hooks_of(model)
    for found in layer_states(model, batches(sentences(), 5, name == "xlnet")):
        assert [module.training for module in model.modules()] == modes
        assert hooks_of(model) == hooks
        assert torch.is_grad_enabled()
        for ours, theirs in zip(found.layers, expected, strict=True):
            assert torch.equal(ours, theirs)  # no dropout
            assert not ours.requires_grad


def test_unknown_attention_is_refused_at_once() -> None:
    config = AutoConfig.for_model(
        "fnet", hidden_size=16, intermediate_size=24, num_hidden_layers=3, vocab_size=VOCABULARY
    )
    fnet = AutoModelForSequenceClassification.from_config(config)
    with pytest.raises(UnsupportedModelError, match=r"self-attention ends; .* in FNetLayer"):
        layer_states(fnet, [], "attention")


def test_states_that_are_no_sentences_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(checkpoint("bert", DEPTH))
    hooks = hooks_of(model)
    monkeypatch.setattr(states_module, "time_comes_first", lambda _: True)
    with pytest.raises(UnsupportedModelError, match=r"mixes tokens"):
        states_of(model)
    assert hooks_of(model) == hooks
