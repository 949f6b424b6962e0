"""Makes the folder that gpu_day.py takes along to a machine without a network.

    python -m benchmarks.gpu_bundle --model FOLDER --data-dir GLUE --out .gpu

Token arrays of about 3,200 rows of each GLUE task, two shapes of BERT, a sweep of the model on real
rows, and the wheels that such a machine lacks for lp-sweep (Python 3.12, Linux). The model's
weights are rounded to half precision, and its vocabulary is cut to the words of the sweep's rows:
their tokens are the same. Not a benchmark.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import yaml
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, BertConfig

from benchmarks.glue_rows import LENGTH, TEXTS, rows_of, words_of

ROWS = 3_400  # 3,200 to train on and 200 dev rows
WHEELS = ("pydantic", "pydantic_core", "annotated-types", "typing-inspection", "duckdb")
SHAPES = {
    "bert-base": {},
    "minilm": {"hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536},
}
SWEEP: dict[str, Any] = {
    "schema_version": 1,
    "name": "gpu-day",
    "models": ["./model"],
    "tasks": ["sst2", "mrpc", "rte"],
    "seeds": [1, 2, 3],
    "strategies": [{"name": "top", "k": [0, 1, 2, 3, 4, 5]}],
    "recipe": {
        "learning_rate": 1e-4,
        "batch_size": 32,
        "epochs": 3,
        "max_length": LENGTH,
        "compute": "graphs",
        "precision": "auto",
    },
    "data_dir": "./glue",
}
SWEEP_ROWS = 2_400  # of each task, to train on
KEPT_IDS = 1_000  # special tokens and unused ones keep their numbers
LIMIT = 72 << 20  # bytes


def tokens(model: str, data: Path, task: str, out: Path) -> None:
    texts, labels = rows_of(data, task, ROWS)
    tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True)
    encoded = tokenizer(*texts, max_length=LENGTH, truncation=True)
    rows = encoded["input_ids"]
    order = np.random.default_rng(0).permutation(len(rows))
    np.savez_compressed(
        out / f"{task}.npz",
        tokens=np.concatenate([rows[i] for i in order]).astype(np.uint16),
        types=np.concatenate([encoded["token_type_ids"][i] for i in order]).astype(np.uint8),
        offsets=np.cumsum([0, *(len(rows[i]) for i in order)]).astype(np.int32),
        labels=labels[order].astype(np.float32 if task == "stsb" else np.int8),
    )


def sweep(model: Path, data: Path, out: Path) -> None:
    """`sweep.yaml`, and the rows and the model that it names, next to it."""
    (out / "model").mkdir(parents=True)
    (out / "sweep.yaml").write_text(yaml.safe_dump(SWEEP, sort_keys=False), encoding="utf-8")
    tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True)
    used = set(range(KEPT_IDS))
    for task in SWEEP["tasks"]:
        rows = out / "glue" / task
        rows.mkdir(parents=True)
        for split, count in (("train", SWEEP_ROWS), ("validation", None)):
            table = pq.read_table(data / task / f"{split}.parquet")
            chosen = np.random.default_rng(0).permutation(table.num_rows)[:count]
            pq.write_table(table.take(pa.array(np.sort(chosen))), rows / f"{split}.parquet")
        used |= {int(token) for token in words_of(out / "glue", task, tokenizer)}
    cut(model, np.array(sorted(used)), out / "model")


def cut(model: Path, kept: np.ndarray, out: Path) -> None:
    """The model with the tokens `kept` (V,), ascending, and no others. A text of these alone is
    split as before: no longer piece was in the vocabulary, and none has come into it."""
    number = {int(old): new for new, old in enumerate(kept)}
    settings = json.loads((model / "tokenizer.json").read_text("utf-8"))
    words = settings["model"]["vocab"].items()
    settings["model"]["vocab"] = {word: number[old] for word, old in words if old in number}
    (out / "tokenizer.json").write_text(json.dumps(settings), encoding="utf-8")
    shutil.copy(model / "tokenizer_config.json", out)
    config = json.loads((model / "config.json").read_text("utf-8")) | {"vocab_size": len(kept)}
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    weights = load_file(model / "model.safetensors")
    table = "embeddings.word_embeddings.weight"
    weights[table] = weights[table][torch.from_numpy(kept)]
    half = {name: w.half() if w.is_floating_point() else w for name, w in weights.items()}
    save_file(half, out / "model.safetensors", metadata={"format": "pt"})


def wheels(names: tuple[str, ...], out: Path) -> None:
    platforms = (
        "manylinux_2_28_x86_64",
        "manylinux_2_27_x86_64",
        "manylinux_2_17_x86_64",
        "manylinux2014_x86_64",
    )
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(out)]
    command += ["--only-binary=:all:", "--python-version=312", "--implementation=cp"]
    command += [f"--platform={name}" for name in platforms]
    constraints = Path(__file__).parents[1] / "constraints.txt"
    subprocess.run([*command, f"--constraint={constraints}", *names], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="a folder with a BERT")
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path(".gpu"))
    options = parser.parse_args()
    shutil.rmtree(options.out, ignore_errors=True)
    for name in ("tokens", "configs", "wheels"):
        (options.out / name).mkdir(parents=True)
    for task in TEXTS:
        tokens(str(options.model), options.data_dir, task, options.out / "tokens")
    sweep(options.model, options.data_dir, options.out / "sweep")
    vocabulary = len(AutoTokenizer.from_pretrained(options.model, local_files_only=True))
    for name, shape in SHAPES.items():
        config = BertConfig(vocab_size=vocabulary, **shape).to_diff_dict()
        text = json.dumps(config | {"model_type": "bert"}, indent=2)
        (options.out / "configs" / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    wheels(WHEELS, options.out / "wheels")
    size = sum(path.stat().st_size for path in options.out.rglob("*") if path.is_file())
    print(f"{options.out}: {size / 2**20:.1f} MiB")
    if size > LIMIT:
        raise SystemExit(f"{options.out} is over {LIMIT >> 20} MiB: take fewer rows.")


if __name__ == "__main__":
    main()
