"""Which cases of a long list run every day. `make test-all` runs the rest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

FEW = 8


def few(cases: Iterable[Any], keep: int = FEW) -> list[Any]:
    """All cases in their order. About `keep` of them, evenly spread, run every day; the others are
    marked slow. A tuple holds the values of several arguments."""
    found = list(cases)
    step = max(1, len(found) // keep)
    return [case if number % step == 0 else _slow(case) for number, case in enumerate(found)]


def _slow(case: Any) -> Any:
    if hasattr(case, "marks"):  # a pytest.param
        return pytest.param(*case.values, id=case.id, marks=[*case.marks, pytest.mark.slow])
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.slow)
