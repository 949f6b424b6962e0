"""`export --onnx`: the graph says what the network says, for any number of rows and tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lp_sweep.storage.errors import ExportError, UnsupportedModelError
from lp_sweep.trials.model import onnxgraph
from tests.support.families import FAMILIES
from tests.support.networks import network
from tests.support.tiny import tiny_tokenizer

for package in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package, reason=f"{package} is not installed: pip install 'lp-sweep[onnx]'")

TEXTS = ("a", "a b c d", "d c", "b b b b b b b b a", "c", "d d d", "a c", "", "b a")


def saved(name: str, folder: Path) -> Path:
    model = network(name, kept_layers=(1, 2))
    model.save_pretrained(folder / "out")
    tokenizer = tiny_tokenizer(types=name == "bert", xlnet=name == "xlnet")
    tokenizer.save_pretrained(folder / "out")
    return folder / "out"


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "xlnet"])
def test_the_graph_is_the_network(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = saved(name, tmp_path)
    difference = onnxgraph.write_onnx(folder, [TEXTS], 12)
    assert capfd.readouterr() == ("", "")
    assert difference < 1e-3
    assert (folder / "onnx" / "model.onnx").stat().st_size > 1000
    _says_the_same(folder)


def _says_the_same(folder: Path) -> None:
    """It answers for numbers of rows and lengths that it was not written with."""
    import onnxruntime
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    session = onnxruntime.InferenceSession(
        folder / "onnx" / "model.onnx", providers=["CPUExecutionProvider"]
    )
    known = {item.name for item in session.get_inputs()}
    for texts in (["a"], ["a b", "c d d d d d a"], ["b " * 20] * 5):
        inputs = dict(tokenizer(texts, padding=True, return_tensors="pt"))
        with torch.no_grad():
            expected = model(**inputs).logits.numpy()
        given = {name: tensor.numpy() for name, tensor in inputs.items() if name in known}
        (found,) = session.run(["logits"], given)
        np.testing.assert_allclose(found, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.slow
def test_what_torch_can_not_write_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="xlnet: torch can't write this network"):
        onnxgraph.write_onnx(saved("xlnet", tmp_path), [TEXTS], 12)


@pytest.mark.slow
def test_another_network_is_not_the_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = saved("bert", tmp_path)
    real = onnxgraph._write

    def write(model: Any, inputs: Any, target: Path) -> None:
        real(model, inputs, target)
        with torch.no_grad():
            model.classifier.bias += 0.01

    monkeypatch.setattr(onnxgraph, "_write", write)
    with pytest.raises(ExportError, match=r"differ from the network's by 0\.01"):
        onnxgraph.write_onnx(folder, [TEXTS], 12)
