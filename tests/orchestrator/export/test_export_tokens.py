"""`lp-sweep export` of a tagger: a plain pipeline gives the tags that were scored."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import ModelCard

from lp_sweep.storage.errors import SpecError
from tests.support.exportworld import World, in_this_process, runs, two_networks
from tests.trials.test_tokens import in_order, tagged, token_world

_NAMES = ("B-x", "I-x", "B-y", "I-y", "O")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Networks of four layers and of two, which read 9 tokens: not every sentence whole."""
    folder = tmp_path_factory.mktemp("tokens")
    file = token_world(folder / "world", recipe={"max_length": 9, "epochs": 3, "batch_size": 16})
    return two_networks(file, in_order(file))


_PROGRAM = """
import json, sys
from transformers import pipeline
tag = pipeline("token-classification", model=sys.argv[1], aggregation_strategy="none",
               ignore_labels=[])
told = [[(each["start"], each["entity"]) for each in tag(" ".join(words))]
        for words in json.load(open(sys.argv[2]))]
print(json.dumps(told))
"""


def test_a_pipeline_gives_the_tags_that_were_scored(made: World, tmp_path: Path) -> None:
    """The export itself checks the folder in a process of its own."""
    out = tmp_path / "out"
    done = made.export(made.kept, out)
    stored = sorted(made.store.read("predictions", made.kept), key=lambda row: row["example"])
    assert (done.verified.examples, done.verified.other_labels) == (
        sum(min(len(row["tokens"]), 7) for row in tagged(40, 2)),
        0,
    )
    assert done.interval is not None
    sentences = [row["tokens"] for row in tagged(40, 2)]
    (tmp_path / "words.json").write_text(json.dumps(sentences))
    program = [sys.executable, "-c", _PROGRAM, str(out), "words.json"]
    answer = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=True)
    for row, words, told in zip(stored, sentences, json.loads(answer.stdout), strict=True):
        logits = np.reshape(row["scores"], (len(words), -1))[:7]
        assert [tag for _, tag in told] == [_NAMES[each] for each in logits.argmax(axis=1)]
    config = json.loads((out / "config.json").read_text())
    assert config["architectures"] == ["BertForTokenClassification"]
    assert [config["id2label"][str(i)] for i in range(5)] == [*_NAMES]


def test_the_card(made: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_this_process(monkeypatch)
    out = tmp_path / "out"
    made.export(made.kept, out)
    card = ModelCard.load(out / "README.md")
    assert card.data.pipeline_tag == "token-classification"
    (result,) = card.data.eval_results
    assert (result.metric_type, result.metric_name) == ("f1", "entity_f1")
    assert "for each word, at its first token, one of B-x, I-x, B-y, I-y, O" in card.text
    (code,) = re.findall(r"```python\n(.*?)```", card.text, re.DOTALL)
    runs(code, out)


def test_what_is_refused(made: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_this_process(monkeypatch)
    with pytest.raises(SpecError, match="--onnx"):
        made.export(made.kept, tmp_path / "out", onnx=True)
    made.refuses_swapped_layers(tmp_path)
