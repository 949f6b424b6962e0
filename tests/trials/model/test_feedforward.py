"""Removing feed-forwards, family by family, on tiny real models, and the rules that choose them.

What is expected is the plain network with the second linear at zero: its feed-forward adds nothing
to the residual path, which is what removing it must come to.
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
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    BertConfig,
    BertForMaskedLM,
    BertModel,
    LongformerConfig,
    PreTrainedModel,
)

from lp_sweep.storage.errors import MissingInputError, UnsupportedModelError
from lp_sweep.trials.model.feedforward import load_network, remove_feed_forwards
from lp_sweep.trials.model.feedforward_rules import canonical_rule, removed_feed_forwards
from lp_sweep.trials.model.prune import keep_layers, parameter_counts
from tests.support.families import CASES, DEBERTA, FAMILIES, VOCABULARY, Family, save_pretrained
from tests.support.networks import feed_forward_parameters, load, logits

DEPTH = 4
BERT_LINEARS = ("intermediate.dense", "output.dense")
# both linears and the second norm, written down by hand
PARTS = {
    "distilbert": ("ffn.lin1", "ffn.lin2", "output_layer_norm"),
    "xlnet": ("ff.layer_1", "ff.layer_2", "ff.layer_norm"),
    "modernbert": ("mlp.Wi", "mlp.Wo", "mlp_norm"),
}
DEBERTA_1 = Family(
    name="deberta",
    model_type="deberta",
    layers="deberta.encoder.layer",
    embedding="deberta.embeddings",
    settings={name: v for name, v in DEBERTA.items() if name != "position_buckets"},
)
ALL_FAMILIES = {**FAMILIES, "deberta": DEBERTA_1}
NORMS: tuple[Literal["keep", "drop"], ...] = ("keep", "drop")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Sums in one order, so that equal means equal bit by bit."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Checkpoints(dict[str, Path]):
    """Family -> its checkpoint, made when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __missing__(self, name: str) -> Path:
        self[name] = save_pretrained(ALL_FAMILIES[name], DEPTH, self._folder / name)
        return self[name]


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return Checkpoints(tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture(params=[*CASES, pytest.param(DEBERTA_1, id="deberta", marks=pytest.mark.slow)])
def family(request: pytest.FixtureRequest) -> Family:
    chosen: Family = request.param
    return chosen


def layer_parts(family: Family) -> tuple[str, str, str]:
    return PARTS.get(family.name, (*BERT_LINEARS, "output.LayerNorm"))


def adding_nothing(
    family: Family, model: PreTrainedModel, positions: Sequence[int], norm: str
) -> None:
    """By hand, with every module still there."""
    _, last, second_norm = layer_parts(family)
    for position in positions:
        layer = model.get_submodule(family.layers)[position - 1]
        for parameter in layer.get_submodule(last).parameters():
            nn.init.zeros_(parameter)
        if norm == "drop" and family.name != "modernbert":
            layer.set_submodule(second_norm, nn.Identity())


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("norm", NORMS)
def test_reduced_is_the_network_whose_feed_forwards_add_nothing(
    family: Family, norm: Literal["keep", "drop"], checkpoints: dict[str, Path]
) -> None:
    path = checkpoints[family.name]
    expected, reduced, before = load(path), load(path), logits(load(path))
    adding_nothing(family, expected, (2, 4), norm)

    remove_feed_forwards(reduced, (4, 2), second_norm=norm)

    assert not torch.equal(logits(reduced), before)
    assert torch.equal(logits(reduced), logits(expected))
    for module in (*expected.modules(), *reduced.modules()):  # 3 divides 9 tokens and 3 sentences
        if hasattr(module, "chunk_size_feed_forward"):
            module.chunk_size_feed_forward = 3
    assert torch.equal(logits(reduced), logits(expected))
    assert reduced.config.lp_sweep_removed_feed_forwards == [2, 4]
    assert reduced.config.lp_sweep_second_norm == ("drop" if family.name == "modernbert" else norm)


@pytest.mark.parametrize("norm", NORMS)
def test_the_linears_are_gone_and_nothing_else(
    family: Family, norm: Literal["keep", "drop"], checkpoints: dict[str, Path]
) -> None:
    model = load(checkpoints[family.name])
    before, names = parameter_counts(model), set(model.state_dict())
    layer = model.get_submodule(family.layers)[2]
    *linears, second_norm = layer_parts(family)
    of_linears = sum(count(layer.get_submodule(path)) for path in linears)
    of_norm = count(layer.get_submodule(second_norm))
    assert feed_forward_parameters(model) == dict.fromkeys((1, 2, 3, 4), of_linears)

    remove_feed_forwards(model, [3], second_norm=norm)

    norm_goes = norm == "drop" or family.name == "modernbert"
    gone = [*linears, second_norm] if norm_goes else linears
    prefixes = tuple(f"{family.layers}.2.{path}." for path in gone)
    assert set(model.state_dict()) == {name for name in names if not name.startswith(prefixes)}
    assert before.total - parameter_counts(model).total == of_linears + of_norm * norm_goes
    assert feed_forward_parameters(model) == {1: of_linears, 2: of_linears, 3: 0, 4: of_linears}
    assert all(module.training is False for module in model.modules())


def test_bert_base_by_numbers() -> None:
    with torch.device("meta"):
        model = BertModel(BertConfig())
    full = count(model)
    assert feed_forward_parameters(model) == dict.fromkeys(range(1, 13), 4_722_432)
    remove_feed_forwards(model, range(1, 7))
    assert full - count(model) == 6 * 4_722_432
    remove_feed_forwards(model, range(7, 13))
    assert full - count(model) == 12 * 4_722_432
    assert round(100 * (full - count(model)) / full, 1) == 51.8
    with torch.device("meta"):
        model = BertModel(BertConfig())
    remove_feed_forwards(model, [12], second_norm="drop")
    assert full - count(model) == 4_722_432 + 2 * 768


@pytest.mark.parametrize("norm", NORMS)
def test_a_saved_network_comes_back(
    family: Family, norm: Literal["keep", "drop"], checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    model = load(checkpoints[family.name], (1, 3, 4))
    remove_feed_forwards(model, (1, 4), second_norm=norm)
    model.save_pretrained(tmp_path)
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    again = load_network(tmp_path)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert type(again) is type(model)
    assert not again.training
    weights, found = model.state_dict(), again.state_dict()
    assert found.keys() == weights.keys()
    assert all(torch.equal(found[name], weights[name]) for name in weights)
    assert torch.equal(logits(again), logits(model))


def test_layers_first_or_feed_forwards_first_is_one_network(
    family: Family, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    path = checkpoints[family.name]
    layers_first, feed_forwards_first = load(path, (1, 3, 4)), load(path)
    remove_feed_forwards(layers_first, (3, 4))
    remove_feed_forwards(feed_forwards_first, (2, 3))
    feed_forwards_first.save_pretrained(tmp_path)
    pruned = load(tmp_path, (1, 3, 4))  # the removed one of layer 2 goes with its layer
    remove_feed_forwards(pruned, (4,))
    assert pruned.config.lp_sweep_removed_feed_forwards == [3, 4]
    assert torch.equal(logits(pruned), logits(layers_first))
    ours, theirs = pruned.config.to_dict(), layers_first.config.to_dict()
    assert ours | {"_name_or_path": "", "architectures": None} == theirs | {
        "_name_or_path": "",
        "architectures": None,
    }
    assert type(pruned) is type(layers_first)
    keep_layers(pruned, (1, 2))
    assert list(feed_forward_parameters(pruned)) == [1, 3]
    assert feed_forward_parameters(pruned)[3] == 0


def test_without_reduced_layers_it_is_an_ordinary_network_again(
    checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    model, plain = load(checkpoints["bert"]), load(checkpoints["bert"], (1, 2))
    remove_feed_forwards(model, (3, 4))
    keep_layers(model, (1, 2))
    assert model.config.to_dict() == plain.config.to_dict()
    model.save_pretrained(tmp_path)
    by_transformers = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert torch.equal(logits(by_transformers), logits(model))


def test_the_fresh_head_does_not_depend_on_what_was_removed(
    family: Family, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    path = checkpoints[family.name]
    stored = load_file(path / "model.safetensors")
    saved = load(path)
    fresh = {n: t for n, t in saved.state_dict().items() if n not in stored}
    remove_feed_forwards(saved, (1, 2, 3, 4))
    saved.save_pretrained(tmp_path)
    edit_weights(tmp_path, lambda weights: [weights.pop(n) for n in {*weights} - {*stored}])
    for reduced in (load(tmp_path), load(tmp_path, (1, 2))):
        assert not any(feed_forward_parameters(reduced).values())
        for name in fresh:
            assert torch.equal(reduced.state_dict()[name], fresh[name]), name
    other = load(tmp_path, seed=2).state_dict()
    assert any(not torch.equal(other[name], fresh[name]) for name in fresh)


def test_a_plain_checkpoint_is_what_transformers_gives(checkpoints: dict[str, Path]) -> None:
    loaded = load_network(checkpoints["roberta"])
    plain = AutoModelForMaskedLM.from_pretrained(checkpoints["roberta"])
    assert type(loaded) is type(plain)
    assert torch.equal(logits(loaded), logits(plain))


def test_shards_tied_weights_and_types(tmp_path: Path) -> None:
    config = FAMILIES["bert"].config(DEPTH)
    model = BertForMaskedLM(config).to(torch.bfloat16)
    remove_feed_forwards(model, (2, 3))
    model.save_pretrained(tmp_path, max_shard_size="8KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    loaded = load_network(tmp_path)
    assert torch.equal(logits(loaded), logits(model))
    assert loaded.dtype == torch.bfloat16
    assert loaded.cls.predictions.decoder.weight is loaded.bert.embeddings.word_embeddings.weight


def test_removing_again_adds_to_the_list(checkpoints: dict[str, Path]) -> None:
    once, twice = load(checkpoints["bert"]), load(checkpoints["bert"])
    remove_feed_forwards(once, (1, 2, 4), second_norm="drop")
    remove_feed_forwards(twice, (4,), second_norm="drop")
    remove_feed_forwards(twice, ())
    remove_feed_forwards(twice, (2, 1), second_norm="drop")
    assert twice.config.to_dict() == once.config.to_dict()
    assert torch.equal(logits(twice), logits(once))


BAD = {
    "not-there": ((5,), "keep", r"not in the network \(5\); its layers are 1, 3, 4"),
    "not-kept": ((1, 2), "keep", r"not in the network \(2\)"),
    "zero": ((0,), "keep", "not in the network"),
    "twice": ((1, 1), "keep", "names a layer twice"),
    "again": ((1, 3), "keep", "of layers 3 were removed before; still there: 1, 4"),
    "other-norm": ((1,), "drop", "'drop', but in layers 3 it is 'keep'"),
    "no-norm": ((1,), "none", "'none'. Use 'keep' or 'drop'"),
}


@pytest.mark.parametrize(("removed", "norm", "message"), BAD.values(), ids=BAD.keys())
def test_a_bad_choice_changes_nothing(
    removed: tuple[int, ...], norm: Any, message: str, checkpoints: dict[str, Path]
) -> None:
    model = load(checkpoints["bert"], (1, 3, 4))
    remove_feed_forwards(model, [3])
    config, before, weights = model.config.to_dict(), logits(model), list(model.state_dict())
    with pytest.raises(ValueError, match=message):
        remove_feed_forwards(model, removed, second_norm=norm)
    assert model.config.to_dict() == config
    assert list(model.state_dict()) == weights
    assert torch.equal(logits(model), before)


def test_a_layer_changed_by_hand_stops_it_before_the_first(checkpoints: dict[str, Path]) -> None:
    model = load(checkpoints["bert"])
    model.bert.encoder.layer[2].intermediate = nn.Identity()
    config, weights = model.config.to_dict(), list(model.state_dict())
    with pytest.raises(UnsupportedModelError, match="found 2 of them"):
        remove_feed_forwards(model, (1, 3))
    assert model.config.to_dict() == config
    assert list(model.state_dict()) == weights


def test_other_families_are_refused() -> None:
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24}
    config = LongformerConfig(num_hidden_layers=2, vocab_size=VOCABULARY, **sizes)
    model = AutoModelForSequenceClassification.from_config(config)
    weights = list(model.state_dict())
    with pytest.raises(UnsupportedModelError, match=r"this family. Use one of bert, roberta"):
        remove_feed_forwards(model, (1,))
    assert list(model.state_dict()) == weights
    assert not hasattr(model.config, "lp_sweep_removed_feed_forwards")


@pytest.fixture
def reduced(checkpoints: dict[str, Path], tmp_path: Path) -> Path:
    model = load(checkpoints["bert"])
    remove_feed_forwards(model, (2, 3))
    model.save_pretrained(tmp_path)
    return tmp_path


def edit_weights(folder: Path, edit: Callable[[dict[str, torch.Tensor]], object]) -> None:
    weights = load_file(folder / "model.safetensors")
    edit(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


LAYER = "bert.encoder.layer"
EDITS: dict[str, Callable[[dict[str, torch.Tensor]], object]] = {
    "missing": lambda weights: weights.pop(f"{LAYER}.1.output.LayerNorm.weight"),
    "shape": lambda weights: weights.update({f"{LAYER}.1.output.LayerNorm.weight": torch.ones(9)}),
    "unexpected": lambda weights: weights.update(
        {f"{LAYER}.1.output.dense.weight": torch.ones(16, 24)}
    ),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS.keys())
def test_weights_that_do_not_fit_are_refused(
    edit: Callable[[dict[str, torch.Tensor]], object], reduced: Path
) -> None:
    edit_weights(reduced, edit)
    with pytest.raises(MissingInputError, match=r"1 weights are missing.*layer\.1\.output\."):
        load_network(reduced)


@pytest.mark.parametrize(
    "changes",
    [
        {"lp_sweep_removed_feed_forwards": [2, 9]},
        {"lp_sweep_removed_feed_forwards": "2,3"},
        {"lp_sweep_removed_feed_forwards": []},
        {"lp_sweep_second_norm": "half"},
        {"lp_sweep_kept_layers": [1, 2]},
        {"architectures": ["NoSuchModel"]},
        {"architectures": None},
        {"model_type": "nezha-of-old"},
    ],
    ids=str,
)
def test_a_config_that_cannot_be_is_refused(changes: dict[str, Any], reduced: Path) -> None:
    config = json.loads((reduced / "config.json").read_text())
    (reduced / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(UnsupportedModelError, match=r"Load the checkpoint|Use a "):
        load_network(reduced)
    if "architectures" not in changes:
        with pytest.raises(UnsupportedModelError, match=r"Load the checkpoint|Use a "):
            load(reduced)


def test_pickled_weights_and_absent_folders_are_refused(reduced: Path) -> None:
    torch.save(load_file(reduced / "model.safetensors"), reduced / "pytorch_model.bin")
    (reduced / "model.safetensors").unlink()
    with pytest.raises(MissingInputError, match="pickled weights are never loaded"):
        load_network(reduced)
    with pytest.raises(MissingInputError, match="can't be found"):
        load_network(reduced / "nothing")


# --- rules ---

TWELVE = tuple(range(1, 13))


@pytest.mark.parametrize(
    ("rule", "kept", "expected", "text"),
    [
        ("all", TWELVE, TWELVE, "all"),
        ("none", TWELVE, (), "none"),
        ("top 3", TWELVE, (10, 11, 12), "top 3"),
        ("Bottom  02", TWELVE, (1, 2), "bottom 2"),
        ("every 2nd", TWELVE, (2, 4, 6, 8, 10, 12), "every 2nd"),
        ("every 4th", (1, 2, 3, 7, 8, 9, 11, 12), (7, 12), "every 4th"),
        ("every 4th", (1, 2, 3), (), "every 4th"),
        ("every 22th", TWELVE, (), "every 22nd"),
        ("top 2", (1, 5, 9), (5, 9), "top 2"),
        ([11, 9, 10], (1, 9, 11), (9, 11), "9,10,11"),
        ("11, 9,10", TWELVE, (9, 10, 11), "9,10,11"),
        ([12], (1, 2), (), "12"),
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


@given(KEPT, st.data())
def test_how_many_a_rule_chooses(kept: list[int], data: st.DataObject) -> None:
    n = data.draw(st.integers(1, len(kept)))
    top, bottom = (removed_feed_forwards(f"{end} {n}", kept) for end in ("top", "bottom"))
    assert len(top) == len(bottom) == n
    assert (
        sum(layer > top[0] for layer in kept) == n - 1 == sum(layer < bottom[-1] for layer in kept)
    )
    every = removed_feed_forwards(f"every {n + 1}th", kept)
    ascending = sorted(kept)
    assert [ascending.index(layer) + 1 for layer in every] == [
        position for position in range(1, len(kept) + 1) if position % (n + 1) == 0
    ]


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("topp 3", "'topp 3' is not a rule. Use all, none, top N"),
        ("top -1", "is not a rule"),
        ("top 0", "the number is 1 or more"),
        ("every 1st", "the number is 2 or more"),
        ("", "is not a rule"),
        ("1,,2", "is not a rule"),
        ("0,1", "0 is not a layer"),
        ("3,3", "names a layer twice"),
        ([0], "0 is not a layer"),
        ([True], "True is not a layer"),
        (["3"], "'3' is not a layer"),
        ([2, 2], "names a layer twice"),
    ],
)
def test_no_rule(rule: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        removed_feed_forwards(rule, TWELVE)
    with pytest.raises(ValueError, match=message):
        canonical_rule(rule)
