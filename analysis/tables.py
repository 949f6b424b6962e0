"""The tables of `lp-sweep table`: each is one entry of TABLES, which everything else reads.

To add a table, add a file `sql/<view>.sql` and an entry here. This module computes no numbers: they
come from a view or from `statistics`. A number that is missing there is shown as a word.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from lp_sweep.analysis import needed, phrases, shipping
from lp_sweep.analysis.notes import left_out, majorities, where_nothing_was_learned
from lp_sweep.analysis.rows import Row, TableSelection, grouped
from lp_sweep.analysis.tabledef import CONTEXT, Column, TableDef, Text, by_statistics, note, text
from lp_sweep.storage.printable import metric_name, ranges

if TYPE_CHECKING:
    import pyarrow as pa

    from lp_sweep.storage.catalog import Catalog


# -- what some tables do with their rows before the layout


def _place_and_setting(row: Row) -> tuple[Any, ...]:
    fixed = row["k"] if row["threshold"] is None else None
    place = (row["sweep"], row["model"], row["procedure"], row["feed_forward"])
    return (*place, phrases.strategy(row), fixed, row["threshold"])


def _with_kept_and_metric(rows: list[Row]) -> list[Row]:
    """Adds to each row the layers that its setting keeps over all tasks, and its task's heading."""
    groups = grouped(rows, _place_and_setting)
    metrics = {
        row["task"]: metric_name(row["metric"], row["positive"]) for row in rows if row["metric"]
    }
    return [
        {
            **row,
            "kept": phrases.kept(groups[_place_and_setting(row)]),
            "heading": phrases.heading(row["task"], metrics.get(row["task"])),
        }
        for row in rows
    ]


def _full_depth_once(rows: list[Row]) -> list[Row]:
    """Keeps one row for K=0, the most complete: it is one network for all strategies."""
    alike = grouped(rows, _place_and_setting).values()
    return [max(of, key=lambda row: (row["n_tasks"], row["n_seeds_all"])) for of in alike]


def _named_shortly(rows: list[Row]) -> list[Row]:
    """Moves the procedure into the distillation's name, so that it has no column of its own."""
    return [
        {**row, "label": row["procedure"], "procedure": None, "change": row["gain"]} for row in rows
    ]


def _setups(table: TableDef, catalog: Catalog, wanted: TableSelection) -> pa.Table:
    import pyarrow as pa

    number = pa.int64()
    types = (pa.string(), number, pa.list_(pa.string()), number, number)
    names = ("sweep", "setup", "differences", "cells", "trials_finished")
    rows = [dict(zip(names, setup, strict=True)) for setup in catalog.earlier_setups()]
    return pa.Table.from_pylist(rows, pa.schema(zip(names, types, strict=True)))


def _is_compared(row: Row) -> bool:
    return bool(row["n_paired"]) and not phrases.is_full(row, row["change"])


def _explained(text: Text, meaning: str) -> Column:
    """A column whose meaning is always said below the rows."""
    return Column(text, meaning, below=True)


_ANSWERS = ("trials", "predictions", "cells")  # views with the networks' answers
_LOSS = _explained(
    lambda row: f"{row['delta']:g}{'%' * (row['unit'] == 'percent')}",
    "the allowed loss against all layers with the same seed, mean over seeds.",
)
_P_HOLM = _explained(
    text("p_holm", phrases.p_value),
    "corrected for all the different tests of these rows together. To test less, select fewer rows "
    "(--sweep, --model, --strategy) before you look.",
)
_STRATEGY = Column(
    phrases.strategy,
    "t= is a threshold: each task drops the layers that it finds.",
    below=lambda row: row["threshold"] is not None,
)
_LAYERS = Column(phrases.kept_of, "how many layers are kept, of all layers of the model.")
_KEPT = Column(text("kept_layers", ranges), "which layers; 1 is next to the embeddings.")


_OVER_ROWS = note(
    "rows: for other dev rows and this one network; another seed can lie outside.",
    lambda row: "rows" in (row.get("over"), row.get("test")),
)
_OVER_BOTH = note(
    "seeds and rows: for other seeds and other dev rows. With two or three seeds the interval is "
    "wide; more seeds narrow it fastest.",
    lambda row: "seeds and rows" in (row.get("over"), row.get("test")),
)


def _task_and_metric(row: Row) -> str:
    return phrases.heading(row["task"], row["metric"])


TABLES: dict[str, TableDef] = {
    "min-layers": TableDef(
        title="Layers needed to stay within a loss, in {unit}",
        view="min_layers_by_unit",
        order="position, delta",
        takes=("unit", "model", "strategy"),
        fetch=by_statistics("minimum.with_sets_of_searches"),
        reads=("cells",),
        lead=needed.answer_lines,
        columns={"strategy": text("strategy"), "loss ≤": _LOSS},
        by_task=needed.layers_needed,
        joined=("loss ≤", "strategy"),
        notes=(
            where_nothing_was_learned,
            note(
                "Read 6 of 12 (−0.80) as: 6 of the 12 layers are the fewest, of those that were "
                "tried, that stay within the loss; the score changes by −0.80. A network with more "
                "layers may still lose more."
            ),
            note(
                "4–6 of 12: the answer lies between these.",
                lambda row: row["max_dropped_low"] != row["max_dropped_high"],
            ),
            note(
                "90% 5 to 7: the answers that the scores of a search (`until: min_layers`) do not "
                "rule out.",
                lambda row: row["credible"],
            ),
            left_out,
        ),
    ),
    "tasks": TableDef(
        title="Scores by task, in points",
        view="task_table",
        order="position",
        prepare=_with_kept_and_metric,
        columns={
            "strategy": _STRATEGY,
            "layers": Column(text("kept"), _LAYERS.meaning),
        },
        by_task=phrases.task_score,
        joined=("strategy",),
        notes=(
            note("(−2.18): the change against all layers with the same seeds.", _is_compared),
            note(
                "90.25 ±0.31: the mean of the seeds after the last epoch, and their standard "
                "deviation.",
                lambda row: row["sd"] is not None,
            ),
            majorities,
        ),
    ),
    "strategies": TableDef(
        title="Strategies: mean over tasks, in points",
        view="strategy_table",
        order="procedure, k_mean NULLS LAST, position",
        prepare=_full_depth_once,
        columns={
            "layers": Column(
                partial(phrases.kept_of, k="k_mean"), f"{_LAYERS.meaning[:-1]}; mean over tasks."
            ),
            "strategy": _STRATEGY,
            "seeds": Column(phrases.seeds_of_means, "seeds that have every task."),
            "all tasks": _explained(
                lambda row: phrases.mean_over_tasks(row, "all"),
                "the mean over tasks of their means over seeds, the standard deviation of that "
                "mean over seeds (±), and the change against all layers with the same seeds.",
            ),
            "stable tasks": _explained(
                lambda row: phrases.mean_over_tasks(row, "stable"),
                "without RTE, MRPC, CoLA and WNLI, which move by points from seed to seed.",
            ),
            "missing": Column(
                text("missing_tasks"),
                "tasks with a missing seed. Then there is no mean over all tasks: over fewer, it "
                "would compare nothing.",
                below=lambda row: row["missing_tasks"],
            ),
        },
        labels=2,
        joined=("strategy",),
    ),
    "speed": TableDef(
        title="Size and speed",
        view="speed_table",
        order="feed_forward, k, kept_layers, device_type, device_name, precision, length, batch",
        takes=("model",),
        columns={
            "layers": _LAYERS,
            "kept": _KEPT,
            "parameters": text("params_total", phrases.parameters),
            "of full": Column(
                text("params_percent", "{:.1f}%"), "share of the full model's parameters."
            ),
            "device": phrases.device,
            "batch": Column(phrases.batch, "rows and tokens of a batch."),
            "fine-tuning": Column(partial(phrases.speedup, "finetune"), "of a fine-tuning step."),
            "inference": Column(partial(phrases.speedup, "inference"), "of a forward pass."),
        },
        labels=2,
        notes=(
            note(
                "Read ×1.94 (1.92–1.96) as: with all layers, a batch takes 1.94 times as long; "
                "median and quartiles over pairs in which both networks took turns; there are no "
                "ratios across devices. All layers are measured against themselves: their "
                "difference from ×1.00 is the error of a measurement.",
                lambda row: row["profile_id"],
            ),
        ),
    ),
    "candidates": TableDef(
        title="Networks as they are shipped, and which to ship",
        view="deployments",
        takes=("model",),
        fetch=by_statistics("candidates.candidate_rows"),
        reads=("trials", "predictions"),
        lead=shipping.to_ship,
        columns={
            "task": _task_and_metric,
            "device": Column(shipping.served_by, "where it was measured."),
            "layers": _KEPT,
            "as": Column(
                shipping.form,
                "the form in which it is shipped. `task`: the vocabulary is cut to train texts; "
                "`texts`: to them and those of --texts.",
                below=lambda row: row["vocabulary"] == "task",
            ),
            "score": text("score", "{:.2f}"),
            "ms": _explained(shipping.one_text, "one text with its tokenizer, median."),
            "MB": Column(text("mb", "{:.1f}"), "all files that serving needs, in 10^6 bytes."),
            "change": _explained(
                phrases.change_with_interval,
                "points against the full model as torch, on the same rows; its 95% interval covers "
                "other dev rows, not other seeds.",
            ),
            "ship": _explained(
                shipping.chosen_within,
                "the losses, in points, for which it is the choice: the fastest within the loss, "
                "also as torch; with --smallest, the smallest.",
            ),
        },
        labels=4,
        notes=(shipping.failures, shipping.other_seeds, shipping.nothing_fits),
        empty="Nothing is measured as shipped yet: lp-sweep measure --task TASK",
    ),
    "embeddings": TableDef(
        title="Embeddings: score, speed and index",
        view="embedding_table",
        order="position, device_type, device_name, precision, length",
        reads=("cells", "trials", "task_table", "speed_table"),
        columns={
            "task": text("task"),
            "strategy": _STRATEGY,
            "kept": Column(lambda row: ranges(row["kept_layers"] or ()), _KEPT.meaning),
            "score": text("mean", "{:.2f}"),
            "change": text("change", phrases.signed),
            "texts/s": _explained(text("texts_per_second_1", phrases.rate), "one text at a time."),
            "by 64": _explained(text("texts_per_second_64", phrases.rate), "64 texts at a time."),
            "index row": _explained(
                text("index_row_bytes", "{:,} B"),
                "one vector in fp32: fewer layers do not make it smaller.",
            ),
            "device": phrases.device,
        },
        labels=3,
    ),
    "significance": TableDef(
        title="Change against {against}, in points",
        view="cells",
        fetch=by_statistics("intervals.significance_rows"),
        reads=_ANSWERS,
        columns={
            "strategy": _STRATEGY,
            "layers": _LAYERS,
            "task": _task_and_metric,
            "seed": Column(
                lambda row: f"all {row['n_seeds']}" if row["seed"] is None else str(row["seed"]),
                "a row with one seed is about that one network. `all 3` is the mean over seeds, "
                "for other seeds and other dev rows.",
                below=lambda row: row["seed"] is None,
            ),
            "change": _explained(phrases.change_with_interval, "points, with its 95% interval."),
            "test": Column(
                phrases.test_name,
                "`mcnemar 31/11` is McNemar's exact test: only the network it is compared with "
                "gets 31 rows right, only this one 11. If these are few, the interval may leave "
                "out 0 although p is large: then trust p.",
                below=lambda row: row["b"] is not None,
            ),
            "p": Column(text("p", phrases.p_value), "two-sided, of this test alone."),
            "p Holm": _P_HOLM,
        },
        labels=4,
        notes=(_OVER_ROWS, _OVER_BOTH),
    ),
    "intervals": TableDef(
        title="Scores and their 95% intervals, in points",
        view="cells",
        fetch=by_statistics("intervals.interval_rows"),
        reads=_ANSWERS,
        columns={
            "strategy": _STRATEGY,
            "layers": _LAYERS,
            "task": _task_and_metric,
            "mean": text("mean", "{:.2f}"),
            "sd": Column(text("sd", "{:.2f}"), "sample standard deviation over seeds."),
            "95%": Column(phrases.mean_interval, "95% interval of the mean."),
            "over": Column(text("over"), "what the interval accounts for."),
            "seeds": Column(
                lambda row: phrases.share(row["n"], row["n_expected"]), "seeds with a score."
            ),
        },
        labels=3,
        joined=("strategy",),
        notes=(
            _OVER_ROWS,
            _OVER_BOTH,
            note(
                "seeds: the store has no answers to the dev rows, so the interval leaves out how "
                "other dev rows would score.",
                lambda row: row["over"] == "seeds",
            ),
        ),
    ),
    "min-layers-interval": TableDef(
        title="Layers needed to stay within a loss, in {unit}, and how sure that is",
        view="min_layers_by_unit",
        order="position, delta",
        takes=("unit", "model", "strategy"),
        fetch=by_statistics("minimum.with_sets"),
        reads=_ANSWERS,
        columns={
            "strategy": text("strategy"),
            "loss ≤": _LOSS,
            "task": text("task"),
            "layers": needed.possible_layers,
            "90%": _explained(
                needed.credible_layers,
                "the answers that the scores do not rule out. In about 90% or more of simulated "
                "studies the true answer is among them.",
            ),
            "seeds": lambda row: phrases.share(row["n_seeds"], row["n_seeds_asked"]),
            "seed sd": Column(
                needed.seed_spread,
                "how much one network moves from seed to seed, in points, pooled over the model's "
                "networks of this task. (task): over those of other models; (assumed): no network "
                "of this task has two seeds; (untrained): it depends on no seed; –: a search has "
                "its own set.",
                below=lambda row: row["seed_sd"],
            ),
        },
        labels=3,
        joined=("loss ≤", "strategy"),
        notes=(
            note(
                "at most 5: the smallest network that was tried has 5 layers, and may be good "
                "enough; if it is, a smaller one may be too.",
                lambda row: row["credible_open"],
            ),
            where_nothing_was_learned,
            left_out,
        ),
    ),
    "distillation": TableDef(
        title="Distilled networks, and those with a bridge, against plain ones, in points",
        view="cells",
        fetch=by_statistics("intervals.distillation_rows"),
        reads=_ANSWERS,
        prepare=_named_shortly,
        columns={
            "task": text("task"),
            "strategy": _STRATEGY,
            "layers": _LAYERS,
            "distill": Column(
                text("label"), "how it is trained, and what it learns from a teacher."
            ),
            "seeds": text("n"),
            "plain": Column(
                partial(phrases.one_side, "plain"),
                "the same layers, without a teacher; direct if the sweep has no other like it.",
                below=lambda row: (
                    row["plain"] == "direct" and not row["procedure"].startswith("direct")
                ),
            ),
            "distilled": partial(phrases.one_side, "distilled"),
            "gain": _explained(
                phrases.change_with_interval,
                "the distilled network minus the plain one of the same layers and seed, mean over "
                "the seeds, 95% interval. With one seed it is about these two networks, with more "
                "about other seeds and other dev rows.",
            ),
            "p Holm": _P_HOLM,
            "minutes": _explained(phrases.minutes_of_both, "of a trial, plain → distilled."),
            "logits": Column(
                text("seconds_logits", phrases.minutes),
                "minutes to compute the teacher's logits, once for all its students of a seed. The "
                "teacher is the full model, which the sweep trains anyway.",
                below=lambda row: row["seconds_logits"],
            ),
        },
        labels=5,
        empty="Nothing to compare: this table needs `distill: [none, logits]`, or `bridge: "
        "[none, linear]`, in the sweep file.",
    ),
    "random-control": TableDef(
        title="Strategies against layers dropped at random, in points",
        view="random_control",
        order="procedure, feed_forward, k, tasks, position",
        columns={
            "layers": _LAYERS,
            "tasks": text("tasks"),
            "random": _explained(
                phrases.mean_of_draws,
                "mean over the draws of `random` of their means over tasks, and standard deviation "
                "over draws.",
            ),
            "draws": Column(
                lambda row: phrases.share(row["n_draws"], row["n_draws_expected"]),
                "draws that have every task and seed.",
            ),
            "strategy": _STRATEGY,
            "mean": phrases.mean_beside_random,
            "difference": _explained(
                text("difference", phrases.signed), "the strategy minus that mean."
            ),
            "above": _explained(
                text("n_below"),
                "how many of the draws it beats. By chance alone, one set of layers is above all n "
                "draws once in n + 1 times.",
            ),
        },
        labels=5,
        empty="Nothing to compare: this table needs `{name: random, k: [2, 4], draws: 0-4}` in the "
        "strategies of the sweep file, and another strategy with the same K (named by --strategy, "
        "if given).",
    ),
    "setups": TableDef(
        title="Earlier setups: another recipe, data or model",
        view="attempts",  # it has no view of its own, and this one is fast
        takes=(),
        fetch=_setups,
        in_report=False,
        columns={
            "sweep": text("sweep"),
            "setup": _explained(
                text("setup"),
                "`--setup N` shows it in a table, a query or a report. Today's has no number.",
            ),
            "against today's": lambda row: "; ".join(row["differences"]) or "not known",
            "cells": text("cells"),
            "trials finished": text("trials_finished"),
        },
        labels=2,
    ),
}

GLOSSARY = {
    heading: column.meaning
    for columns in (CONTEXT, *(table.columns for table in TABLES.values()))
    for heading, column in columns.items()
    if isinstance(column, Column)
}
