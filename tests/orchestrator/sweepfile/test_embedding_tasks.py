"""`kind: embedding` in a sweep file: what it needs, and what does not go with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from lp_sweep.orchestrator.sweepfile.load import load_sweep
from lp_sweep.storage.errors import SpecError
from lp_sweep.trials.data.tasks import user_task

TEXT = """schema_version: 1
name: x
models: [./model]
tasks:
  - {name: sim, kind: embedding, train: t.csv, dev: d.csv, text: [a, b], label: y}
strategies: [{name: top, k: [0, 2]}]
"""


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (TEXT + "procedures: [iterative]\n", r"sweep.yaml:\d+.*'sim'.*'iterative'.*untrained"),
        (
            TEXT.replace("name: top", "name: greedy"),
            r"sweep.yaml:\d+.*'greedy'.*labels.*'sim'.*`drop`",
        ),
        (TEXT + "distill: [none, logits]\n", r"sweep.yaml:\d+.*'sim'.*remove `distill:`"),
        (
            TEXT.replace("embedding", "regression") + "procedures: [direct, untrained]\n",
            r"sweep.yaml:\d+.*'sim'.*'untrained'.*direct",
        ),
        (TEXT.replace("label: y", "unlabelled: u.csv"), r"yaml:5.*'sim'.*unlabelled.*`train:`"),
        (TEXT.replace("label: y", "label: y, pooling: max"), "pooling.*'mean', 'cls' or 'last'"),
        (
            TEXT.replace("embedding", "regression").replace("label: y", "label: y, pooling: cls"),
            "pooling.*kind embedding",
        ),
    ],
)
def test_a_mistake_names_its_line(tmp_path: Path, text: str, match: str) -> None:
    (tmp_path / "sweep.yaml").write_text(text)
    with pytest.raises(SpecError, match=match):
        load_sweep(tmp_path / "sweep.yaml")


def test_it_scores_pairs() -> None:
    with pytest.raises(SpecError, match=r"'sim'.*two columns"):
        user_task(name="sim", kind="embedding", text="a", label="y", train="t.csv", dev="d.csv")
