"""Removing feed-forwards, family by family, on tiny real models, and the rules that choose them.

The expected network is the plain one whose second linear is zero: its feed-forward adds nothing to
the residual path.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    BertForMaskedLM,
    BertModel,
    LongformerConfig,
    PreTrainedModel,
)

from lp_sweep.storage.errors import MissingInputError, UnsupportedModelError
from lp_sweep.trials.model.families import find_layers, original_layers
from lp_sweep.trials.model.feedforward import feed_forward_of, parts, remove_feed_forwards
from lp_sweep.trials.model.load import load_network
from lp_sweep.trials.model.prune import keep_layers, parameter_counts
from lp_sweep.trials.spec.feedforward import canonical_rule, removed_feed_forwards
from tests.support.families import BERT_LIKE, CASES, DEBERTA_1, FAMILIES, VOCABULARY, Family
from tests.support.networks import checkpoint, count, load, logits

DEPTH = 4
# both linears and the second norm, written down by hand
PARTS = {
    "distilbert": ("ffn.lin1", "ffn.lin2", "output_layer_norm"),
    "xlnet": ("ff.layer_1", "ff.layer_2", "ff.layer_norm"),
    "modernbert": ("mlp.Wi", "mlp.Wo", "mlp_norm"),
}
BERT_PARTS = ("intermediate.dense", "output.dense", "output.LayerNorm")
NORMS: tuple[Literal["keep", "drop"], ...] = ("keep", "drop")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Sums in one order, so that equal means equal bit by bit."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(params=[*CASES, pytest.param(DEBERTA_1, id="deberta", marks=pytest.mark.slow)])
def family(request: pytest.FixtureRequest) -> Family:
    chosen: Family = request.param
    return chosen


def feed_forward_parameters(model: PreTrainedModel) -> dict[int, int]:
    """Parameters of each layer's feed-forward linears, by the layer's number in the very first
    network; 0 where it was removed."""
    linears = feed_forward_of(model.config).linears
    layers = zip(original_layers(model.config), find_layers(model).layers, strict=True)
    return {number: sum(map(count, parts(layer, linears))) for number, layer in layers}


def adding_nothing(
    family: Family, model: PreTrainedModel, positions: Sequence[int], norm: str
) -> None:
    """By hand, with every module still there."""
    _, last, second_norm = PARTS.get(family.name, BERT_PARTS)
    for position in positions:
        layer = model.get_submodule(family.layers)[position - 1]
        for parameter in layer.get_submodule(last).parameters():
            parameter.data.zero_()  # transformers guards `nn.init` against loaded weights
        if norm == "drop" and family.name != "modernbert":
            layer.set_submodule(second_norm, nn.Identity())


@pytest.mark.parametrize("norm", NORMS)
def test_feed_forwards_go_and_nothing_else(
    family: Family, norm: Literal["keep", "drop"], tmp_path: Path
) -> None:
    expected, reduced = (load(checkpoint(family.name, DEPTH)) for _ in range(2))
    weights, before = set(reduced.state_dict()), parameter_counts(reduced).total
    layer = reduced.get_submodule(family.layers)[1]
    *linears, second_norm = PARTS.get(family.name, BERT_PARTS)
    in_linears = sum(count(layer.get_submodule(path)) for path in linears)
    in_norm = count(layer.get_submodule(second_norm))
    assert feed_forward_parameters(reduced) == dict.fromkeys((1, 2, 3, 4), in_linears)
    adding_nothing(family, expected, (2, 4), norm)

    remove_feed_forwards(reduced, (4, 2), second_norm=norm)

    assert torch.equal(logits(reduced), logits(expected))
    norm_goes = norm == "drop" or family.name == "modernbert"
    gone = [*linears, second_norm] if norm_goes else linears
    prefixes = tuple(f"{family.layers}.{place}.{path}." for place in (1, 3) for path in gone)
    assert set(reduced.state_dict()) == {name for name in weights if not name.startswith(prefixes)}
    assert before - parameter_counts(reduced).total == 2 * (in_linears + in_norm * norm_goes)
    assert feed_forward_parameters(reduced) == {1: in_linears, 2: 0, 3: in_linears, 4: 0}
    assert reduced.config.lp_sweep_removed_feed_forwards == [2, 4]
    assert reduced.config.lp_sweep_second_norm == ("drop" if norm_goes else "keep")
    assert not any(module.training for module in reduced.modules())

    reduced.save_pretrained(tmp_path)
    state = torch.random.get_rng_state()
    again = load_network(tmp_path)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert type(again) is type(reduced)
    assert not again.training
    assert again.state_dict().keys() == reduced.state_dict().keys()
    assert torch.equal(logits(again), logits(expected))

    for module in (*expected.modules(), *reduced.modules()):  # 3 divides 9 tokens and 3 sentences
        if hasattr(module, "chunk_size_feed_forward"):
            module.chunk_size_feed_forward = 3
    assert torch.equal(logits(reduced), logits(expected))


def test_bert_base_by_numbers() -> None:
    with torch.device("meta"):
        model, other = BertModel(BertConfig()), BertModel(BertConfig())
    full = count(model)
    remove_feed_forwards(model, range(1, 7))
    assert full - count(model) == 6 * 4_722_432
    remove_feed_forwards(model, range(7, 13))
    assert round(100 * (full - count(model)) / full, 1) == 51.8
    remove_feed_forwards(other, [12], second_norm="drop")
    assert full - count(other) == 4_722_432 + 2 * 768


def test_layers_first_or_feed_forwards_first_is_one_network(family: Family, tmp_path: Path) -> None:
    path = checkpoint(family.name, DEPTH)
    layers_first, feed_forwards_first = load(path, (1, 3, 4)), load(path)
    remove_feed_forwards(layers_first, (3, 4))
    remove_feed_forwards(feed_forwards_first, (2, 3))
    feed_forwards_first.save_pretrained(tmp_path)
    pruned = load(tmp_path, (1, 3, 4))  # the removed one of layer 2 goes with its layer
    for removed in ((4,), ()):
        remove_feed_forwards(pruned, removed)
    assert pruned.config.lp_sweep_removed_feed_forwards == [3, 4]
    assert torch.equal(logits(pruned), logits(layers_first))
    saved = {"_name_or_path": "", "architectures": None}  # what saving and loading sets
    assert pruned.config.to_dict() | saved == layers_first.config.to_dict() | saved
    assert type(pruned) is type(layers_first)
    keep_layers(pruned, (1, 2))
    assert list(feed_forward_parameters(pruned)) == [1, 3]
    assert feed_forward_parameters(pruned)[3] == 0


def test_without_reduced_layers_it_is_an_ordinary_network_again(tmp_path: Path) -> None:
    model, plain = load(checkpoint("bert", DEPTH)), load(checkpoint("bert", DEPTH), (1, 2))
    remove_feed_forwards(model, (3, 4))
    keep_layers(model, (1, 2))
    assert model.config.to_dict() == plain.config.to_dict()
    model.save_pretrained(tmp_path)
    for loaded in (
        AutoModelForSequenceClassification.from_pretrained(tmp_path),
        load_network(tmp_path),
    ):
        assert torch.equal(logits(loaded), logits(plain))


def edit_weights(folder: Path, edit: Callable[[dict[str, torch.Tensor]], object]) -> None:
    weights = load_file(folder / "model.safetensors")
    edit(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def test_the_fresh_head_does_not_depend_on_what_was_removed(tmp_path: Path) -> None:
    path = checkpoint("bert", DEPTH)
    stored = load_file(path / "model.safetensors")
    saved = load(path)
    fresh = {name: t for name, t in saved.state_dict().items() if name not in stored}
    remove_feed_forwards(saved, (1, 2, 3, 4))
    saved.save_pretrained(tmp_path)
    edit_weights(tmp_path, lambda weights: [weights.pop(name) for name in fresh])
    for reduced in (load(tmp_path), load(tmp_path, (1, 2))):
        assert not any(feed_forward_parameters(reduced).values())
        for name, tensor in fresh.items():
            assert torch.equal(reduced.state_dict()[name], tensor), name


def test_shards_tied_weights_and_types(tmp_path: Path) -> None:
    model = BertForMaskedLM(FAMILIES["bert"].config(DEPTH)).to(torch.bfloat16)
    remove_feed_forwards(model, (2, 3))
    model.save_pretrained(tmp_path, max_shard_size="8KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    loaded = load_network(tmp_path)
    assert torch.equal(logits(loaded), logits(model))
    assert loaded.dtype == torch.bfloat16
    assert loaded.cls.predictions.decoder.weight is loaded.bert.embeddings.word_embeddings.weight


def test_a_bad_choice_changes_nothing() -> None:
    model = load(checkpoint("bert", DEPTH), (1, 3, 4))
    remove_feed_forwards(model, [3])
    config, before, weights = model.config.to_dict(), logits(model), list(model.state_dict())
    bad: list[tuple[tuple[int, ...], Any, str]] = [
        ((5,), "keep", r"not in the network \(5\); its layers are 1, 3, 4"),
        ((1, 1), "keep", "names a layer twice"),
        ((1, 3), "keep", "of layers 3 were removed before; still there: 1, 4"),
        ((1,), "drop", "'drop', but in layers 3 it is 'keep'"),
        ((1,), "none", "'none'. Use 'keep' or 'drop'"),
    ]
    for removed, norm, message in bad:
        with pytest.raises(ValueError, match=message):
            remove_feed_forwards(model, removed, second_norm=norm)
    assert torch.equal(logits(model), before)
    model.bert.encoder.layer[2].intermediate = nn.Identity()
    with pytest.raises(UnsupportedModelError, match="found 2 of them"):
        remove_feed_forwards(model, (1, 4))
    assert model.config.to_dict() == config
    assert [name for name in weights if "layer.2.intermediate" not in name] == [*model.state_dict()]


def test_other_families_are_refused() -> None:
    config = LongformerConfig(num_hidden_layers=2, vocab_size=VOCABULARY, **BERT_LIKE)
    model = AutoModelForSequenceClassification.from_config(config)
    with pytest.raises(UnsupportedModelError, match=r"this family. Use one of bert, roberta"):
        remove_feed_forwards(model, (1,))


@pytest.fixture
def reduced(tmp_path: Path) -> Path:
    model = load(checkpoint("bert", DEPTH))
    remove_feed_forwards(model, (2, 3))
    model.save_pretrained(tmp_path)
    return tmp_path


LAYER = "bert.encoder.layer.1.output"
EDITS: dict[str, Callable[[dict[str, torch.Tensor]], object]] = {
    "missing": lambda weights: weights.pop(f"{LAYER}.LayerNorm.weight"),
    "shape": lambda weights: weights.update({f"{LAYER}.LayerNorm.weight": torch.ones(9)}),
    "unexpected": lambda weights: weights.update({f"{LAYER}.dense.weight": torch.ones(16, 24)}),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS.keys())
def test_weights_that_do_not_fit_are_refused(
    edit: Callable[[dict[str, torch.Tensor]], object], reduced: Path
) -> None:
    edit_weights(reduced, edit)
    with pytest.raises(MissingInputError, match=r"1 weights are missing.*layer\.1\.output\."):
        load_network(reduced)


def test_a_config_that_cannot_be_is_refused(reduced: Path) -> None:
    config = json.loads((reduced / "config.json").read_text())
    for changes in (
        {"lp_sweep_removed_feed_forwards": [2, 9]},
        {"lp_sweep_removed_feed_forwards": "2,3"},
        {"lp_sweep_removed_feed_forwards": []},
        {"lp_sweep_second_norm": "half"},
        {"lp_sweep_kept_layers": [1, 2]},
        {"architectures": ["NoSuchModel"]},
        {"architectures": None},
        {"model_type": "nezha-of-old"},
    ):
        (reduced / "config.json").write_text(json.dumps(config | changes))
        for read in (load_network, load):
            if read is load_network or "architectures" not in changes:
                with pytest.raises(UnsupportedModelError, match=r"Load the checkpoint|Use a "):
                    read(reduced)


# -- rules

TWELVE = tuple(range(1, 13))


@pytest.mark.parametrize(
    ("rule", "kept", "expected", "text"),
    [
        ("all", TWELVE, TWELVE, "all"),
        ("none", TWELVE, (), "none"),
        ("top 3", TWELVE, (10, 11, 12), "top 3"),
        ("Bottom  02", TWELVE, (1, 2), "bottom 2"),
        ("every 4th", (1, 2, 3, 7, 8, 9, 11, 12), (7, 12), "every 4th"),
        ("every 22th", TWELVE, (), "every 22nd"),
        ([11, 9, 10], (1, 9, 11), (9, 11), "9,10,11"),
        ("11, 9,10", TWELVE, (9, 10, 11), "9,10,11"),
        ([], TWELVE, (), "none"),
    ],
)
def test_rules_by_example(
    rule: str | list[int], kept: tuple[int, ...], expected: tuple[int, ...], text: str
) -> None:
    assert removed_feed_forwards(rule, kept) == expected
    assert canonical_rule(rule) == text


RULES = st.one_of(
    st.sampled_from(["all", "none"]),
    st.builds("{} {}".format, st.sampled_from(["top", "bottom"]), st.integers(1, 20)),
    st.builds("every {}th".format, st.integers(2, 130)),
    st.lists(st.integers(1, 24), unique=True),
)
KEPT = st.lists(st.integers(1, 24), unique=True, min_size=1)


@given(RULES, KEPT)
def test_a_rule_chooses_among_the_kept_and_so_does_its_text(
    rule: str | list[int], kept: list[int]
) -> None:
    text = canonical_rule(rule)
    assert canonical_rule(text) == text
    words = text.split()
    if words[0] in ("top", "bottom") and int(words[1]) > len(kept):
        with pytest.raises(ValueError, match=f"N is at most {len(kept)}"):
            removed_feed_forwards(rule, kept)
        return
    removed = removed_feed_forwards(rule, kept)
    assert removed == removed_feed_forwards(text, kept) == removed_feed_forwards(text, kept[::-1])
    assert list(removed) == sorted(set(removed) & set(kept))
    if words[0] in ("top", "bottom"):
        assert len(removed) == int(words[1])


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("topp 3", "'topp 3' is not a rule. Use all, none, top N"),
        ("top 0", "the number is 1 or more"),
        ("every 1st", "the number is 2 or more"),
        ("1,,2", "is not a rule"),
        ("0,1", "0 is not a layer"),
        ("3,3", "names a layer twice"),
        ([True], "True is not a layer"),
        (["3"], "'3' is not a layer"),
    ],
)
def test_no_rule(rule: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        removed_feed_forwards(rule, TWELVE)
