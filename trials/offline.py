"""Keeps this process, and those it starts, off the network.

The libraries read their switch when they are imported, and a worker has imported them long before
it learns that its run is an offline one: both the environment and the modules are set.
"""

from __future__ import annotations

import os
import sys


def go_offline() -> None:
    """From now on the Hugging Face libraries answer from their caches or fail at once."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ.pop("HF_DATASETS_OFFLINE", None)  # a 0 there would overrule the line above
    for name in ("huggingface_hub.constants", "datasets.config"):
        module = sys.modules.get(name)
        if module is not None:
            module.HF_HUB_OFFLINE = True  # type: ignore[attr-defined]
