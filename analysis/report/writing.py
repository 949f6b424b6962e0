"""`write_report`: a page as one HTML file that needs nothing else, and its figures as files.

The page carries a policy that forbids every request and every script and style but its own two,
which it names by their hashes. All text of a store is escaped by the template's autoescape, and
control characters and bidirectional overrides are spelt out before.

matplotlib writes a style beside each stroke, which the page's policy forbids. Each different one
becomes a class of the page's sheet, with the figures' colours as variables for light and for dark.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Sequence
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote
from xml.etree import ElementTree

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

from lp_sweep.analysis.figures import theme
from lp_sweep.analysis.figures.drawings import Drawing
from lp_sweep.analysis.notes import GLOSSARY, LEARNED_NOTHING
from lp_sweep.analysis.raw import to_csv
from lp_sweep.analysis.report.gather import FIRST, Live, gather
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
    """Result of `write_report`: the page, its bytes, the figures, and what could not be read."""

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
            raise SpecError(f"{target} exists and is not a report. Name another with --out.")
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
    drawn, style = _inlined(page.figures.drawings)
    style = template_file("report.css") + style
    script = template_file("report.js")
    return _rendered(
        "report.html.j2",
        page=page,
        drawn=drawn,
        style=Markup(style),
        script=Markup(script),
        first=FIRST,
        policy=_policy(style, script),
    )


class LivePart(NamedTuple):
    """HTML to be put into a page that has `report.css`, and the classes of its figures."""

    html: str
    style: str


def render_live(part: Live) -> LivePart:
    drawn, style = _inlined(part.drawings)
    return LivePart(_rendered("live.html.j2", part=part, drawn=drawn), style)


def _inlined(drawings: Sequence[Drawing]) -> tuple[dict[str, Markup], str]:
    """Each drawing by its name, for a page, and the rules of their classes."""
    inliner = Inliner()
    drawn = {
        drawing.name: Markup(  # its text was escaped with the XML
            "".join(
                inliner.inline(svg, f"fig-{drawing.name}-{place}")
                for place, svg in enumerate(drawing.svgs())
            )
        )
        for drawing in drawings
    }
    return drawn, inliner.css()


def _rendered(template: str, **values: Any) -> str:
    return _environment().get_template(template).render(glossary=GLOSSARY, **values)


def _policy(style: str, script: str) -> str:
    """No request to anywhere, of scripts and styles these two alone, images within the page."""
    return (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def template_file(name: str) -> str:
    """The text of a template, a style sheet or a script of the page."""
    folder = files("lp_sweep.analysis.report") / "templates"
    return (folder / name).read_text(encoding="utf-8")


def _environment() -> Environment:
    environment = Environment(
        loader=FunctionLoader(template_file),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["cell"] = cell
    environment.filters["prose"] = prose
    environment.filters["csv"] = lambda numbers: (
        f"data:text/csv;charset=utf-8,{quote(to_csv(numbers))}"
    )
    environment.filters["by_model"] = lambda answers: [
        [*of] for _, of in groupby(answers, key=lambda answer: (answer.sweep, answer.model))
    ]
    environment.tests["in_banner"] = lambda note: note.startswith(LEARNED_NOTHING)
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


_HREF = "{http://www.w3.org/1999/xlink}href"
_REFERENCE = re.compile(r"url\(#([\w.-]+)\)")
_OTHER = re.compile(r"#[0-9a-f]{6}\b")  # of a map whose dark end the dark page hides
_NUMBER = re.compile(r"-?\d+\.\d+")
_LENGTHS = frozenset({"d", "points", "transform", "x", "y", "width", "height", "viewBox"})
_DROPPED = frozenset({"metadata", "style", "title"})  # the first is the page's to say
# theme's colours -> variables of report.css
_COLOURS = {
    **{colour.lower(): f"var(--c{place})" for place, colour in enumerate(theme.COLOURS)},
    theme.YELLOW.lower(): "var(--c-far)",
    theme.GREY.lower(): "var(--muted)",
    theme.LIGHT.lower(): "var(--rule)",
    "#000000": "var(--ink)",
    "#ffffff": "var(--paper)",
}


class Inliner:
    """Collects the classes of all figures of one page."""

    def __init__(self) -> None:
        self._classes: dict[str, str] = {}  # declarations -> name

    def inline(self, svg: str, name: str) -> str:
        """The figure as an `svg` element for an HTML page, its text escaped.

        name: goes in front of identifiers. `svg` is a file of matplotlib's, with text as text. The
        element around it says what is seen.
        """
        root = ElementTree.fromstring(svg)
        referred = set(_REFERENCE.findall(svg)) | set(re.findall(r'xlink:href="#([\w.-]+)"', svg))
        elements = list(root.iter())
        for element in elements:
            element.tag = element.tag.rpartition("}")[2]
            self._plain(element, name, referred)
        for parent in elements:
            for child in [child for child in parent if child.tag in _DROPPED]:
                parent.remove(child)
        for key in ("width", "height", "version"):  # as wide as the page
            root.attrib.pop(key, None)
        root.attrib["aria-hidden"] = "true"
        return ElementTree.tostring(root, encoding="unicode")

    def css(self) -> str:
        """The rules of all figures so far."""
        return "".join(f".{name}{{{rules}}}\n" for rules, name in self._classes.items())

    def _plain(self, element: ElementTree.Element, name: str, referred: set[str]) -> None:
        found = element.attrib
        if found.get("id") in referred:
            found["id"] = f"{name}-{found['id']}"
        else:
            found.pop("id", None)
        if _HREF in found:
            found["href"] = found.pop(_HREF).replace("#", f"#{name}-", 1)
        for key in _LENGTHS & found.keys():
            found[key] = " ".join(_NUMBER.sub(_rounded, found[key]).split())
        if "fill" in found:  # of a hatch
            found["fill"] = _COLOURS.get(found["fill"], found["fill"])
        if "clip-path" in found:
            found["clip-path"] = _REFERENCE.sub(rf"url(#{name}-\1)", found["clip-path"])
        if style := found.pop("style", ""):
            found["class"] = self._class_of(style, name)
        element.text, element.tail = _text(element.text), _text(element.tail)

    def _class_of(self, style: str, name: str) -> str:
        parts = (part.strip() for part in style.split(";"))
        kept = [part for part in parts if part and not part.startswith("font-family")]
        rules = _REFERENCE.sub(rf"url(#{name}-\1)", ";".join(kept))
        for colour, variable in _COLOURS.items():
            rules = rules.replace(colour, variable)
        rules = _OTHER.sub(r"color-mix(in oklab,\g<0>,#fff var(--lift))", rules)
        return self._classes.setdefault(rules, f"f{len(self._classes)}")


def _text(text: str | None) -> str | None:
    """None for the indentation between elements."""
    return text if text and not text.isspace() else None


def _rounded(match: re.Match[str]) -> str:
    return f"{float(match[0]):.2f}".rstrip("0").rstrip(".")
