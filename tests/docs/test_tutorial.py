"""docs/tutorial.md from first to last, with a small encoder under the name of the hub's."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import DistilBertConfig, DistilBertModel

from tests.support.hubserver import Hub, serve
from tests.support.hubworld import World
from tests.support.tiny import tiny_tokenizer
from tests.support.toyworld import WORDS, rows

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", PAGE, re.DOTALL)
ENCODER = "distilbert-base-cased"


def save_encoder(folder: Path) -> Path:
    """Six layers, as the page says."""
    torch.manual_seed(3)
    config = DistilBertConfig(
        vocab_size=len(WORDS), dim=32, n_layers=6, n_heads=2, hidden_dim=64, initializer_range=0.1
    )
    DistilBertModel(config).save_pretrained(folder)
    tiny_tokenizer(WORDS).save_pretrained(folder)
    return folder


def save_reviews(file: Path) -> None:
    verdicts = {"pos": "good", "neg": "bad"}
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["text", "verdict"])
        writer.writerows([row["text"], verdicts[row["label"]]] for row in rows(400, 1))


def steps() -> list[tuple[str, str]]:
    """The steps of the page, in order: commands for the shell, the sweep file, programs."""
    found = []
    for kind, text in BLOCKS:
        commands = re.split(r"^\$ ", text, flags=re.MULTILINE)[1:] if not kind else [text]
        found += [(kind or "shell", command) for command in commands if kind != "csv"]
    return found


def test_the_page_has_all_its_parts() -> None:
    kinds = [kind for kind, _ in steps()]
    assert (kinds.count("yaml"), kinds.count("python")) == (1, 1)
    assert kinds.count("shell") > 8


@pytest.mark.slow
@pytest.mark.ray
def test_every_command_of_the_page(tmp_path: Path) -> None:
    hub, folder = Hub(), tmp_path / "work"
    folder.mkdir()
    save_reviews(folder / "reviews.csv")
    hub.push("model", ENCODER, save_encoder(tmp_path / "encoder"))
    with serve(hub):
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        env = World(folder, hub).environment() | {"PATH": path, "RAY_worker_niceness": "0"}
        told = {}
        for kind, text in steps():
            if kind == "yaml":
                (folder / "sweep.yaml").write_text(text, encoding="utf-8")
                continue
            command = ["bash", "-ec", text] if kind == "shell" else [sys.executable, "-c", text]
            done = subprocess.run(
                command, cwd=folder, env=env, capture_output=True, text=True, timeout=500
            )
            assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
            told[text.strip()] = done.stdout + done.stderr
    assert "nothing was missing" in told["lp-sweep run sweep.yaml"]  # the second time
    assert "Layers needed to stay within a loss" in told["lp-sweep table min-layers --within 1,2,3"]
    assert (folder / "report.html").is_file()
    assert (folder / "smaller" / "model.safetensors").is_file()
