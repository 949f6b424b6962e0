"""Measures the speed-up by number of layers dropped from the top, on one model and one device.

    python -m benchmarks.speed_by_depth --model FOLDER --out speed.json
    python -m benchmarks.speed_by_depth --bert-base --pairs 3 --warm-ups 1 --depths 12 9 6

The timing is that of `measure: {speed: ...}` (trials/measures/speed.py). Next to each ratio are
L/(L-K), the ratio of a network that has only its layers, and the difference in percent. Embeddings
and head do not shrink, and AdamW's work for the word table does not either: this keeps the ratio
below L/(L-K). On a CPU, the memory of a deeper network's activations may raise it above.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from benchmarks.bert_shape import model_folder
from lp_sweep.trials.device import device_name, pick_device
from lp_sweep.trials.measures.pairs import RULE, Rule
from lp_sweep.trials.measures.speed import Bystanders, Load, Timing, compare_networks
from lp_sweep.trials.model.families import find_layers
from lp_sweep.trials.model.prune import load_pruned


def network(folder: str, depth: int | None, device: torch.device) -> PreTrainedModel:
    """The network with its lowest `depth` layers; None: all layers."""
    model = load_pruned(
        folder,
        kept_layers=None if depth is None else range(1, depth + 1),
        num_labels=2,
        problem_type="single_label_classification",
        seed=0,
        local_files_only=True,
        from_here=True,
    )
    return model.to(device)


def row(timing: Timing, kept: int, depth: int, busy: float | None) -> dict[str, Any]:
    layers = depth / kept
    found = asdict(timing.comparison)
    return {
        "k": depth - kept,
        "kept": kept,
        "layers_ratio": layers,
        "quantity": timing.quantity,
        "batch": timing.batch,
        "difference_percent": 100 * (timing.comparison.speedup / layers - 1),
        "others_busy_cores": busy,
        **found,
    }


def say(item: dict[str, Any]) -> None:
    print(
        f"{item['k']:>3} {item['kept']:>5}  {item['quantity']:<9} {item['batch']:>5} "
        f"{item['layers_ratio']:>8.3f} {item['speedup']:>8.3f} "
        f"{item['speedup_q25']:>7.3f}-{item['speedup_q75']:.3f} "
        f"{item['difference_percent']:>+10.1f}% {item['pairs']:>6}",
        flush=True,
    )


def measured(
    options: argparse.Namespace, folder: str, device: torch.device
) -> Iterator[dict[str, Any]]:
    """Yields the results so far after each depth, since one takes minutes."""
    rule = Rule(warm_ups=options.warm_ups, pairs=options.pairs, most=options.most)
    load = Load(length=options.length, batches=options.batches, precision=options.precision)
    depth = len(find_layers(network(folder, None, torch.device("cpu"))).layers)
    print(f"{depth} layers on {device_name(device)}")
    print("  K  kept  quantity  batch  L/(L-K) speed-up    quartiles  difference  pairs")
    settings = asdict(load) | {"rule": asdict(rule)}
    settings["model"] = Path(options.model).name if options.model else "bert-base shape"
    machine = {"device": device_name(device), "threads": torch.get_num_threads()}
    rows: list[dict[str, Any]] = []
    for kept in options.depths or range(depth, 0, -1):
        bystanders = Bystanders()
        full, pruned = (network(folder, n, device) for n in (None, kept))
        timings = compare_networks(full, pruned, load, rule)
        for timing in timings:
            rows.append(row(timing, kept, depth, bystanders.busy_cores()))
            say(rows[-1])
        yield {"rows": rows, "settings": settings | machine | {"torch": torch.__version__}}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--model", help="a folder with config.json and safetensors")
    which.add_argument("--bert-base", action="store_true", help="its shape, random weights")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--depths", type=int, nargs="+", help="layers kept; default all, to 1")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--threads", type=int, default=1, help="of a CPU")
    parser.add_argument("--batches", type=int, nargs="+", default=[32])
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--warm-ups", type=int, default=RULE.warm_ups)
    parser.add_argument("--pairs", type=int, default=RULE.pairs)
    parser.add_argument("--most", type=int, default=RULE.most)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with model_folder(options.model) as folder:
        for found in measured(options, folder, pick_device(options.device)):
            if options.out:
                options.out.parent.mkdir(parents=True, exist_ok=True)
                options.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
