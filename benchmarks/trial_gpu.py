"""Training steps of lp-sweep against those of the Hugging Face GLUE example, on one GPU.

    pip install accelerate
    python benchmarks/trial_gpu.py --model FOLDER --data-dir GLUE --out trial-gpu.json
    python benchmarks/trial_gpu.py --bert-base FOLDER --data-dir GLUE --precision bf16

The same as trial_cpu.py, by CUDA events: in each round the Trainer with every example padded to 128
tokens, then `compute: fast`, then `compute: graphs`, all in one precision. `--bert-base` takes the
tokenizer of the folder, and random weights of the shape of bert-base, which take as long. A first
run of each warms the GPU up and is not counted; nor are the first `--skip` steps of any run, in
which graphs are recorded. No GPU has run it yet.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from bert_shape import model_folder
from clocks import GpuClock
from glue_rows import TEXTS, rows_of, words_of
from hf_trainer import step_seconds
from transformers import AutoTokenizer
from trial_cpu import BATCH, RECIPE, lp_sweep

from lp_sweep.trials.device import device_name, pick_device


def sides(options: Any, folder: str, task: str) -> dict[str, Callable[[], list[float]]]:
    """Seconds of each step, by what takes them."""
    texts, labels = rows_of(options.data_dir, task, BATCH * (options.steps + 1))
    words = words_of(options.data_dir, task, AutoTokenizer.from_pretrained(folder))
    classes = 1 if task == "stsb" else int(labels.max()) + 1
    rows = (folder, texts, labels, classes)
    recipe = {**RECIPE, "bf16": options.precision == "bf16"}
    ours: dict[str, Any] = {"device": "cuda", "precision": options.precision}
    return {
        "trainer": lambda: step_seconds(*rows, recipe, GpuClock()),
        "fast": lambda: lp_sweep(*rows, words, GpuClock(), compute="fast", **ours),
        "graphs": lambda: lp_sweep(*rows, words, GpuClock(), compute="graphs", **ours),
    }


def compare(options: Any, folder: str, task: str) -> dict[str, Any]:
    """Samples per second of each side of lp-sweep, and its ratio to the Trainer; all rounds."""
    every = sides(options, folder, task)
    for side in every.values():
        side()
    rounds = [
        {name: statistics.median(side()[options.skip :]) for name, side in every.items()}
        for _ in range(options.rounds)
    ]
    found = {}
    for name in every:
        ratios = [one["trainer"] / one[name] for one in rounds]
        found[name] = {
            "samples_per_second": BATCH / statistics.median(one[name] for one in rounds),
            "ratio": {
                "median": statistics.median(ratios),
                "min": min(ratios),
                "max": max(ratios),
            },
        }
    print(task, json.dumps(found), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--model", help="a folder with a BERT and its tokenizer")
    which.add_argument("--bert-base", help="a folder with a BERT's config and tokenizer")
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--tasks", nargs="+", default=list(TEXTS))
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--skip", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("trial_gpu.py needs a GPU, and PyTorch sees none: trial_cpu.py does not.")
    with model_folder(options.model, options.bert_base) as folder:
        found = {task: compare(options, folder, task) for task in options.tasks}
    settings = {"batch": BATCH, "precision": options.precision, "steps": options.steps}
    settings |= {"rounds": options.rounds}
    settings["model"] = Path(options.model).name if options.model else "bert-base shape"
    settings |= {"device": device_name(pick_device("cuda")), "torch": torch.__version__}
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"tasks": found, "settings": settings}, indent=2)
        options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
