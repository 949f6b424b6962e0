"""Rules that hold for several kinds of tasks: each way to compute, a whole sweep."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lp_sweep import Sweep, open_store
from lp_sweep.trials.kinds import kind_of
from lp_sweep.trials.spec.specs import Distillation
from lp_sweep.trials.train.distill import Teaching
from tests.support.fastnets import KINDS, PAIR, assert_learns_alike, network, split_of
from tests.support.kindworlds import label_world, ranking_world, tagged, token_world

LABELLED = ("multi_label", "bce", "listwise")
POOLED = {
    way: (replace(PAIR, pooling=way), np.zeros(4, np.float32), 2) for way in ("mean", "cls", "last")
}


@pytest.mark.parametrize(
    ("name", "taught"),
    [*((name, True) for name in (*LABELLED, *POOLED)), *((name, False) for name in LABELLED)],
)
def test_every_compute_learns_alike(name: str, taught: bool) -> None:
    task, labels, outputs = (KINDS | POOLED)[name]
    embeds = kind_of(task).embeds  # from a teacher alone
    model = network("bert", num_labels=outputs).train()
    width = model.config.hidden_size if embeds else outputs
    logits = np.random.default_rng(0).normal(size=(4, width)).astype(np.float32)
    settings = Distillation(alpha=1.0 if embeds else 0.3)
    teaching = Teaching(settings=settings, logits=logits) if taught else None
    split = replace(split_of([3, 9, 1, 5]), labels=labels)
    gradients = assert_learns_alike(model, split, definition=task, teaching=teaching)
    if embeds:
        assert not [name for name in gradients if name.startswith("classifier")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "examples", "learned", "least"),
    [(label_world, 60, 320, 0.8), (ranking_world, 16, 300, 0.7), (token_world, 40, 190, 0.5)],
    ids=["multi_label", "ranking", "tokens"],
)
def test_a_sweep_with_its_students_and_tables(
    world: Callable[..., Path],
    examples: int,
    learned: int,
    least: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Intervals and tests draw whole examples again: a query with all its passages, a sentence. A
    teacher of tags answers for unlabelled sentences as well."""
    monkeypatch.setenv("LP_SWEEP_CACHE_DIR", str(tmp_path / "cache"))
    task = {"unlabelled": "more.jsonl"} if world is token_world else None
    file = world(tmp_path / "world", task, distill=["none", "logits"], seeds=[1, 2])
    more = [json.dumps({"tokens": row["tokens"]}) + "\n" for row in tagged(30, 3)]
    (file.parent / "more.jsonl").write_text("".join(more))
    Sweep.from_yaml(file, store=tmp_path / "store").run(inline=True)
    results = open_store(tmp_path / "store")
    students = results.sql("SELECT last, train_examples FROM trials WHERE distill IS NOT NULL")
    assert [row["train_examples"] for row in students] == [learned, learned]
    assert min(row["last"] for row in students) > least
    for table, columns in (
        ("intervals", {"over": "seeds and rows", "reason": None}),
        ("significance", {"test": "seeds and rows", "n_examples": examples}),
    ):
        rows_of = [row for row in results.table(table) if row.get("seed") is None]
        assert rows_of, table
        for row in rows_of:
            assert {name: row[name] for name in columns} == columns, row
