"""Write a saved classifier as an ONNX graph for any number of rows and tokens, and check it."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from lp_sweep.storage.errors import ExportError, UnsupportedModelError
from lp_sweep.storage.printable import short
from lp_sweep.trials.model.load import quiet

_FOLDER, _FILE = "onnx", "model.onnx"
_ROUNDING = 1e-4  # x the largest logit: another program's order of sums
_BATCHES = (1, 2, 7)


class _Logits(nn.Module):
    """The network as a function of plain tensors, in the order of `names`."""

    def __init__(self, model: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.model(**dict(zip(self.names, tensors, strict=True))).logits
        return found


def write_onnx(folder: Path, texts: Sequence[Sequence[str]], max_length: int) -> float:
    """Writes `onnx/model.onnx` into `folder`; returns the largest difference of a logit.

    `texts`: one or two columns; the graph is compared with the network on some of their rows.
    Raises UnsupportedModelError if torch can't write the graph, ExportError if the logits differ.
    """
    with quiet():
        model = AutoModelForSequenceClassification.from_pretrained(
            folder, attn_implementation="eager"
        ).eval()
        tokenizer = AutoTokenizer.from_pretrained(folder)
    batches = [
        dict(
            tokenizer(
                *columns,
                truncation="longest_first",
                max_length=max_length,
                padding=True,
                return_tensors="pt",
            )
        )
        for columns in _several(texts)
    ]
    (folder / _FOLDER).mkdir()
    target = folder / _FOLDER / _FILE
    _write(model, batches[-1], target)
    return _check(model, target, batches)


def _several(texts: Sequence[Sequence[str]]) -> list[list[list[str]]]:
    """Batches of one row and of more: the shortest rows, then the longest."""
    order = sorted(range(len(texts[0])), key=lambda row: sum(len(column[row]) for column in texts))
    chosen = [order[:size] for size in _BATCHES] + [order[-size:] for size in _BATCHES]
    return [[[column[row] for row in rows] for column in texts] for rows in chosen]


def _write(model: Any, inputs: dict[str, torch.Tensor], target: Path) -> None:
    names = list(inputs)
    axes = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    try:
        with _silent(), torch.no_grad():
            torch.onnx.export(
                _Logits(model, names),
                tuple(inputs.values()),
                target,
                input_names=names,
                output_names=["logits"],
                dynamic_shapes={"tensors": tuple(axes for _ in names)},
                dynamo=True,
                verbose=False,
                external_data=False,
            )
    except Exception as error:  # torch's exporter raises many types, around what went wrong
        cause = error.__cause__ or error
        raise UnsupportedModelError(
            f"{model.config.model_type}: torch can't write this network as ONNX: "
            f"{type(cause).__name__}: {short(str(cause))}. Export it without --onnx."
        ) from error


@contextmanager
def _silent() -> Iterator[None]:
    """Silences the exporter's warnings about itself and about optional packages."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _check(model: Any, target: Path, batches: Sequence[dict[str, torch.Tensor]]) -> float:
    import onnxruntime

    session = onnxruntime.InferenceSession(target, providers=["CPUExecutionProvider"])
    known = {item.name for item in session.get_inputs()}
    largest, scale = 0.0, 1.0
    for inputs in batches:
        with torch.no_grad():
            expected = model(**inputs).logits.numpy()
        given = {name: tensor.numpy() for name, tensor in inputs.items() if name in known}
        (found,) = session.run(["logits"], given)
        largest = max(largest, float(np.abs(found - expected).max()))
        scale = max(scale, float(np.abs(expected).max()))
    if not largest <= _ROUNDING * scale:
        raise ExportError(
            f"onnxruntime's logits differ from the network's by {largest:.2g}, and rounding "
            f"explains {_ROUNDING * scale:.2g}. Nothing was published; export it without --onnx."
        )
    return largest
