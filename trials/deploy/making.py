"""Makes the artefacts of a network: an ONNX graph, and one with int8 matrices. Each is derived from
the one before, and written once."""

from __future__ import annotations

import logging
from pathlib import Path

from lp_sweep.storage.errors import UnsupportedModelError
from lp_sweep.trials.deploy.runner import Columns
from lp_sweep.trials.model.onnxgraph import write_onnx
from lp_sweep.trials.spec.specs import ArtefactFormat

CLASSIFIER = "AutoModelForSequenceClassification"
GRAPH = Path("onnx", "model.onnx")
INT8 = Path("onnx", "model_int8.onnx")


def make_artefact(
    folder: Path, format: ArtefactFormat, *, loads: str, texts: Columns, max_length: int
) -> Path | None:
    """The graph of a network in this format, below its folder; None for torch, which needs none.
    `loads`: the class of transformers. Raises UnsupportedModelError and ExportError."""
    if format == "torch":
        return None
    graph = folder / GRAPH
    if not graph.is_file():
        if loads != CLASSIFIER:
            raise UnsupportedModelError(f"{loads}: only classifiers can be written as ONNX")
        write_onnx(folder, texts, max_length)
    if format == "onnx":
        return graph
    if format != "onnx-int8":
        raise UnsupportedModelError(f"{format} can't be made yet")
    return _int8(graph, folder / INT8)


def _int8(graph: Path, target: Path) -> Path:
    import onnx
    from onnxruntime.quantization import quantize_dynamic

    model = onnx.load(graph)
    model.graph.ClearField("value_info")  # shapes from before matrices are transposed
    logging.disable(logging.WARNING)  # it recommends a step for images
    try:
        quantize_dynamic(model, target, per_channel=True)
    finally:
        logging.disable(logging.NOTSET)
    return target
