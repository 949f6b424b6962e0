"""The four examples of docs/extending.md, each applied to a copy of the source, and used there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.docpages import ROOT, blocks, read
from tests.support.program import python, run
from tests.support.toyworld import save_world

PAGE = "docs/extending.md"
ROOMS = ("storage", "trials", "analysis", "orchestrator", "quickstart")
DIFFS = [block.text for block in blocks(read(PAGE), PAGE) if block.language == "diff"]


def test_each_example_is_in_one_file() -> None:
    assert [diff.splitlines()[0] for diff in DIFFS] == [
        "+++ trials/spec/select.py",
        "+++ trials/measures/influence.py",
        "+++ trials/measures/registry.py",
        "+++ analysis/tables.py",
        "+++ trials/model/familytable.py",
    ]


def apply(diff: str, root: Path) -> None:
    """Put the lines with a + between the others, which the file has once."""
    first, *lines = diff.splitlines()
    path = root / first.removeprefix("+++ ")
    before = "\n".join(line[1:] for line in lines if not line.startswith("+"))
    text = path.read_text(encoding="utf-8")
    assert text.count(before) == 1, before
    after = "\n".join(line[1:] for line in lines)
    path.write_text(text.replace(before, after), encoding="utf-8")


class Copy(NamedTuple):
    """The source as lp_sweep, in the folder `path`."""

    folder: Path

    @property
    def place(self) -> dict[str, Any]:
        return {"cwd": self.folder, "PYTHONPATH": str(self.folder / "path")}

    def lp_sweep(self, *arguments: str) -> str:
        return run(*arguments, **self.place).stdout


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    made = Copy(tmp_path_factory.mktemp("extended"))
    package, ignored = made.folder / "path" / "lp_sweep", shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "api", package, ignore=ignored)
    for room in ROOMS:
        shutil.copytree(ROOT / room, package / room, ignore=ignored)
    for diff in DIFFS:
        apply(diff, package)
    save_world(
        made.folder,
        strategies=[{"name": "below-last", "k": [0, 2]}],
        measure={"norm": ["pretrained", "full"]},
        recipe={"learning_rate": 2e-3, "batch_size": 16, "epochs": 1, "max_length": 32},
    )
    made.lp_sweep("run", "sweep.yaml", "--inline", "--store", "store")
    return made


@pytest.mark.slow
def test_the_strategy_is_offered_and_drops_its_layers(copy: Copy) -> None:
    assert "below-last: the K layers below the last one" in copy.lp_sweep("schema")
    cells = json.loads(copy.lp_sweep("plan", "sweep.yaml", "--store", "store", "--json"))["cells"]
    assert {(cell["k"], tuple(cell["kept_layers"]), cell["state"]) for cell in cells} == {
        (0, (1, 2, 3, 4), "done"),
        (2, (1, 4), "done"),
    }
    copy.lp_sweep("prune", "model", "--out", "smaller", "--strategy", "below-last", "--k", "2")
    config = json.loads((copy.folder / "smaller" / "config.json").read_text(encoding="utf-8"))
    assert config["lp_sweep_kept_layers"] == [1, 4]


@pytest.mark.slow
def test_the_measurement_and_the_table_are_shown(copy: Copy) -> None:
    printed = copy.lp_sweep("table", "seeds", "--store", "store")
    assert "Score of each seed, in points" in printed
    assert "below-last" in printed
    assert "mean length of the sentence token's vector" in copy.lp_sweep("schema")
    asked = "SELECT profile_id, trial_id, layer, value FROM layers WHERE measure = 'norm'"
    rows = json.loads(copy.lp_sweep("query", asked, "--store", "store", "--json"))
    assert [row["layer"] for row in rows if row["trial_id"] is None] == [0, 1, 2, 3, 4]
    assert len(rows) == 10  # of the full network too
    assert all(row["value"] > 0 for row in rows)
    shown = copy.lp_sweep("show", rows[0]["profile_id"], "--store", "store")
    assert "norm of " in shown
    assert "dev rows of mood" in shown


FAMILY = """
import torch
from transformers import Data2VecTextConfig, Data2VecTextForSequenceClassification
from lp_sweep.trials.model.feedforward import remove_feed_forwards
from lp_sweep.trials.model.prune import keep_layers
config = Data2VecTextConfig(
    vocab_size=20, hidden_size=8, num_hidden_layers=4, num_attention_heads=2, intermediate_size=16
)
model = Data2VecTextForSequenceClassification(config)
keep_layers(model, [1, 2, 3])
remove_feed_forwards(model, [2])
layers = model.base_model.encoder.layer
print([isinstance(layer.intermediate, torch.nn.Identity) for layer in layers])
"""


@pytest.mark.slow
def test_the_family_loses_feed_forwards(copy: Copy) -> None:
    assert python(FAMILY, **copy.place).stdout == "[False, True, False]\n"
