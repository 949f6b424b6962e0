"""Writes the tables of docs/performance.md from the figures in benchmarks/results.

    python benchmarks/report.py

A table stands between `<!-- NAME -->` and `<!-- end -->`. Where a benchmark has not been run its
place says so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS, DOC = HERE / "results", HERE.parent / "docs" / "performance.md"
Found = dict[str, Any]


def markdown(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def trial_cpu(found: Found) -> str:
    rows = [
        [task, f"**{ratio['median']:.1f}x**", f"{ratio['min']:.1f} to {ratio['max']:.1f}"]
        for task, ratio in found["ratio_vs_padded_trainer"].items()
    ]
    settings = found["settings"]
    note = f"{settings['rounds']} rounds of {settings['steps']} steps each, {settings['cpu']}"
    return f"{markdown(['task', 'times faster', 'of all rounds'], rows)}\n\n{note}."


def sweep(found: Found, quick: Found) -> str:
    rows = []
    for name, one in (("MiniLM on GLUE", found), ("quickstart", quick)):
        seconds, score = one["seconds"], one["mean_score"]
        rows.append(
            [
                name,
                one["cells"],
                one["networks"],
                f"{seconds['loop']:.0f} s",
                f"{seconds['lp-sweep']:.0f} s",
                f"**{one['ratio']:.1f}x**",
                f"{100 * score['loop']:.1f}",
                f"{100 * score['lp-sweep']:.1f}",
            ]
        )
    head = ["sweep", "cells", "networks", "loop", "lp-sweep", "times faster", "score", "score"]
    head[-2:] = ["mean score, loop", "mean score, lp-sweep"]
    return f"{markdown(head, rows)}\n\n{found['cores']} cores."


def driver(found: Found) -> str:
    rows = [
        [f"{one['trials']:,}", f"{one['cpu_ms_a_trial']:.1f} ms", f"{one['memory_mb']:.0f} MB"]
        for one in found["driver"]
    ]
    return markdown(["trials", "CPU of the driver a trial", "its memory at most"], rows)


# the place in the document -> the figures it needs, and how they are told
TABLES: dict[str, tuple[tuple[str, ...], Callable[..., str]]] = {
    "trial-cpu": (("trial-cpu",), trial_cpu),
    "sweep": (("sweep-cpu", "sweep-quickstart"), sweep),
    "driver": (("driver-overhead",), driver),
}


def filled(text: str, results: Path = RESULTS) -> str:
    """The document with each table as the figures have it."""

    def table(match: re.Match[str]) -> str:
        names, told = TABLES[match[1]]
        paths = [results / f"{name}.json" for name in names]
        if not all(path.exists() for path in paths):
            return f"<!-- {match[1]} -->\nNot measured yet.\n<!-- end -->"
        found = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
        return f"<!-- {match[1]} -->\n{told(*found)}\n<!-- end -->"

    return re.sub(r"<!-- ([a-z-]+) -->\n.*?<!-- end -->", table, text, flags=re.DOTALL)


if __name__ == "__main__":
    DOC.write_text(filled(DOC.read_text(encoding="utf-8")), encoding="utf-8")
