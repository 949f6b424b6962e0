"""Whether networks trained in bf16 score as in fp32: two stores of the same sweep, paired by seed.

`--fp32` and `--bf16` are stores. Prints a row for each network that both have with several seeds:
the mean scores, and the mean change with its 95% interval over seeds (Student's t).
"""

from __future__ import annotations

import argparse

import numpy as np
from scipy import stats

from benchmarks.report import markdown
from lp_sweep import open_store

_SCORES = "SELECT task, k, seed, score FROM trials ORDER BY ALL"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fp32", required=True)
    parser.add_argument("--bf16", required=True)
    arguments = parser.parse_args()
    found: dict[tuple[str, int], dict[int, list[float]]] = {}
    for place in (arguments.fp32, arguments.bf16):
        for row in open_store(place).sql(_SCORES):
            seeds = found.setdefault((row["task"], row["k"]), {})
            seeds.setdefault(row["seed"], []).append(row["score"])
    head = ["task", "layers dropped", "seeds", "fp32", "bf16", "change (95% interval)"]
    rows = []
    for (task, k), seeds in found.items():
        both = np.array([scores for scores in seeds.values() if len(scores) == 2])
        if len(both) < 2:
            continue
        change = both[:, 1] - both[:, 0]
        half = stats.t.ppf(0.975, len(change) - 1) * change.std(ddof=1) / len(change) ** 0.5
        fp32, bf16 = both.mean(axis=0)
        interval = (
            f"{change.mean():+.2f} ({change.mean() - half:+.2f} to {change.mean() + half:+.2f})"
        )
        rows.append([task, k, len(both), f"{fp32:.2f}", f"{bf16:.2f}", interval])
    print(markdown(head, rows))


if __name__ == "__main__":
    main()
