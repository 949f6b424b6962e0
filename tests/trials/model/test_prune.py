"""Removing layers, family by family, on tiny real models.

What is expected is put together by hand: a smaller model of the same class, filled from the big
checkpoint with its keys renumbered.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import (
    AlbertConfig,
    AlbertForMaskedLM,
    AutoModelForSequenceClassification,
    BartConfig,
    BigBirdConfig,
    BigBirdForSequenceClassification,
    LongformerConfig,
    LongformerForMaskedLM,
    PreTrainedModel,
    T5Config,
    XLMConfig,
    XLMForSequenceClassification,
)

from lp_sweep.storage.errors import MissingInputError, UnsupportedModelError
from lp_sweep.trials.model.families import find_layers, sentence_states, sentence_token_index
from lp_sweep.trials.model.prune import keep_layers, parameter_counts
from tests.support.families import CASES, FAMILIES, VOCABULARY, Family, save_pretrained
from tests.support.networks import NUM_LABELS, batch, load, logits

KEPT = {  # (depth, layers kept), where the first layer may go
    "first-dropped-odd": (5, (2, 3, 4, 5)),
    "middle-dropped-odd": (5, (5, 1, 4, 2)),  # their order does not matter
    "only-the-last": (4, (4,)),
    "alternate-even": (4, (1, 3)),
    "two-layers": (2, (2,)),
    "all-kept": (4, (1, 2, 3, 4)),
}


# The subprocess sees transformers and these folders, nothing of ours.
class Checkpoints(dict[tuple[str, int], Path]):
    """(family, depth) -> its checkpoint, made when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __missing__(self, key: tuple[str, int]) -> Path:
        name, depth = key
        self[key] = save_pretrained(FAMILIES[name], depth, self._folder / f"{name}-{depth}")
        return self[key]


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], Path]:
    return Checkpoints(tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture(params=CASES)
def family(request: pytest.FixtureRequest) -> Family:
    chosen: Family = request.param
    return chosen


def renumbered(
    family: Family, weights: dict[str, torch.Tensor], kept: Sequence[int]
) -> dict[str, torch.Tensor]:
    """The weights of the kept layers under the names they have in a network of those alone."""
    chosen = {}
    for name, tensor in weights.items():
        if not name.startswith(f"{family.layers}."):
            chosen[name] = tensor
            continue
        number, rest = name.removeprefix(f"{family.layers}.").split(".", 1)
        if int(number) + 1 in kept:
            chosen[f"{family.layers}.{sorted(kept).index(int(number) + 1)}.{rest}"] = tensor
    return chosen


def hand_built(family: Family, full: PreTrainedModel, kept: Sequence[int]) -> nn.Module:
    config = family.config(len(kept))
    config.num_labels = NUM_LABELS
    if family.name == "modernbert":  # every third attends everywhere, as in the full network
        attention = ["full_attention", "sliding_attention", "sliding_attention"]
        config.layer_types = [attention[(layer - 1) % 3] for layer in sorted(kept)]
    if family.name == "xlnet":
        config.use_mems_eval = False
    model = AutoModelForSequenceClassification.from_config(config)
    model.load_state_dict(renumbered(family, full.state_dict(), kept))
    return model


def skip_if_first_must_stay(family: Family, kept: Sequence[int]) -> None:
    if family.first_layer_stays and 1 not in kept:
        pytest.skip("its first layer can't go; see test_structure_that_a_config_cannot_express")


@pytest.mark.parametrize(("depth", "kept"), KEPT.values(), ids=KEPT.keys())
def test_pruned_is_the_hand_built_network(
    family: Family, depth: int, kept: tuple[int, ...], checkpoints: dict[tuple[str, int], Path]
) -> None:
    skip_if_first_must_stay(family, kept)
    full = load(checkpoints[family.name, depth])
    expected = hand_built(family, full, kept)
    before, layers = parameter_counts(full), full.get_submodule(family.layers)
    gone = sum(
        parameter.numel()
        for number, layer in enumerate(layers, start=1)
        if number not in kept
        for parameter in layer.parameters()
    )

    pruned = load(checkpoints[family.name, depth], kept)

    assert torch.equal(logits(pruned), logits(expected))
    after = parameter_counts(pruned)
    assert (after.total, after.encoder) == (before.total - gone, before.encoder - gone)
    assert after.embedding == before.embedding
    assert getattr(pruned.config, family.depth_field) == len(kept)
    assert pruned.config.lp_sweep_kept_layers == sorted(kept)
    assert pruned.config.lp_sweep_original_depth == depth
    if len(kept) < depth:
        assert not torch.equal(logits(pruned), logits(full))


@pytest.mark.parametrize("depth", [4, 5])
def test_plain_transformers_loads_a_saved_network(
    family: Family, depth: int, checkpoints: dict[tuple[str, int], Path], tmp_path: Path
) -> None:
    kept = (1, 3) if depth == 4 else (1, 4, 5)
    model = load(checkpoints[family.name, depth], kept)
    model.save_pretrained(tmp_path)
    assert [file.name for file in tmp_path.iterdir() if file.suffix != ".json"] == [
        "model.safetensors"
    ]
    plain = AutoModelForSequenceClassification.from_pretrained(tmp_path, use_safetensors=True)
    assert (plain.config.lp_sweep_kept_layers, plain.config.lp_sweep_original_depth) == (
        list(kept),
        depth,
    )
    torch.testing.assert_close(logits(plain), logits(model), rtol=0, atol=1e-6)


def test_layers_and_embedding_are_found(
    family: Family, checkpoints: dict[tuple[str, int], Path]
) -> None:
    model = load(checkpoints[family.name, 4])
    found = find_layers(model)
    assert (found.path, found.depth_field) == (family.layers, family.depth_field)
    embedding = model.get_submodule(family.embedding)
    assert parameter_counts(model).embedding == sum(p.numel() for p in embedding.parameters())


def test_pruning_twice_is_pruning_once(
    family: Family, checkpoints: dict[tuple[str, int], Path], tmp_path: Path
) -> None:
    path = checkpoints[family.name, 5]
    once = load(path, (1, 3, 5))
    twice = load(path, (1, 3, 4, 5))
    keep_layers(twice, (1, 2, 4))
    assert torch.equal(logits(once), logits(twice))
    assert twice.config.to_dict() == once.config.to_dict()
    twice.save_pretrained(tmp_path)
    again = load(tmp_path, (1, 3))
    assert (again.config.lp_sweep_kept_layers, again.config.lp_sweep_original_depth) == ([1, 5], 5)


def test_depth_is_not_left_behind_on_modules(checkpoints: dict[tuple[str, int], Path]) -> None:
    assert load(checkpoints["xlnet", 5], (1, 3)).transformer.n_layer == 2
    assert load(checkpoints["distilbert", 5], (1, 3)).distilbert.transformer.n_layers == 2
    bert = load(checkpoints["bert", 5], (2, 4, 5)).bert.encoder.layer
    assert [layer.attention.self.layer_idx for layer in bert] == [0, 1, 2]
    modernbert = load(checkpoints["modernbert", 5], (1, 3, 4))
    assert [layer.layer_idx for layer in modernbert.model.layers] == [0, 1, 2]
    assert modernbert.config.layer_types == [
        "full_attention",
        "sliding_attention",
        "full_attention",
    ]


def test_a_list_as_long_as_the_network_is_not_always_one_entry_a_layer(
    checkpoints: dict[tuple[str, int], Path],
) -> None:
    assert load(checkpoints["deberta-v2", 2], (2,)).config.pos_att_type == ["p2c", "c2p"]


def test_longformers_windows_follow_their_layers(tmp_path: Path) -> None:
    settings = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24}
    config = LongformerConfig(
        **settings, vocab_size=VOCABULARY, num_hidden_layers=3, attention_window=[2, 4, 6]
    )
    LongformerForMaskedLM(config).save_pretrained(tmp_path)
    assert load(tmp_path, (1, 3)).config.attention_window == [2, 6]


@pytest.mark.parametrize(
    ("kept", "message"),
    [
        ((), "at least one of 1..4 must stay"),
        ((1, 1), "names a layer twice"),
        ((0, 1), "out of range; layers are 1..4"),
        ((4, 5), "out of range; layers are 1..4"),
    ],
    ids=["none", "twice", "zero", "too-high"],
)
def test_a_bad_choice_changes_nothing(
    kept: tuple[int, ...], message: str, checkpoints: dict[tuple[str, int], Path]
) -> None:
    model = load(checkpoints["bert", 4])
    config, before = model.config.to_dict(), logits(model)
    with pytest.raises(ValueError, match=message):
        keep_layers(model, kept)
    assert model.config.to_dict() == config
    assert torch.equal(logits(model), before)


@pytest.mark.parametrize("kept", [(2, 3, 4), (4,)], ids=["bottom", "only-the-last"])
def test_structure_that_a_config_cannot_express(
    kept: tuple[int, ...], checkpoints: dict[tuple[str, int], Path]
) -> None:
    model = load(checkpoints["modernbert", 4])
    config, before = model.config.to_dict(), logits(model)
    with pytest.raises(
        UnsupportedModelError,
        match=r"can't be written as a plain ModernBertForSeq.*attn_norm.* Layer 1 must stay there",
    ):
        keep_layers(model, kept)
    assert model.config.to_dict() == config
    assert torch.equal(logits(model), before)


def test_a_setting_tied_to_the_position_cannot_be_expressed() -> None:
    """BigBird seeds each layer's random attention by its position: a number, not a weight."""
    settings = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24}
    config = BigBirdConfig(vocab_size=VOCABULARY, num_hidden_layers=3, **settings)
    with pytest.raises(UnsupportedModelError, match="Layer 2 must stay there"):
        keep_layers(BigBirdForSequenceClassification(config), (1, 3))


def test_a_network_changed_by_hand_is_refused(checkpoints: dict[tuple[str, int], Path]) -> None:
    model = load(checkpoints["bert", 4])
    model.bert.encoder.layer[1].output.dense = nn.Linear(24, 16, bias=False)
    with pytest.raises(UnsupportedModelError, match="Remove layers before changing anything else"):
        keep_layers(model, (1, 2))


def test_no_single_list_of_layers_is_refused() -> None:
    config = XLMConfig(emb_dim=16, n_layers=2, n_heads=2, n_words=VOCABULARY)
    with pytest.raises(UnsupportedModelError, match=r"4 module lists .* exactly one is needed"):
        find_layers(XLMForSequenceClassification(config))


def test_albert_is_refused(tmp_path: Path) -> None:
    config = AlbertConfig(
        vocab_size=VOCABULARY, embedding_size=8, hidden_size=16, num_attention_heads=2
    )
    AlbertForMaskedLM(config).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModelError, match="share one set of weights"):
        load(tmp_path)


@pytest.mark.parametrize("config", [T5Config(), BartConfig()], ids=["t5", "bart"])
def test_encoder_decoders_are_refused_from_their_config(config: Any, tmp_path: Path) -> None:
    config.save_pretrained(tmp_path)  # no weights: none may be asked for
    with pytest.raises(UnsupportedModelError, match="encoder-decoder"):
        load(tmp_path)


def test_pickled_weights_are_never_loaded(
    checkpoints: dict[tuple[str, int], Path], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text((checkpoints["bert", 4] / "config.json").read_text())
    weights = load_file(checkpoints["bert", 4] / "model.safetensors")
    torch.save(weights, tmp_path / "pytorch_model.bin")
    with pytest.raises(MissingInputError, match="convert the model once"):
        load(tmp_path)


def test_code_that_comes_with_a_model_is_not_run(
    checkpoints: dict[tuple[str, int], Path], tmp_path: Path
) -> None:
    config = json.loads((checkpoints["bert", 4] / "config.json").read_text())
    config |= {
        "model_type": "somebodys-own",
        "auto_map": {
            "AutoConfig": "own.OwnConfig",
            "AutoModelForSequenceClassification": "own.OwnModel",
        },
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(UnsupportedModelError, match="code that comes with a model is not run"):
        load(tmp_path)
    config["model_type"] = "bert"  # a built-in type: our class is used, theirs isn't looked at
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(
        load_file(checkpoints["bert", 4] / "model.safetensors"), tmp_path / "model.safetensors"
    )
    assert type(load(tmp_path)).__module__ == "transformers.models.bert.modeling_bert"
    assert not (tmp_path / "ran").exists()


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match="can't be found"):
        load(tmp_path / "nothing")


def test_an_encoder_with_weights_missing_is_refused(
    checkpoints: dict[tuple[str, int], Path], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text((checkpoints["bert", 4] / "config.json").read_text())
    weights = load_file(checkpoints["bert", 4] / "model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if "encoder.layer.3." not in name}
    save_file(kept, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(MissingInputError, match="16 weights of the encoder are not in the checkp"):
        load(tmp_path)


def fresh_parameters(family: Family, model: PreTrainedModel, path: Path) -> dict[str, torch.Tensor]:
    stored = load_file(path / "model.safetensors")
    shapes = {name: tensor.shape for name, tensor in stored.items()}
    return {
        name: tensor
        for name, tensor in model.state_dict().items()
        if not name.startswith(f"{family.layers}.") and shapes.get(name) != tensor.shape
    }


def test_the_head_depends_on_the_seed_and_not_on_the_depth(
    family: Family, checkpoints: dict[tuple[str, int], Path]
) -> None:
    path = checkpoints[family.name, 5]
    shallow = fresh_parameters(family, load(path, (1,)), path)
    deep = fresh_parameters(family, load(path), path)
    other = fresh_parameters(family, load(path, (1,), seed=2), path)
    assert shallow.keys() == deep.keys() != set()
    for name, tensor in shallow.items():
        assert torch.equal(tensor, deep[name]), name
        if "weight" in name:
            assert tensor.std() > 0
            assert not torch.equal(tensor, other[name]), name
        assert torch.isfinite(tensor).all()


def test_what_the_checkpoint_holds_is_loaded_as_it_is(
    family: Family, checkpoints: dict[tuple[str, int], Path]
) -> None:
    path = checkpoints[family.name, 4]
    stored = load_file(path / "model.safetensors")
    model = load(path)
    held = {name: t for name, t in model.state_dict().items() if name in stored}
    assert len(held) > 4
    for name, tensor in held.items():
        assert torch.equal(tensor, stored[name]), name
    assert ("bert.pooler.dense.weight" in held) == (family.name == "bert")
    assert not any(t.is_meta for t in (*model.parameters(), *model.buffers()))
    assert all(p.dtype == torch.float32 for p in model.parameters())
    assert not model.training


def test_modernberts_head_is_drawn_at_the_original_depth(
    checkpoints: dict[tuple[str, int], Path], tmp_path: Path
) -> None:
    """Its rule scales with the depth; a checkpoint without the dense layer of the head shows it."""
    path = checkpoints["modernbert", 5]
    weights = load_file(path / "model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if not name.startswith("head.")}
    save_file(kept, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text((path / "config.json").read_text())
    one, all_ = load(tmp_path, (1,)), load(tmp_path)
    assert torch.equal(one.head.dense.weight, all_.head.dense.weight)
    assert one.config.num_hidden_layers == 1


def test_loading_leaves_the_random_state_alone(checkpoints: dict[tuple[str, int], Path]) -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    load(checkpoints["bert", 5], (1, 3))
    assert torch.equal(torch.rand(1), expected)


def test_a_head_for_other_labels_is_drawn_anew(
    checkpoints: dict[tuple[str, int], Path], tmp_path: Path
) -> None:
    load(checkpoints["bert", 4], seed=9).save_pretrained(tmp_path)
    regression = load(tmp_path, (1, 2), num_labels=1, problem_type="regression")
    direct = load(checkpoints["bert", 4], (1, 2), num_labels=1, problem_type="regression")
    assert torch.equal(logits(regression), logits(direct))
    assert logits(regression).shape == (3, 1)
    assert regression.config.problem_type == "regression"


def test_xlnet_takes_a_ragged_last_batch(checkpoints: dict[tuple[str, int], Path]) -> None:
    model = load(checkpoints["xlnet", 4], (1, 2))
    output = model(**batch())
    assert output.mems is None
    assert not model.config.use_mems_eval


MASKS = {
    "right-padded": ([[1, 1, 1, 0], [1, 1, 1, 1], [1, 0, 0, 0]], [0, 0, 0], [2, 3, 0]),
    "left-padded": ([[0, 1, 1, 1], [1, 1, 1, 1], [0, 0, 0, 1]], [1, 0, 3], [3, 3, 3]),
}


@pytest.mark.parametrize(("mask", "first", "last"), MASKS.values(), ids=MASKS.keys())
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float32], ids=str)
def test_sentence_token(
    mask: list[list[int]], first: list[int], last: list[int], dtype: torch.dtype
) -> None:
    attention_mask = torch.tensor(mask).to(dtype)
    assert sentence_token_index(attention_mask, last=False).tolist() == first
    assert sentence_token_index(attention_mask, last=True).tolist() == last
    states = torch.arange(24.0).reshape(3, 4, 2)
    for at_end, index in ((False, first), (True, last)):
        expected = torch.stack([states[row, i] for row, i in enumerate(index)])
        assert torch.equal(sentence_states(states, attention_mask, at_end), expected)
