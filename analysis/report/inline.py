"""A figure's SVG as a part of the page, one for light and dark.

matplotlib writes a style beside each stroke. The page's policy allows no style but its own sheet,
so each different one becomes a class there, with the figures' colours as variables that the
page sets for light and for dark. Identifiers get the figure's name in front, or go where nobody
refers to them: several figures are in one page. Coordinates keep two decimals.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree

from lp_sweep.analysis.figures import theme

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

    def inline(self, svg: str, name: str, described_by: str) -> str:
        """The figure as an `svg` element for an HTML page, its text escaped.

        name: goes in front of identifiers; described_by: the element of the page that says what is
        seen. `svg` is a file of matplotlib's, with text as text.
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
        root.attrib |= {"role": "img", "aria-labelledby": described_by}
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
