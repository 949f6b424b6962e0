"""A model folder judged by its headers: whole ones of every family pass, and no torn one does."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file
from safetensors.torch import save_file as save_torch
from transformers.models.auto import modeling_auto

from lp_sweep.orchestrator.inputs.folder import ModelFault
from lp_sweep.orchestrator.inputs.models import find_model
from lp_sweep.orchestrator.inputs.pins import Pins
from lp_sweep.orchestrator.inputs.weights import folder_problems, read_header
from lp_sweep.storage.errors import PreflightError, SpecError
from lp_sweep.trials.model.modelfiles import ADAPTER, INDEX, WEIGHTS, type_problem, types
from tests.support.families import CASES, save_pretrained
from tests.support.tiny import tiny_tokenizer
from tests.support.toyworld import save_model

DEPTH = 3
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("whole"), depth=DEPTH)


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """A copy to be broken."""
    for path in whole.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


@pytest.mark.parametrize("family", CASES)
def test_a_whole_model_of_every_family(family: Any, tmp_path: Path) -> None:
    save_pretrained(family, DEPTH, tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    assert type_problem(family.config(DEPTH).to_dict()) is None
    assert folder_problems(tmp_path, depth=DEPTH) == []
    assert "layers, the plan expects 5" in folder_problems(tmp_path, depth=5)[0]


def cut(name: str) -> Callable[[Path], None]:
    def harm(folder: Path) -> None:
        path = folder / name
        path.write_bytes(path.read_bytes()[:-7])

    return harm


def gone(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def edited(**changes: Any) -> Callable[[Path], None]:
    def harm(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return harm


def shallow(folder: Path) -> None:
    save_file({"bert.encoder.layer.0.w": np.zeros(2, np.float32)}, folder / WEIGHTS)


def renamed(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / WEIGHTS).rename(folder / name)


def written(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(content) and None


def with_mark(name: str) -> Callable[[Path], None]:
    """As Notepad and PowerShell save it."""
    return lambda folder: written(name, b"\xef\xbb\xbf" + (folder / name).read_bytes())(folder)


def changed(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    """Other tensors: `change` gets them all, and may return others."""

    def harm(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        save_file(change(tensors) or tensors, folder / WEIGHTS, metadata={"format": "pt"})

    return harm


TENSOR = "encoder.layer.1.output.dense.weight"


def prefixed(start: str) -> Callable[[dict[str, Any]], Any]:
    return lambda tensors: {start + name: tensor for name, tensor in tensors.items()}


def indexed(**changes: Any) -> Callable[[Path], None]:
    def harm(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        (folder / WEIGHTS).rename(folder / "model-00001-of-00001.safetensors")
        weight_map = dict.fromkeys(tensors, "model-00001-of-00001.safetensors")
        told = {"metadata": {}, "weight_map": weight_map} | changes
        (folder / INDEX).write_text(json.dumps(told))

    return harm


def without_unknown(folder: Path) -> None:
    told = json.loads((folder / "tokenizer.json").read_text())
    del told["model"]["vocab"]["[UNK]"]
    (folder / "tokenizer.json").write_text(json.dumps(told))


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (renamed("model-00001-of-00002.safetensors"), "model-00001-of.* no model.*index.json"),
        (renamed("weights.safetensors"), "weights.safetensors: .*Rename"),
        (renamed("tf_model.h5"), "tf_model.h5: .*TensorFlow"),
        (renamed("model.onnx"), "model.onnx: a graph.*made from"),
        (renamed("model.gguf"), "model.gguf: quantized"),
        (with_mark("config.json"), "config.json .*BOM.*UTF-8"),
        (written("config.json", b""), "config.json .* it is empty"),
        (written("config.json", b"[1]"), r"config.json holds no JSON object .* \[1\]"),
        (written("special_tokens_map.json", b"[]"), "special_tokens_map.json holds no JSON object"),
        (written("tokenizer.json", b"{}"), "tokenizer.json can't be read by .* tokenizers"),
        (edited(quantization_config={"quant_method": "gptq"}), "quantized .*'gptq'"),
        (edited(pruned_heads={"0": [1]}), "pruned_heads.*without some of its heads"),
        (edited(output_attentions=True, _attn_implementation="sdpa"), "output_attentions .*'sdpa'"),
        (edited(layer_norm_eps=float("nan")), "config.json .*NaN is no number"),
        (edited(use_return_dict=False), "use_return_dict.*Remove"),
        (edited(id2label=["a", "b"]), "id2label: .*mapping"),
        (edited(add_cross_attention=True), "bert is a decoder"),
        (edited(pad_token_id=999), "pad_token_id 999, and the embedding has 28 rows"),
        (changed(lambda tensors: tensors | {TENSOR: np.zeros((32, 64), np.int8)}), "I8.*quantized"),
        (
            changed(lambda tensors: tensors | {TENSOR: tensors[TENSOR].T.copy()}),
            rf"{TENSOR} has the shape \[64, 32\], in other layers \[32, 64\]",
        ),
        (
            changed(lambda tensors: {name: tensors[name] for name in tensors if name != TENSOR}),
            f"{TENSOR} is missing",
        ),
        (changed(prefixed("_orig_mod.")), "'_orig_mod.'.*compiled"),
        (changed(prefixed("0.auto_model.")), "begin as in 0.auto_model"),
        (changed(prefixed("roberta.")), "one of bert, .* begin with 'roberta.'"),
        (edited(num_attention_heads=5), "width of 32 for 5 attention heads"),
        (edited(hidden_dropout_prob=1.5), "hidden_dropout_prob 1.5.*from 0 to below 1"),
        (without_unknown, "tokenizer.json can't read a word that it does not know"),
        (indexed(metadata=None), 'index.json has no "metadata"'),
        (indexed(weight_map={"x": "../a.safetensors"}), "'../a.safetensors' is no name"),
        (indexed(weight_map={"x": "model-00001-of-00001.safetensors"}), "1 tensors .*: x in model"),
        (cut(WEIGHTS), "model.safetensors is not a whole .* bytes"),
        (gone(WEIGHTS), "model.safetensors is missing"),
        (
            renamed("pytorch_model.bin"),
            "pytorch_model.bin: pickled weights, .* not read.*save_pretrained",
        ),
        (shallow, "the weights have 1 layers, the plan expects 3"),
        (gone("config.json"), "config.json is missing"),
        (cut("config.json"), "config.json is not complete JSON"),
        (edited(num_hidden_layers=6), "config.json states 6 layers, the plan expects 3"),
        (edited(hidden_size=10**9), "states hidden_size 1000000000, and the weights have 32"),
        (edited(model_type="gpt2"), "gpt2 is a decoder .* encoders only"),
        (edited(model_type="albert"), "albert: its layers share one set of weights"),
        (edited(model_type="fnet"), "fnet has no attention mask: .* how far a text is padded"),
        (gone("tokenizer.json"), "no tokenizer vocabulary"),
    ],
)
def test_a_broken_model(folder: Path, harm: Callable[[Path], None], message: str) -> None:
    harm(folder)
    (problem,) = folder_problems(folder, depth=DEPTH)
    assert re.search(message, problem)


def test_a_number_that_is_none_is_found_in_every_width(folder: Path) -> None:
    tensors = {name: torch.tensor(value) for name, value in load_file(folder / WEIGHTS).items()}
    for dtype in (torch.float32, torch.float16, torch.float64, torch.bfloat16):
        tensors = {name: tensor.nan_to_num().to(dtype) for name, tensor in tensors.items()}
        save_torch(tensors, folder / WEIGHTS)
        assert folder_problems(folder, depth=DEPTH) == []
        tensors[TENSOR][0, 0] = torch.nan
        save_torch(tensors, folder / WEIGHTS)
        (problem,) = folder_problems(folder, depth=DEPTH)
        assert re.search(f"1 of 2,048 .*{TENSOR}", problem)


def looped(path: Path) -> None:
    path.symlink_to(path.name)


def listening(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as pipe, contextlib.chdir(path.parent):
        pipe.bind(path.name)


@pytest.mark.parametrize("name", ["config.json", WEIGHTS, "1_Pooling/x.json"])
@pytest.mark.parametrize(
    ("put", "message"),
    [
        (looped, "a link to .*symbolic links"),
        (lambda path: path.symlink_to("/nowhere/x"), "a link to '/nowhere/x'"),
        (lambda path: path.symlink_to("/dev/zero"), "a device"),
        (os.mkfifo, "a pipe"),
        (listening, "a socket"),
        (lambda path: path.mkdir(), "is a folder"),
        (lambda path: path.write_text(POINTER), "Git LFS.*git lfs pull"),
    ],
    ids=["loop", "dangling", "device", "pipe", "socket", "folder", "lfs"],
)
def test_a_file_that_is_none(
    folder: Path, name: str, put: Callable[[Path], Any], message: str
) -> None:
    """Found without opening it: a pipe or an endless device is never read to its end."""
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).unlink(missing_ok=True)
    put(folder / name)
    with pytest.raises(PreflightError, match=f"{name}.*{message}"):
        find_model(str(folder), revision=None, layers=None, folder=folder, pins=Pins(None))


@pytest.mark.parametrize(
    ("move", "message"),
    [
        ("checkpoint-10/*", "checkpoint-10"),
        ("snapshots/abc/*", "snapshots/abc"),
        (ADAPTER, "adapter.*'bert-base-uncased'.*merge_and_unload"),
    ],
)
def test_a_folder_of_another_kind(folder: Path, move: str, message: str) -> None:
    if move == ADAPTER:
        base = {"peft_type": "LORA", "base_model_name_or_path": "bert-base-uncased"}
        (folder / ADAPTER).write_text(json.dumps(base))
    else:
        target = (folder / move).parent
        target.mkdir(parents=True)
        for path in [path for path in folder.iterdir() if path.is_file()]:
            path.rename(target / path.name)
    with pytest.raises(SpecError, match=message):
        find_model(str(folder), revision=None, layers=None, folder=folder, pins=Pins(None))


@pytest.mark.parametrize(
    "task", ["SEQUENCE_CLASSIFICATION", "CAUSAL_LM", "MASKED_LM", "SEQ_TO_SEQ_CAUSAL_LM"]
)
def test_types_are_those_that_transformers_lists(task: str) -> None:
    assert types(task) == set(getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES"))


def test_a_file_in_place_of_its_folder(folder: Path) -> None:
    with pytest.raises(SpecError, match=f"is no folder. Name the folder .*{folder}"):
        find_model("./" + WEIGHTS, revision=None, layers=None, folder=folder, pins=Pins(None))


def test_sizes_of_a_manifest_are_held_against_the_files(folder: Path) -> None:
    sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
    edited(max_position_embeddings=62)(folder)  # Nystromformer, YOSO and MRA build two more
    sizes["config.json"] = (folder / "config.json").stat().st_size
    assert folder_problems(folder, depth=DEPTH, sizes=sizes) == []
    told = folder_problems(folder, depth=DEPTH, sizes=sizes | {WEIGHTS: 1, "merges.txt": 7})
    assert told[0].endswith("bytes and should have 1")
    assert told[1:] == ["merges.txt is missing"]


def test_shards(folder: Path) -> None:
    halves = {"a.safetensors": "bert.encoder.layer.0.w", "b.safetensors": "bert.encoder.layer.1.w"}
    for name, tensor in halves.items():
        save_file({tensor: np.zeros((2, 3), np.float32)}, folder / name)
    (folder / WEIGHTS).unlink()
    weight_map = {tensor: name for name, tensor in halves.items()}
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    edited(num_hidden_layers=2, intermediate_size=3)(folder)
    assert folder_problems(folder, depth=2) == []
    (folder / "b.safetensors").unlink()
    (problem,) = folder_problems(folder, depth=2)
    assert re.search(r"b.safetensors is missing.* 1 tensors .*bert.encoder.layer.1.w", problem)


@given(data=st.data())
def test_no_torn_file_passes_for_whole(whole: Path, data: st.DataObject) -> None:
    """Cut anywhere, with bytes added, or with any byte of the header's length changed."""
    content = (whole / WEIGHTS).read_bytes()
    kind = data.draw(st.sampled_from(["cut", "longer", "length"]))
    if kind == "cut":
        torn = content[: data.draw(st.integers(0, len(content) - 1))]
    elif kind == "longer":
        torn = content + data.draw(st.binary(min_size=1, max_size=50))
    else:
        place = data.draw(st.integers(0, 7))
        value = data.draw(st.integers(0, 255).filter(lambda value: value != content[place]))
        torn = content[:place] + bytes([value]) + content[place + 1 :]
    path = whole.parent / "torn.safetensors"
    path.write_bytes(torn)
    with pytest.raises(ModelFault, match=r"torn\.safetensors"):
        read_header(path)
    assert read_header(whole / WEIGHTS)
