"""`write_report`: writes a page as one self-contained HTML file, and its figures as files.

The page's content security policy forbids every request. It allows one script and one style sheet,
its own, by their hashes. The template's autoescape escapes all text of a store; control characters
and bidirectional overrides are spelled out before.

matplotlib writes an inline style on each stroke, which the policy forbids. Each different style
becomes a class in the page's style sheet; the figures' colours are variables, for light and dark.
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
from lp_sweep.analysis.notes import LEARNED_NOTHING
from lp_sweep.analysis.render import to_csv
from lp_sweep.analysis.report.gather import FIRST, gather
from lp_sweep.analysis.report.page import Page
from lp_sweep.analysis.rows import VIEWS
from lp_sweep.analysis.tables import GLOSSARY
from lp_sweep.analysis.views import open_views
from lp_sweep.storage.errors import SpecError, StoreError
from lp_sweep.storage.files import Folder
from lp_sweep.storage.places import expanded
from lp_sweep.storage.printable import printable
from lp_sweep.storage.store import Store, Unreadable

# a cell's number and the rest of its text: `90.25` and ` ±0.31 (−2.18) n=3`
_LEADING = re.compile(r"([×<+−]?\d[\d.,–]*%?(?: of \d+†?)?)(?=$|,| [±(\[n])(.*)", re.DOTALL)
_DOCTYPE = b"<!doctype html"


class Written(NamedTuple):
    """The result of `write_report`: the page, its size in bytes, the figures, and the files that
    could not be read."""

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
    """Write the page of a store, for one `sweep` or for all, whole or not at all.

    setup: an earlier setup of the sweep, in place of today's. within: the allowed losses, in
    points. figures: a folder for the same figures as SVG and PNG. tell: receives the progress. The
    same store gives the same bytes. Raises SpecError for an unknown sweep, a loss below zero, or if
    matplotlib is not installed; StoreError if a file can't be written.
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
    """Check the path of the page and create its folder, before the work, which may take minutes."""
    target = expanded(out)
    try:
        if target.is_symlink():  # else the page would replace the link, such as /dev/stdout
            target = target.resolve()
        if target.is_dir():
            raise SpecError(f"{target} is a folder. Name a file, such as {target / 'report.html'}.")
        if _is_no_page(target):
            raise SpecError(f"{target} exists and is not a report. Name another with --out.")
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _refused(target, error) from error
    return target


def _is_no_page(target: Path) -> bool:
    """Whether something else than a report is there. Only a report may be overwritten: never a
    user's data, nor a device or a pipe."""
    if not target.is_file():
        return target.exists()
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


def _inlined(drawings: Sequence[Drawing]) -> tuple[dict[str, Markup], str]:
    """Each drawing as HTML, by name, and the CSS rules of their classes."""
    inliner = Inliner()
    drawn = {
        drawing.name: Markup(  # the XML escaped its text
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
    """The content security policy: no request, only this style and script, images in the page."""
    return (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def template_file(name: str) -> str:
    """The text of a template, the style sheet or the script of the page."""
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
    """Make each text that the template prints printable, except markup."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return printable(value, keep="\n\t")
    return value


def cell(text: str) -> Markup:
    """A table's cell: the number, and the rest of its text in small type. The text is unchanged."""
    shown = printable(text)
    found = _LEADING.fullmatch(shown)
    if not found or not found[2]:
        return escape(shown)
    return Markup("{}<small>{}</small>").format(found[1], found[2])


def prose(text: str) -> Markup:
    """A sentence as HTML; text between backticks becomes code."""
    parts = re.split(r"`([^`]+)`", printable(text))
    code = Markup("<code>{}</code>")
    return Markup("").join(
        code.format(part) if place % 2 else escape(part) for place, part in enumerate(parts)
    )


_HREF = "{http://www.w3.org/1999/xlink}href"
_REFERENCE = re.compile(r"url\(#([\w.-]+)\)")
_OTHER = re.compile(r"#[0-9a-f]{6}\b")  # the colour map's dark end would vanish on a dark page
_NUMBER = re.compile(r"-?\d+\.\d+")
_LENGTHS = frozenset({"d", "points", "transform", "x", "y", "width", "height", "viewBox"})
_DROPPED = frozenset({"metadata", "style", "title"})  # the page has its own metadata
# colours of the theme -> variables of report.css
_COLOURS = {
    **{colour.lower(): f"var(--c{place})" for place, colour in enumerate(theme.COLOURS)},
    theme.YELLOW.lower(): "var(--c-far)",
    theme.GREY.lower(): "var(--muted)",
    theme.LIGHT.lower(): "var(--rule)",
    "#000000": "var(--ink)",
    "#ffffff": "var(--paper)",
}


class Inliner:
    """Converts figures for one page, and collects their classes."""

    def __init__(self) -> None:
        self._classes: dict[str, str] = {}  # declarations -> name

    def inline(self, svg: str, name: str) -> str:
        """The figure as an `svg` element for an HTML page, its text escaped.

        `svg`: a file from matplotlib, with text as text. `name` prefixes its identifiers. The
        element around it has the description.
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
        for key in ("width", "height", "version"):  # the page decides the width
            root.attrib.pop(key, None)
        root.attrib["aria-hidden"] = "true"
        return ElementTree.tostring(root, encoding="unicode")

    def css(self) -> str:
        """The CSS rules of all figures so far."""
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
        if "fill" in found:  # of a hatch pattern
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
    """The text, or None for the indentation between elements."""
    return text if text and not text.isspace() else None


def _rounded(match: re.Match[str]) -> str:
    return f"{float(match[0]):.2f}".rstrip("0").rstrip(".")
