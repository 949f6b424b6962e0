"""Embeddings with prompts, compared by the dot product, and learned from pairs."""

from __future__ import annotations

import json
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from lp_sweep.orchestrator.inputs.resolve import resolve
from lp_sweep.orchestrator.sweepfile.load import load_sweep
from lp_sweep.storage.store import Store
from lp_sweep.trials.data.batches import EncodedSplit
from lp_sweep.trials.data.datasource import load_task, prompted
from lp_sweep.trials.data.encode import load_tokenizer
from lp_sweep.trials.data.tasks import user_task
from lp_sweep.trials.kinds import KINDS, kind_of
from lp_sweep.trials.kinds.embedding import Embedding
from lp_sweep.trials.train.steps import EagerPass
from lp_sweep.trials.worker.resident import resident
from lp_sweep.trials.worker.run import execute
from tests.support.everyday import few
from tests.support.kindworlds import collection, embedding_world, search_world, write
from tests.support.toyworld import jobs

# -- losses


@pytest.fixture
def vectors() -> torch.Tensor:
    """The vectors of five pairs."""
    draw = torch.Generator().manual_seed(3)
    return (torch.randn(10, 6, generator=draw) * 2).requires_grad_()


def loss_of(vectors: torch.Tensor, loss: str, scores: list[float], *, dot: bool) -> torch.Tensor:
    target = torch.tensor(scores).repeat_interleave(2)
    return Embedding(dot=dot).named_loss(loss, vectors, target, None)


def alike(vectors: torch.Tensor, one: int, other: int, *, dot: bool) -> float:
    a, b = vectors[one].detach().double(), vectors[other].detach().double()
    return float(a @ b) if dot else 20 * float(a @ b / (a.norm() * b.norm()))


@pytest.mark.parametrize("dot", [False, True])
def test_cosent_is_that_of_all_pairs_of_pairs(vectors: torch.Tensor, dot: bool) -> None:
    scores = [0.0, 3.0, 3.0, 5.0, 1.0]
    own = [alike(vectors, 2 * i, 2 * i + 1, dot=dot) for i in range(5)]
    gaps = [exp(own[i] - own[j]) for i in range(5) for j in range(5) if scores[i] < scores[j]]
    loss = loss_of(vectors, "cosent", scores, dot=dot)
    assert float(loss.detach()) == pytest.approx(log(1 + sum(gaps)), rel=1e-4)


def test_equal_scores_teach_nothing(vectors: torch.Tensor) -> None:
    loss_of(vectors, "cosent", [1.0] * 5, dot=False).backward()
    assert vectors.grad is not None
    assert not vectors.grad.any()


@pytest.mark.parametrize("dot", [False, True])
def test_other_pairs_of_the_batch_are_negatives(vectors: torch.Tensor, dot: bool) -> None:
    parts = []
    for i in range(5):
        found = [alike(vectors, 2 * i, 2 * j + 1, dot=dot) for j in range(5)]
        top = max(found)
        parts.append(top + log(sum(exp(each - top) for each in found)) - found[i])
    loss = loss_of(vectors, "in_batch_negatives", [0.0] * 5, dot=dot)
    assert float(loss.detach()) == pytest.approx(np.mean(parts), rel=1e-4)


@pytest.mark.parametrize("dot", [False, True])
def test_similarities_of_all_texts_of_a_batch(vectors: torch.Tensor, dot: bool) -> None:
    teacher = torch.roll(vectors.detach(), 1, dims=1) * 2
    gaps = [
        (alike(vectors, i, j, dot=dot) - alike(teacher, i, j, dot=dot)) ** 2
        for i in range(10)
        for j in range(10)
    ]
    scale = 1 if dot else 20**2  # of cosines in the other losses
    kind = Embedding(dot=dot)
    found = kind.named_loss("imitate_similarities", vectors, torch.zeros(10), teacher)
    own = kind.imitation_loss(vectors, teacher, 1.0)
    assert float((found - own).detach()) == pytest.approx(np.mean(gaps) / scale, rel=1e-4)


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """Train rows have scores."""
    file = embedding_world(tmp_path / "world")
    train = pq.read_table(file.parent / "texts.parquet")
    scores = np.random.default_rng(1).uniform(0, 5, len(train))
    pq.write_table(train.append_column("y", pa.array(scores)), file.parent / "texts.parquet")
    return file


def set_loss(file: Path, loss: str) -> Path:
    changed = file.with_name(f"{loss}.yaml")
    named = f"kind: embedding\n  loss: {loss}"
    changed.write_text(file.read_text().replace("kind: embedding", named))
    return changed


@pytest.mark.parametrize(
    "loss", few(["imitate_mse", "imitate_similarities", "cosent", "in_batch_negatives"], 2)
)
def test_a_network_learns_by_each_loss(
    world: Path, loss: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[np.ndarray] = []
    passed = EagerPass.__call__

    def noted(self: EagerPass, split: EncodedSplit, rows: np.ndarray, share: float) -> Any:
        batches.append(rows)
        return passed(self, split, rows, share)

    monkeypatch.setattr(EagerPass, "__call__", noted)
    file = set_loss(world, loss)
    todo = sorted(jobs(file), key=lambda job: job["kind"])
    pairs = not loss.startswith("imitate")
    assert [job["kind"] for job in todo] == ["profile"] * (not pairs) + ["trial"] * 3
    for job in todo:
        assert execute(job, store.location)["status"] == "done"
    rows = store.read_all("trials").rows.to_pylist()
    (taught,) = (row for row in rows if row["procedure"] == "direct")
    assert taught["train_losses"][1] < taught["train_losses"][0]
    together = 2 if pairs else 1
    assert taught["steps"] == 2 * -(-48 // (16 * together))
    assert len(batches[0]) == 16 * together
    if pairs:  # the two texts of a pair stay next to each other
        assert all((rows[::2] % 2 == 0).all() for rows in batches)
        assert all((rows[1::2] == rows[::2] + 1).all() for rows in batches)
        assert sorted(np.concatenate(batches[:2])) == [*range(48)]


def test_the_default_loss_makes_no_other_trial(world: Path) -> None:
    def trials(file: Path) -> dict[tuple[str, int], str]:
        made = (job for job in jobs(file) if job["kind"] == "trial")
        return {(j["spec"]["procedure"], len(j["spec"]["kept_layers"])): j["id"] for j in made}

    usual = trials(world)
    assert trials(set_loss(world, "imitate")) == usual
    other = trials(set_loss(world, "cosent"))
    assert {key for key in usual if other[key] != usual[key]} == {("direct", 2)}


def test_scores_are_read_where_a_loss_needs_them(tmp_path: Path, store: Store) -> None:
    file = set_loss(embedding_world(tmp_path / "world"), "cosent")
    (job,) = (job for job in jobs(file) if job["spec"]["procedure"] == "direct")
    execute(job, store.location)
    (attempt,) = store.read_all("attempts").rows.to_pylist()
    assert "no column 'y'" in attempt["message"]


# -- prompts, and the dot product


def described(file: Path, **content: Any) -> None:
    """As a folder of Sentence Transformers describes itself."""
    config = file.parent / "model" / "config_sentence_transformers.json"
    config.write_text(json.dumps(content))


def definition(file: Path) -> Any:
    (task,) = resolve(load_sweep(file)).tasks.values()
    return task.definition


NAMED = {"query": "w1 ", "passage": "w2 ", "sts": "w3 "}


def test_prompts_are_those_of_the_models_folder(tmp_path: Path) -> None:
    search, pairs = search_world(tmp_path / "search"), embedding_world(tmp_path / "pairs")
    for file, usual, expected in (
        (search, "sts", ("w1 ", "w2 ")),
        (pairs, None, ("", "")),
        (pairs, "sts", ("w3 ", "w3 ")),
    ):
        described(file, prompts=NAMED, default_prompt_name=usual)
        found = definition(file)
        assert (found.query_prompt, found.document_prompt) == expected
    own = "kind: embedding\n  prompts: {query: 'q '}"
    search.write_text(search.read_text().replace("kind: embedding", own))
    assert (definition(search).query_prompt, definition(search).document_prompt) == ("q ", "")


@pytest.mark.parametrize(("modules", "way"), [([], "dot"), (["x.Normalize"], "")])
def test_the_similarity_is_that_of_the_models_folder(
    tmp_path: Path, modules: list[str], way: str
) -> None:
    file = search_world(tmp_path / "world")
    described(file, similarity_fn_name="dot")
    listed = [{"path": "", "type": name} for name in ["x.Transformer", *modules]]
    (file.parent / "model" / "modules.json").write_text(json.dumps(listed))
    assert definition(file).similarity == way


def test_a_text_follows_its_prompt(tmp_path: Path, store: Store) -> None:
    file = search_world(tmp_path / "world")
    described(file, prompts=NAMED)
    (full,) = (job for job in jobs(file) if len(job["spec"].get("kept_layers", ())) == 4)
    execute(full, store.location)
    (encoded,) = list(resident()._tasks.values())[-1:]
    tokenizer, corpus = load_tokenizer(file.parent / "model"), collection()["corpus"]
    queries = [f"w1 {text}" for text in collection()["queries"]["text"]]
    documents = [f"w2 {t} {text}" for t, text in zip(corpus["title"], corpus["text"], strict=True)]
    for split, texts in ((encoded.dev["queries"], queries + documents), (encoded.train, documents)):
        rows = np.split(split.tokens, split.offsets[1:-1])
        assert [row.tolist() for row in rows] == tokenizer(texts)["input_ids"]


def test_of_a_pair_each_text_has_its_own(tmp_path: Path) -> None:
    files = write(tmp_path, {"t": {"a": ["x"], "b": ["y"], "s": [1.0]}})
    made = user_task(
        name="sim", kind="embedding", text=["a", "b"], label="s", train=files["t"], dev=files["t"],
        query_prompt="q: ", document_prompt="d: ",
    )  # fmt: skip
    loaded = load_task(*made)
    assert prompted(made.definition, loaded.train, scored=False) == (["q: x"], ["d: y"])


def test_by_the_dot_product_lengths_count() -> None:
    task = user_task(
        name="sim", kind="embedding", text=["a", "b"], similarity="dot", train="t.csv", dev="d.csv"
    ).definition
    vectors = np.array([[1, 0], [2, 0], [1, 1], [-3, 0]], np.float32)
    assert list(kind_of(task).answers(vectors)) == [2, -3]
    own, other = torch.tensor([[1.0, 0]]), torch.tensor([[3.0, 0]])
    for kind, loss in ((kind_of(task), 2), (KINDS["embedding"], 0)):
        assert float(kind.imitation_loss(own, other, 1.0)) == loss
