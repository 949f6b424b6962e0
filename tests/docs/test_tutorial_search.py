"""docs/tutorial-search.md from first to last, with a small encoder under the name of the hub's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import BertConfig, BertModel

from tests.support.hubserver import Hub, serve
from tests.support.hubworld import World
from tests.support.kindworlds import WRITERS, collection
from tests.support.tiny import tiny_tokenizer
from tests.support.toyworld import WORDS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tutorial-search.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", PAGE, re.DOTALL)
ENCODER = "sentence-transformers/all-MiniLM-L6-v2"


def save_encoder(folder: Path) -> Path:
    """Six layers, as the page says."""
    config = BertConfig(
        vocab_size=len(WORDS), hidden_size=32, num_hidden_layers=6, num_attention_heads=2,
        intermediate_size=64, initializer_range=0.1, max_position_embeddings=256,
    )  # fmt: skip
    BertModel(config).save_pretrained(folder)
    tiny_tokenizer(WORDS).save_pretrained(folder)
    return folder


def test_the_page_has_all_its_parts() -> None:
    kinds = [kind for kind, _ in BLOCKS]
    assert (kinds.count("yaml"), kinds.count("python"), kinds.count("")) == (1, 1, 3)


@pytest.mark.slow
def test_every_command_of_the_page(tmp_path: Path) -> None:
    hub, folder = Hub(), tmp_path / "work"
    folder.mkdir()
    tables = collection()
    tables["queries"]["_id"].append("lonely")  # which init leaves out
    tables["queries"]["text"].append("w1")
    WRITERS["jsonl"](folder / "corpus.jsonl", tables["corpus"])
    WRITERS["jsonl"](folder / "queries.jsonl", tables["queries"])
    WRITERS["tsv"](folder / "qrels.tsv", tables["qrels"])
    hub.push("model", ENCODER, save_encoder(tmp_path / "encoder"))
    told = {}
    with serve(hub):
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        env = World(folder, hub).environment() | {"PATH": path}
        for kind, text in BLOCKS:
            if kind == "yaml":
                lines = text.replace("qrels: qrels.tsv", "qrels: qrels.tsv\n    unjudged: skip")
                lines = lines.replace("[1, 64]}", "[1, 64], speed_length: 8}")  # in seconds
                (folder / "sweep.yaml").write_text(lines, encoding="utf-8")
            parts = re.split(r"^\$ ", text, flags=re.MULTILINE)[1:] if not kind else [text]
            for part in parts if kind in ("", "python") else ():
                command = ["bash", "-ec", part] if not kind else [sys.executable, "-c", part]
                done = subprocess.run(
                    command, cwd=folder, env=env, capture_output=True, text=True, timeout=500
                )
                assert done.returncode == 0, f"{part}\n{done.stdout}{done.stderr}"
                told[part.strip()] = done.stdout + done.stderr
    assert "1 queries have no relevant document" in " ".join(told.values())
    assert "nDCG@10" in told["lp-sweep table tasks"]
    assert "texts/s" in told["lp-sweep table embeddings"]
    assert (folder / "smaller" / "modules.json").is_file()
