"""A cluster file of four kinds of machine, with prices. Not a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

KINDS: dict[str, Any] = {
    "head": {"resources": {"CPU": 4, "GPU": 0}},
    "big": {
        "resources": {"CPU": 32, "GPU": 4, "accelerator_type:A10G": 1},
        "min_workers": 0,
        "max_workers": 2,
    },
    "small": {"resources": {"CPU": 8, "GPU": 1, "accelerator_type:T4": 1}, "max_workers": 9},
    "cpu": {"resources": {"CPU": 0.5}, "max_workers": 9},
}
PRICES = {"head": 0.5, "big": 4.0, "small": 1.0}


def cluster_file(folder: Path, prices: dict[str, float] | None = None, **more: Any) -> Path:
    """Up to 5 workers: 2 of 4 GPUs and 3 of one."""
    content = {
        "cluster_name": "c",
        "provider": {"type": "aws"},
        "max_workers": 5,
        "head_node_type": "head",
        "available_node_types": KINDS,
        "idle_timeout_minutes": 12,
        **({"metadata": {"price_per_hour": prices}} if prices is not None else {}),
    } | more
    path = folder / "cluster.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return path
