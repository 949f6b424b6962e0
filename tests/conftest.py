"""What every test runs under: no hub, no user's own settings, few threads."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # read when huggingface_hub is imported
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
for name in ("LP_SWEEP_STORE", "LP_SWEEP_CACHE_DIR", "LP_SWEEP_OFFLINE", "RAY_ADDRESS"):
    os.environ.pop(name, None)
