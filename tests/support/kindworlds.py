"""Toy sweeps of the kinds of tasks, whose networks learn in seconds. Not a test."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.numpy import save_file
from transformers import AutoModel, AutoTokenizer

from tests.support.toyworld import BAD, GOOD, PLAIN, RECIPE, jobs, save_world

Rows = list[dict[str, Any]]
Table = dict[str, list[Any]]


def _world(
    folder: Path, suffix: str, rows: tuple[Rows, Rows], epochs: int, task: Any, changes: Any
) -> Path:
    """Train and dev rows, and a sweep file with the task and epochs in which it is learned."""
    folder.mkdir(exist_ok=True)
    for name, lines in zip(("train", "dev"), rows, strict=True):
        table = {key: [line[key] for line in lines] for key in lines[0]}
        WRITERS[suffix](folder / f"{name}.{suffix}", table)
    entry = {"train": f"train.{suffix}", "dev": f"dev.{suffix}"} | task
    recipe = RECIPE | {"compute": "fast", "epochs": epochs}
    return save_world(folder, **{"tasks": [entry], "recipe": recipe} | changes)


def labelled(count: int, seed: int) -> Rows:
    """Good and bad words, and nothing at all."""
    draw, made = random.Random(seed), []
    for _ in range(count):
        marks = [name for name in ("good", "bad") if draw.random() < 0.4]
        words = draw.choices(PLAIN, k=draw.randint(2, 9))
        for name in marks:
            words.insert(draw.randrange(len(words)), draw.choice(GOOD if name == "good" else BAD))
        made.append({"text": " ".join(words), "label": marks or ["none"]})
    return made


def label_world(folder: Path, task: dict[str, Any] | None = None, **changes: Any) -> Path:
    named = {"name": "moods", "kind": "multi_label", "text": ["text"]} | (task or {})
    return _world(folder, "parquet", (labelled(320, 1), labelled(60, 2)), 8, named, changes)


def ranked(queries: int, seed: int) -> Rows:
    """A passage is relevant that has the words `good`, more so with `fine`."""
    draw, made = random.Random(seed), []
    for query in range(queries):
        text = " ".join(draw.choices(PLAIN, k=3))
        for _ in range(5):
            relevance = draw.choice([0, 0, 1, 2])
            words = draw.choices(PLAIN, k=draw.randint(3, 8))
            words += [[], ["good"], ["good", "fine"]][relevance]
            draw.shuffle(words)
            made.append(
                {"query": f"{text} w{query % 20}", "id": query, "passage": " ".join(words)}
                | {"relevance": relevance}
            )
        if not any(row["relevance"] for row in made[-5:]):
            made[-1] |= {"relevance": 2, "passage": made[-1]["passage"] + " good fine"}
    return made


def ranking_world(folder: Path, task: dict[str, Any] | None = None, **changes: Any) -> Path:
    columns = {"text": ["query", "passage"], "label": "relevance", "group": "id"}
    named = {"name": "search", "kind": "ranking"} | columns | (task or {})
    return _world(folder, "parquet", (ranked(60, 1), ranked(16, 2)), 3, named, changes)


def tagged(count: int, seed: int) -> Rows:
    """Good words are one `x`, a bad word is a `y`."""
    draw, made = random.Random(seed), []
    for _ in range(count):
        words, tags = [], []
        for _ in range(draw.randint(1, 6)):
            kind = draw.choice(["x", "y", "O", "O"])
            words += {"x": GOOD, "y": draw.sample(BAD, 1), "O": draw.choices(PLAIN, k=2)}[kind]
            tags += {"x": ["B-x", "I-x"], "y": ["B-y"], "O": ["O", "O"]}[kind]
        made.append({"tokens": words, "tags": tags})
    return made


def token_world(folder: Path, task: dict[str, Any] | None = None, **changes: Any) -> Path:
    named = {"name": "names", "kind": "tokens", "text": "tokens", "label": "tags"} | (task or {})
    return _world(folder, "jsonl", (tagged(160, 1), tagged(40, 2)), 3, named, changes)


def pairs(folder: Path, rows: int = 24) -> dict[str, Any]:
    """A task whose train rows have no label."""
    draw = np.random.default_rng(5)
    words = ["good", "bad", "film", "plot", "the", "a", "is", "was"]

    def texts() -> list[str]:
        return [" ".join(draw.choice(words, draw.integers(2, 7))) for _ in range(rows)]

    pq.write_table(pa.table({"a": texts(), "b": texts()}), folder / "texts.parquet")
    scores = draw.uniform(0, 5, rows)
    pq.write_table(pa.table({"a": texts(), "b": texts(), "y": scores}), folder / "pairs.parquet")
    return {
        "name": "sim",
        "kind": "embedding",
        "train": "texts.parquet",
        "dev": "pairs.parquet",
        "text": ["a", "b"],
        "label": "y",
    }


def _of_vectors(folder: Path, task: dict[str, Any], **changes: Any) -> Path:
    usual = {
        "tasks": [task],
        "procedures": ["untrained", "direct"],
        "strategies": [{"name": "top", "k": [0, 2]}],
        "seeds": [1],
        "recipe": RECIPE | {"epochs": 2, "compute": "fast", "learning_rate": 1e-3},
    }
    return save_world(folder, **usual | changes)


def embedding_world(folder: Path, **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    return _of_vectors(folder, pairs(folder), **changes)


def search_world(folder: Path, **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    write(folder, collection())
    files = {part: f"{part}.parquet" for part in ("corpus", "queries", "qrels")}
    return _of_vectors(folder, {"name": "find", "kind": "embedding", **files}, **changes)


def modules(*names: str) -> list[dict[str, Any]]:
    """As in modules.json of Sentence Transformers."""
    return [
        {
            "idx": i,
            "name": str(i),
            "path": f"{i}_{name}" if i else "",
            "type": f"sentence_transformers.models.{name}",
        }
        for i, name in enumerate(names)
    ]


def sentence_folder(folder: Path, *names: str, width: int = 5, **pooling: Any) -> None:
    """Makes of an encoder's folder one of Sentence Transformers: Dense gives vectors of `width`."""
    listed = modules("Transformer", "Pooling", *names)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    hidden = config.get("hidden_size") or config["dim"]
    states = {"word_embedding_dimension": hidden}
    contents = {"modules.json": listed, "1_Pooling/config.json": states | pooling}
    modes = pooling.get("pooling_mode") or [key for key, value in pooling.items() if value is True]
    size = hidden * max(1, len(modes))
    draw = np.random.default_rng(5)
    for module in listed[2:]:
        (folder / module["path"]).mkdir(exist_ok=True)
        settings: dict[str, Any] = {}
        if module["path"].endswith("Dense"):
            settings = {"in_features": size, "out_features": width, "bias": False}
            settings["activation_function"] = "torch.nn.modules.activation.Tanh"
            weight = draw.normal(0, 1, (width, size)).astype(np.float32)
            save_file({"linear.weight": weight}, folder / module["path"] / "model.safetensors")
            size = width
        contents[f"{module['path']}/config.json"] = settings
    (folder / "1_Pooling").mkdir(exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")


def vectors_by_hand(folder: Path, texts: list[str]) -> torch.Tensor:
    """(N, H) of length 1: the mean of each text's token states, one text at a time."""
    model = AutoModel.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        states = [model(**tokenizer(text, return_tensors="pt")).last_hidden_state for text in texts]
    return torch.nn.functional.normalize(torch.stack([of[0].mean(0) for of in states]))


WORDS = ["good", "bad", "fine", "poor", *(f"w{i}" for i in range(20))]


def collection(documents: int = 40, queries: int = 9) -> dict[str, Table]:
    """A query is some words of a document, the relevant one; a second is judged a little so."""
    draw = np.random.default_rng(4)
    texts = [" ".join(draw.choice(WORDS, draw.integers(3, 9))) for _ in range(documents)]
    own = draw.permutation(documents)[: 2 * queries].reshape(queries, 2)
    return {
        "corpus": {
            "_id": [f"d{i}" for i in range(documents)],
            "title": [draw.choice(WORDS) for _ in texts],
            "text": texts,
        },
        "queries": {
            "_id": [f"q{i}" for i in range(queries)],
            "text": [" ".join(texts[best].split()[:3]) for best, _ in own],
        },
        "qrels": {
            "query-id": [f"q{i}" for i in range(queries) for _ in range(2)],
            "corpus-id": [f"d{i}" for i in own.ravel()],
            "score": [2, 1] * queries,
        },
    }


def _write_parquet(path: Path, table: Table) -> None:
    pq.write_table(pa.table(table), path, row_group_size=2)


def _write_csv(path: Path, table: Table) -> None:
    with path.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([list(table), *zip(*table.values(), strict=True)])


def _write_jsonl(path: Path, table: Table) -> None:
    rows = [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _write_tsv(path: Path, table: Table) -> None:
    lines = [list(table), *zip(*table.values(), strict=True)]
    path.write_text("".join("\t".join(map(str, line)) + "\n" for line in lines), encoding="utf-8")


WRITERS: dict[str, Callable[[Path, Table], None]] = {
    "parquet": _write_parquet,
    "jsonl": _write_jsonl,
    "csv": _write_csv,
    "tsv": _write_tsv,
}


def write(folder: Path, tables: dict[str, Table], suffix: str = "parquet") -> dict[str, str]:
    for part, table in tables.items():
        WRITERS[suffix](folder / f"{part}.{suffix}", table)
    return {part: str(folder / f"{part}.{suffix}") for part in tables}


def in_order(file: Path) -> list[dict[str, Any]]:
    """Profiles first, then the deepest network."""
    return sorted(
        jobs(file), key=lambda job: (job["kind"], -len(job["spec"].get("kept_layers", [])))
    )
