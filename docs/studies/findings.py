"""Six findings of Poor Man's BERT, asked of our encoders: prints our differences and what they say.

    python docs/studies/findings.py

A difference is of the first network minus the second, paired by seed and dev row, in points. A
finding holds if its 95% interval lies on the finding's side of the limit, and does not if it lies
on the other side.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from lp_sweep import open_store

RECORDS = "docs/studies/records"
SWEEPS = ("sst2", "mpnet-sst2", "stsb", "mrpc", "mpnet-mrpc")


class Finding(NamedTuple):
    """`above`: the paper's difference is above the limit, in points."""

    says: str
    strategy: str
    dropped: float  # the share of the layers
    against: str  # a strategy of as many layers; "": all layers
    above: bool
    limit: float = 0.0


FINDINGS = (
    Finding(
        "dropping from the bottom is worse than from the top", "bottom", 1 / 2, "top", above=False
    ),
    Finding("half dropped, the top is best", "odd-alternate", 1 / 2, "top", above=False),
    Finding("half dropped, the top is best", "even-alternate", 1 / 2, "top", above=False),
    Finding("two dropped, every other is better than the top", "odd-alternate", 1 / 3, "top", True),
    Finding("half dropped from the top costs at most 3 points", "top", 1 / 2, "", True, limit=-3),
    Finding("a third dropped from the top costs at most 1 point", "top", 1 / 3, "", True, limit=-1),
)


def verdict(finding: Finding, low: float, high: float) -> str:
    above, below = low >= finding.limit, high <= finding.limit
    if not (above or below):
        return "can't tell"
    return "holds" if above is finding.above else "does not hold"


def table() -> None:
    print(
        "| finding | sweep | layers | networks | difference | 95% interval | |",
        "|---|---|---:|---|---:|---|---|",
        sep="\n",
    )
    for sweep in SWEEPS:
        results = open_store(RECORDS, sweep=sweep)
        rows = {name: [*results.table("significance", against=name)] for name in ("", "top")}
        for finding in FINDINGS:
            found = [row for row in rows[finding.against] if _is_of(row, finding)]
            for row in found[-1:]:  # over the seeds, if there are several
                change, low, high = (f"{row[name]:+.2f}" for name in ("change", "low", "high"))
                said = verdict(finding, row["low"], row["high"])
                pair = f"{finding.strategy} − {finding.against or 'all'}"
                kept = row["depth"] - row["k"]
                shown = (finding.says, sweep, kept, pair, change, f"{low} to {high}", said)
                print("|", " | ".join(map(str, shown)), "|")


def _is_of(row: Mapping[str, Any], finding: Finding) -> bool:
    asked = finding.strategy, round(finding.dropped * row["depth"])
    return (row["strategy"], row["k"]) == asked and row["low"] is not None


if __name__ == "__main__":
    table()
