"""The words of errors that name what was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

from lp_sweep.storage.errors import SpecError


def nearest(name: str, allowed: Iterable[str]) -> str | None:
    """The name that was probably meant, None when none is near. What was cut short (`acc`) is
    nearest to the one name that goes on from it."""
    names = list(allowed)
    longer = [other for other in names if name and other.startswith(name)]
    near = difflib.get_close_matches(name[:80], names, n=1, cutoff=0.6)
    near = longer if len(longer) == 1 else near
    return near[0] if near else None


def did_you_mean(name: str, allowed: Iterable[str]) -> str:
    """` Did you mean 'bottom'?`, or nothing when no name is near."""
    near = nearest(name, allowed)
    return f" Did you mean {near!r}?" if near else ""


def metric_name(metric: str, positive: str | None) -> str:
    """`f1 of 'fraud'`: the metric, and the class it scores where one was named."""
    return f"{metric} of {positive!r}" if positive else metric


def also_in_train(rows: int, relabelled: int | None, of: int) -> str:
    """`37 of 500 dev rows also occur in train, 2 of them with another label.`"""
    other = f", {relabelled:,} of them with another label" if relabelled else ""
    return f"{rows:,} of {of:,} dev rows also occur in train{other}. Scores on them are optimistic."


def unknown_sweep(name: str, known: Collection[str], location: str) -> SpecError:
    """Of a store whose sweeps are `known`."""
    have = ", ".join(sorted(known)) or "none"
    meant = did_you_mean(name, known)
    return SpecError(f"no sweep named {name!r} in {location}. It has: {have}.{meant}")
