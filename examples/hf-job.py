# Not run: checked only by `hf jobs uv run --dry-run`, and by uv, which takes its packages.
# /// script
# requires-python = ">=3.11"
# dependencies = ["lp-sweep"]
#
# [tool.uv]
# find-links = ["/dist"]  # the wheel: python -m build --wheel --outdir dist FOLDER
#
# [tool.hf-jobs]
# flavor = "a10g-small"
# timeout = "4h"
# secrets = ["HF_TOKEN"]
# volumes = ["hf://buckets/CHANGE-user/lp-sweep:/store"]
# ///
"""A sweep as a job of Hugging Face Jobs: see docs/cluster.md. The store is a bucket, mounted.

hf buckets create lp-sweep
hf jobs uv run --detach -v ./dist:/dist -v ./my-sweep:/sweep examples/hf-job.py
hf jobs logs --follow JOB
"""

import os
import sys

# It ends by itself before `timeout`, so that running trials write their checkpoints.
COMMAND = "lp-sweep run /sweep/sweep.yaml --store /store --max-hours 3.8"

if __name__ == "__main__":
    words = [*COMMAND.split(), *sys.argv[1:]]
    os.execvp(words[0], words)
