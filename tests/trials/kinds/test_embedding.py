"""Bi-encoders: from texts and prompts to vectors, their similarity and losses, and a pruned network
that imitates the full one."""

from __future__ import annotations

import json
import shutil
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file
from scipy.special import logsumexp
from scipy.stats import spearmanr
from transformers import AutoModel, AutoTokenizer

from lp_sweep.orchestrator.estimate import MeanLengths, missing_flop
from lp_sweep.orchestrator.inputs.resolve import resolve
from lp_sweep.orchestrator.plan.known import WorkHistory, timing_columns
from lp_sweep.orchestrator.plan.planning import make_plan
from lp_sweep.orchestrator.sweepfile.load import load_sweep
from lp_sweep.storage.errors import SpecError
from lp_sweep.storage.store import Store
from lp_sweep.trials.data.batches import EncodedSplit
from lp_sweep.trials.data.datasource import LoadedTask, Split, load_task, overlap, prompted
from lp_sweep.trials.data.encode import load_tokenizer
from lp_sweep.trials.data.tasks import TaskSource, user_definition
from lp_sweep.trials.fast.forward import forward
from lp_sweep.trials.kinds import kind_of
from lp_sweep.trials.kinds.embedding import Embedding
from lp_sweep.trials.spec.specs import TaskDefinition
from lp_sweep.trials.train.steps import EagerPass
from lp_sweep.trials.worker.resident import resident
from tests.support.everyday import few
from tests.support.families import NAMES
from tests.support.fastnets import CPU, assert_within_1e5, network, setting, split_of
from tests.support.kindworlds import (
    collection,
    embedding_world,
    in_order,
    modules,
    search_world,
    sentence_folder,
    vectors_by_hand,
    write,
)
from tests.support.plain_jobs import assert_fails, done
from tests.support.toyworld import jobs

WAYS = ["mean", "cls", "last"]
LENGTHS = [3, 9, 1, 5]
PAIRS = TaskDefinition(text_columns=("a", "b"), kind="embedding", metric="spearman", pooling="mean")
by_cosine_and_dot = pytest.mark.parametrize("dot", [False, True], ids=["cosine", "dot"])

# -- vectors


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("pooling", few(WAYS, 2))
@torch.no_grad()
def test_every_compute_embeds_alike(name: str, pooling: str) -> None:
    """As the bare encoder of transformers, pooled by hand."""
    model = network(name).eval()
    split, rows = split_of(LENGTHS), np.array([2, 0, 3, 1])
    how = setting("fast")
    for compute in ("reference", "fast"):
        found = forward(model, split, rows, how.padding, CPU, compute, pooling=pooling)
        for place, row in enumerate(rows):
            ids = torch.tensor(split.tokens[split.offsets[row] : split.offsets[row + 1]])[None]
            states = model.base_model(input_ids=ids.long()).last_hidden_state[0]
            expected = {"mean": states.mean(0), "cls": states[0], "last": states[-1]}[pooling]
            assert_within_1e5(found[place].numpy(), expected.numpy())


@pytest.mark.parametrize(
    ("dot", "answers", "loss"),
    [(False, [0, 1, -1, 0], 0), (True, [0, 6, -5, 0], 2)],
    ids=["cosine", "dot"],
)
def test_an_answer_is_the_similarity_of_a_pair(
    dot: bool, answers: list[float], loss: float
) -> None:
    vectors = np.array(
        [[1, 0], [0, 2], [3, 3], [1, 1], [1, 0], [-5, 0], [0, 0], [1, 1]], np.float32
    )
    similarity = "dot" if dot else None
    kind = kind_of(user_definition("sim", kind="embedding", text=["a", "b"], similarity=similarity))
    assert kind.answers(vectors) == pytest.approx(answers)
    assert list(kind.targets(np.repeat([4, 5, 6, 7], 2))) == [4, 5, 6, 7]
    # a teacher's vector of three times the length
    assert float(kind.imitation_loss(torch.eye(2)[:1], 3 * torch.eye(2)[:1], 1.0)) == loss


# -- losses


@pytest.fixture
def vectors() -> torch.Tensor:
    """The vectors of five pairs."""
    draw = torch.Generator().manual_seed(3)
    return (torch.randn(10, 6, generator=draw) * 2).requires_grad_()


def loss_of(vectors: torch.Tensor, loss: str, scores: list[float], *, dot: bool) -> torch.Tensor:
    target = torch.tensor(scores).repeat_interleave(2)
    return Embedding(dot=dot).named_loss(loss, vectors, target, None)


def alike(vectors: torch.Tensor, *, dot: bool) -> np.ndarray:
    """(N, N) of all texts: dot products, or 20 times the cosines."""
    found = vectors.detach().double().numpy()
    products = found @ found.T
    lengths = np.linalg.norm(found, axis=1)
    return products if dot else 20 * products / np.outer(lengths, lengths)


@by_cosine_and_dot
@pytest.mark.parametrize("scores", [[0.0, 3.0, 3.0, 5.0, 1.0], [1.0] * 5], ids=["unlike", "equal"])
def test_cosent_is_that_of_all_pairs_of_pairs(
    vectors: torch.Tensor, scores: list[float], dot: bool
) -> None:
    own = alike(vectors, dot=dot)[::2, 1::2].diagonal()
    gaps = [exp(own[i] - own[j]) for i in range(5) for j in range(5) if scores[i] < scores[j]]
    loss = loss_of(vectors, "cosent", scores, dot=dot)
    assert float(loss.detach()) == pytest.approx(log(1 + sum(gaps)), rel=1e-4)
    loss.backward()
    assert vectors.grad is not None
    assert bool(vectors.grad.any()) == bool(gaps), "equal scores teach nothing"


@by_cosine_and_dot
def test_other_pairs_of_the_batch_are_negatives(vectors: torch.Tensor, dot: bool) -> None:
    found = alike(vectors, dot=dot)[::2, 1::2]
    expected = (logsumexp(found, axis=1) - found.diagonal()).mean()
    loss = loss_of(vectors, "in_batch_negatives", [0.0] * 5, dot=dot)
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-4)


@by_cosine_and_dot
def test_similarities_of_all_texts_of_a_batch(vectors: torch.Tensor, dot: bool) -> None:
    teacher = torch.roll(vectors.detach(), 1, dims=1) * 2
    gaps = alike(vectors, dot=dot) - alike(teacher, dot=dot)
    scale = 1 if dot else 20**2  # of cosines in the other losses
    kind = Embedding(dot=dot)
    found = kind.named_loss("imitate_similarities", vectors, torch.zeros(10), teacher)
    own = kind.imitation_loss(vectors, teacher, 1.0)
    expected = np.square(gaps).mean() / scale
    assert float((found - own).detach()) == pytest.approx(expected, rel=1e-4)


# -- a trial


@pytest.fixture
def world(tmp_path: Path) -> Path:
    return embedding_world(tmp_path / "world")


@pytest.fixture
def scored(world: Path) -> Path:
    """Train rows have scores."""
    train = pq.read_table(world.parent / "texts.parquet")
    scores = np.random.default_rng(1).uniform(0, 5, len(train))
    pq.write_table(train.append_column("y", pa.array(scores)), world.parent / "texts.parquet")
    return world


def test_a_pruned_network_imitates_the_full_one(world: Path, store: Store) -> None:
    todo = sorted(jobs(world), key=lambda job: job["kind"])
    assert [job["kind"] for job in todo] == ["profile", "trial", "trial", "trial"]
    done(store, *todo)
    rows = store.read_all("trials").rows.to_pylist()
    full, alone, taught = sorted(rows, key=lambda row: (row["k"], row["procedure"] == "direct"))
    assert (alone["procedure"], taught["procedure"]) == ("untrained", "direct")
    assert (full["steps"], full["train_losses"], full["best_epoch"]) == (0, [], 0)
    assert taught["train_losses"][1] < taught["train_losses"][0]
    assert (taught["dev_examples"], taught["majority"]) == (24, None)  # pairs
    assert (taught["distill"], taught["train_examples"]) == (None, 48)

    table = pq.read_table(world.parent / "pairs.parquet").to_pydict()
    one, other = (vectors_by_hand(world.parent / "model", table[name]) for name in "ab")
    cosines = (one * other).sum(1).tolist()
    stored = store.read("predictions", full["trial_id"])
    assert [row["prediction"] for row in stored] == pytest.approx(cosines, abs=1e-5)
    assert {len(row["scores"]) for row in stored} == {0}
    assert full["last"] == pytest.approx(spearmanr(table["y"], cosines)[0], abs=1e-6)


def test_dense_modules_change_every_vector(world: Path, store: Store) -> None:
    """Those of students as well, and what they imitate."""
    before, model = {job["id"] for job in jobs(world)}, world.parent / "model"
    sentence_folder(model, "Normalize")
    assert {job["id"] for job in jobs(world)} == before
    sentence_folder(model, "Dense", "Normalize", width=5)
    todo = in_order(world)
    assert not before & {job["id"] for job in todo}
    done(store, *todo)
    [full] = (row for row in store.read_all("trials").rows.to_pylist() if row["k"] == 0)
    assert full["vector_width"] == 5
    weight = load_file(model / "2_Dense/model.safetensors")["linear.weight"]
    network, tokenizer = (
        AutoModel.from_pretrained(model).eval(),
        AutoTokenizer.from_pretrained(model),
    )
    table = pq.read_table(world.parent / "pairs.parquet").to_pydict()

    def vector(text: str) -> torch.Tensor:
        states = network(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        return torch.tanh(weight @ states.mean(0)).detach()

    pairs = zip(table["a"], table["b"], strict=True)
    cosines = [float(torch.cosine_similarity(vector(a), vector(b), dim=0)) for a, b in pairs]
    stored = store.read("predictions", full["trial_id"])
    assert [row["prediction"] for row in stored] == pytest.approx(cosines, abs=1e-5)


def test_dense_modules_that_change_are_noticed(world: Path, store: Store) -> None:
    sentence_folder(world.parent / "model", "Dense")
    [full] = (job for job in jobs(world) if len(job["spec"].get("kept_layers", ())) == 4)
    sentence_folder(world.parent / "model", "Dense", width=6)
    assert_fails(store, full, "missing_input", "modules after the pooling have changed")


@pytest.mark.parametrize(
    ("names", "pooling", "named"),
    [
        (["WordWeights"], {}, "WordWeights"),
        (["Dense", "LSTM"], {}, "LSTM"),
        ([], {"pooling_mode": ["max"]}, "'max'.*pooling: mean"),
        (["Dense"], {"pooling_mode": ["cls", "mean"]}, r"'cls\+mean'.*modules.json"),
        ([], {"pooling_mode": ["best"]}, "unknown mode best"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_vectors_that_a_sweep_can_not_make_are_refused(
    world: Path, names: list[str], pooling: dict[str, Any], named: str
) -> None:
    sentence_folder(world.parent / "model", *names, **pooling)
    with pytest.raises(SpecError, match=named):
        definition(world)


@pytest.mark.parametrize(
    ("names", "pooling", "named"),
    [
        ([], {"pooling_mode": ["mean"]}, None),
        ([], {"pooling_mode": ["cls"]}, r"pooling is cls.*hf download x/y .*pooling: cls"),
        (["Dense"], {"pooling_mode": ["mean"]}, r"Dense.*hf download x/y "),
    ],
    ids=["mean", "cls", "dense"],
)
def test_modules_in_the_cache_of_the_hub(
    names: list[str],
    pooling: dict[str, Any],
    named: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    file, commit = embedding_world(tmp_path / "world"), "a" * 40
    snapshot = tmp_path / "cache" / "models--x--y" / "snapshots" / commit
    shutil.move(file.parent / "model", snapshot)
    sentence_folder(snapshot, *names, **pooling)
    text = file.read_text().replace("- ./model", f"- {{id: x/y, revision: {commit}}}")
    file.write_text(text)
    if named is None:
        assert definition(file).pooling == "mean"
        return
    with pytest.raises(SpecError, match=named):
        definition(file)


def test_a_prompt_that_is_not_pooled_is_refused(world: Path) -> None:
    sentence_folder(world.parent / "model", include_prompt=False)
    assert definition(world).pooling == "mean"
    asks = {"prompts": {"mine": "about: "}, "default_prompt_name": "mine"}
    described(world, "config_sentence_transformers.json", asks)
    with pytest.raises(SpecError, match=r"include_prompt.*prompts:"):
        definition(world)


def set_loss(file: Path, loss: str) -> Path:
    changed = file.with_name(f"{loss}.yaml")
    named = f"kind: embedding\n  loss: {loss}"
    changed.write_text(file.read_text().replace("kind: embedding", named))
    return changed


@pytest.mark.parametrize(
    "loss", few(["imitate_mse", "imitate_similarities", "cosent", "in_batch_negatives"], 2)
)
def test_a_network_learns_by_each_loss(
    scored: Path, loss: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[np.ndarray] = []
    on_device = EagerPass.on_device

    def noted(self: EagerPass, split: EncodedSplit, rows: np.ndarray) -> Any:
        batches.append(rows)
        return on_device(self, split, rows)

    monkeypatch.setattr(EagerPass, "on_device", noted)
    todo = in_order(set_loss(scored, loss))
    pairs = not loss.startswith("imitate")
    assert [job["kind"] for job in todo] == ["profile"] * (not pairs) + ["trial"] * 3
    done(store, *todo)
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


def test_scores_are_read_where_a_loss_needs_them(world: Path, store: Store) -> None:
    todo = jobs(set_loss(world, "cosent"))
    (job,) = (job for job in todo if job["spec"]["procedure"] == "direct")
    assert_fails(store, job, "missing_input", "no column 'y'")


def test_a_plan_counts_texts(world: Path) -> None:
    """Two of each pair, in training as in scoring."""
    plan = make_plan(resolve(load_sweep(world)), WorkHistory.nothing())
    [pruned] = [w for w in plan.trials.values() if w.trial.procedure == "direct"]
    [rows] = {(task.train_rows, task.dev_rows) for task in plan.sweep.tasks.values()}
    texts = 2 * 2 * (6 * 2 * rows[0] + 2 * 2 * rows[1])  # two layers, two epochs
    tokens = MeanLengths(timing_columns(), {pruned.task.name: 1.0})
    layer = pruned.model.layer_parameters or 0
    assert missing_flop(pruned, tokens) == pytest.approx(layer * texts)


def test_no_label_of_train_is_another() -> None:
    """Labels of train are not read: a pair that is in both has no other one."""
    both = Split(texts=(["a"], ["b"]), labels=np.array([0.0]))
    dev = Split(texts=(["a", "c"], ["b", "d"]), labels=np.array([5.0, 4.0]))
    found = overlap(LoadedTask(train=both, dev={"dev": dev}, label_names=(), definition=PAIRS))
    assert (found.rows, found.relabelled) == (1, 0)


# -- what the model's folder says: pooling, similarity, prompts


def described(file: Path, name: str, content: Any) -> None:
    """A file of the model's folder, as Sentence Transformers writes it."""
    path = file.parent / "model" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))


def definition(file: Path) -> Any:
    (task,) = resolve(load_sweep(file)).tasks.values()
    return task.definition


@pytest.mark.parametrize(("last", "way"), [([], "dot"), (["Normalize"], "")])
def test_pooling_and_similarity_are_those_of_the_models_folder(
    world: Path, last: list[str], way: str
) -> None:
    described(world, "config_sentence_transformers.json", {"similarity_fn_name": "dot"})
    described(world, "modules.json", modules("Transformer", "Pooling", *last))
    ways = {"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}
    described(world, "1_Pooling/config.json", ways)
    assert (definition(world).similarity, definition(world).pooling) == (way, "cls")
    (world.parent / "model" / "modules.json").unlink()
    assert definition(world).pooling == "mean"


NAMED = {"query": "w1 ", "passage": "w2 ", "sts": "w3 "}


def test_prompts_are_those_of_the_models_folder(world: Path, tmp_path: Path) -> None:
    search = search_world(tmp_path / "search")
    for file, usual, expected in (
        (search, "sts", ("w1 ", "w2 ")),
        (world, None, ("", "")),
        (world, "sts", ("w3 ", "w3 ")),
    ):
        content = {"prompts": NAMED, "default_prompt_name": usual}
        described(file, "config_sentence_transformers.json", content)
        found = definition(file)
        assert (found.query_prompt, found.document_prompt) == expected
    own = "kind: embedding\n  prompts: {query: 'q '}"
    search.write_text(search.read_text().replace("kind: embedding", own))
    assert (definition(search).query_prompt, definition(search).document_prompt) == ("q ", "")


def test_a_text_follows_its_prompt(tmp_path: Path, store: Store) -> None:
    file = search_world(tmp_path / "search")
    described(file, "config_sentence_transformers.json", {"prompts": NAMED})
    (full,) = (job for job in jobs(file) if len(job["spec"].get("kept_layers", ())) == 4)
    done(store, full)
    (encoded,) = list(resident()._tasks.items.values())[-1:]
    tokenizer, corpus = load_tokenizer(file.parent / "model"), collection()["corpus"]
    queries = [f"w1 {text}" for text in collection()["queries"]["text"]]
    documents = [f"w2 {t} {text}" for t, text in zip(corpus["title"], corpus["text"], strict=True)]
    for split, texts in ((encoded.dev["queries"], queries + documents), (encoded.train, documents)):
        rows = np.split(split.tokens, split.offsets[1:-1])
        assert [row.tolist() for row in rows] == tokenizer(texts)["input_ids"]


def test_of_a_pair_each_text_has_its_own(tmp_path: Path) -> None:
    files = write(tmp_path, {"t": {"a": ["x"], "b": ["y"], "s": [1.0]}})
    prompts = {"query_prompt": "q: ", "document_prompt": "d: "}
    task = user_definition("sim", kind="embedding", text=["a", "b"], label="s", **prompts)
    loaded = load_task(task, TaskSource(files={"train": files["t"], "validation": files["t"]}))
    assert prompted(task, loaded.train, scored=False) == (["q: x"], ["d: y"])
