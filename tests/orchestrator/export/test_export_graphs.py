"""`lp-sweep export --as onnx`: graphs of every kind answer the dev set without torch."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from huggingface_hub import ModelCard
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

from lp_sweep import open_store
from lp_sweep.orchestrator.export import trialfolder
from lp_sweep.storage.errors import ExportError, SpecError, UnsupportedModelError
from lp_sweep.storage.networks import changed_files
from lp_sweep.storage.store import Store
from lp_sweep.trials.deploy import artefacts, graph
from lp_sweep.trials.deploy.artefacts import GRAPHS
from lp_sweep.trials.deploy.vocabulary import PieceMap
from lp_sweep.trials.model.plainload import embeddings_of
from tests.support.everyday import few
from tests.support.exportworld import World, change_weights, in_this_process, swap_layers
from tests.support.families import FAMILIES, save_pretrained
from tests.support.kindworlds import (
    embedding_world,
    label_world,
    ranking_world,
    search_world,
    sentence_folder,
    token_world,
)
from tests.support.plain_jobs import execute
from tests.support.tiny import tiny_tokenizer
from tests.support.toyworld import WORDS, jobs, save_world

BOTH = ["onnx", "onnx-int8"]
SHORT = {"epochs": 1, "max_length": 24, "limit_train": 48, "batch_size": 16, "compute": "reference"}


def numbers_world(folder: Path, **changes: Any) -> Path:
    return ranking_world(
        folder, {"kind": "regression", "group": None, "name": "how-much"}, **changes
    )


WORLDS: dict[str, Callable[..., Path]] = {
    "tags": token_world,
    "classes": save_world,
    "numbers of pairs": numbers_world,
    "labels": label_world,
    "rankings": ranking_world,
    "vectors": embedding_world,
    "search": search_world,
}


def world_of(file: Path, folder: Path, **settings: Any) -> World:
    """A kept network of two layers or, if a test has changed `k`, of others."""
    todo = [job for job in jobs(file) if job["kind"] == "trial"]
    store = Store(folder / "store", create=True)
    assert execute({**todo[0], "keep": "all"}, store.location)["status"] == "done"
    return World(file, store, todo[0]["id"], "")


def made(kind: str, folder: Path, **changes: Any) -> World:
    usual = {"recipe": SHORT, "strategies": [{"name": "top", "k": [2]}]}
    if kind in ("vectors", "search"):
        usual["procedures"] = ["untrained"]
    return world_of(WORLDS[kind](folder / "world", **usual | changes), folder)


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    in_this_process(monkeypatch)


@pytest.mark.parametrize("kind", few([*WORLDS], 1))
def test_a_graph_answers_as_its_network_without_torch(kind: str, tmp_path: Path) -> None:
    world, out = made(kind, tmp_path), tmp_path / "out"
    done = world.export(world.kept, out, formats=BOTH)
    exact, small = done.graphs
    assert (exact.file, small.file) == ("onnx/model.onnx", "onnx/model_int8.onnx")
    assert small.bytes == (out / small.file).stat().st_size
    assert exact.largest_difference < 1e-4 < small.largest_difference
    assert exact.score == pytest.approx(done.score / 100, abs=1e-6)
    assert json.loads((out / "lp_sweep.json").read_text())["graphs"][1] == small._asdict()
    card = ModelCard.load(out / "README.md").text
    assert f"`{small.file}` | {small.bytes / 1e6:.1f} | {100 * small.score:.2f}" in card
    assert not changed_files(out)
    assert not (out / "__pycache__").exists()
    said = subprocess.run(
        [sys.executable, str(out / "predict.py"), "good film", "bad plot"],
        capture_output=True, text=True, check=True, cwd=tmp_path,
    )  # fmt: skip
    assert said.stdout.startswith(("('good film', 'bad plot')", "good film ", "['good', 'film'] "))
    if kind == "tags":  # a word without a token has no tag, and shifts no other
        asked = "from predict import *; [a], [b] = map(predict, ([['good', 'film']],"
        asked += "[['good', '', 'film']])); assert b == [a[0], None, a[1]], (a, b)"
        subprocess.run([sys.executable, "-c", asked], check=True, cwd=out)


@pytest.fixture
def unseen(tmp_path: Path) -> World:
    """A kept network whose train rows do not have the word w19, which dev rows have."""
    file = save_world(tmp_path / "world", recipe=SHORT, strategies=[{"name": "top", "k": [2]}])
    train = file.parent / "train.csv"
    train.write_text(train.read_text().replace("w19", "w18"))
    return world_of(file, tmp_path)


def test_a_network_with_fewer_pieces_states_its_own_score(unseen: World, tmp_path: Path) -> None:
    done, out = (
        unseen.export(unseen.kept, tmp_path / "out", vocabulary="task"),
        tmp_path / "out",
    )
    found = done.vocabulary
    assert found is not None
    assert (found.pieces, found.of) == (len(WORDS) - 1, len(WORDS))
    assert 0 < found.words_cut < 0.1
    assert (found.score, found.extra_texts) == (done.verified.score, "")
    assert done.verified.largest_difference < 1e-5
    assert json.loads((out / "lp_sweep.json").read_text())["vocabulary"] == found._asdict()
    card = ModelCard.load(out / "README.md").text
    assert f"{found.pieces} of {found.of} pieces" in card
    assert f"**{100 * (found.score or 0):.2f}**" in card
    network = AutoModelForSequenceClassification.from_pretrained(out)
    assert network.get_input_embeddings().num_embeddings == found.pieces
    assert "w19" not in AutoTokenizer.from_pretrained(out).get_vocab()
    assert not changed_files(out)


def test_a_network_that_was_cut_wrongly_is_not_published(
    unseen: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = artefacts.cut_network

    def wrong(folder: Path, pieces: PieceMap, target: Path) -> None:
        real(folder, pieces, target)
        change_weights(target / "model.safetensors", swap_layers)

    monkeypatch.setattr(artefacts, "cut_network", wrong)
    with pytest.raises(ExportError, match="a logit differs"):
        unseen.export(unseen.kept, tmp_path / "out", vocabulary="task")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*WORLDS])
def test_each_kind_is_shipped_with_fewer_pieces(kind: str, tmp_path: Path) -> None:
    world, out = made(kind, tmp_path), tmp_path / "out"
    formats = ["torch", *GRAPHS]
    done = world.export(world.kept, out, formats=formats, vocabulary="task")
    assert [graph.file for graph in done.graphs] == [str(path) for path in GRAPHS.values()]
    assert done.vocabulary is not None
    assert done.graphs[0].score == pytest.approx(done.vocabulary.score, abs=1e-6)
    assert "model_int4.onnx" in (out / "predict.py").read_text()
    assert not changed_files(out)


@pytest.mark.slow
def test_a_program_that_answers_otherwise_is_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tokenizer that cuts texts elsewhere, and one that is not there."""
    world = made("classes", tmp_path)
    real = graph.write_graph

    def write(folder: Path, *more: Any) -> Path:
        path = real(folder, *more)
        content = json.loads((folder / "tokenizer.json").read_text())
        content["post_processor"] = None
        (folder / "tokenizer.json").write_text(json.dumps(content))
        return path

    monkeypatch.setattr(artefacts, "write_graph", write)
    with pytest.raises(ExportError, match="a logit differs from the stored one"):
        world.export(world.kept, tmp_path / "out", formats=BOTH)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["classes", "vectors"])
def test_a_network_without_feed_forwards_is_a_graph_alone(kind: str, tmp_path: Path) -> None:
    """For transformers would put random weights in their place."""
    removed = {"feed_forward": ["all"]}
    world = made(kind, tmp_path, **removed)
    (record,) = world.store.read("trials", world.kept)
    assert record["removed_feed_forwards"]
    with pytest.raises(SpecError, match=r"no feed-forward in layers \d.*--as onnx"):
        world.export(world.kept, tmp_path / "out")
    done = world.export(world.kept, tmp_path / "out", formats=["onnx-int8"])
    assert done.verified.examples
    assert not [*(tmp_path / "out").glob("*.safetensors")]
    assert not (tmp_path / "out" / graph.GRAPH).exists(), "only 8 bits were asked for"
    card = (tmp_path / "out" / "README.md").read_text()
    assert "without the feed-forward of layers" in card
    assert "from_pretrained" not in card


@pytest.mark.slow
def test_modules_and_prompts_are_in_the_graph(tmp_path: Path) -> None:
    file = embedding_world(tmp_path / "world", procedures=["untrained"])
    sentence_folder(file.parent / "model", "Dense", "Normalize", pooling_mode=["mean"])
    own = "kind: embedding\n  prompts: {query: 'w1 ', document: 'w2 '}"
    file.write_text(file.read_text().replace("kind: embedding", own))
    world = world_of(file, tmp_path)
    done = world.export(world.kept, tmp_path / "out", formats=BOTH)
    assert done.graphs[0].largest_difference < 1e-5
    sys.path.insert(0, str(tmp_path / "out"))
    try:
        predict = __import__("predict")
    finally:
        sys.path.pop(0)
        sys.modules.pop("predict", None)
    (plain,), (asked,) = predict.predict(["good film"]), predict.predict(["good film"], "w1 ")
    assert np.linalg.norm(plain) == pytest.approx(1, abs=1e-5)
    assert not np.allclose(plain, asked)


@pytest.mark.slow
def test_a_family_without_a_graph_is_refused_before_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = save_world(tmp_path / "world", recipe=SHORT, strategies=[{"name": "top", "k": [2]}])
    save_pretrained(FAMILIES["xlnet"], 4, file.parent / "model")
    tiny_tokenizer(WORDS, types=False, xlnet=True).save_pretrained(file.parent / "model")
    world = world_of(file, tmp_path)
    monkeypatch.setattr(trialfolder, "from_store", None)
    with pytest.raises(UnsupportedModelError, match=r"xlnet.*aten.sub"):
        world.export(world.kept, tmp_path / "out", formats=BOTH)


def test_python_names_the_formats(tmp_path: Path) -> None:
    Store(tmp_path / "store", create=True)
    with pytest.raises(SpecError, match=r"'onx'.*torch, onnx, onnx-int8"):
        open_store(tmp_path / "store").export(tmp_path / "out", "t1-0", formats=["onx"])


FASTEMBED = os.environ.get("LP_SWEEP_TEST_FASTEMBED")  # a Python that has it, if not this one


@pytest.mark.slow
@pytest.mark.skipif(
    not (FASTEMBED or find_spec("fastembed")),
    reason="needs fastembed here, or LP_SWEEP_TEST_FASTEMBED=PYTHON that has it",
)
@pytest.mark.parametrize("normalised", [True, False])
def test_fastembed_serves_a_graph_as_the_card_says(normalised: bool, tmp_path: Path) -> None:
    file = embedding_world(tmp_path / "world", procedures=["untrained"])
    sentence_folder(file.parent / "model", *["Normalize"] * normalised, pooling_mode=["mean"])
    out = tmp_path / "out"
    world = world_of(file, tmp_path)
    world.export(world.kept, out, formats=["onnx"])
    blocks = re.findall(r"```python\n(.*?)```", (out / "README.md").read_text(), re.DOTALL)
    (block,) = (block for block in blocks if "fastembed" in block)
    assert "A cat sleeps." in block
    texts = ["good film", "bad plot w3 w4"]
    code = block.replace('["A cat sleeps.", "A cat is asleep."]', repr(texts))
    code += "import numpy\nnumpy.save('../vectors.npy', vectors)\n"
    python = FASTEMBED or sys.executable
    subprocess.run([python, "-c", code], cwd=out, check=True)
    found = np.load(tmp_path / "vectors.npy")
    network, tokenizer = AutoModel.from_pretrained(out).eval(), AutoTokenizer.from_pretrained(out)
    expected = embeddings_of(network, tokenizer, [texts], 24, "mean")
    if normalised:
        expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(found, expected, atol=1e-5)
