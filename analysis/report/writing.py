"""`write_report`: gathers a store's page, and writes it as one self-contained HTML file, and the
figures as files.

The page's content security policy forbids every request. It allows one script and one style sheet,
its own, by their hashes. The template's autoescape escapes all text of a store; control characters
and bidirectional overrides are spelled out before.
"""

from __future__ import annotations

import base64
import hashlib
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from lp_sweep.analysis import phrases
from lp_sweep.analysis.figures.drawings import picture, save_all
from lp_sweep.analysis.notes import did_not_learn, mixed_notes
from lp_sweep.analysis.render import condensed
from lp_sweep.analysis.report.about import COUNTS, Sheet, cautions, sheets, sweep_files
from lp_sweep.analysis.report.answer import answers, reading_options
from lp_sweep.analysis.report.section import Texts, sections
from lp_sweep.analysis.rows import VIEWS
from lp_sweep.analysis.tables import GLOSSARY, TABLES
from lp_sweep.analysis.views import open_views
from lp_sweep.storage.catalog import Catalog
from lp_sweep.storage.errors import SpecError, StoreError
from lp_sweep.storage.files import Folder
from lp_sweep.storage.places import expanded
from lp_sweep.storage.printable import printable
from lp_sweep.storage.redact import redact_text
from lp_sweep.storage.store import Store, Unreadable

_DOCTYPE = b"<!doctype html"
_MOST_OPEN = 4  # tasks; of more, all but the first are folded
_MOST_NAMED = 3  # sweeps in a title


class Written(NamedTuple):
    """The result of `write_report`: the page, the figures, and the files that could not be
    read."""

    page: Path
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
    texts: Texts | None = None,
) -> Written:
    """Write the page of a store, for one `sweep` or for all, whole or not at all.

    setup: an earlier setup of the sweep, in place of today's. within: the allowed losses, in
    points. figures: a folder for figures as SVG and PNG. texts: finds the dev rows of a trial; with
    it, the page lists those that only the smaller network gets wrong. The same store gives the same
    bytes. Raises SpecError for an unknown sweep or a loss below zero, StoreError if a file can't be
    written.
    """
    target = _place(out)
    with open_views(store, sweep=sweep, setup=setup, deltas=within, only=VIEWS) as catalog:
        page = gather(catalog, store, sweep, sorted(set(within)), texts)
        drawn = save_all(catalog, expanded(figures)) if figures else []
        unreadable = catalog.unreadable
    content = render_page(page).encode()
    try:
        Folder(target.parent, durable=False).write(target.name, content)
    except OSError as error:
        raise _refused(target, error) from error
    return Written(target, drawn, unreadable)


def _place(out: Path) -> Path:
    """Check the path of the page and create its folder, before the work, which may take minutes."""
    target = expanded(out)
    try:
        if target.is_symlink():  # else the page would replace the link, such as /dev/stdout
            target = target.resolve()
        if target.exists() and not (target.is_file() and _is_page(target)):
            raise SpecError(f"{target} exists and is not a report. Name another file with --out.")
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _refused(target, error) from error
    return target


def _is_page(target: Path) -> bool:
    """Only a report may be overwritten: never a user's data, nor a device or a pipe."""
    with target.open("rb") as file:
        return file.read(len(_DOCTYPE)).lower() in (b"", _DOCTYPE)


def _refused(target: Path, error: OSError) -> StoreError:
    return StoreError(f"can't write {target}: {error}. Name another with --out.")


# -- a page's content: from the same tables and figures as the commands show


def gather(
    catalog: Catalog,
    store: Store,
    sweep: str | None,
    within: Sequence[float],
    texts: Texts | None,
) -> dict[str, Any]:
    """The whole page for the catalog, which was opened on the store for `sweep` (None: all) and the
    losses `within`: plain values. Text is not escaped: the template does that."""
    made = {name: table(catalog) for name, table in TABLES.items() if table.in_report}
    sweeps = catalog.query("SELECT DISTINCT sweep FROM cells ORDER BY 1")["sweep"].to_pylist()
    named = ", ".join(sweeps) if len(sweeps) <= _MOST_NAMED else f"{len(sweeps)} sweeps"
    unlearned = did_not_learn(made["min-layers"].long.to_pylist())
    found = answers(made, catalog)
    options = shlex.join(reading_options(catalog, sweep))
    losses = f" --within {','.join(f'{delta:g}' for delta in within)}"
    narrowed = {name: losses * ("unit" in TABLES[name].takes) for name in made}
    return dict(
        title=sweep or named or "an empty store",
        sweeps=sweeps,
        sections=[*sections(catalog, found, made["candidates"], texts)],
        banner=" ".join([*mixed_notes(catalog, sweep=sweep), unlearned]).strip(),
        tables=[
            Sheet(name, table, f"lp-sweep table {name}{narrowed[name]} {options}")
            for name, table in made.items()
            if table.rows
        ],
        counts=catalog.query(COUNTS).to_pylist()[0],
        cautions=cautions(catalog),
        gaps=sheets(catalog, "gaps"),
        recipes=sheets(catalog, "recipes"),
        sources=sheets(catalog, "sources"),
        sweep_files=sweep_files(sweeps, store),
        location=redact_text(store.location),
    )


# -- its HTML


def render_page(page: dict[str, Any]) -> str:
    """The HTML of a page. Its policy allows no request, only this style and script."""
    environment = Environment(
        loader=PackageLoader("lp_sweep.analysis.report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"prose": _prose, "picture": picture, "condensed": condensed}
    environment.filters["digest"] = _digest
    environment.filters["metric"] = lambda name: phrases.heading("", name).strip() or "score"
    template = environment.get_template("report.html.j2")
    return template.render(page=page, most_open=_MOST_OPEN, glossary=GLOSSARY)


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _visible(value: Any) -> Any:
    """Make each text that the template prints printable, except markup."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return printable(value, keep="\n\t")
    return value


def _prose(text: str) -> Markup:
    """A sentence as HTML; text between backticks becomes code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(printable(text)))))
