"""Makes the folder that gpu_day.py needs on a machine without a network.

    python -m benchmarks.gpu_bundle --model FOLDER --data-dir GLUE --out .gpu [--tables]

The folder has token arrays of about 3,200 rows of each GLUE task, two shapes of BERT, and the
wheels that such a machine lacks for lp-sweep and its GPU tests (Python 3.12, Linux). `--tables`
adds DuckDB, 23 MiB, for the tables of the sweep that runs there. Not a benchmark.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
from transformers import AutoTokenizer, BertConfig

from benchmarks.glue_rows import LENGTH, TEXTS, rows_of

ROWS = 3_400  # 3,200 to train on and 200 dev rows
WHEELS = (
    *("pydantic", "pydantic_core", "annotated-types", "typing-inspection"),
    *("pytest", "pytest-timeout", "hypothesis", "sortedcontainers", "iniconfig", "pluggy"),
)
SHAPES = {
    "bert-base": {},
    "minilm": {"hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536},
}
LIMIT = 15 << 20  # bytes


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


def wheels(names: tuple[str, ...], out: Path) -> None:
    platforms = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(out)]
    command += ["--only-binary=:all:", "--python-version=312", "--implementation=cp"]
    command += [f"--platform={name}" for name in platforms]
    constraints = Path(__file__).parents[1] / "constraints.txt"
    subprocess.run([*command, f"--constraint={constraints}", *names], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="a folder with a BERT's tokenizer")
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path(".gpu"))
    parser.add_argument("--tables", action="store_true", help="with DuckDB")
    options = parser.parse_args()
    shutil.rmtree(options.out, ignore_errors=True)
    for name in ("tokens", "configs", "wheels"):
        (options.out / name).mkdir(parents=True)
    for task in TEXTS:
        tokens(options.model, options.data_dir, task, options.out / "tokens")
    vocabulary = len(AutoTokenizer.from_pretrained(options.model, local_files_only=True))
    for name, shape in SHAPES.items():
        config = BertConfig(vocab_size=vocabulary, **shape).to_diff_dict()
        text = json.dumps(config | {"model_type": "bert"}, indent=2)
        (options.out / "configs" / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    more = ("duckdb",) if options.tables else ()
    wheels((*WHEELS, *more), options.out / "wheels")
    size = sum(path.stat().st_size for path in options.out.rglob("*") if path.is_file())
    print(f"{options.out}: {size / 2**20:.1f} MiB")
    if size > LIMIT and not options.tables:
        raise SystemExit(f"{options.out} is over {LIMIT >> 20} MiB: take fewer rows.")


if __name__ == "__main__":
    main()
