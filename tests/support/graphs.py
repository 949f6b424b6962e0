"""Hand-made ONNX graphs over a tiny vocabulary, and artefacts run in this process. Not a test."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from lp_sweep.storage.errors import ExportError
from lp_sweep.trials.deploy import measure, runner


def save_graph(
    path: Path, table: np.ndarray, output: str, *, rows: int | str = "rows", scale: float = 1.0
) -> Path:
    """Looks each token up in the (V, C) table. `logits`: of each token, (B, T, C); another output:
    their sum over real tokens, (B, C). `rows`: B, if it is fixed."""
    nodes = [helper.make_node("Gather", ["table", "input_ids"], ["states"])]
    shape: list[int | str] = [rows, "tokens", table.shape[1]]
    if output == "logits":
        nodes.append(helper.make_node("Identity", ["states"], [output]))
    else:
        nodes += [
            helper.make_node("Cast", ["attention_mask"], ["real"], to=TensorProto.FLOAT),
            helper.make_node("Unsqueeze", ["real", "last"], ["mask"]),
            helper.make_node("Mul", ["states", "mask"], ["masked"]),
            helper.make_node("ReduceSum", ["masked", "tokens"], [output], keepdims=0),
        ]
        shape = [rows, table.shape[1]]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, [rows, "tokens"])
        for name in ("input_ids", "attention_mask")
    ]
    held = {
        "table": (scale * table).astype(np.float32),
        "last": np.array([2], np.int64),
        "tokens": np.array([1], np.int64),
    }
    graph = helper.make_graph(
        nodes,
        "lookup",
        inputs,
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(value, name) for name, value in held.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(model, path)
    return path


# two threads that load networks leave torch.nn.init in transformers' guard, for ever
_ONE_AT_A_TIME = threading.Lock()


def run_here(
    program: Sequence[str], request: Mapping[str, Any], *_: Any, **__: Any
) -> dict[str, np.ndarray]:
    """As `measure.in_new_process`, in this process: a start of torch takes seconds."""
    plain = json.loads(json.dumps(request))
    try:
        with _ONE_AT_A_TIME:
            arrays, told = (runner.alone if plain["alone"] else runner.together)(plain)
    except Exception as error:
        raise ExportError(runner.message(error)) from error
    return {**arrays, "told": np.array(json.dumps(told))}


def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "in_new_process", run_here)
