"""Draws on a terminal, over and over at the same place, until it is closed.

`rich.live` moves the cursor up by the lines that it drew last; when the terminal gets narrower it
wraps them into more, so after a change of size the screen is cleared and drawn again, with the last
notes above it. Twice a second: a slow ssh connection carries that.
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
_PATIENCE_SECONDS = 2.0  # at the end, with a drawing under way


def has_screen(console: Console) -> bool:
    """Whether it is a terminal that can be drawn on. FORCE_COLOR, which Rich takes for a terminal
    (and builds set for all their logs), is none."""
    return console.is_terminal and console.file.isatty() and os.environ.get("TERM") != "dumb"


class Painter:
    """`draw` is called by a thread of the painter's own, and once more at the end. `leave`: what
    was drawn last stays on the screen."""

    def __init__(
        self, console: Console, draw: Callable[[], RenderableType], *, leave: bool = False
    ) -> None:
        self.console = console
        self._live = Live(
            console=console,
            get_renderable=draw,
            auto_refresh=False,
            transient=not leave,
            redirect_stdout=sys.stdout.isatty(),  # else it is data, on its way to a file
        )
        self._notes: deque[Text] = deque(maxlen=_NOTES_KEPT)
        self._size = console.size
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._paint, daemon=True)

    def open(self) -> None:
        """Twice is harmless."""
        if not self._thread.is_alive():
            self._live.start()
            self._thread.start()

    def note(self, line: Text) -> None:
        """It stays above what is drawn."""
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
                self._begin_anew()
            self._live.refresh()
            if self._ended.wait(_SECONDS):
                return

    def _begin_anew(self) -> None:
        self._size = self.console.size
        self._live.stop()
        self.console.clear()
        for note in [*self._notes]:
            self.console.print(note)
        self._live.start()
