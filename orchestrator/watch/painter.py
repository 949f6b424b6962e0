"""Redraws the same place of a terminal until it is closed.

`rich.live` moves the cursor up by the number of lines it drew last. A terminal that gets narrower
wraps them into more lines, so after a change of size the screen is cleared and drawn again, with
the last notes above it. Twice a second is not too much for a slow ssh connection.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

_SECONDS = 0.5  # between two drawings
_NOTES_KEPT = 5
_PATIENCE_SECONDS = 2.0  # for an unfinished drawing at the end


def has_screen(console: Console) -> bool:
    """Whether the console is a terminal to draw on. Rich also says so if FORCE_COLOR is set, as
    builds do for their logs."""
    return console.is_terminal and console.file.isatty() and os.environ.get("TERM") != "dumb"


class Painter:
    """Calls `draw` in a thread of its own, and once more at the end. `leave`: the last drawing
    stays on the screen."""

    def __init__(
        self, console: Console, draw: Callable[[], RenderableType], *, leave: bool = False
    ) -> None:
        self.console = console
        self._live = Live(
            console=console,
            get_renderable=draw,
            auto_refresh=False,
            transient=not leave,
            redirect_stdout=sys.stdout.isatty(),  # else it is data for a file
        )
        self._notes: deque[Text] = deque(maxlen=_NOTES_KEPT)
        self._size = console.size
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._paint, daemon=True)

    def open(self) -> None:
        """Starts drawing; a second call does nothing."""
        if not self._thread.is_alive():
            self._live.start()
            self._thread.start()

    def note(self, line: Text) -> None:
        """Prints a line above the drawing."""
        self._notes.append(line)
        self.console.print(line)

    def close(self) -> None:
        if self._thread.is_alive():
            self._ended.set()
            self._thread.join(_PATIENCE_SECONDS)
        self._live.stop()

    def _paint(self) -> None:
        while True:
            if self.console.size != self._size:
                self._redraw()
            self._live.refresh()
            if self._ended.wait(_SECONDS):
                return

    def _redraw(self) -> None:
        self._size = self.console.size
        self._live.stop()
        self.console.clear()
        for note in [*self._notes]:
            self.console.print(note)
        self._live.start()
