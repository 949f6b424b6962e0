"""`lp-sweep export` of a network of several labels: a plain pipeline gives their probabilities."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from huggingface_hub import ModelCard

from tests.support.exportworld import World, in_this_process, runs, two_networks
from tests.trials.test_multi_label import full_first, label_world

_NAMES = ("bad", "good", "none")


@pytest.fixture(scope="module", params=[False, True], ids=["half", "tuned"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Networks of four layers and of two."""
    folder = tmp_path_factory.mktemp("labels")
    file = label_world(folder / "world", {"tune_thresholds": request.param})
    return two_networks(file, full_first(file))


_PROGRAM = """
import json, sys
from transformers import pipeline
give = {{"truncation": True, "max_length": 32, **{given}}}
label = pipeline("text-classification", model=sys.argv[1], top_k=None, **give)
print(json.dumps(label(json.load(open(sys.argv[2])))))
"""


@pytest.mark.parametrize("given", [{}, {"function_to_apply": "sigmoid"}], ids=["plain", "sigmoid"])
def test_a_pipeline_gives_the_labels_that_were_scored(
    made: World, tmp_path: Path, given: dict[str, str]
) -> None:
    """The export itself checks the folder in a process of its own."""
    out = tmp_path / "out"
    done = made.export(made.kept, out)
    stored = sorted(made.store.read("predictions", made.kept), key=lambda row: row["example"])
    assert done.verified.examples == len(stored)
    assert done.verified.other_labels == 0
    assert done.interval is not None
    (tmp_path / "texts.json").write_text(
        json.dumps(pq.read_table(made.file.parent / "dev.parquet")["text"].to_pylist())
    )
    program = [sys.executable, "-c", _PROGRAM.format(given=given), str(out), "texts.json"]
    answer = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=True)
    found = [{each["label"]: each["score"] for each in row} for row in json.loads(answer.stdout)]
    scores = np.array([[row[name] for name in _NAMES] for row in found])
    logits = np.array([row["scores"] for row in stored])
    np.testing.assert_allclose(scores, 1 / (1 + np.exp(-logits)), atol=1e-5)
    config = json.loads((out / "config.json").read_text())
    assert config["problem_type"] == "multi_label_classification"
    assert [config["id2label"][str(i)] for i in range(3)] == [*_NAMES]


def test_the_card(made: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_this_process(monkeypatch)
    out = tmp_path / "out"
    made.export(made.kept, out)
    card = ModelCard.load(out / "README.md")
    assert card.data.pipeline_tag == "text-classification"
    (result,) = card.data.eval_results
    assert (result.metric_type, result.metric_name) == ("f1", "micro_f1")
    assert "a probability (sigmoid) for each of bad, good, none" in card.text
    tuned = '"tune_thresholds":true' in made.store.read("trials", made.kept)[0]["spec"]
    assert ("threshold of each label was chosen" in card.text) == tuned
    (code,) = re.findall(r"```python\n(.*?)```", card.text, re.DOTALL)
    runs(code, out)


def test_another_network_is_refused(
    made: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_this_process(monkeypatch)
    made.refuses_swapped_layers(tmp_path)
