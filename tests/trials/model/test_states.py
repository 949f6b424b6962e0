"""Every layer's states, against `output_hidden_states`, the layers' own code and unpadded runs."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedModel

from lp_sweep.storage.errors import UnsupportedModelError
from lp_sweep.trials.model import states as states_module
from lp_sweep.trials.model.feedforward import remove_feed_forwards
from lp_sweep.trials.model.states import LayerStates, Site, layer_states
from tests.support.families import DEBERTA, NAMES, VOCABULARY
from tests.support.sentences import LENGTHS, batches, network, padded, sentences

DEPTH = 4


@pytest.fixture(scope="module", params=[*NAMES, pytest.param("deberta", marks=pytest.mark.slow)])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model(name: str, tmp_path_factory: pytest.TempPathFactory) -> PreTrainedModel:
    if name != "deberta":
        return network(name, tmp_path_factory.mktemp(name), DEPTH)
    settings = DEBERTA | {"num_hidden_layers": DEPTH, "vocab_size": VOCABULARY, "pad_token_id": 1}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        config = AutoConfig.for_model("deberta", **settings)
        return AutoModelForSequenceClassification.from_config(config).eval()


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


def test_inputs_are_the_outputs_before(name: str, model: PreTrainedModel) -> None:
    found = states_of(model)
    assert len(found.inputs) == DEPTH
    for index, (given, before) in enumerate(zip(found.inputs, found.layers, strict=False)):
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


def test_without_a_feed_forward_a_layer_is_its_attention(model: PreTrainedModel) -> None:
    reduced = copy.deepcopy(model)
    remove_feed_forwards(reduced, [2], second_norm="drop")
    attention, layers = states_of(reduced, "attention").layers, states_of(reduced).layers[1:]
    for index, (inside, after) in enumerate(zip(attention, layers, strict=True)):
        assert alike(inside, after) == (index == 1), index


@pytest.mark.parametrize("site", ["layer", "attention"])
def test_padding_does_not_matter(name: str, model: PreTrainedModel, site: Site) -> None:
    """XLNet's is on the left."""
    left = name == "xlnet"
    alone = list(layer_states(model, batches(sentences(), 1, left), site))
    assert all(bool(one.mask.all()) for one in alone)
    together = states_of(model, site)
    for index in range(len(together.layers)):
        assert alike(together.tokens()[index], torch.cat([one.tokens()[index] for one in alone]))
        expected = [one.layers[index][0, -1 if left else 0] for one in alone]
        assert alike(together.sentence()[index], torch.stack(expected))


@pytest.mark.parametrize("site", ["layer", "attention"])
def test_only_the_sentence_token(model: PreTrainedModel, site: Site) -> None:
    found, whole = states_of(model, site, only_sentence=True), states_of(model, site)
    assert len(found.layers) == len(whole.layers)
    assert found.mask.shape == (len(LENGTHS), 1)
    for a, b, c in zip(found.sentence(), found.tokens(), whole.sentence(), strict=True):
        assert torch.equal(a, c)
        assert torch.equal(b, c)
    assert [len(one) for one in found.inputs] == [len(LENGTHS)] * DEPTH


def test_model_is_as_before_between_batches(model: PreTrainedModel) -> None:
    expected = states_of(model).layers
    dropouts = [module for module in model.modules() if isinstance(module, nn.Dropout)]
    before = [module.p for module in dropouts]
    for module in dropouts:
        module.p = 0.5
    model.train()
    states_module.find_layers(model).layers[0].eval()  # a part in another mode stays in it
    modes, hooks = [module.training for module in model.modules()], hooks_of(model)
    left = model.config.model_type == "xlnet"
    for found in layer_states(model, batches(sentences(), 5, left)):
        assert [module.training for module in model.modules()] == modes
        assert hooks_of(model) == hooks
        assert torch.is_grad_enabled()
        for ours, theirs in zip(found.layers, expected, strict=True):
            assert torch.equal(ours, theirs)  # no dropout
            assert not ours.requires_grad
    for module, p in zip(dropouts, before, strict=True):
        module.p = p
    model.eval()


def test_unknown_attention_is_refused_at_once() -> None:
    config = AutoConfig.for_model(
        "fnet", hidden_size=16, intermediate_size=24, num_hidden_layers=3, vocab_size=VOCABULARY
    )
    fnet = AutoModelForSequenceClassification.from_config(config)
    with pytest.raises(UnsupportedModelError, match=r"self-attention ends; .* in FNetLayer"):
        layer_states(fnet, [], "attention")


def test_states_that_are_no_sentences_are_refused(
    model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong, hooks = model.config.model_type != "xlnet", hooks_of(model)
    monkeypatch.setattr(states_module, "time_comes_first", lambda _: wrong)
    with pytest.raises(UnsupportedModelError, match=r"mixes tokens"):
        states_of(model)
    assert hooks_of(model) == hooks
