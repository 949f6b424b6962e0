"""`write_report`: a page as one HTML file that needs nothing else, and its figures as files.

The page carries a policy that forbids every request and every script and style but its own two,
which it names by their hashes. All text of a store is escaped by the template's autoescape, and
control characters and bidirectional overrides are spelt out before.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

from lp_sweep.analysis.figures.drawings import Drawing
from lp_sweep.analysis.report.gather import gather
from lp_sweep.analysis.report.glossary import GLOSSARY
from lp_sweep.analysis.report.inline import Inliner
from lp_sweep.analysis.report.page import Page
from lp_sweep.analysis.views import VIEWS, open_views
from lp_sweep.storage.errors import SpecError, StoreError
from lp_sweep.storage.folder import Folder
from lp_sweep.storage.places import expanded
from lp_sweep.storage.printable import printable
from lp_sweep.storage.store import Store, Unreadable

# the number of a cell, and what is said of it: `90.25` and ` ±0.31 (−2.18) n=3`
_LEADING = re.compile(r"([×<+−]?\d[\d.,–]*%?(?: of \d+†?)?)(?=$|,| [±(\[n])(.*)", re.DOTALL)
_DOCTYPE = b"<!doctype html"


class Written(NamedTuple):
    """What `write_report` left: the page, its bytes, the figures, and what could not be read."""

    page: Path
    size: int
    figures: list[Path]
    unreadable: list[Unreadable]


def write_report(
    store: Store,
    out: Path,
    *,
    sweep: str | None = None,
    setup: int | None = None,
    within: Sequence[float] = (1, 2, 3),
    figures: Path | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Written:
    """Write the page of a store, of one `sweep` or of all, whole or not at all.

    setup: an earlier one of the sweep, in place of today's; within: the losses that are answered
    for, in points; figures: a folder for the same figures as
    SVG and PNG; tell: hears what it is at. The same store gives the same bytes. Raises SpecError
    for an unknown sweep, a loss below zero, or where matplotlib is not installed; StoreError where
    a file can't be written.
    """
    target = _place(out)
    with open_views(store, sweep=sweep, setup=setup, deltas=within, only=VIEWS) as catalog:
        page = gather(catalog, store, sweep, sorted(set(within)), tell)
        unreadable = catalog.unreadable
    content = render_page(page).encode()
    try:
        Folder(target.parent, durable=False).write(target.name, content)
    except OSError as error:
        raise _refused(target, error) from error
    drawn = [path for drawing in page.figures.drawings for path in _save(drawing, figures)]
    return Written(target, len(content), drawn, unreadable)


def _place(out: Path) -> Path:
    """Where the page goes, with its folder made: before the work, which may take minutes."""
    target = expanded(out)
    try:
        if target.is_dir():
            raise SpecError(f"{target} is a folder. Name a file, such as {target / 'report.html'}.")
        if _is_no_page(target):
            raise SpecError(f"{target} exists, and is no page. Name another with --out.")
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _refused(target, error) from error
    return target


def _is_no_page(target: Path) -> bool:
    """A report is written over an earlier one, and over nothing else: not over somebody's data."""
    if not target.is_file():
        return False
    with target.open("rb") as file:
        start = file.read(len(_DOCTYPE))
    return start.lower() not in (b"", _DOCTYPE)


def _refused(target: Path, error: OSError) -> StoreError:
    return StoreError(f"can't write {target}: {error}. Name another with --out.")


def _save(drawing: Drawing, folder: Path | None) -> list[Path]:
    return drawing.save(expanded(folder)) if folder else []


def render_page(page: Page) -> str:
    """The HTML of a page."""
    inliner = Inliner()
    drawn = {
        drawing.name: Markup(  # its text was escaped with the XML
            inliner.inline(drawing.svg(), f"fig-{drawing.name}", f"said-{drawing.name}")
        )
        for drawing in page.figures.drawings
    }
    style = _template_file("report.css") + inliner.css()
    script = _template_file("report.js")
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            page=page,
            drawn=drawn,
            glossary=GLOSSARY,
            style=Markup(style),
            script=Markup(script),
            policy=_policy(style, script),
        )
    )


def _policy(style: str, script: str) -> str:
    """No request to anywhere, of scripts and styles these two alone, images within the page."""
    return (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _template_file(name: str) -> str:
    folder = files("lp_sweep.analysis.report") / "templates"
    return (folder / name).read_text(encoding="utf-8")


def _environment() -> Environment:
    environment = Environment(
        loader=FunctionLoader(_template_file),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["cell"] = cell
    environment.filters["prose"] = prose
    return environment


def _visible(value: Any) -> Any:
    """Every text that the template puts out, but for what is markup already."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return printable(value, keep="\n\t")
    return value


def cell(text: str) -> Markup:
    """A table's cell: the number, and in small type what is said of it. Its text stays the same."""
    shown = printable(text)
    found = _LEADING.fullmatch(shown)
    if not found or not found[2]:
        return escape(shown)
    return Markup("{}<small>{}</small>").format(found[1], found[2])


def prose(text: str) -> Markup:
    """A sentence; what it has between backticks is code."""
    parts = re.split(r"`([^`]+)`", printable(text))
    code = Markup("<code>{}</code>")
    return Markup("").join(
        code.format(part) if place % 2 else escape(part) for place, part in enumerate(parts)
    )
