"""Word tables of fewer rows give the same answers, and those of 4 bits nearly the same."""

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

from lp_sweep.storage.errors import UnsupportedModelError
from lp_sweep.trials.deploy.graph import write_graph
from lp_sweep.trials.deploy.quantise import int8
from lp_sweep.trials.deploy.vocabulary import PieceMap, cut, cut_network
from lp_sweep.trials.deploy.wordtable import cut_graph, four_bit
from tests.support.vocabularies import CORPUS, save_network

TEXTS = CORPUS[:3]
SEEN = [TEXTS[0][:9], *TEXTS]  # of unequal lengths: padding matters


def logits(folder: Path, texts=SEEN) -> np.ndarray:
    network = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    inputs = AutoTokenizer.from_pretrained(folder)(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        return network(**inputs).logits.numpy()


def answers(graph: Path, **inputs) -> np.ndarray:
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    [found] = session.run(None, {name: np.asarray(rows) for name, rows in inputs.items()})
    return found


@pytest.mark.parametrize("kind", ["WordPiece", "byte-level BPE", "Unigram"])
def test_a_cut_network_gives_the_same_logits(kind, tmp_path):
    full = save_network(kind, tmp_path / "full")
    pieces = cut(full, TEXTS)
    cut_network(full, pieces, tmp_path / "cut")
    np.testing.assert_array_equal(logits(tmp_path / "cut"), logits(full))
    before, after = (
        AutoConfig.from_pretrained(folder).to_dict() for folder in (full, tmp_path / "cut")
    )
    for name in {name for name in before if name.endswith("_token_id")}:
        assert after.pop(name) == pieces.new.get(before.pop(name))
    assert after.pop("vocab_size") == len(pieces.old) < before.pop("vocab_size") == pieces.full
    assert after | {"_name_or_path": ""} == before | {"_name_or_path": ""}
    assert (tmp_path / "cut/model.safetensors").stat().st_size < (
        full / "model.safetensors"
    ).stat().st_size


def test_heads_and_shards_are_cut_along(tmp_path):
    """A head over the words, as of a language model, in another file than the table."""
    full = save_network("WordPiece", tmp_path / "full")
    tensors, pieces = load_file(full / "model.safetensors"), cut(full, TEXTS)
    (full / "model.safetensors").unlink()
    head = {"cls.predictions.decoder.weight": torch.rand(pieces.full, 32)}
    shards = {"model-00001-of-00002.safetensors": tensors, "model-00002-of-00002.safetensors": head}
    for name, content in shards.items():
        save_file(content, full / name, {"format": "pt"})
    places = {name: file for file, content in shards.items() for name in content}
    size = sum(tensor.nbytes for content in shards.values() for tensor in content.values())
    index = {"metadata": {"total_size": size}, "weight_map": places}
    (full / "model.safetensors.index.json").write_text(json.dumps(index))
    cut_network(full, pieces, tmp_path / "cut")
    np.testing.assert_array_equal(logits(tmp_path / "cut"), logits(full))
    [rows] = load_file(tmp_path / "cut/model-00002-of-00002.safetensors").values()
    assert torch.equal(rows, head["cls.predictions.decoder.weight"][list(pieces.old)])
    told = json.loads((tmp_path / "cut/model.safetensors.index.json").read_text())
    left_out = 2 * (pieces.full - len(pieces.old)) * 32 * 4
    assert told == {"metadata": {"total_size": size - left_out}, "weight_map": places}


def test_modules_and_settings_come_along_and_other_weights_do_not(tmp_path):
    full = save_network("WordPiece", tmp_path / "full")
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Dense": "Dense"}
    modules = [
        {"path": path, "type": f"sentence_transformers.models.{kind}"}
        for path, kind in kinds.items()
    ]
    (full / "modules.json").write_text(json.dumps(modules))
    (full / "sentence_bert_config.json").write_text("{}")
    (full / "pytorch_model.bin").write_bytes(b"of the full vocabulary")
    for path in ("1_Pooling", "2_Dense"):
        (full / path).mkdir()
        (full / path / "config.json").write_text("{}")
    save_file({"linear.weight": torch.rand(2, 2)}, full / "2_Dense/model.safetensors")
    cut_network(full, cut(full, TEXTS), tmp_path / "cut")
    found = {str(p.relative_to(tmp_path / "cut")) for p in (tmp_path / "cut").rglob("*.*")}
    assert found == {
        *("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"),
        *("modules.json", "sentence_bert_config.json", "1_Pooling/config.json"),
        *("2_Dense/config.json", "2_Dense/model.safetensors"),
    }


def save_graph(place: Path, rows: np.ndarray, *, twice: bool = False) -> Path:
    """The mean of a text's rows, whose ids arrive as int32, next to a table of positions."""
    shape = ["batch", "tokens"]
    nodes = [
        helper.make_node("Cast", ["input_ids"], ["ids"], to=TensorProto.INT64),
        helper.make_node("Gather", ["positions", "first"], ["start"], axis=0),
        helper.make_node("Gather", ["words", "ids"], ["found"], axis=0),
        helper.make_node("Gather", ["again" if twice else "positions", "first"], ["also"], axis=0),
        helper.make_node("Add", ["found", "start"], ["moved"]),
        helper.make_node("ReduceMean", ["moved", "axis"], ["mean"], keepdims=0),
    ]
    if twice:
        nodes[3].input[1] = "ids"
    tables = {
        "words": rows,
        "positions": rows[:5] * 3,
        "first": np.array(0),
        "axis": np.array([1]),
        **({"again": rows} if twice else {}),
    }
    graph = helper.make_graph(
        nodes,
        "mean",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT32, shape)],
        [helper.make_tensor_value_info("mean", TensorProto.FLOAT, ["batch", rows.shape[1]])],
        [numpy_helper.from_array(table, name) for name, table in tables.items()],
        value_info=[helper.make_tensor_value_info("words", TensorProto.FLOAT, rows.shape)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, place)
    return place


@pytest.fixture
def rows() -> np.ndarray:
    return np.random.default_rng(3).normal(size=(50, 64)).astype(np.float32)


def test_a_cut_graph_gives_the_same_answers(rows, tmp_path):
    graph, pieces = save_graph(tmp_path / "full.onnx", rows), PieceMap((1, 7, 3, 49), 50)
    cut_graph(graph, pieces, tmp_path / "cut.onnx")
    before = answers(graph, input_ids=np.array([[1, 49, 3], [7, 7, 1]], np.int32))
    after = answers(tmp_path / "cut.onnx", input_ids=np.array([[0, 3, 2], [1, 1, 0]], np.int32))
    np.testing.assert_array_equal(after, before)
    onnx.checker.check_model(onnx.load(tmp_path / "cut.onnx"), full_check=True)


def test_a_graph_of_two_word_tables_is_refused(rows, tmp_path):
    graph = save_graph(tmp_path / "two.onnx", rows, twice=True)
    with pytest.raises(UnsupportedModelError, match=r"two\.onnx.* 2 tables.*input_ids"):
        cut_graph(graph, PieceMap((1,), 50), tmp_path / "cut.onnx")


def test_four_bits_change_the_word_table_alone_and_little(rows, tmp_path):
    graph, ids = save_graph(tmp_path / "full.onnx", rows), np.arange(50, dtype=np.int32)[:, None]
    four_bit(graph, tmp_path / "small.onnx")
    step = (rows.max() - rows.min()) / 15  # of all numbers: a block's is finer
    near = answers(tmp_path / "small.onnx", input_ids=ids)
    np.testing.assert_allclose(near, answers(graph, input_ids=ids), atol=0.6 * step)
    small = {tensor.name: tensor for tensor in onnx.load(tmp_path / "small.onnx").graph.initializer}
    assert "words" not in small
    np.testing.assert_array_equal(numpy_helper.to_array(small["positions"]), rows[:5] * 3)


@pytest.mark.slow  # torch writes a graph
@pytest.mark.parametrize("kind", ["WordPiece", "byte-level BPE"])
def test_a_graph_that_torch_wrote_is_cut_like_its_network(kind, tmp_path):
    full = save_network(kind, tmp_path / "full")
    write_graph(full, [SEEN], max_length=64)
    pieces, graph = cut(full, TEXTS), full / "onnx/model.onnx"
    cut_network(full, pieces, tmp_path / "cut")
    cut_graph(graph, pieces, tmp_path / "cut.onnx")
    inputs = [
        AutoTokenizer.from_pretrained(folder)(SEEN, padding=True, return_tensors="np")
        for folder in (full, tmp_path / "cut")
    ]
    np.testing.assert_array_equal(
        answers(tmp_path / "cut.onnx", **inputs[1]), answers(graph, **inputs[0])
    )
    four_bit(tmp_path / "cut.onnx", tmp_path / "small.onnx")
    int8(tmp_path / "small.onnx", tmp_path / "small.onnx")
    assert answers(tmp_path / "small.onnx", **inputs[1]).shape == (len(SEEN), 3)


def test_ids_that_only_the_class_names_are_written(tmp_path):
    """RoBERTa's padding is 1 by default, and a config.json need not name it."""
    full = save_network("byte-level BPE", tmp_path / "full")
    told = json.loads((full / "config.json").read_text())
    for name in [name for name in told if name.endswith("_token_id")]:
        del told[name]
    (full / "config.json").write_text(json.dumps(told))
    cut_network(full, cut(full, TEXTS), tmp_path / "cut")
    assert json.loads((tmp_path / "cut/config.json").read_text())["pad_token_id"] == 1
    np.testing.assert_array_equal(logits(tmp_path / "cut"), logits(full))
