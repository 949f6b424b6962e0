"""The tutorial's page for each kind of task, from first to last, with a small encoder under the
name of the hub's. In the test's own process: what Ray does is `test_tutorial.py`'s."""

from __future__ import annotations

import csv
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.docs.test_tutorial import ENCODER, ROOT, save_encoder
from tests.support.hubserver import Hub, serve
from tests.support.hubworld import World
from tests.support.kindworlds import ranked as candidates
from tests.support.toyworld import BAD, GOOD, PLAIN


def save_comments(folder: Path) -> None:
    draw = random.Random(4)
    with (folder / "comments.jsonl").open("w", encoding="utf-8") as stream:
        for _ in range(300):
            labels = [name for name in ("damage", "delivery") if draw.random() < 0.4]
            words = draw.choices(PLAIN, k=draw.randint(2, 9))
            words += [draw.choice(BAD if name == "damage" else GOOD) for name in labels]
            stream.write(json.dumps({"text": " ".join(words), "labels": labels}) + "\n")


def save_people(folder: Path) -> None:
    draw = random.Random(4)
    with (folder / "people.conll").open("w", encoding="utf-8") as stream:
        for _ in range(300):
            words = [(word, "O") for word in draw.choices(PLAIN, k=draw.randint(2, 9))]
            for first in draw.sample(range(len(words)), draw.randint(0, 2)):
                words[first:first] = [(GOOD[0], "B-person"), (GOOD[1], "I-person")]
            words = [*words, *[(BAD[0], "B-place")] * draw.randint(0, 1)]
            stream.write("".join(f"{word}\t{tag}\n" for word, tag in words) + "\n")


def save_search(folder: Path) -> None:
    with (folder / "search.csv").open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, ["query_id", "query", "passage", "relevance"])
        writer.writeheader()
        for row in candidates(60, 4):
            writer.writerow({"query_id": row.pop("id"), **row})


# page -> what writes its data, and words of the answers to some of its commands
Told = dict[str, str]
PAGES: dict[str, tuple[Callable[[Path], None], Told]] = {
    "docs/tutorial-labels.md": (
        save_comments,
        {
            "init": "rows have no label",
            "plan": "2 labels: 'de",
            "table tasks": "micro F1",
            "table significance": "seeds and rows",
            "table distillation": "logits",
        },
    ),
    "docs/tutorial-tokens.md": (
        save_people,
        {
            "init": "4 tags: 'O'",
            "plan": "words in train",
            "table tasks": "entity F1",
            "table significance": "seeds and rows",
            "table distillation": "logits",
        },
    ),
    "docs/tutorial-ranking.md": (
        save_search,
        {
            "table tasks": "nDCG@10",
            "table significance": "seeds and rows",
            "table distillation": "logits",
        },
    ),
}


def steps(page: str) -> list[tuple[str, str]]:
    """Commands for the shell, the sweep file, programs."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = []
    for kind, block in re.findall(r"```(\w*)\n(.*?)```", text, re.DOTALL):
        commands = re.split(r"^\$ ", block, flags=re.MULTILINE)[1:] if not kind else [block]
        found += [
            (kind or "shell", each.strip())
            for each in commands
            if kind not in ("json", "csv", "text")
        ]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page(page: str, tmp_path: Path) -> None:
    hub, folder = Hub(), tmp_path / "work"
    folder.mkdir()
    save_data, expected = PAGES[page]
    save_data(folder)
    hub.push("model", ENCODER, save_encoder(tmp_path / "encoder"))
    told: Told = {}
    with serve(hub):
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        env = World(folder, hub).environment() | {"PATH": path}
        for kind, text in steps(page):
            if kind == "yaml":
                (folder / "sweep.yaml").write_text(text, encoding="utf-8")
                continue
            command = text.replace("lp-sweep run", "lp-sweep run --inline")
            program = ["bash", "-ec", command] if kind == "shell" else [sys.executable, "-c", text]
            done = subprocess.run(
                program, cwd=folder, env=env, capture_output=True, text=True, timeout=500
            )
            assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
            told[text.removeprefix("lp-sweep ")] = done.stdout + done.stderr
    for command, words in expected.items():
        (answer,) = (told[name] for name in told if name.startswith(command))
        assert words in answer, f"{command}\n{answer}"
    assert (folder / "report.html").is_file()
    assert (folder / "smaller" / "model.safetensors").is_file()
