"""The views by name. Apart from `views.py`, since help lists them without loading DuckDB."""

from __future__ import annotations

from importlib.resources import files

_FOLDER = files("lp_sweep.analysis") / "sql"
VIEWS = tuple(sorted(file.name[:-4] for file in _FOLDER.iterdir() if file.name.endswith(".sql")))


def view_sql(name: str) -> str:
    """The text of a view's file."""
    return (_FOLDER / f"{name}.sql").read_text(encoding="utf-8")
