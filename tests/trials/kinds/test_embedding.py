"""Bi-encoders: from texts to vectors, their score, and how a pruned one imitates the full one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from scipy.stats import spearmanr
from transformers import AutoModel, AutoTokenizer

from lp_sweep.orchestrator.estimate.workload import MeanLengths, missing
from lp_sweep.orchestrator.inputs.resolve import resolve
from lp_sweep.orchestrator.plan.known import Known, timing_columns
from lp_sweep.orchestrator.plan.planning import make_plan
from lp_sweep.orchestrator.sweepfile.load import load_sweep
from lp_sweep.storage.specs import TaskDefinition
from lp_sweep.storage.store import Store
from lp_sweep.trials.data.datasource import LoadedTask, Split, overlap
from lp_sweep.trials.fast.forward import forward, pooled
from lp_sweep.trials.kinds import KINDS
from lp_sweep.trials.worker.run import execute
from tests.support.everyday import few
from tests.support.families import NAMES
from tests.support.fastnets import CPU, assert_within_1e5, network, setting, split_of
from tests.support.kindworlds import embedding_world
from tests.support.toyworld import jobs

WAYS = ["mean", "cls", "last"]
LENGTHS = [3, 9, 1, 5]
PAIRS = TaskDefinition(text_columns=("a", "b"), kind="embedding", metric="spearman", pooling="mean")


@pytest.mark.parametrize("pooling", WAYS)
def test_padding_on_either_side_is_left_out(pooling: str) -> None:
    hidden = torch.randn(2, 4, 3)
    real = torch.tensor([[1, 1, 1, 0], [0, 0, 1, 1]])
    found = pooled(hidden, real, pooling)
    for row, (first, last) in enumerate([(0, 2), (2, 3)]):
        own = hidden[row, first : last + 1]
        expected = {"mean": own.mean(0), "cls": own[0], "last": own[-1]}[pooling]
        assert_within_1e5(found[row].numpy(), expected.numpy())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("pooling", few(WAYS, 2))
@torch.no_grad()
def test_every_compute_embeds_alike(name: str, pooling: str, tmp_path: Path) -> None:
    """As the bare encoder of transformers, pooled by hand."""
    model = network(name, tmp_path).eval()
    split, rows = split_of(LENGTHS), np.array([2, 0, 3, 1])
    how = setting("fast")
    for compute in ("reference", "fast"):
        found = forward(model, split, rows, how.padding, CPU, compute, pooling=pooling)
        for place, row in enumerate(rows):
            ids = torch.tensor(split.tokens[split.offsets[row] : split.offsets[row + 1]])[None]
            states = model.base_model(input_ids=ids.long()).last_hidden_state[0]
            expected = {"mean": states.mean(0), "cls": states[0], "last": states[-1]}[pooling]
            assert_within_1e5(found[place].numpy(), expected.numpy())


def test_an_answer_is_the_cosine_of_a_pair() -> None:
    vectors = np.array(
        [[1, 0], [0, 2], [3, 3], [1, 1], [1, 0], [-5, 0], [0, 0], [1, 1]], np.float32
    )
    found = KINDS["embedding"].answers(vectors)
    assert found == pytest.approx([0, 1, -1, 0])
    assert list(KINDS["embedding"].targets(np.repeat([4, 5, 6, 7], 2))) == [4, 5, 6, 7]


# -- a trial


def test_a_pruned_network_imitates_the_full_one(tmp_path: Path, store: Store) -> None:
    file = embedding_world(tmp_path / "world")
    todo = sorted(jobs(file), key=lambda job: job["kind"])
    assert [job["kind"] for job in todo] == ["profile", "trial", "trial", "trial"]
    for job in todo:
        assert execute(job, store.location)["status"] == "done"
    rows = store.read_all("trials").rows.to_pylist()
    full, alone, taught = sorted(rows, key=lambda row: (row["k"], row["procedure"] == "direct"))
    assert (alone["procedure"], taught["procedure"]) == ("untrained", "direct")
    assert (full["steps"], full["train_losses"], full["best_epoch"]) == (0, [], 0)
    assert taught["train_losses"][1] < taught["train_losses"][0]
    assert (taught["dev_examples"], taught["majority"]) == (24, None)  # pairs
    assert (taught["distill"], taught["train_examples"]) == (None, 48)

    model = AutoModel.from_pretrained(file.parent / "model").eval()
    tokenizer = AutoTokenizer.from_pretrained(file.parent / "model")
    table = pq.read_table(file.parent / "pairs.parquet").to_pydict()

    def embedded(text: str) -> torch.Tensor:
        with torch.no_grad():
            return model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0)

    cosines = [
        float(torch.cosine_similarity(embedded(a), embedded(b), dim=0))
        for a, b in zip(table["a"], table["b"], strict=True)
    ]
    stored = store.read("predictions", full["trial_id"])
    assert [row["prediction"] for row in stored] == pytest.approx(cosines, abs=1e-5)
    assert {len(row["scores"]) for row in stored} == {0}
    assert full["last"] == pytest.approx(spearmanr(table["y"], cosines)[0], abs=1e-6)


def test_a_plan_counts_texts(tmp_path: Path) -> None:
    """Two of each pair, in training as in scoring."""
    plan = make_plan(resolve(load_sweep(embedding_world(tmp_path / "world"))), Known.nothing())
    lengths = MeanLengths(timing_columns())
    [pruned] = [w for w in plan.trials.values() if w.trial.procedure == "direct"]
    steps = missing(pruned, lengths).steps
    assert steps == 3 * 2 * (2 + 1)  # 48 texts in batches of 16, two epochs, two layers and a head


def test_the_pooling_is_that_of_the_models_folder(tmp_path: Path) -> None:
    file = embedding_world(tmp_path / "world")
    folder = file.parent / "model"
    (folder / "1_Pooling").mkdir()
    modules = [{"path": "", "type": "x.Transformer"}, {"path": "1_Pooling", "type": "x.Pooling"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    ways = {"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(ways))
    assert {job["spec"]["task"]["pooling"] for job in jobs(file)} == {"cls"}
    (folder / "modules.json").unlink()
    assert {job["spec"]["task"]["pooling"] for job in jobs(file)} == {"mean"}


def test_no_label_of_train_is_another() -> None:
    """Labels of train are not read: a pair that is in both has no other one."""
    both = Split(texts=(["a"], ["b"]), labels=np.array([0.0]))
    dev = Split(texts=(["a", "c"], ["b", "d"]), labels=np.array([5.0, 4.0]))
    found = overlap(LoadedTask(train=both, dev={"dev": dev}, label_names=(), definition=PAIRS))
    assert (found.rows, found.relabelled) == (1, 0)
