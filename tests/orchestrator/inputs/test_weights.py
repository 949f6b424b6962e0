"""A model folder judged by its headers: whole ones of every family pass, and no torn one does."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file
from transformers import AutoModel
from transformers.models.auto import modeling_auto

from lp_sweep.orchestrator.inputs.weights import (
    Torn,
    count_parameters,
    folder_problems,
    read_header,
    shard_names,
)
from lp_sweep.trials.model.modelfiles import INDEX, WEIGHTS, type_problem, types
from tests.support.families import CASES, save_pretrained
from tests.support.tiny import tiny_tokenizer
from tests.support.toyworld import save_model

DEPTH = 3


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
    encoder = AutoModel.from_pretrained(tmp_path)
    parameters = sum(parameter.numel() for parameter in encoder.parameters())
    counted = count_parameters(tmp_path)
    assert counted is not None
    # a pooler that the checkpoint does not have is not counted: a bound from below
    assert 0.8 * parameters <= counted <= parameters


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


def pickled_only(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")


def shallow(folder: Path) -> None:
    save_file({"bert.encoder.layer.0.w": np.zeros(2, np.float32)}, folder / WEIGHTS)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (cut(WEIGHTS), "model.safetensors is not a whole .* bytes"),
        (gone(WEIGHTS), "model.safetensors is missing"),
        (pickled_only, "pytorch_model.bin is pickled, and pickled weights are not read"),
        (shallow, "the weights have 1 layers, the plan expects 3"),
        (gone("config.json"), "config.json is missing"),
        (cut("config.json"), "config.json is not complete JSON"),
        (edited(num_hidden_layers=6), "config.json states 6 layers, the plan expects 3"),
        (edited(hidden_size=10**9), "states hidden_size 1000000000, and the weights have 32"),
        (edited(max_position_embeddings=10**9), "max_position_embeddings .* weights have 64"),
        (edited(hidden_size="32"), "hidden_size '32', and the weights have 32"),
        (edited(model_type="gpt2"), "gpt2 is a decoder .* encoders only"),
        (edited(model_type="albert"), "albert: its layers share one set of weights"),
        (gone("tokenizer.json"), "no tokenizer vocabulary"),
        (cut("tokenizer.json"), "tokenizer.json is not complete JSON"),
    ],
)
def test_a_broken_model(folder: Path, harm: Callable[[Path], None], message: str) -> None:
    harm(folder)
    (problem,) = folder_problems(folder, depth=DEPTH)
    assert re.search(message, problem)


def test_positions_with_two_for_padding_are_no_mistake(folder: Path) -> None:
    """Nystromformer, YOSO and MRA build two positions more than they state."""
    edited(max_position_embeddings=62)(folder)
    assert folder_problems(folder, depth=DEPTH) == []


@pytest.mark.parametrize(
    "task", ["SEQUENCE_CLASSIFICATION", "CAUSAL_LM", "MASKED_LM", "SEQ_TO_SEQ_CAUSAL_LM"]
)
def test_types_are_those_that_transformers_lists(task: str) -> None:
    assert types(task) == set(getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES"))


def test_sizes_of_a_manifest_are_held_against_the_files(folder: Path) -> None:
    sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
    assert folder_problems(folder, depth=DEPTH, sizes=sizes) == []
    told = folder_problems(folder, depth=DEPTH, sizes=sizes | {WEIGHTS: 1, "merges.txt": 7})
    assert told[0].endswith("bytes and should have 1")
    assert told[1:] == ["merges.txt is missing"]


def shard(folder: Path) -> None:
    halves = {"a.safetensors": "bert.encoder.layer.0.w", "b.safetensors": "bert.encoder.layer.1.w"}
    for name, tensor in halves.items():
        save_file({tensor: np.zeros((2, 3), np.float32)}, folder / name)
    (folder / WEIGHTS).unlink()
    weight_map = {tensor: name for name, tensor in halves.items()}
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))


def test_shards(folder: Path) -> None:
    shard(folder)
    edited(num_hidden_layers=2, intermediate_size=3)(folder)
    assert folder_problems(folder, depth=2) == []
    assert shard_names(folder / INDEX) == ["a.safetensors", "b.safetensors"]
    assert count_parameters(folder) == 12
    (folder / "b.safetensors").unlink()
    assert folder_problems(folder, depth=2) == ["b.safetensors is missing"]
    assert count_parameters(folder) is None


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
    with pytest.raises(Torn, match=r"torn\.safetensors"):
        read_header(path)
    assert read_header(whole / WEIGHTS)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"\xff{",
        b'{"w": []}',
        b'{"w": {"shape": [2]}}',
        b'{"w": {"shape": 2, "data_offsets": [0, 8]}}',
    ],
)
def test_a_header_of_another_kind(tmp_path: Path, header: bytes) -> None:
    path = tmp_path / WEIGHTS
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(Torn, match=r"not a whole safetensors"):
        read_header(path)
