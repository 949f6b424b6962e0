"""A page as a browser's parser sees it: its tables, identifiers, links and what it says. Not a
test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from html.parser import HTMLParser
from typing import NamedTuple

_EMPTY = frozenset({"meta", "br", "img", "link", "input", "hr", "base"})  # never closed


class Grid(NamedTuple):
    columns: list[str]
    rows: list[list[str]]


class Reading(HTMLParser):
    """`Reading(text)` has read it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []  # tag, name, value
        self.ids: list[str] = []
        self.headings: list[tuple[int, str]] = []
        self.tables: dict[str, Grid] = {}  # by the name after `table-`
        self.texts: dict[str, str] = {}  # of elements with an id, and of title, style, script
        self._open: list[tuple[str, str | None]] = []
        self.feed(text)
        self.close()
        assert not self._open, f"never closed: {self._open}"

    @property
    def said(self) -> str:
        """All its text."""
        return self.texts["html"]

    def values(self, *names: str) -> list[str]:
        return [value for _, name, value in self.attributes if name in names]

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        found = {name: value or "" for name, value in attrs}
        self.attributes += [(tag, name, value) for name, value in found.items()]
        id_ = found.get("id")
        if id_:
            self.ids.append(id_)
        if tag == "table":
            self._grid = self.tables.setdefault((id_ or "").removeprefix("table-"), Grid([], []))
        elif tag == "th":
            self._grid.columns.append("")
        elif tag == "tr" and "tbody" in self._within():
            self._grid.rows.append([])
        elif tag == "td":
            self._grid.rows[-1].append("")
        elif tag in ("h1", "h2", "h3", "h4"):
            self.headings.append((int(tag[1]), ""))
        if tag not in _EMPTY:
            key = id_ or (tag if tag in ("html", "title", "style", "script") else None)
            self._open.append((tag, key))

    def handle_startendtag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _EMPTY:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> closes nothing"
        opened, _ = self._open.pop()
        assert opened == tag, f"</{tag}> closes <{opened}>"

    def handle_data(self, data: str) -> None:
        for _, key in self._open:
            if key:
                self.texts[key] = self.texts.get(key, "") + data
        within = self._within()
        if "th" in within:
            self._grid.columns[-1] += data
        if "td" in within:
            self._grid.rows[-1][-1] += data
        if self.headings and within & {"h1", "h2", "h3", "h4"}:
            level, text = self.headings[-1]
            self.headings[-1] = (level, text + data)

    def _within(self) -> set[str]:
        return {tag for tag, _ in self._open}
