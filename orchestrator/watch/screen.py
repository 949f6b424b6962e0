"""What the live views of a run and of a store have in common: a bar, and whether there is a screen.

Text from elsewhere is escaped (`printable`), and no line is wrapped.
"""

from __future__ import annotations

import os

from rich.console import Console
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from lp_sweep.storage.printable import printable

_WIDEST_BAR = 40


def has_screen(console: Console) -> bool:
    """Whether the console is a terminal to draw on. Rich also says so if FORCE_COLOR is set, as
    builds do for their logs."""
    return console.is_terminal and console.file.isatty() and os.environ.get("TERM") != "dumb"


def bar(sweep: str, ended: int, total: int) -> Table:
    """`glue  ━━━━━━━━━━━━───────  27/66  40%`"""
    share = f"{ended}/{total}  {100 * ended // total if total else 100}%"
    drawn = ProgressBar(
        total=max(1, total),
        completed=ended if total else 1,
        width=_WIDEST_BAR,
        complete_style="cyan",
        finished_style="cyan",
    )
    row = Table.grid(padding=(0, 2))
    row.add_row(line(sweep, "bold"), drawn, Text(share, no_wrap=True))
    return row


def line(text: str, style: str = "") -> Text:
    """One line, cut where the screen ends."""
    return Text(printable(text), style=style, no_wrap=True, overflow="ellipsis")
