"""Tokenizers of every kind, trained on a few sentences, and tiny networks that read them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertTokenizer,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForSequenceClassification,
    RobertaTokenizer,
    XLMRobertaTokenizer,
)

CORPUS = [
    "a cabbage faced a badge and a dead beige cabbie decided to feed the bee",
    "the headache faded and the decade ended when the big hedge had bad beige edges",
    "he added a jade bead, a faded flag & a deaf aged chef; a baggage cage hid a fig",
    "high ice is hideable: hijab, gadget, decide, defiance, beachhead, cabbages, badges",
    "the chief hacked a high beach hedge, fed a caged bee and begged a decaf",
    "the box has 0 1 2 3 4 5 6 7 8 9 A B C D E F < >",  # letters of the names of bytes
] * 3
MARKS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def _trained(model: Any, trainer: Any, cutter: Any, normalizer: Any = None) -> dict[str, Any]:
    """The content of tokenizer.json, for a model that was trained on the corpus."""
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = cutter
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.train_from_iterator(CORPUS, trainer)
    return json.loads(tokenizer.to_str())  # type: ignore[no-any-return]


def _word_pieces() -> Any:
    special = ["[PAD]", "[unused0]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=special, show_progress=False)
    model = models.WordPiece(unk_token="[UNK]")
    return BertTokenizer(
        _trained(model, trainer, pre_tokenizers.BertPreTokenizer())["model"]["vocab"]
    )


def _byte_level() -> Any:
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=MARKS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    model = _trained(models.BPE(), trainer, pre_tokenizers.ByteLevel(add_prefix_space=False))[
        "model"
    ]
    return RobertaTokenizer(model["vocab"], [tuple(pair) for pair in model["merges"]])


def _byte_fallback() -> Any:
    """As sentencepiece's BPE is converted: no words, blanks are letters, unknown letters bytes."""
    trainer = trainers.BpeTrainer(vocab_size=200, show_progress=False)
    blanks = normalizers.Replace(" ", "▁")
    steps = normalizers.Sequence([normalizers.Prepend("▁"), blanks])
    model = _trained(models.BPE(), trainer, pre_tokenizers.Metaspace())["model"]
    vocabulary = {piece: id for id, piece in enumerate([*MARKS, *_BYTES, *model["vocab"]])}
    tokenizer = Tokenizer(
        models.BPE(
            vocabulary,
            [tuple(pair) for pair in model["merges"]],
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    tokenizer.normalizer = steps
    tokenizer.decoder = decoders.ByteFallback()
    return _plain(tokenizer)


def _unigram() -> Any:
    trainer = trainers.UnigramTrainer(
        vocab_size=200, special_tokens=MARKS, unk_token="<unk>", show_progress=False
    )
    model = _trained(models.Unigram(), trainer, pre_tokenizers.Metaspace())["model"]
    return XLMRobertaTokenizer([(piece, score) for piece, score in model["vocab"]])


def _whole_words() -> Any:
    trainer = trainers.WordLevelTrainer(special_tokens=MARKS, show_progress=False)
    model = models.WordLevel(unk_token="<unk>")
    state = _trained(model, trainer, pre_tokenizers.WhitespaceSplit())
    return _plain(Tokenizer.from_str(json.dumps(state)))


def _plain(tokenizer: Tokenizer) -> Any:
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        **dict(zip(("bos_token", "pad_token", "eos_token", "unk_token"), MARKS, strict=False)),
    )


TOKENIZERS: dict[str, Callable[[], Any]] = {
    "WordPiece": _word_pieces,
    "byte-level BPE": _byte_level,
    "BPE with bytes": _byte_fallback,
    "Unigram": _unigram,
    "WordLevel": _whole_words,
}


def save_tokenizer(kind: str, folder: Path) -> Path:
    TOKENIZERS[kind]().save_pretrained(folder)
    return folder


def save_network(kind: str, folder: Path) -> Path:
    """A tiny classifier with random weights: RoBERTa for byte-level BPE, else BERT."""
    tokenizer = TOKENIZERS[kind]()
    tokenizer.save_pretrained(folder)
    roberta = kind == "byte-level BPE"
    sizes = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 48,
        "max_position_embeddings": 66,
        "pad_token_id": tokenizer.pad_token_id,
        "num_labels": 3,
    }
    torch.manual_seed(1)
    network = (
        RobertaForSequenceClassification(RobertaConfig(type_vocab_size=1, **sizes))
        if roberta
        else BertForSequenceClassification(BertConfig(**sizes))
    )
    for weights in network.parameters():
        torch.nn.init.normal_(weights, std=0.3)
    network.save_pretrained(folder)
    return folder
