"""The tutorial's pages from first to last, with small encoders under the names of the hub's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertModel, DistilBertConfig, DistilBertModel

from tests.support.docpages import read
from tests.support.hubserver import Hub, serve
from tests.support.hubworld import World
from tests.support.kindworlds import WRITERS, collection, labelled, ranked, tagged
from tests.support.tiny import tiny_tokenizer
from tests.support.toyworld import WORDS, rows


def push_encoders(hub: Hub, folder: Path) -> None:
    """Six layers each, as the pages say."""
    torch.manual_seed(3)
    distil = DistilBertConfig(
        vocab_size=len(WORDS), dim=32, n_layers=6, n_heads=2, hidden_dim=64, initializer_range=0.1
    )
    bert = BertConfig(
        vocab_size=len(WORDS), hidden_size=32, num_hidden_layers=6, num_attention_heads=2,
        intermediate_size=64, initializer_range=0.1, max_position_embeddings=256,
    )  # fmt: skip
    for name, model in (
        ("distilbert-base-cased", DistilBertModel(distil)),
        ("sentence-transformers/all-MiniLM-L6-v2", BertModel(bert)),
    ):
        model.save_pretrained(folder / name)
        tiny_tokenizer(WORDS).save_pretrained(folder / name)
        hub.push("model", name, folder / name)


def save_reviews(folder: Path) -> None:
    made, verdicts = rows(400, 1), {"pos": "good", "neg": "bad"}
    columns = {"text": [row["text"] for row in made]}
    columns["verdict"] = [verdicts[row["label"]] for row in made]
    WRITERS["csv"](folder / "reviews.csv", columns)


def save_comments(folder: Path) -> None:
    made, names = labelled(300, 4), {"good": "delivery", "bad": "damage"}
    labels = [[names[mark] for mark in row["label"] if mark in names] for row in made]
    columns = {"text": [row["text"] for row in made], "labels": labels}
    WRITERS["jsonl"](folder / "comments.jsonl", columns)


def save_people(folder: Path) -> None:
    sentences = (zip(row["tokens"], row["tags"], strict=True) for row in tagged(300, 4))
    text = "\n".join("".join(f"{word}\t{tag}\n" for word, tag in words) for words in sentences)
    text = text.replace("-x", "-person").replace("-y", "-place")
    (folder / "people.conll").write_text(text, encoding="utf-8")


def save_candidates(folder: Path) -> None:
    made = ranked(60, 4)
    names = {"query_id": "id", "query": "query", "passage": "passage", "relevance": "relevance"}
    columns = {name: [row[key] for row in made] for name, key in names.items()}
    WRITERS["csv"](folder / "search.csv", columns)


def save_collection(folder: Path) -> None:
    tables = collection()
    tables["queries"]["_id"].append("lonely")  # which init leaves out
    tables["queries"]["text"].append("w1")
    WRITERS["jsonl"](folder / "corpus.jsonl", tables["corpus"])
    WRITERS["jsonl"](folder / "queries.jsonl", tables["queries"])
    WRITERS["tsv"](folder / "qrels.tsv", tables["qrels"])


# page -> what writes its data, and words of the answers to some of its commands
Told = dict[str, str]
OF_A_KIND = {"table significance": "seeds and rows", "table distillation": "logits"}
PAGES: dict[str, tuple[Callable[[Path], None], Told]] = {
    "docs/tutorial-labels.md": (
        save_comments,
        {
            "init": "rows have no label",
            "plan": "2 labels: 'damage' 42%, 'delivery' 42%",
            "table tasks": "micro F1",
        }
        | OF_A_KIND,
    ),
    "docs/tutorial-tokens.md": (
        save_people,
        {"init": "4 tags: 'O'", "plan": "words in train", "table tasks": "entity F1"} | OF_A_KIND,
    ),
    "docs/tutorial-ranking.md": (save_candidates, {"table tasks": "nDCG@10"} | OF_A_KIND),
    "docs/tutorial-search.md": (
        save_collection,
        {
            "init": "1 queries have no relevant document",
            "table tasks": "nDCG@10",
            "table embeddings": "texts/s",
        },
    ),
}
CHANGED = {
    "qrels: qrels.tsv": "qrels: qrels.tsv\n    unjudged: skip",  # for the lonely query
    "[1, 64]}": "[1, 64], speed_length: 8}",  # in seconds
}


def played(page: str, folder: Path, *, inline: bool) -> Told:
    """The output of each command, by the command without `lp-sweep`."""
    hub, work = Hub(), folder / "work"
    push_encoders(hub, folder / "encoders")
    with serve(hub):
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        env = World(work, hub).environment() | {"PATH": path, "RAY_worker_niceness": "0"}
        told: Told = {}
        for kind, text in steps(page):
            if kind == "yaml":
                for shown, here in CHANGED.items():
                    text = text.replace(shown, here)
                (work / "sweep.yaml").write_text(text, encoding="utf-8")
                continue
            command = text.replace("lp-sweep run", "lp-sweep run --inline") if inline else text
            program = ["bash", "-ec", command] if kind == "" else [sys.executable, "-c", text]
            done = subprocess.run(
                program, cwd=work, env=env, capture_output=True, text=True, timeout=500
            )
            assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
            told[text.removeprefix("lp-sweep ")] = done.stdout + done.stderr
    return told


def steps(page: str) -> list[tuple[str, str]]:
    """Commands for the shell (""), sweep files, programs."""
    found = []
    for kind, block in re.findall(r"```(\w*)\n(.*?)```", read(page), re.DOTALL):
        parts = re.split(r"^\$ ", block, flags=re.MULTILINE)[1:] if not kind else [block]
        found += [(kind, part.strip()) for part in parts if kind in ("", "yaml", "python")]
    return found


@pytest.mark.slow
@pytest.mark.ray
def test_every_command_of_the_tutorial(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    save_reviews(tmp_path / "work")
    told = played("docs/tutorial.md", tmp_path, inline=False)
    assert "nothing was missing" in told["run sweep.yaml"]  # the second time
    assert "Layers needed to stay within a loss" in told["table min-layers --within 1,2,3"]
    assert (tmp_path / "work" / "report.html").is_file()
    assert (tmp_path / "work" / "smaller" / "model.safetensors").is_file()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_on_a_kind(page: str, tmp_path: Path) -> None:
    """In the test's own process: what Ray does is the test's above."""
    (tmp_path / "work").mkdir()
    save_data, expected = PAGES[page]
    save_data(tmp_path / "work")
    told = played(page, tmp_path, inline=True)
    for command, words in expected.items():
        (answer,) = (told[name] for name in told if name.startswith(command))
        assert words in answer, f"{command}\n{answer}"
    assert (tmp_path / "work" / "smaller" / "config.json").is_file()
