"""pyarrow without pandas, for the commands whose start is most of what they take.

At its first array pyarrow imports pandas, if only to find that what it was given is no Series: a
third of a second of CPU time. It looks once; what it takes later for pandas' own (`to_pandas`)
makes it look again, and works.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from typing import Any


class _Absent:
    """A finder by which pandas is not installed."""

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError(name=name)
        return None


def without_pandas() -> None:
    """Call it before the first array is made; later it does nothing."""
    import pyarrow as pa

    finder = _Absent()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([])  # here it looks
    finally:
        sys.meta_path.remove(finder)
