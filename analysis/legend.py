"""What stands below a table: the notes that its cells need, and no others."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Note(NamedTuple):
    """`where` is a regular expression: the note is for a table with a cell, or a part of one, that
    it matches; "" for every table."""

    text: str
    where: str = ""


def legend(notes: Iterable[Note], rows: Iterable[Sequence[str]]) -> tuple[str, ...]:
    cells = "\n".join(cell for row in rows for cell in row)
    return tuple(note.text for note in notes if re.search(note.where, cells, re.MULTILINE))
