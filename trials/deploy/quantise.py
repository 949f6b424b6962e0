"""Writes a graph with weights of 8 bits: a quarter of the bytes, and faster on most CPUs."""

from __future__ import annotations

import platform
from pathlib import Path

import onnx
from onnxruntime.quantization import QuantType, quantize_dynamic

from lp_sweep.trials.deploy.graph import silent

INT8 = Path("onnx", "model_int8.onnx")  # in a network's folder; Transformers.js has this name too
# in /proc/cpuinfo, of x86 and of Arm
_WIDE = frozenset(("avx512_vnni", "avx_vnni", "amx_int8", "asimddp"))


def int8(graph: Path, target: Path) -> Path:
    """Writes `graph` with matrices in 8 bits, each column by a scale of its own, and tables of
    embeddings, each by one scale. What flows between matrices is quantised as it comes, over the
    whole batch. Returns `target`.

    onnxruntime's optimizer for transformers is left out: it fuses no attention in these graphs,
    and they were no faster with it.

    Without an instruction that adds products of 8 bits in 32 (VNNI, AMX, Arm's dotprod), an x86
    CPU adds two of them in 16 bits, where large ones overflow and give wrong answers without a
    word. The weights then get 7 bits. A graph for such a CPU must therefore be written on one, or
    have its score measured there.
    """
    with silent():
        quantize_dynamic(
            graph,
            target,
            per_channel=True,
            reduce_range=not adds_wide(),
            weight_type=QuantType.QInt8,
            # onnx does not know the type of a 4-bit word table's rows, nor of what is made of them
            extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
        )
    return target


def adds_wide(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the CPU adds products of 8 bits without an overflow."""
    try:
        text = cpuinfo.read_text(encoding="utf-8")
    except OSError:  # macOS: its Arm chips have dotprod
        return platform.machine() == "arm64"
    return not _WIDE.isdisjoint(text.split())
