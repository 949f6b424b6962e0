"""`lp_sweep.prune`: a network in memory with fewer layers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
)

from lp_sweep import LpSweepError, prune
from tests.support.families import CASES, Family
from tests.support.kindworlds import sentence_folder
from tests.support.networks import batch, checkpoint, load, logits
from tests.support.toyworld import save_model


@pytest.mark.parametrize("family", CASES)
def test_a_copy_has_the_layers_of_a_sweep_and_is_saved_as_a_plain_model(
    family: Family, tmp_path: Path
) -> None:
    full, expected = load(checkpoint(family.name, 5)), load(checkpoint(family.name, 5), (1, 4, 5))
    before, config = logits(full), full.config.to_dict()

    small = prune(full, drop=[2, 3])

    assert type(small) is type(full)
    assert torch.equal(logits(small), logits(expected))
    assert small.config.to_dict() == expected.config.to_dict()
    small.save_pretrained(tmp_path)
    plain = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    torch.testing.assert_close(logits(plain), logits(small), rtol=0, atol=1e-6)
    with torch.no_grad():  # training one changes nothing in the other
        for parameter in small.parameters():
            parameter.zero_()
    assert torch.equal(logits(full), before)
    assert full.config.to_dict() == config


def test_a_sentence_transformer_keeps_its_pooling_and_prompts(tmp_path: Path) -> None:
    save_model(tmp_path / "model")
    sentence_folder(tmp_path / "model", "Normalize")
    encoder = AutoModel.from_pretrained(tmp_path / "model")
    sentence_transformers = pytest.importorskip("sentence_transformers")
    whole = sentence_transformers.SentenceTransformer(
        str(tmp_path / "model"), device="cpu", prompts={"query": "good "}
    )
    texts = ["good w1", "bad w2 w3"]
    expected = prune(encoder, keep=[1, 4])
    whole_before = whole.encode(texts)

    small = prune(whole, keep=[1, 4])
    small.save(str(tmp_path / "small"))

    assert small.prompts["query"] == "good "
    assert [type(part) for part in small] == [type(part) for part in whole]
    tokens = small.tokenize(texts)
    with torch.no_grad():
        states = expected(**{name: tokens[name] for name in ("input_ids", "attention_mask")})[0]
    mask = tokens["attention_mask"][:, :, None]
    pooled = nn.functional.normalize((states * mask).sum(1) / mask.sum(1))
    torch.testing.assert_close(torch.tensor(small.encode(texts)), pooled)
    again = sentence_transformers.SentenceTransformer(str(tmp_path / "small"), device="cpu")
    torch.testing.assert_close(torch.tensor(again.encode(texts)), pooled)
    assert (whole.encode(texts) == whole_before).all()
    by_name = prune(tmp_path / "model", drop=[2, 3])
    torch.testing.assert_close(torch.tensor(by_name.encode(texts)), pooled)


def test_a_folder_is_loaded_as_the_class_that_it_names(tmp_path: Path) -> None:
    load(checkpoint("bert", 5)).save_pretrained(tmp_path)
    small = prune(tmp_path, keep=[5, 1])
    assert isinstance(small, PreTrainedModel)
    assert torch.equal(logits(small), logits(load(checkpoint("bert", 5), (1, 5))))
    twice = prune(small, keep=[2])  # layers are numbered as they are now
    assert twice.config.lp_sweep_kept_layers == [5]
    assert len(twice(**batch()).logits) == 3


def small_bert() -> BertModel:
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16}
    return BertModel(BertConfig(num_hidden_layers=2, vocab_size=9, **sizes))


def decoder() -> GPT2LMHeadModel:
    return GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=16, n_head=2, vocab_size=9, n_positions=8))


MISTAKES: dict[str, Callable[[], Any]] = {
    "keep=.* or .*drop=": lambda: prune(small_bert()),
    "with drop=": lambda: prune(small_bert(), keep=[1], drop=[2]),
    r"numbers from 1 to 2, got \[0, 1\]": lambda: prune(small_bert(), keep=[0, 1]),
    r"numbers from 1 to 2, got \[3\]": lambda: prune(small_bert(), drop=[3]),
    "names a layer twice": lambda: prune(small_bert(), keep=[1, 1]),
    "at least one of 1..2": lambda: prune(small_bert(), drop=[1, 2]),
    "a hub name is needed, got dict": lambda: prune({}, keep=[1]),
    "Linear: one network of transformers .* none": lambda: prune(nn.Linear(2, 2), keep=[1]),
    "there is 0, 1": lambda: prune(nn.Sequential(small_bert(), small_bert()), keep=[1]),
    "gpt2 is a decoder": lambda: prune(decoder(), keep=[1]),
    "no model folder at": lambda: prune("./nowhere", keep=[1]),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_a_mistake_is_one_sentence(message: str) -> None:
    with pytest.raises(LpSweepError, match=message):
        MISTAKES[message]()


def test_a_folder_with_code_of_its_own_is_not_run(tmp_path: Path) -> None:
    save_model(tmp_path)
    modules = [{"name": "0", "path": "", "type": "my_code.Model"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(LpSweepError, match=r"my_code\.Model.*not run"):
        prune(tmp_path, keep=[1])
