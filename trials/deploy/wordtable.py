"""Gives an ONNX graph a smaller word table: rows of fewer pieces, or 4-bit numbers. Imports neither
torch nor transformers, which a process that runs graphs need not have.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from lp_sweep.storage.errors import UnsupportedModelError

if TYPE_CHECKING:
    from lp_sweep.trials.deploy.vocabulary import PieceMap

_INPUT = "input_ids"
_SAME_IDS = ("Cast", "Identity", "Reshape", "Unsqueeze", "Squeeze")  # operations that change no id
_CONTRIB = "com.microsoft"  # onnxruntime's own operations
_BLOCK = 128  # neighbouring numbers of a row that share a scale: of 16, MiniLM was no better


def cut_graph(graph: Path, pieces: PieceMap, target: Path) -> None:
    """Writes an fp32 graph with the rows of these pieces alone. Raises UnsupportedModelError if it
    does not look up its input in one table."""
    model = onnx.load(graph)
    table = _table(model, graph)
    rows = onnx.numpy_helper.to_array(table)
    table.CopyFrom(onnx.numpy_helper.from_array(rows[list(pieces.old)], table.name))
    described = [value for value in model.graph.value_info if value.name == table.name]
    for value in described:  # its earlier shape
        model.graph.value_info.remove(value)
    onnx.save(model, target)


def four_bit(graph: Path, target: Path) -> None:
    """Writes an fp32 graph whose word table has 4-bit numbers, each block of a row with a scale and
    a zero point of its own. Raises UnsupportedModelError like `cut_graph`."""
    model = onnx.load(graph)
    lookup, table = _lookup(model, graph), _table(model, graph)
    numbers, scales, zeros = _quantised(onnx.numpy_helper.to_array(table))
    kind = onnx.TensorProto.UINT4
    parts = [
        onnx.helper.make_tensor(f"{table.name}_4bit", kind, table.dims, _packed(numbers), raw=True),
        onnx.numpy_helper.from_array(scales, f"{table.name}_scales"),
        onnx.helper.make_tensor(
            f"{table.name}_zeros", kind, scales.shape, _packed(zeros), raw=True
        ),
    ]
    names = [part.name for part in parts]
    lookup.CopyFrom(
        onnx.helper.make_node(
            "GatherBlockQuantized",
            [names[0], lookup.input[1], *names[1:]],
            lookup.output,
            lookup.name,
            domain=_CONTRIB,
            gather_axis=0,
            quantize_axis=1,
            block_size=_BLOCK,
        )
    )
    # the type that onnx can't derive, and int8 asks for
    model.graph.value_info.append(
        onnx.helper.make_tensor_value_info(lookup.output[0], table.data_type, None)
    )
    model.graph.initializer.remove(table)
    model.graph.initializer.extend(parts)
    if _CONTRIB not in {opset.domain for opset in model.opset_import}:
        model.opset_import.append(onnx.helper.make_opsetid(_CONTRIB, 1))
    model.ir_version = max(model.ir_version, 10)  # the first with 4-bit numbers
    onnx.save(model, target)


def _quantised(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Numbers from 0 to 15 (V, H), and each block's scale and zero point (V, blocks)."""
    count, width = rows.shape
    blocks = -(-width // _BLOCK)
    padded = np.pad(rows, ((0, 0), (0, blocks * _BLOCK - width))).reshape(count, blocks, _BLOCK)
    low, high = np.minimum(padded.min(2), 0), np.maximum(padded.max(2), 0)
    scales = ((high - low) / 15).astype(rows.dtype)
    scales[scales == 0] = 1
    zeros = np.rint(-low / scales)
    numbers = np.clip(np.rint(padded / scales[..., None]) + zeros[..., None], 0, 15)
    return numbers.reshape(count, -1)[:, :width], scales, zeros


def _packed(numbers: np.ndarray) -> bytes:
    """Two numbers a byte, the first in the lower half."""
    flat = numbers.astype(np.uint8).ravel()
    flat = np.append(flat, np.zeros(len(flat) % 2, np.uint8))
    packed: np.ndarray = flat[::2] | flat[1::2] << 4
    return packed.tobytes()


def _table(model: Any, graph: Path) -> Any:
    name = _lookup(model, graph).input[0]
    return next(tensor for tensor in model.graph.initializer if tensor.name == name)


def _lookup(model: Any, graph: Path) -> Any:
    """The node that looks up the rows of the input's pieces."""
    ids = {_INPUT}
    for node in model.graph.node:  # in the order of computation
        if node.op_type in _SAME_IDS and node.input[0] in ids:
            ids.update(node.output)
    tables = {tensor.name for tensor in model.graph.initializer if len(tensor.dims) == 2}
    found = [
        node
        for node in model.graph.node
        if node.op_type == "Gather" and node.input[0] in tables and node.input[1] in ids
    ]
    if len(found) != 1:
        raise UnsupportedModelError(
            f"{graph.name}: {len(found)} tables are looked up by {_INPUT}, not one. Use its full "
            "vocabulary (vocabulary: full), and another format than onnx-int4."
        )
    return found[0]
