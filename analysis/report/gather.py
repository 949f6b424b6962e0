"""Fills a page from a store. It uses the same tables and figures as the commands, and computes
nothing a second time."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow.compute as pc

from lp_sweep.analysis.figures.drawings import FIGURES, Drawing, why_absent
from lp_sweep.analysis.notes import did_not_learn, mixed_notes
from lp_sweep.analysis.paper.compare import paper_models, paper_tables, store_models
from lp_sweep.analysis.report.about import Fact, Gaps, Origin, Sheet, asked, gaps, origin
from lp_sweep.analysis.report.answer import TaskAnswer, answers, in_short
from lp_sweep.analysis.tabledef import Table
from lp_sweep.analysis.tables import TABLES
from lp_sweep.analysis.views import open_views
from lp_sweep.storage.catalog import Catalog
from lp_sweep.storage.places import options_of
from lp_sweep.storage.redact import redact_text
from lp_sweep.storage.store import Store

_MOST_OPENED = 60  # rows: a longer table is folded
FIRST = ("score", "heat-map", "pareto")  # figures shown first; the others are folded
_MOST_NAMED = 3  # sweeps in a title


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A whole report, as plain values. Text is not escaped: the template does that."""

    title: str
    asked: Mapping[str, Sequence[Fact]]  # by sweep: its axes, and how much of it is done
    answers: Sequence[TaskAnswer]
    banner: str  # names the tasks that did not learn; "" if all learned
    drawings: Sequence[Drawing]
    absent: Sequence[str]  # for each other figure why it could not be drawn
    tables: Sequence[Sheet]
    paper: Sequence[Sheet]
    beside_paper: str  # a sentence about the comparison; "" without one
    gaps: Gaps
    origin: Origin


def gather(
    catalog: Catalog,
    store: Store,
    sweep: str | None,
    within: Sequence[float],
    tell: Callable[[str], None],
) -> Page:
    """The whole page for the catalog, which was opened on the store for `sweep` (None: all) and the
    losses `within`. Reports progress to `tell`: reading many predictions takes minutes."""
    place = redact_text(store.location)
    options = _asked_for(place, sweep, catalog.setup)
    made = {}
    for name, table in TABLES.items():
        if table.report != "never":
            tell(f"table {name}")
            made[name] = table(catalog)
    tell("what was asked for, and the paper")
    sweeps = asked(catalog)
    paper, beside_paper = _paper(catalog, options)
    drawings, absent = _figures(catalog, tell)
    return Page(
        title=sweep or _title([*sweeps]),
        asked=sweeps,
        answers=answers(
            made,
            catalog,
            place,
            name_sweep=bool(sweep) or len(sweeps) > 1,
            places=_places(store, [*sweeps]),
        ),
        banner=" ".join([*mixed_notes(catalog, sweep=sweep), _banner(made)]).strip(),
        drawings=drawings,
        absent=absent,
        tables=list(_sheets(made, options, within)),
        paper=paper,
        beside_paper=beside_paper,
        gaps=gaps(catalog, place),
        origin=origin(catalog, store),
    )


_SURE = "min-layers-interval"
_ANSWER = ("min-layers", _SURE, "speed", "tasks")  # tables that an answer reads
_DONE = "SELECT count(DISTINCT trial_id) FROM cells WHERE state = 'done'"
_MOST_READ = 2_000  # trials: reading their predictions takes about ten seconds
_ANSWER_VIEWS = frozenset[str]().union(*(TABLES[name].views for name in _ANSWER))


def _banner(made: Mapping[str, Table]) -> str:
    said = did_not_learn(made["min-layers"].long.to_pylist())
    return said[:1].upper() + said[1:]


def answer_lines(store: Store, sweep: str, loss: float) -> list[str]:
    """The report's answer for one allowed loss in points: a note where scores are not comparable,
    two lines per task, and the commands for the report and for the first smaller network. If the
    sweep is so large that reading all predictions would take minutes, the answers don't say how
    sure they are. Raises what `open_views` raises."""
    place = redact_text(store.location)
    with open_views(store, sweep=sweep, deltas=[loss], only=_ANSWER_VIEWS) as catalog:
        [[trials]] = catalog.query(_DONE).to_pydict().values()
        names = [name for name in _ANSWER if trials <= _MOST_READ or name != _SURE]
        made = {name: TABLES[name](catalog) for name in names}
        places = _places(store, [sweep])
        found = answers(made, catalog, place, name_sweep=True, places=places)
        mixed = [*mixed_notes(catalog, sweep=sweep)]
    several = len({answer.model for answer in found}) > 1
    lines = [line for answer in found for line in in_short(answer, name_model=several)]
    report = f"report: lp-sweep report --out report.html {_asked_for(place, sweep, None)}"
    # no export where the full model did not learn: then any network is as good
    choices = [one for answer in found for one in answer.choices if not one.untaught]
    exports = [f"export: {one.export}" for one in choices if one.export and not all(one.kept)]
    return [*mixed, *lines, report, *exports[:1]]


def _places(store: Store, sweeps: Sequence[str]) -> dict[str, list[str]]:
    """For each sweep, the options with which a command finds its model and data."""
    stored = store.names("sweeps")  # the name inside a file may be any text
    found = {n: options_of(store.read_text("sweeps", f"{n}.yaml")) for n in sweeps if n in stored}
    return {name: [redact_text(word) for word in words] for name, words in found.items()}


def _title(sweeps: Sequence[str]) -> str:
    if len(sweeps) > _MOST_NAMED:
        return f"{len(sweeps)} sweeps"
    return ", ".join(sweeps) or "an empty store"


def _asked_for(place: str, sweep: str | None, setup: int | None) -> str:
    """The options that make a command read the same results as the page."""
    words = ["--store", place, *(("--sweep", sweep) if sweep else ())]
    return shlex.join([*words, *(("--setup", str(setup)) if setup else ())])


def _sheets(made: Mapping[str, Table], options: str, within: Sequence[float]) -> Iterator[Sheet]:
    losses = ",".join(f"{delta:g}" for delta in within)
    for name, table in made.items():
        shown = TABLES[name].report
        if not table.rows:
            continue
        narrow = f" --within {losses}" if "unit" in TABLES[name].takes else ""
        opened = shown == "open" and len(table.rows) <= _MOST_OPENED
        yield Sheet(name, table, f"lp-sweep table {name}{narrow} {options}", opened)


def _figures(catalog: Catalog, tell: Callable[[str], None]) -> tuple[list[Drawing], list[str]]:
    """The figures that could be drawn, and for each other figure why it could not."""
    drawings, absent = [], []
    for name in (*FIRST, *(name for name in FIGURES if name not in FIRST)):
        tell(f"figure {name}")
        drawing = FIGURES[name](catalog)
        if drawing is None:
            absent.append(why_absent(name))
        else:
            drawings.append(drawing)
    return drawings, absent


def _paper(catalog: Catalog, options: str) -> tuple[list[Sheet], str]:
    """The paper's tables for which the store has a number to compare, and a sentence about them."""
    if not paper_models(store_models(catalog), {}).of:
        return [], ""
    sheets, empty = [], []
    for number, table in paper_tables(catalog).items():
        command = f"lp-sweep paper --table {number} {options}"
        if pc.all(pc.equal(table.long["verdict"], "missing")).as_py():
            empty.append(str(number))
        else:
            sheets.append(Sheet(f"paper-{number}", table, command, number == 1))
    said = f" No number yet for Table {', Table '.join(empty)}." if empty else ""
    return sheets, f"Our number comes first, the paper's in brackets.{said}"
