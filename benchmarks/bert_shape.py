"""Makes a model folder for a benchmark that needs only the model's shape: random weights take as
long as learned ones. Not a benchmark."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from transformers import AutoTokenizer, BertConfig, BertModel


@contextmanager
def model_folder(named: str | None, tokenizer: str | None = None) -> Iterator[str]:
    """The folder `named`, or a new one with the shape of bert-base and the tokenizer of the folder
    `tokenizer`, if given."""
    if named:
        yield named
        return
    with tempfile.TemporaryDirectory() as folder:
        words = 28996
        if tokenizer:
            own = AutoTokenizer.from_pretrained(tokenizer)
            own.save_pretrained(folder)
            words = len(own)
        torch.manual_seed(0)
        BertModel(BertConfig(vocab_size=words)).save_pretrained(folder)
        yield folder
