"""The words of errors that more than one place uses."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from lp_sweep.storage.printable import shown


def did_you_mean(name: str, allowed: Iterable[str]) -> str:
    """` Did you mean 'bottom'?`, or nothing when no name is near. What was cut short (`acc`) is
    nearest to the one name that goes on from it."""
    names = list(allowed)
    longer = [other for other in names if name and other.startswith(name)]
    near = difflib.get_close_matches(name[:80], names, n=1, cutoff=0.6)
    near = longer if len(longer) == 1 else near
    return f" Did you mean {near[0]!r}?" if near else ""


def choose(what: str, name: str, allowed: Iterable[str], *, given: str | None = None) -> str:
    """`name` when it is allowed (or when `given`, its canonical form, is).

    Raises ValueError that says what is allowed and which name is near.
    """
    names = list(allowed)
    if (given or name) in names:
        return name
    raise ValueError(
        f"unknown {what} {shown(name)}. Choose one of: {', '.join(names)}."
        f"{did_you_mean(name, names)}"
    )
