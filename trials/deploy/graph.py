"""Writes a network's folder as an ONNX graph for any number of rows and tokens, and checks it.

A graph's outputs are `logits`, (B, C) or of a tagger (B, T, C). Those of an encoder with modules of
Sentence Transformers are `last_hidden_state`, (B, T, H), which comes first since servers that pool
themselves read it, and `sentence_embedding`, (B, H): pooled, and changed by the folder's modules.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from torch import nn
from transformers import AutoTokenizer

from lp_sweep.storage.errors import ExportError, UnsupportedModelError
from lp_sweep.storage.networks import GRAPH
from lp_sweep.storage.printable import short
from lp_sweep.trials.model.load import load_network, quiet
from lp_sweep.trials.model.plainload import pooled, vector_modules
from lp_sweep.trials.model.sentencefolder import read_sentence_folder

VERSION = 1  # raise it where `write_graph` writes others: kept ones are then written again
_ROUNDING = 1e-4  # x the largest number of an output: another program's order of sums
_BATCHES = (1, 2, 7)
_MOST = 2**31  # bytes of one file
_REAL = "attention_mask"
Inputs = dict[str, torch.Tensor]  # each (B, T)


class _Outputs(nn.Module):
    """The network as a function of plain tensors, in the order of `names`."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        super().__init__()
        self.names, self.pooling = names, read_sentence_folder(folder)
        self.model = load_network(folder, bare=bool(self.pooling.modules)).float()
        # the attention that every family has as plain operators
        self.model.set_attn_implementation("eager")
        self.after = vector_modules(folder, self.pooling.after)
        self.outputs = ["logits"]
        if self.pooling.modules:
            # no output may have the name of a weight, such as `embedding`
            self.outputs = ["last_hidden_state", "sentence_embedding"]

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        inputs = dict(zip(self.names, tensors, strict=True))
        answer = self.model(**inputs)
        if not self.pooling.modules:
            return (answer.logits,)
        states, mask = answer.last_hidden_state, inputs[_REAL]
        vectors = [pooled(states, mask, mode) for mode in self.pooling.pooling]
        return states, self.after(torch.cat(vectors, dim=-1))


def write_graph(folder: Path, texts: Sequence[Sequence[Any]], max_length: int) -> Path:
    """Writes `GRAPH` into a folder that plain transformers, Sentence Transformers or, without some
    feed-forwards, `load_network` loads. Returns its path.

    `texts`: one or two columns, of a tagger lists of words. The graph is compared with the network
    on some of their rows. Raises UnsupportedModelError if torch can't write the graph, ExportError
    if its outputs differ.
    """
    with quiet():
        tokenizer = AutoTokenizer.from_pretrained(folder)
        batches = [_tokens(tokenizer, rows, max_length) for rows in _several(texts)]
        network = _Outputs(folder, list(batches[0])).eval()
    batches += [_long(batches[0], 1, 1), _long(batches[-1], 3, max_length)]
    target = folder / GRAPH
    target.parent.mkdir(exist_ok=True)
    _write(network, batches[-1], target)
    try:
        _check(network, target, batches)
    except Exception:
        target.unlink()  # who finds a graph there takes it for a checked one
        raise
    return target


def _several(texts: Sequence[Sequence[Any]]) -> list[list[list[Any]]]:
    """Batches of one row and of more: the shortest rows, then the longest."""
    order = sorted(range(len(texts[0])), key=lambda row: sum(len(column[row]) for column in texts))
    chosen = [order[:size] for size in _BATCHES] + [order[-size:] for size in _BATCHES]
    return [[[column[row] for row in rows] for column in texts] for rows in chosen]


def _tokens(tokenizer: Any, columns: Sequence[Sequence[Any]], max_length: int) -> Inputs:
    return dict(
        tokenizer(
            *columns,
            is_split_into_words=not isinstance(columns[0][0], str),
            truncation="longest_first",
            max_length=max_length,
            padding=True,
            return_tensors="pt",
        )
    )


def _long(inputs: Inputs, rows: int, tokens: int) -> Inputs:
    """The inputs repeated, and cut, to this shape."""
    (high, wide), made = inputs[_REAL].shape, dict[str, torch.Tensor]()
    for name, tensor in inputs.items():
        made[name] = tensor.repeat(-(-rows // high), -(-tokens // wide))[:rows, :tokens]
    return made


def _write(network: _Outputs, inputs: Inputs, target: Path) -> None:
    """`inputs` must have two rows and two tokens or more: torch takes a 1 for a constant."""
    kind = network.model.config.model_type
    size = 4 * sum(parameter.numel() for parameter in network.parameters())
    if size >= _MOST:
        raise UnsupportedModelError(
            f"{kind}: its weights take {size / 1e9:.1f} GB in 32 bits, and an ONNX file holds at "
            f"most {_MOST / 1e9:.1f}. Export it with --as torch alone."
        )
    axes = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    try:
        with silent(), torch.no_grad():
            program = torch.onnx.export(
                network,
                tuple(inputs.values()),
                input_names=network.names,
                output_names=network.outputs,
                dynamic_shapes={"tensors": tuple(axes for _ in inputs)},
                dynamo=True,
                verbose=False,
            )
    except Exception as error:  # torch's exporter raises many types, around what went wrong
        cause = error.__cause__ or error
        raise UnsupportedModelError(
            f"{kind}: torch can't write this network as ONNX: "
            f"{type(cause).__name__}: {short(str(cause))}. Export it with --as torch alone."
        ) from error
    assert program is not None
    model = program.model_proto
    # shapes of what flows between operators, and of weights: who quantises or cuts a weight would
    # leave a wrong one, which onnx refuses; runtimes derive them
    del model.graph.value_info[:]
    onnx.save(model, target)


@contextmanager
def silent() -> Iterator[None]:
    """Silences what the exporter and the quantiser say about themselves and optional packages."""
    loggers = [logging.getLogger(name) for name in (None, "torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _check(network: _Outputs, target: Path, batches: Sequence[Inputs]) -> None:
    session = onnxruntime.InferenceSession(target, providers=["CPUExecutionProvider"])
    known = {item.name for item in session.get_inputs()}
    for inputs in batches:
        given = {name: tensor.numpy() for name, tensor in inputs.items() if name in known}
        real = inputs[_REAL].numpy() > 0
        with torch.no_grad():
            expected = network(*inputs.values())
        for name, wanted, found in zip(
            network.outputs, expected, session.run(network.outputs, given), strict=True
        ):
            _compare(name, wanted.numpy(), found, real)


def _compare(name: str, wanted: np.ndarray, found: np.ndarray, real: np.ndarray) -> None:
    """Answers at padding mean nothing, and are left out."""
    if wanted.ndim > real.ndim and wanted.shape == found.shape:
        wanted, found = wanted[real], found[real]
    allowed = _ROUNDING * max(1.0, float(np.abs(wanted).max()))
    difference = float(np.abs(found - wanted).max())
    if not difference <= allowed:
        raise ExportError(
            f"onnxruntime's {name} differ from the network's by {difference:.2g}, and rounding "
            f"explains {allowed:.2g}. Nothing was published; export it with --as torch alone."
        )
