"""A graph says what its network says, for any number of rows and tokens; in 8 bits nearly."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from transformers import AutoTokenizer

from lp_sweep.storage.errors import ExportError, UnsupportedModelError
from lp_sweep.trials.deploy import graph, quantise
from lp_sweep.trials.model.feedforward import remove_feed_forwards
from lp_sweep.trials.model.load import load_network
from lp_sweep.trials.model.modelfiles import graph_problem
from lp_sweep.trials.model.plainload import embeddings_of, vector_modules
from lp_sweep.trials.model.sentencefolder import read_sentence_folder
from tests.support.families import FAMILIES
from tests.support.kindworlds import sentence_folder
from tests.support.networks import network
from tests.support.tiny import tiny_tokenizer

TEXTS = ("a", "a b c d", "d c", "b b b b b b b b a", "c", "d d d", "a c", "", "b a")
OTHERS = (["a"], ["a b", "c d d d d d a"], ["b " * 20] * 5)  # numbers and lengths of other batches
WRITTEN = [name for name in FAMILIES if name != "xlnet"]


def saved(name: str, folder: Path, removed: tuple[int, ...] = (), **settings: Any) -> Path:
    model = network(name, kept_layers=(1, 2), **settings)
    if removed:
        remove_feed_forwards(model, removed)
    model.save_pretrained(folder / "out")
    tokenizer = tiny_tokenizer(types=name == "bert", xlnet=name == "xlnet")
    tokenizer.save_pretrained(folder / "out")
    return folder / "out"


def encoder(name: str, folder: Path, *names: str, **pooling: Any) -> Path:
    """A folder of Sentence Transformers."""
    out = saved(name, folder)
    load_network(out).base_model.save_pretrained(out)
    sentence_folder(out, *names, **pooling)
    return out


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a network with its graph, which is written once. Not to be changed."""
    folder = saved("bert", tmp_path_factory.mktemp("classifier"), removed=(2,))
    graph.write_graph(folder, [TEXTS], 12)
    return folder


def outputs(path: Path, inputs: Any, *names: str) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    known = {item.name for item in session.get_inputs()}
    found = {name: tensor.numpy() for name, tensor in inputs.items() if name in known}
    answers: list[np.ndarray] = session.run([*names], found)
    return answers


def says_the_same(folder: Path) -> None:
    """It answers for numbers of rows and lengths that it was not written with, also for 1 token."""
    model, tokenizer = load_network(folder), AutoTokenizer.from_pretrained(folder)
    batches = [tokenizer(texts, padding=True, return_tensors="pt") for texts in OTHERS]
    batches.append({name: tensor[:, :1] for name, tensor in batches[0].items()})
    for inputs in batches:
        with torch.no_grad():
            expected = model(**inputs).logits.numpy()
        (found,) = outputs(folder / graph.GRAPH, inputs, "logits")
        if found.ndim == 3:
            real = inputs["attention_mask"].numpy() > 0
            found, expected = found[real], expected[real]
        np.testing.assert_allclose(found, expected, atol=1e-4, rtol=1e-4)


def test_a_graph_is_the_network_without_a_feed_forward(classifier: Path) -> None:
    """For which transformers has no class."""
    says_the_same(classifier)


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("problem", ["single_label_classification", "token_classification"])
def test_every_family_has_a_graph(
    name: str, problem: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = saved(name, tmp_path, problem_type=problem)
    capfd.readouterr()
    words = problem == "token_classification"
    graph.write_graph(folder, [[text.split() or ["a"] for text in TEXTS] if words else TEXTS], 12)
    assert capfd.readouterr() == ("", "")
    says_the_same(folder)


MODULES = {
    "bert": (("Normalize",), {"pooling_mode": ["mean"]}),
    "mpnet": (("Dense", "Normalize"), {"pooling_mode": ["cls", "max"]}),
    "modernbert": ((), {"pooling_mode": ["lasttoken"]}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITTEN)
def test_every_family_has_a_graph_of_vectors(name: str, tmp_path: Path) -> None:
    names, pooling = MODULES.get(name, MODULES["bert"])
    folder = encoder(name, tmp_path, *names, **pooling)
    path = graph.write_graph(folder, [TEXTS], 12)
    session = onnxruntime.InferenceSession(path)
    assert [item.name for item in session.get_outputs()] == [
        "last_hidden_state",
        "sentence_embedding",
    ]
    model, tokenizer = load_network(folder, bare=True), AutoTokenizer.from_pretrained(folder)
    told = read_sentence_folder(folder)
    after = vector_modules(folder, told.after)
    for texts in OTHERS:
        expected = embeddings_of(model, tokenizer, [texts], 12, told.pooling, after)
        cut = {"padding": True, "truncation": True, "max_length": 12, "return_tensors": "pt"}
        (found,) = outputs(path, tokenizer(texts, **cut), "sentence_embedding")
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.slow
def test_what_torch_can_not_write_is_refused(tmp_path: Path) -> None:
    """Before with the same words, so that no hours are lost."""
    with pytest.raises(UnsupportedModelError, match="xlnet: torch can't write this network") as got:
        graph.write_graph(saved("xlnet", tmp_path), [TEXTS], 12)
    before = str(graph_problem({"model_type": "xlnet"}))
    assert before.partition(". Use")[0] in str(got.value)
    assert not any(
        graph_problem({"model_type": FAMILIES[name].config(1).model_type}) for name in WRITTEN
    )


def test_a_graph_too_large_for_one_file_is_refused(
    classifier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph, "_MOST", 9_000)
    with pytest.raises(UnsupportedModelError, match="bert: its weights take"):
        graph.write_graph(classifier, [TEXTS], 12)


def test_another_network_is_not_the_graph(
    classifier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(classifier, tmp_path / "out")
    monkeypatch.setattr(graph, "_write", lambda network, inputs, target: None)
    graph.write_graph(folder, [TEXTS], 12)
    model = load_network(folder)
    with torch.no_grad():
        model.classifier.bias += 0.01
    model.save_pretrained(folder)
    with pytest.raises(ExportError, match=r"logits differ from the network's by 0\.01"):
        graph.write_graph(folder, [TEXTS], 12)
    assert not (folder / graph.GRAPH).exists()


def test_eight_bits_hold_matrices_and_the_word_table(classifier: Path, tmp_path: Path) -> None:
    path = quantise.int8(classifier / graph.GRAPH, tmp_path / "small.onnx")
    inputs = AutoTokenizer.from_pretrained(classifier)(
        list(TEXTS), padding=True, return_tensors="pt"
    )
    exact, found = (outputs(each, inputs, "logits")[0] for each in (classifier / graph.GRAPH, path))
    difference = np.abs(exact - found).max()
    assert 0 < difference < 0.1 * np.abs(exact).max()
    weights = {
        each.name: onnx.TensorProto.DataType.Name(each.data_type)
        for each in onnx.load(path).graph.initializer
        if np.prod(each.dims) > 16 * 16  # the tables and matrices
    }
    assert weights
    assert set(weights.values()) <= {"INT8", "UINT8"}, weights


@pytest.mark.parametrize(
    ("flags", "wide"),
    [
        ("avx2 avx512_vnni", True),
        ("fpu avx_vnni", True),
        ("asimddp", True),
        ("avx2 avx512f", False),
    ],
)
def test_without_vnni_weights_have_seven_bits(
    flags: str, wide: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, classifier: Path
) -> None:
    (tmp_path / "cpuinfo").write_text(f"flags\t\t: {flags}\n")
    assert quantise.adds_wide(tmp_path / "cpuinfo") == wide
    monkeypatch.setattr(quantise, "adds_wide", lambda: wide)
    path = quantise.int8(classifier / graph.GRAPH, tmp_path / "small.onnx")
    largest = max(
        np.abs(onnx.numpy_helper.to_array(each).astype(int)).max()
        for each in onnx.load(path).graph.initializer
        if each.data_type == onnx.TensorProto.INT8
    )
    assert largest > 64 if wide else largest <= 64
