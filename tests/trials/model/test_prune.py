"""Removing layers, family by family, on tiny real models."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import (
    AlbertConfig,
    AutoModelForSequenceClassification,
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
from lp_sweep.trials.model.families import find_layers
from lp_sweep.trials.model.load import load_network
from lp_sweep.trials.model.prune import keep_layers, parameter_counts
from tests.support.families import BERT_LIKE, CASES, VOCABULARY, Family
from tests.support.networks import NUM_LABELS, batch, checkpoint, count, load, logits


@pytest.fixture(params=CASES)
def family(request: pytest.FixtureRequest) -> Family:
    chosen: Family = request.param
    return chosen


def hand_built(family: Family, full: PreTrainedModel, kept: Sequence[int]) -> nn.Module:
    """A smaller model of the same class, with the kept layers' weights under their new numbers."""
    config = family.config(len(kept))
    config.num_labels = NUM_LABELS
    if family.name == "modernbert":  # every third attends everywhere, as in the full network
        attention = ["full_attention", "sliding_attention", "sliding_attention"]
        config.layer_types = [attention[(layer - 1) % 3] for layer in sorted(kept)]
    if family.name == "xlnet":
        config.use_mems_eval = False
    weights = {}
    for name, tensor in full.state_dict().items():
        if name.startswith(f"{family.layers}."):
            number, rest = name.removeprefix(f"{family.layers}.").split(".", 1)
            if int(number) + 1 not in kept:
                continue
            name = f"{family.layers}.{sorted(kept).index(int(number) + 1)}.{rest}"
        weights[name] = tensor
    model = AutoModelForSequenceClassification.from_config(config)
    model.load_state_dict(weights)
    return model


@pytest.mark.parametrize("kept", [(5, 1, 4, 2), (5,)], ids=["mixed", "last"])
def test_pruned_is_the_hand_built_network(family: Family, kept: tuple[int, ...]) -> None:
    if family.first_layer_stays and 1 not in kept:
        pytest.skip("its first layer can't go; see test_a_choice_that_is_refused_changes_nothing")
    full = load(checkpoint(family.name, 5))
    layers, before = full.get_submodule(family.layers), parameter_counts(full)
    gone = sum(count(layer) for number, layer in enumerate(layers, 1) if number not in kept)

    pruned = load(checkpoint(family.name, 5), kept)

    assert torch.equal(logits(pruned), logits(hand_built(family, full, kept)))
    after = parameter_counts(pruned)
    assert (after.total, after.encoder) == (before.total - gone, before.encoder - gone)
    assert after.embedding == count(full.get_submodule(family.embedding))
    found = find_layers(pruned)
    assert (found.path, found.depth_field) == (family.layers, family.depth_field)
    assert getattr(pruned.config, family.depth_field) == len(kept)
    assert pruned.config.lp_sweep_kept_layers == sorted(kept)
    assert pruned.config.lp_sweep_original_depth == 5


def test_pruning_twice_is_pruning_once_and_plain_transformers_loads_it(
    family: Family, tmp_path: Path
) -> None:
    path = checkpoint(family.name, 5)
    once, twice = load(path, (1, 3, 5)), load(path, (1, 3, 4, 5))
    keep_layers(twice, (1, 2, 4))
    assert torch.equal(logits(once), logits(twice))
    assert twice.config.to_dict() == once.config.to_dict()
    twice.save_pretrained(tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {"config.json", "model.safetensors"}
    plain = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert plain.config.lp_sweep_kept_layers == [1, 3, 5]
    torch.testing.assert_close(logits(plain), logits(once), rtol=0, atol=1e-6)
    again = load(tmp_path, (1, 3)).config
    assert (again.lp_sweep_kept_layers, again.lp_sweep_original_depth) == ([1, 5], 5)


def test_the_checkpoint_is_loaded_as_it_is_and_the_seed_draws_the_head_at_any_depth(
    family: Family,
) -> None:
    path = checkpoint(family.name, 5)
    stored = load_file(path / "model.safetensors")
    deep = load(path)
    shallow, other = (load(path, (1,), seed=seed).state_dict() for seed in (1, 2))
    for name, tensor in deep.state_dict().items():
        if name in stored and tensor.shape == stored[name].shape:
            assert torch.equal(tensor, stored[name]), name
            continue
        assert torch.equal(tensor, shallow[name]), name
        if "weight" in name:
            assert 0 < tensor.std() < torch.inf
            assert not torch.equal(tensor, other[name]), name
    assert ("bert.pooler.dense.weight" in stored) == (family.name == "bert")
    assert not any(t.is_meta for t in (*deep.parameters(), *deep.buffers()))
    assert {p.dtype for p in deep.parameters()} == {torch.float32}
    assert not deep.training


def test_depth_is_not_left_behind_on_modules() -> None:
    assert load(checkpoint("xlnet", 5), (1, 3)).transformer.n_layer == 2
    assert load(checkpoint("distilbert", 5), (1, 3)).distilbert.transformer.n_layers == 2
    bert = load(checkpoint("bert", 5), (2, 4, 5)).bert.encoder.layer
    assert [layer.attention.self.layer_idx for layer in bert] == [0, 1, 2]


def test_settings_of_single_layers_follow_them(tmp_path: Path) -> None:
    config = LongformerConfig(
        **BERT_LIKE, vocab_size=VOCABULARY, num_hidden_layers=3, attention_window=[2, 4, 6]
    )
    LongformerForMaskedLM(config).save_pretrained(tmp_path)
    assert load(tmp_path, (1, 3)).config.attention_window == [2, 6]
    # as long as the network is deep, but not one entry a layer
    assert load(checkpoint("deberta-v2", 2), (2,)).config.pos_att_type == ["p2c", "c2p"]


def changed_by_hand(model: PreTrainedModel) -> None:
    model.bert.encoder.layer[1].output.dense = nn.Linear(24, 16, bias=False)


@pytest.mark.parametrize(
    ("name", "kept", "change", "error", "message"),
    [
        ("bert", (), None, ValueError, "at least one of 1..4 must stay"),
        ("bert", (1, 1), None, ValueError, "names a layer twice"),
        ("bert", (0, 1), None, ValueError, "out of range; layers are 1..4"),
        ("bert", (4, 5), None, ValueError, "out of range; layers are 1..4"),
        ("bert", (1, 2), changed_by_hand, UnsupportedModelError, "before changing anything else"),
        pytest.param(
            *("modernbert", (2, 3, 4), None, UnsupportedModelError),
            r"a plain ModernBertForSeq.*attn_norm.* Layer 1 must stay there",
            id="structure that a config cannot express",
        ),
    ],
)
def test_a_choice_that_is_refused_changes_nothing(
    name: str,
    kept: tuple[int, ...],
    change: Callable[[PreTrainedModel], None] | None,
    error: type[Exception],
    message: str,
) -> None:
    model = load(checkpoint(name, 4))
    if change is not None:
        change(model)
    config, before = model.config.to_dict(), logits(model)
    with pytest.raises(error, match=message):
        keep_layers(model, kept)
    assert model.config.to_dict() == config
    assert torch.equal(logits(model), before)


def test_a_setting_tied_to_the_position_cannot_be_expressed() -> None:
    """BigBird seeds each layer's random attention by its position: a number, not a weight."""
    config = BigBirdConfig(vocab_size=VOCABULARY, num_hidden_layers=3, **BERT_LIKE)
    with pytest.raises(UnsupportedModelError, match="Layer 2 must stay there"):
        keep_layers(BigBirdForSequenceClassification(config), (1, 3))


def test_no_single_list_of_layers_is_refused() -> None:
    config = XLMConfig(emb_dim=16, n_layers=2, n_heads=2, n_words=VOCABULARY)
    with pytest.raises(UnsupportedModelError, match=r"4 module lists .* exactly one is needed"):
        find_layers(XLMForSequenceClassification(config))


@pytest.mark.parametrize(
    ("config", "message"),
    [(AlbertConfig(), "share one set of weights"), (T5Config(), "encoder-decoder")],
    ids=["albert", "t5"],
)
def test_a_family_without_layers_to_remove_is_refused_by_its_config(
    config: Any, message: str, tmp_path: Path
) -> None:
    config.save_pretrained(tmp_path)  # no weights: none may be asked for
    with pytest.raises(UnsupportedModelError, match=message):
        load(tmp_path)


def copied(path: Path, target: Path, without: str = "") -> Path:
    """The checkpoint, without the weights whose names have this in them."""
    shutil.copyfile(path / "config.json", target / "config.json")
    weights = load_file(path / "model.safetensors").items()
    kept = {name: tensor for name, tensor in weights if not without or without not in name}
    save_file(kept, target / "model.safetensors", metadata={"format": "pt"})
    return target


def test_pickled_absent_and_incomplete_weights_are_refused(tmp_path: Path) -> None:
    copied(checkpoint("bert", 4), tmp_path, without="encoder.layer.3.")
    with pytest.raises(MissingInputError, match="16 weights of the encoder are not in the checkp"):
        load(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(
        load_file(checkpoint("bert", 4) / "model.safetensors"), tmp_path / "pytorch_model.bin"
    )
    for read in (load, load_network):
        with pytest.raises(MissingInputError, match="convert the model once"):
            read(tmp_path)
        with pytest.raises(MissingInputError, match="can't be found"):
            read(tmp_path / "nothing")


def test_code_that_comes_with_a_model_is_not_run(tmp_path: Path) -> None:
    config = json.loads((copied(checkpoint("bert", 4), tmp_path) / "config.json").read_text())
    config["auto_map"] = {
        "AutoConfig": "own.OwnConfig",
        "AutoModelForSequenceClassification": "own.OwnModel",
    }
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "somebodys-own"}))
    with pytest.raises(UnsupportedModelError, match="code that comes with a model is not run"):
        load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))  # a built-in type: our class is used
    assert type(load(tmp_path)).__module__ == "transformers.models.bert.modeling_bert"
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "left_over",
    [
        {"output_attentions": True, "output_hidden_states": True, "return_dict": False},
        {"torchscript": True, "gradient_checkpointing": True, "chunk_size_feed_forward": 2},
        {"_attn_implementation": "nonsense", "attn_implementation": "flash_attention_2"},
        {"num_labels": 7, "problem_type": "regression"},
        {"id2label": {"0": "a", "1": "b"}, "label2id": {"a": 0}},
    ],
    ids=str,
)
def test_what_another_program_left_in_a_config_changes_nothing(
    tmp_path: Path, left_over: dict[str, Any]
) -> None:
    plain = load(checkpoint("bert", 4), (1, 2))
    config = json.loads((copied(checkpoint("bert", 4), tmp_path) / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | left_over))
    found = load(tmp_path, (1, 2))
    answer = found(**batch())
    assert torch.equal(answer.logits, logits(plain))
    assert not {"attentions", "hidden_states"} & set(answer)
    found.save_pretrained(tmp_path / "again")
    plain.save_pretrained(tmp_path / "plain")
    both = [
        json.loads((tmp_path / each / "config.json").read_text()) for each in ("again", "plain")
    ]
    written, usual = ({key: each.get(key) or None for key in left_over} for each in both)
    assert written == usual


def test_a_checkpoint_with_nan_names_the_tensor(tmp_path: Path) -> None:
    tensors = load_file(copied(checkpoint("bert", 4), tmp_path) / "model.safetensors")
    name = next(name for name in tensors if name.endswith("layer.1.output.dense.weight"))
    tensors[name][0, 0] = torch.inf
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(MissingInputError, match=rf"{name} .*NaN or infinite"):
        load(tmp_path)


def test_modernberts_head_is_drawn_at_the_original_depth(tmp_path: Path) -> None:
    """Its rule scales with the depth; a checkpoint without the dense layer of the head shows it."""
    copied(checkpoint("modernbert", 5), tmp_path, without="head.")
    one, full = load(tmp_path, (1,)), load(tmp_path)
    assert torch.equal(one.head.dense.weight, full.head.dense.weight)
    assert one.config.num_hidden_layers == 1


def test_a_head_for_other_labels_is_drawn_anew(tmp_path: Path) -> None:
    load(checkpoint("bert", 4), seed=9).save_pretrained(tmp_path)
    regression, direct = (
        load(path, (1, 2), num_labels=1, problem_type="regression")
        for path in (tmp_path, checkpoint("bert", 4))
    )
    assert torch.equal(logits(regression), logits(direct))
    assert logits(regression).shape == (3, 1)
    assert regression.config.problem_type == "regression"


def test_xlnet_takes_a_ragged_last_batch() -> None:
    assert load(checkpoint("xlnet", 5), (1, 2))(**batch()).mems is None
