"""The answer: for each task, the smallest network within each loss, over all strategies.

It is read from the rows of the tables that the page shows further down, so it can't differ from
them. If a missing cell could still give a smaller network, the answer is an interval.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from lp_sweep.analysis import needed, phrases
from lp_sweep.analysis.notes import baseline, did_not_learn, mixed_notes
from lp_sweep.analysis.rows import TASK, Row, grouped, picked
from lp_sweep.analysis.statistics import selection
from lp_sweep.analysis.statistics.minimum import UNTRAINED
from lp_sweep.analysis.statistics.networks import Reader, reader
from lp_sweep.analysis.tabledef import Table, TableCell
from lp_sweep.analysis.tables import TABLES
from lp_sweep.analysis.views import open_views
from lp_sweep.storage.catalog import Catalog
from lp_sweep.storage.printable import metric_name, short_model
from lp_sweep.storage.redact import redact_text
from lp_sweep.storage.store import Store

_CURVE = (*TASK, "procedure", "strategy", "delta")


class Choice(NamedTuple):
    """The smallest network of a task within a loss, over all networks that were tried."""

    line: str  # the answer in a sentence
    not_learned: str  # a warning that the full model did not learn; "" if it did
    sure: Mapping[str, str]  # what is known of how sure it is, by name
    export: str  # the command that writes it as a checkpoint; "" if none is smaller


class TaskAnswer(NamedTuple):
    """The answer for one task of one model: a choice per allowed loss."""

    sweep: str
    model: str
    task: str
    short: str  # what is lost and gained for the smallest loss, in a sentence
    said: str  # the score with all layers, and that of always guessing the most common label
    choices: Sequence[Choice]


class _Known(NamedTuple):
    """Values from the other tables, by look-up key, and what the commands need."""

    intervals: Mapping[tuple[Any, ...], Row]  # by _CURVE
    sizes: Mapping[tuple[Any, ...], Sequence[Row]]  # by sweep, model and kept layers
    tasks: Mapping[tuple[Any, ...], Row]  # by TASK, for the full model
    models: Mapping[str, int]  # number of models, by task name
    catalog: Catalog
    read: Reader | None  # of predictions


def answers(tables: Mapping[str, Table], catalog: Catalog) -> list[TaskAnswer]:
    """One answer per sweep, model and task, in the order of the plan.

    tables: the catalog's tables by their names in `lp-sweep table`: min-layers (in points), speed,
    tasks and, optionally, min-layers-interval; without it, no answer says how sure it is.
    """
    long = {name: table.long.to_pylist() for name, table in tables.items()}
    rows = sorted(long["min-layers"], key=lambda row: (row["sweep"], row["model"], row["position"]))
    intervals = long.get("min-layers-interval")
    sizes = (row for row in long["speed"] if row["feed_forward"] == "none")
    full = (row for row in long["tasks"] if phrases.is_full(row, row["change"]))
    known = _Known(
        intervals={picked(row, _CURVE): row for row in intervals or ()},
        sizes=grouped(sizes, _network),
        tasks={picked(row, TASK): row for row in full if row["mean"] is not None},
        models=Counter(task for task, _ in {(row["task"], row["model"]) for row in rows}),
        catalog=catalog,
        read=None if intervals is None else reader(catalog),
    )
    by_task = grouped(rows, lambda row: picked(row, TASK))
    return [_answer(of_task, known) for of_task in by_task.values()]


def _in_short(best: Row | None, known: _Known) -> str:
    """`accuracy 84.3 (all 6: 84.2). 1.5 times as fast, 84% of the size. With 2 seeds, 4 to 6 layers
    are plausible (90%).`"""
    if best is None or best["score_kept"] is None:
        return ""
    full = known.tasks.get(picked(best, TASK))
    said = f"{_metric(full) if full else 'score'} {best['score_kept']:.1f}"
    if best["max_dropped_low"]:
        said += f" (all {best['depth']}: {best['score_full']:.1f})"
    sizes = known.sizes.get(_network(best), ()) if best["kept_layers"] else ()
    speeds = [row["inference_speedup"] for row in sizes if row["inference_speedup"]]
    gains = [f"{speed:.1f} times as fast" for speed in speeds[:1]]
    shares = [row["params_percent"] for row in sizes[:1]]
    gains += [f"{share:.0f}% of the size" for share in shares if share is not None]
    said += f". {', '.join(gains)}" if gains else ""
    sure = known.intervals.get(picked(best, _CURVE))
    if sure and sure["credible"] and not sure["reason"]:
        trained = sure["seed_sd_from"] != UNTRAINED
        seeds = f"with {phrases.seeds(best['n_seeds'], best['n_seeds'])}, " * trained
        layers = f"{needed.likely_layers(sure)} layers are"
        if layers == f"at most {best['depth']} layers are":
            layers = "any number of layers is"
        likely = f"{seeds}{layers} plausible (90%)"
        said += f". {likely[0].upper()}{likely[1:]}"
    return f"{said}."


def _network(row: Row) -> tuple[Any, ...]:
    return (row["sweep"], row["model"], tuple(row["kept_layers"] or ()))


def _answer(rows: Sequence[Row], known: _Known) -> TaskAnswer:
    by_loss = grouped(sorted(rows, key=lambda row: row["delta"]), lambda row: row["delta"])
    sweep, model, task = place = picked(rows[0], TASK)
    whole = selection.ChoicePlace(*place)
    luck = selection.load(known.catalog, whole, known.read) if known.read else None
    short = _in_short(needed.best_of(next(iter(by_loss.values()))), known)
    said = _said(known.tasks.get(place), rows[0]["depth"])
    choices = [_choice(of_loss, known, luck) for of_loss in by_loss.values()]
    return TaskAnswer(sweep, model, task, short, said, choices)


def _said(full: Row | None, depth: int) -> str:
    if full is None:
        return f"No score with all {depth} layers."
    seeds = phrases.seeds(full["n"], full["n"])
    said = f"All {depth} layers: {full['mean']:.2f} {_metric(full)}, {seeds}."
    if full["majority"] is None:
        return said
    return f"{said} {baseline(full)}: {full['majority']:.2f}."


def _metric(full: Row) -> str:
    return phrases.heading("", metric_name(full["metric"], full["positive"])).strip()


def _choice(rows: Sequence[Row], known: _Known, luck: selection.Splits | str | None) -> Choice:
    """The answer for one loss. `rows`: one per procedure and strategy."""
    line, best = needed.answer_line(rows), needed.best_of(rows)
    if best is None:
        return Choice(line, "", {}, "")
    row = known.intervals.get(picked(best, _CURVE))
    likely = needed.credible_layers(row) if row else TableCell("")
    sure = {
        "layers, 90%": ". ".join([likely.text, *likely.footnotes]),
        "luck": ""
        if needed.is_open(best)
        else selection.sentence(luck, best["delta"], best["unit"]),
    }
    return Choice(
        line=line,
        not_learned=did_not_learn([best]),
        sure={name: said for name, said in sure.items() if said},
        export=_export(best, rows, known),
    )


def _export(best: Row, rows: Sequence[Row], known: _Known) -> str:
    """The command that exports the same network. "" for the full model, if the store's answer is
    still open, or if the strategy may have a smaller network by another procedure: no option names
    a procedure."""
    reach, open_rows = best["max_dropped_low"], filter(needed.is_open, rows)
    open_ = {row["strategy"] for row in open_rows if row["max_dropped_high"] > reach}
    if not reach or needed.is_open(best) or best["strategy"] in open_:
        return ""
    words = ["lp-sweep", "export", "--best", "--task", best["task"]]
    words += ["--within", f"{best['delta']:.12g}"]
    words += ["--model", best["model"]] if known.models[best["task"]] > 1 else []
    words += ["--strategy", best["strategy"]] if open_ else []  # that of other strategies is open
    words += ["--out", "smaller"]
    own = known.catalog.inputs_of(best["sweep"])
    return shlex.join([*words, *reading_options(known.catalog, best["sweep"]), *own])


# -- the answer at the end of a run

_SURE = "min-layers-interval"
_ANSWER = ("min-layers", _SURE, "speed", "tasks")  # tables that an answer reads
_DONE = "SELECT count(DISTINCT trial_id) FROM cells WHERE state = 'done'"
_MOST_READ = 2_000  # trials: reading their predictions takes about ten seconds
_ANSWER_VIEWS = frozenset[str]().union(*(TABLES[name].views for name in _ANSWER))


def closing_lines(store: Store, sweep: str, loss: float, *, goes_on: bool = False) -> list[str]:
    """The report's answer for one allowed loss in points: a note where scores are not comparable,
    two lines per task, and the command for the report; and, unless the run `goes_on` to export it,
    the network to ship. If the sweep is so large that reading all predictions would take minutes,
    the answers don't say how sure they are. Raises what `open_views` raises."""
    views = (*_ANSWER_VIEWS, *TABLES["candidates"].views)
    with open_views(store, sweep=sweep, deltas=[loss], only=views) as catalog:
        [[trials]] = catalog.query(_DONE).to_pydict().values()
        names = [name for name in _ANSWER if trials <= _MOST_READ or name != _SURE]
        made = {name: TABLES[name](catalog) for name in names}
        found = answers(made, catalog)
        mixed = [*mixed_notes(catalog, sweep=sweep)]
        shipped = TABLES["candidates"](catalog).lead
        report = shlex.join(["--out", "report.html", *reading_options(catalog, sweep)])
    several, lines = len({answer.model for answer in found}) > 1, list[str]()
    for answer in found:
        choice = answer.choices[0]
        name = f"{answer.task}, {short_model(answer.model)}" if several else answer.task
        more = f"{answer.said} {choice.not_learned}" if choice.not_learned else answer.short
        lines += [f"{name}: {choice.line}", *([f"  {more}"] if more else [])]
    # no export where the full model did not learn: then any network is as good
    choices = (one for answer in found for one in answer.choices if not one.not_learned)
    exports = [f"export: {one.export}" for one in choices if one.export]
    report = f"report: lp-sweep report {report}"
    return [*mixed, *lines, report] if goes_on else [*mixed, *lines, *shipped, report, *exports[:1]]


def reading_options(catalog: Catalog, sweep: str | None) -> list[str]:
    """The options that make a command read the same results as the catalog."""
    words = ["--store", redact_text(catalog.location), *(("--sweep", sweep) if sweep else ())]
    return [*words, *(("--setup", str(catalog.setup)) if catalog.setup else ())]
