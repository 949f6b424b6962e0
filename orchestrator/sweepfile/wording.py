"""The words of errors that more than one place uses."""

from __future__ import annotations

from collections.abc import Iterable

from lp_sweep.storage.printable import did_you_mean, shown

__all__ = ["choose", "did_you_mean"]


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
