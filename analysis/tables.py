"""The tables of `lp-sweep table`: each is one entry of TABLES, which everything else reads.

To add a table, add a file `sql/<view>.sql` and an entry here. This module computes no numbers: they
come from a view or from `statistics`. A number that is missing there is shown as a word.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from lp_sweep.analysis import needed, phrases
from lp_sweep.analysis.notes import (
    NOT_MEASURED,
    NOT_NEEDED,
    NOT_SEARCHED,
    left_out,
    majorities,
    where_nothing_was_learned,
)
from lp_sweep.analysis.rows import Row, TableSelection, grouped, picked
from lp_sweep.analysis.statistics import DIP
from lp_sweep.analysis.tabledef import (
    CONTEXT,
    Column,
    TableDef,
    by_statistics,
    note,
    text,
)
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
        {**row, "distill": phrases.distillation(row), "procedure": None, "change": row["gain"]}
        for row in rows
    ]


def _setups(table: TableDef, catalog: Catalog, wanted: TableSelection) -> pa.Table:
    import pyarrow as pa

    number = pa.int64()
    types = (pa.string(), number, pa.list_(pa.string()), number, number)
    names = ("sweep", "setup", "differences", "cells", "trials_finished")
    rows = [dict(zip(names, setup, strict=True)) for setup in catalog.earlier_setups()]
    return pa.Table.from_pylist(rows, pa.schema(zip(names, types, strict=True)))


def _to_ship(rows: list[Row]) -> Iterator[str]:
    """The choice for each task, device and loss; losses with the same choice share a sentence."""
    devices = {(row["device_name"], row["threads"]) for row in rows}
    for row in rows:
        if row["chosen_within"]:
            on = f" on {row['device_name']}" if len(devices) > 1 else ""
            losses = phrases.chosen_within(row)
            points = "point" if losses == "1" else "points"
            yield f"{row['task']}{on}, within {losses} {points}: ship {phrases.shipped(row)}"
            cut = " --vocabulary task" * (row["vocabulary"] == "task")
            cut += " --texts FILE" * bool(row["extra_texts"])
            yield f"  lp-sweep export {row['trial_id']} --as {row['format']}{cut} --out smaller"


def _failed_deployments(rows: Sequence[Row], *_: Any) -> Iterator[str]:
    for row in rows:
        if row["error"]:
            network = f"Layers {ranges(row['kept_layers'])} as {row['artefact']}"
            yield f"{network} failed: {row['error']}."


def _nothing_fits(rows: Sequence[Row], *_: Any) -> Iterator[str]:
    """Names what comes closest for each task, device and loss without a choice."""
    near = [(loss, row) for row in rows for loss in row["nearest_within"]]
    for (loss, *_place, task), found in grouped(near, _limit_of).items():
        told = "; ".join(phrases.shipped(row) for _loss, row in found)
        limit = f"{loss:g} point{'s' * (loss != 1)}"
        yield f"Nothing on {task} loses at most {limit} within the budget. Nearest: {told}."


def _limit_of(near: tuple[float, Row]) -> tuple[Any, ...]:
    return near[0], *picked(near[1], ("model", "device_name", "threads", "task"))


_ANSWERS = ("trials", "predictions", "cells")  # views with the networks' answers
_NOT_NEEDED = f"{NOT_NEEDED}: a search (`until: min_layers`) found its answer without it."
_NOT_SEARCHED = note(
    f"{NOT_SEARCHED}: the search (`until: min_layers`) had other losses and never ran the K that "
    "could be the answer. Add the loss, in points, to `within:` in the file, and run it again.",
    lambda row: row["n_not_searched"],
)
_UNTRIED = note(
    "unless 1 to 3 dip: a search never trained networks of 1 to 3 layers. The answer and its 90% "
    f"set assume that each of them loses at most {DIP:g} points less than the better of the "
    "networks trained on either side of it. To check, train them: list their K under `include:`.",
    needed.unless,
)
_UNMEASURED = (
    f"{NOT_MEASURED}: a speed is never estimated from the layers. To measure it, add "
    "`measure: {{speed: cpu{}}}` (or cuda) to the sweep file, then `lp-sweep run`."
)
_LOSS = Column(
    needed.allowed_loss,
    "the allowed loss: mean over seeds of the score with all layers minus the score, paired by "
    "seed.",
    below=True,
)
_P_HOLM = Column(
    text("p_holm", phrases.p_value),
    "corrected for all the different tests of these rows together. To test less, select fewer rows "
    "(--sweep, --model, --strategy) before you look.",
    below=True,
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
        notes=(
            where_nothing_was_learned,
            note(
                "Read 6 of 12 (−0.80) n=2/3 as: 6 of the 12 layers are the fewest, among the K "
                "that were tried, that stay within the loss; the score changes by −0.80; 2 of the "
                "3 seeds that the sweep lists. A network with more layers may still lose more."
            ),
            note(
                "4–6 of 12: the answer lies between these. (2 missing): 2 pairs of K and seed are "
                "missing or failed, and can still change it. (K=7 not tried): a network without 7 "
                "layers may also stay within the loss.",
                lambda row: row["untried"] or needed.is_open(row),
            ),
            note(
                "90% 5 to 7: the answers that the scores of a search (`until: min_layers`) do not "
                "rule out.",
                lambda row: row["credible"],
            ),
            _UNTRIED,
            _NOT_SEARCHED,
            left_out,
        ),
    ),
    "tasks": TableDef(
        title="Scores by task, in points",
        view="task_table",
        order="position",
        prepare=_with_kept_and_metric,
        columns={
            "strategy": Column(phrases.strategy, "how the layers to drop were chosen."),
            "K": Column(
                phrases.setting,
                "dropped layers; t= is a threshold: each task drops its own layers.",
            ),
            "kept": Column(text("kept"), "kept layers, and all layers of the model."),
        },
        by_task=phrases.task_score,
        report="open",
        notes=(
            note(
                "Read 90.25 ±0.31 (−2.18) n=2/3 as: mean over seeds after the last epoch, sample "
                "standard deviation, change against K=0 of the same seed ((?): there is none), 2 "
                "of the 3 seeds that the sweep lists."
            ),
            note(
                "missing, failed, deferred, impossible: no seed is done. Impossible: no layer "
                "would stay, or fewer layers than feed-forwards to remove.",
                lambda row: row["n_expected"] and not row["n"],
            ),
            note(_NOT_NEEDED, lambda row: not row["n_expected"]),
            majorities,
        ),
    ),
    "strategies": TableDef(
        title="Strategies: mean over tasks, in points",
        view="strategy_table",
        order="procedure, k_mean NULLS LAST, position",
        prepare=_full_depth_once,
        columns={
            "K": Column(
                phrases.setting,
                "dropped layers. t=0.9 is a threshold: every task keeps its own layers, and kept "
                "is their mean.",
                below=True,
            ),
            "kept": phrases.kept_of_mean,
            "strategy": phrases.strategy,
            "all tasks": lambda row: phrases.mean_over_tasks(row, "all"),
            "stable tasks": Column(
                lambda row: phrases.mean_over_tasks(row, "stable"),
                "without RTE, MRPC, CoLA and WNLI, which move by points from seed to seed.",
                below=True,
            ),
            "missing": Column(
                text("missing_tasks"),
                "tasks with a missing seed. Then there is no mean over all tasks: over fewer, it "
                "would compare nothing.",
                below=True,
            ),
        },
        notes=(
            note(
                "Read 80.12 ±0.20 (−2.91) n=2/3 as: mean over tasks of their means over seeds, "
                "standard deviation of that mean over seeds, change against K=0 of the same seeds, "
                "2 of the 3 seeds that the sweep lists have every task."
            ),
            note(_NOT_NEEDED, lambda row: row["n_not_needed"]),
        ),
    ),
    "speed": TableDef(
        title="Size and speed",
        view="speed_table",
        order="feed_forward, k, kept_layers, device_type, device_name, precision, length, batch",
        takes=("model",),
        columns={
            "K": text("k"),
            "kept": lambda row: f"{row['n_kept']} of {row['depth']}",
            "layers": Column(
                text("kept_layers", ranges),
                "kept layers, or their number; 1 is next to the embeddings.",
            ),
            "parameters": text("params_total", phrases.parameters),
            "of full": Column(
                text("params_percent", phrases.percent), "share of the full model's parameters."
            ),
            "device": phrases.device,
            "batch": Column(phrases.batch, "rows and tokens of a batch."),
            "fine-tuning": Column(
                lambda row: phrases.speedup(row, "finetune"),
                "how many times as fast a fine-tuning step is as with all layers.",
            ),
            "inference": Column(
                lambda row: phrases.speedup(row, "inference"),
                "how many times as fast a forward pass is as with all layers.",
            ),
        },
        notes=(
            note(
                "Read ×1.94 (1.92–1.96) as: with all layers, a batch takes 1.94 times as long; "
                "median and quartiles over pairs in which both networks took turns in one process "
                "on one device. There are no ratios across devices. K=0 is the full model against "
                "itself: its difference from ×1.00 is the error of a measurement.",
                lambda row: row["profile_id"],
            ),
            note(_UNMEASURED.format(""), lambda row: row["inference_speedup"] is None),
            note(
                "unsteady: the quartiles are more than 5% of the median apart. busy: other "
                "processes used more than half a core meanwhile.",
                lambda row: (
                    row["busy"] or False in (row["finetune_steady"], row["inference_steady"])
                ),
            ),
        ),
    ),
    "candidates": TableDef(
        title="Networks as they are shipped, and which to ship",
        view="deployments",
        takes=("model",),
        fetch=by_statistics("candidates.candidate_rows"),
        reads=("trials", "predictions"),
        report="open",
        lead=_to_ship,
        columns={
            "task": _task_and_metric,
            "device": Column(
                phrases.served_by,
                "where it was measured. Rows of two devices are never compared.",
            ),
            "layers": Column(text("kept_layers", ranges), "1 is next to the embeddings."),
            "as": Column(
                text("artefact"),
                "the form in which it is shipped. `task`: the vocabulary is cut to train texts.",
            ),
            "score": text("score", "{:.2f}"),
            "change": Column(
                phrases.shipped_change,
                "points against the full model as torch, on the same rows; its 95% interval covers "
                "other dev rows, not other seeds.",
                below=True,
            ),
            "ms": Column(
                phrases.one_text, "one text with its tokenizer, wall time, median.", below=True
            ),
            "times as fast": text("times_as_fast", "{:.1f}"),
            "MB": Column(text("mb", "{:.1f}"), "all files that serving needs, in 10^6 bytes."),
            "of full": text("share_of_size", phrases.percent_of),
            "ship within": Column(
                phrases.chosen_within,
                "the losses, in points, for which it is the choice: the fastest within the loss; "
                "with --smallest, the smallest.",
                below=True,
            ),
        },
        notes=(
            _failed_deployments,
            _nothing_fits,
            note(
                "busy: other processes used more than half a core meanwhile. Measure again on an "
                "idle machine: lp-sweep measure --again.",
                phrases.is_disturbed,
            ),
        ),
        empty="Nothing is measured as shipped yet: lp-sweep measure --task TASK",
    ),
    "embeddings": TableDef(
        title="Embeddings: score, speed and index",
        view="embedding_table",
        order="position, device_type, device_name, precision, length",
        reads=("cells", "trials", "task_table", "speed_table"),
        columns={
            "task": text("task"),
            "strategy": phrases.strategy,
            "K": phrases.setting,
            "layers": lambda row: ranges(row["kept_layers"] or ()),
            "score": text("mean", "{:.2f}"),
            "change": text("change", phrases.signed),
            "texts/s": Column(
                text("texts_per_second_1", phrases.rate),
                "one text at a time, in wall-clock time.",
                below=True,
            ),
            "by 64": Column(
                text("texts_per_second_64", phrases.rate), "64 texts at a time.", below=True
            ),
            "index row": Column(
                text("index_row_bytes", "{:,} B"),
                "one vector in fp32: fewer layers do not make it smaller.",
                below=True,
            ),
            "device": phrases.device,
        },
        notes=(
            note(
                _UNMEASURED.format(", speed_batches: [1, 64]"),
                lambda row: None in (row["texts_per_second_1"], row["texts_per_second_64"]),
            ),
        ),
    ),
    "significance": TableDef(
        title="Change against K=0, in points",
        view="cells",
        fetch=by_statistics("intervals.significance_rows"),
        reads=_ANSWERS,
        columns={
            "strategy": phrases.strategy,
            "K": phrases.setting,
            "task": _task_and_metric,
            "seed": Column(
                phrases.seed,
                "a row with one seed is about that one network. `all 3` is the mean over seeds, "
                "for other seeds and other dev rows.",
                below=True,
            ),
            "change": Column(
                phrases.change_with_interval,
                "points against all layers, with its 95% interval.",
                below=True,
            ),
            "test": Column(
                phrases.test_name,
                "`rows` accounts for other dev rows, `seeds and rows` for other seeds as well: "
                "with two or three seeds its interval is wide, and more seeds narrow it fastest. "
                "`mcnemar 31/11` is McNemar's exact test: only K=0 gets 31 rows right, only the "
                "pruned network 11. If these are few, the interval may leave out 0 although p is "
                "large: then trust p.",
                below=True,
            ),
            "p": Column(text("p", phrases.p_value), "two-sided, of this test alone."),
            "p Holm": _P_HOLM,
        },
    ),
    "intervals": TableDef(
        title="Scores and their 95% intervals, in points",
        view="cells",
        fetch=by_statistics("intervals.interval_rows"),
        reads=_ANSWERS,
        columns={
            "strategy": phrases.strategy,
            "K": phrases.setting,
            "task": _task_and_metric,
            "mean": text("mean", "{:.2f}"),
            "sd": Column(text("sd", "{:.2f}"), "sample standard deviation over seeds."),
            "95%": Column(
                lambda row: row["reason"] or f"{row['low']:.2f}–{row['high']:.2f}",
                "95% interval of the mean.",
            ),
            "over": Column(
                text("over"),
                "what the interval accounts for. `seeds and rows`: other seeds and other texts; "
                "with two or three seeds it is wide, as their spread is hardly known. `rows`: "
                "other texts, for this one network; another seed can lie outside. `seeds`: no "
                "predictions are stored, so other dev rows are not accounted for.",
                below=True,
            ),
            "n": Column(
                lambda row: phrases.share(row["n"], row["n_expected"]), "seeds with a score."
            ),
        },
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
            "90%": Column(
                needed.credible_layers,
                "the answers that the scores do not rule out. In about 90% or more of simulated "
                "studies the true answer is among them. at most 5: the smallest network that was "
                "tried has 5 layers, and may be good enough; if it is, a smaller one may be too.",
                below=True,
            ),
            "seeds": lambda row: phrases.share(row["n_seeds"], row["n_seeds_asked"]),
            "seed sd": Column(
                needed.seed_spread,
                "how much one network moves from seed to seed, in points, pooled over the model's "
                "networks of this task, or over those of other models. assumed: no network of this "
                "task has two seeds; run another seed to know it. (search): `until: min_layers` "
                "ran other seeds for other K, so it has its own set.",
                below=True,
            ),
        },
        notes=(where_nothing_was_learned, _NOT_SEARCHED, _UNTRIED, left_out),
    ),
    "distillation": TableDef(
        title="Distilled networks, and those with a bridge, against plain ones, in points",
        view="cells",
        fetch=by_statistics("intervals.distillation_rows"),
        reads=_ANSWERS,
        prepare=_named_shortly,
        columns={
            "task": text("task"),
            "strategy": phrases.strategy,
            "K": phrases.setting,
            "distill": Column(text("distill"), "what the network learns from a teacher."),
            "n": text("n"),
            "plain": Column(
                lambda row: phrases.one_side(row, "plain"), "the same layers, without a teacher."
            ),
            "distilled": lambda row: phrases.one_side(row, "distilled"),
            "gain": Column(
                phrases.change_with_interval,
                "the distilled network minus the plain one of the same layers and seed, mean over "
                "n seeds, 95% interval. With one seed it is about these two networks (McNemar's "
                "exact test for accuracy), with more about other seeds and other dev rows.",
                below=True,
            ),
            "p Holm": _P_HOLM,
            "minutes": Column(
                phrases.minutes_of_both, "time of a trial, plain → distilled.", below=True
            ),
            "logits": Column(
                text("seconds_logits", phrases.minutes),
                "minutes to compute the teacher's logits, once for all its students of a seed. The "
                "teacher is the full model, which the sweep trains anyway.",
                below=True,
            ),
        },
        report="open",
        notes=(
            note(
                "start: teacher is compared with direct, since the sweep has no "
                "finetune_then_drop without distillation.",
                lambda row: phrases.START in phrases.distillation(row),
            ),
            note(
                "no plain one: the sweep has no network without distillation to compare with. "
                "`distill:` does not list `none`, or a search did not need this K.",
                lambda row: row["reason"] == "no plain one",
            ),
        ),
        empty="Nothing to compare: this table needs `distill: [none, logits]`, or `bridge: "
        "[none, linear]`, in the sweep file.",
    ),
    "random-control": TableDef(
        title="Strategies against layers dropped at random, in points",
        view="random_control",
        order="procedure, feed_forward, k, tasks, position",
        columns={
            "K": text("k"),
            "kept": lambda row: f"{row['depth'] - row['k']} of {row['depth']}",
            "tasks": text("tasks"),
            "random": Column(
                phrases.mean_of_draws,
                "mean over the draws of `random` of their means over tasks, sample standard "
                "deviation over draws, draws. n=3/5: 3 of 5 draws have every task and seed.",
                below=True,
            ),
            "strategy": phrases.strategy_beside_random,
            "mean": phrases.mean_beside_random,
            "difference": Column(
                text("difference", phrases.signed), "the strategy minus that mean.", below=True
            ),
            "above": Column(
                phrases.draws_below,
                "how many of the draws it beats. By chance alone, one set of layers is above all n "
                "draws once in n + 1 times.",
                below=True,
            ),
        },
        empty="Nothing to compare: this table needs `{name: random, k: [2, 4], draws: 0-4}` in the "
        "strategies of the sweep file, and another strategy with the same K (named by --strategy, "
        "if given).",
    ),
    "setups": TableDef(
        title="Earlier setups: another recipe, data or model",
        view="attempts",  # it has no view of its own, and this one is fast
        takes=(),
        fetch=_setups,
        report="never",
        columns={
            "sweep": text("sweep"),
            "setup": Column(
                text("setup"),
                "`--setup N` shows it in a table, a query or a report. Today's has no number.",
                below=True,
            ),
            "against today's": lambda row: "; ".join(row["differences"]) or "not known",
            "cells": text("cells"),
            "trials finished": text("trials_finished"),
        },
    ),
}

GLOSSARY = {
    heading: column.meaning
    for columns in (CONTEXT, *(table.columns for table in TABLES.values()))
    for heading, column in columns.items()
    if isinstance(column, Column)
}
