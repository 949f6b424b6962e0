"""The tables of `lp-sweep table`: each is one entry of TABLES, which everything else reads.

To add a table, add a file `sql/<view>.sql` and an entry here. This module computes no numbers: they
come from a view or from `statistics`. A number that is missing there is shown as a word.
"""

from __future__ import annotations

from lp_sweep.analysis import needed, notes, phrases
from lp_sweep.analysis.notes import NOT_ASKED, NOT_MEASURED, NOT_NEEDED, Note
from lp_sweep.analysis.statistics import DIP
from lp_sweep.analysis.tabledef import (
    CONTEXT,
    Column,
    TableDef,
    by_statistics,
    full_depth_once,
    min_layers_sets,
    named_shortly,
    setups,
    text,
    with_credible_sets,
    with_kept_and_metric,
)
from lp_sweep.storage.printable import ranges

_SEARCHED = Note(
    f"{NOT_NEEDED}: a search (`until: min_layers`) found its answer without it.", f"^{NOT_NEEDED}"
)
_UNTRIED = Note(
    "unless 1 to 3 dip: a search never trained networks of 1 to 3 layers. The answer and its 90% "
    f"set assume that each of them loses at most {DIP:g} points less than the better of the "
    "networks trained on either side of it. To check, train them: list their K under `include:`.",
    r"unless \d[^)]* dips?\b",
)
_FEWER = Note(
    "at most 5: the smallest network that was tried has 5 layers and may be good enough. If it is, "
    "a smaller one may be too; a larger K tells.",
    r"\bat most \d",
)
_ANSWERS = ("trials", "predictions", "cells")  # views with the networks' answers

TABLES: dict[str, TableDef] = {
    "min-layers": TableDef(
        title="Layers needed to stay within a loss, in {unit}",
        view="min_layers_by_unit",
        order="position, delta",
        takes=("unit", "model", "strategy"),
        fetch=with_credible_sets,
        reads=("cells",),
        lead=needed.answer_lines,
        columns={
            "strategy": text("strategy"),
            "loss ≤": Column(
                needed.allowed_loss, "The allowed loss: mean over seeds against the full model."
            ),
        },
        by_task=needed.layers_needed,
        notes=(
            notes.where_nothing_was_learned,
            Note(
                "Read 6 of 12 (−0.80) n=3 as: 6 of the 12 layers are the fewest, among the K that "
                "were tried, that stay within the loss; the score changes by −0.80; 3 seeds. A "
                "network with more layers may still lose more."
            ),
            Note(
                "4–6 of 12: cells that are missing or failed can still change the answer, which "
                "lies between these; (m missing) says how many pairs of K and seed.",
                r" missing\)$| \(no K=0\)$",
            ),
            Note(
                "90% 5 to 7: the answers that the scores of a search (`until: min_layers`) do not "
                "rule out.",
                r"90% \d",
            ),
            Note(
                "9–10 of 12 (K=3 not tried): the smallest network that was tried and stays within "
                "the loss has 10 layers; one with 9 may also stay within it.",
                r"\(K\S+ not tried\)",
            ),
            _FEWER,
            _UNTRIED,
            Note("n=1/3: the answer rests on 1 seed, where the sweep lists 3.", r"n=\d+/\d+"),
            notes.SEARCHED_FOR,
            Note(
                "Loss: mean over seeds of the score with all layers minus the score, paired by "
                "seed."
            ),
            notes.left_out,
        ),
    ),
    "tasks": TableDef(
        title="Scores by task, in points",
        view="task_table",
        order="position",
        prepare=with_kept_and_metric,
        columns={
            "strategy": Column(phrases.strategy, "How the layers to drop were chosen."),
            "K": Column(
                phrases.setting,
                "Dropped layers; t= is a threshold: each task drops its own layers.",
            ),
            "kept": Column(text("kept"), "Kept layers, and all layers of the model."),
        },
        by_task=phrases.task_score,
        report="open",
        notes=(
            Note(
                "Read 90.25 ±0.31 (−2.18) n=3 as: mean over seeds after the last epoch, sample "
                "standard deviation, change against K=0 of the same seed, seeds."
            ),
            Note("(?): no K=0 to compare with.", r"\(\?\)"),
            Note("n=2/3: the mean is of 2 seeds, where the sweep lists 3.", r"n=\d+/\d+"),
            Note(
                "missing, failed, deferred, impossible: no seed is done. Impossible: no layer "
                "would stay, or fewer layers than feed-forwards to remove.",
                r"^(missing|failed|deferred|impossible) \(0/",
            ),
            Note(f"{NOT_ASKED}: not asked for.", f"^{NOT_ASKED}$"),
            _SEARCHED,
            notes.majorities,
        ),
    ),
    "strategies": TableDef(
        title="Strategies: mean over tasks, in points",
        view="strategy_table",
        order="procedure, k_mean NULLS LAST, position",
        prepare=full_depth_once,
        columns={
            "K": phrases.setting,
            "kept": phrases.kept_of_mean,
            "strategy": phrases.strategy,
            "all tasks": Column(
                lambda row: phrases.mean_over_tasks(row, "all"),
                "Mean over tasks of their means over seeds.",
            ),
            "stable tasks": Column(
                lambda row: phrases.mean_over_tasks(row, "stable"),
                "The same without RTE, MRPC, CoLA and WNLI.",
            ),
            "missing": Column(text("missing_tasks"), "Tasks with a missing seed."),
        },
        notes=(
            Note(
                "Read 80.12 ±0.20 (−2.91) n=3 as: mean over tasks of their means over seeds, "
                "standard deviation of that mean over seeds, change against K=0 of the same seeds, "
                "seeds."
            ),
            Note(
                "t=0.9: with this threshold, every task keeps its own layers; kept is the mean "
                "over tasks.",
                "^t=",
            ),
            Note(
                "Stable tasks leave out RTE, MRPC, CoLA and WNLI, which move by points from seed "
                "to seed."
            ),
            Note("n=2/3: 2 seeds have every task, where the sweep lists 3.", r"n=\d+/\d+"),
            Note(
                "missing (5/7): only 5 of 7 tasks have every seed; a mean over fewer would compare "
                "nothing.",
                r"^missing \(",
            ),
            _SEARCHED,
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
                "Kept layers, or their number; 1 is next to the embeddings.",
            ),
            "parameters": text("params_total", phrases.parameters),
            "of full": Column(
                text("params_percent", phrases.percent),
                "Share of the full model's parameters.",
            ),
            "device": phrases.device,
            "batch": Column(phrases.batch, "Rows and tokens of a batch."),
            "fine-tuning": Column(
                lambda row: phrases.speedup(row, "finetune"),
                "How many times as fast a fine-tuning step is as with all layers.",
            ),
            "inference": Column(
                lambda row: phrases.speedup(row, "inference"),
                "How many times as fast a forward pass is as with all layers.",
            ),
        },
        notes=(
            Note(
                "Read ×1.94 (1.92–1.96) as: with all layers, a batch takes 1.94 times as long; "
                "median and quartiles over pairs in which both networks took turns in one process "
                "on one device. There are no ratios across devices.",
                "×.*–",
            ),
            Note(
                "K=0 is the full model against itself: its difference from ×1.00 is the error of a "
                "measurement.",
                "×.*–",
            ),
            Note(
                f"{NOT_MEASURED}: a speed is never estimated from the layers. To measure it, add "
                "`measure: {speed: cpu}` (or cuda) to the sweep file, then `lp-sweep run`.",
                f"^{NOT_MEASURED}$",
            ),
            Note("unsteady: the quartiles are more than 5% of the median apart.", " unsteady"),
            Note("busy: other processes used more than half a core meanwhile.", " busy$"),
        ),
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
            "score": text("mean", phrases.points),
            "change": text("change", phrases.signed),
            "texts/s": text("texts_per_second_1", phrases.rate),
            "by 64": text("texts_per_second_64", phrases.rate),
            "index row": lambda row: f"{row['index_row_bytes']:,} B",
            "device": phrases.device,
        },
        notes=(
            Note(
                "texts/s: one text at a time; by 64: 64 texts at a time; both in wall-clock time. "
                "An index row is one vector in fp32: fewer layers do not make it smaller.",
                " B$",
            ),
            Note(
                f"{NOT_MEASURED}: add `measure: {{speed: cpu, speed_batches: [1, 64]}}` (or cuda) "
                "to the sweep file, then `lp-sweep run`.",
                f"^{NOT_MEASURED}$",
            ),
        ),
    ),
    "significance": TableDef(
        title="Change against K=0, in points",
        view="cells",
        fetch=by_statistics("significance_rows"),
        reads=_ANSWERS,
        columns={
            "strategy": phrases.strategy,
            "K": phrases.setting,
            "task": lambda row: phrases.heading(row["task"], row["metric"]),
            "seed": phrases.seed,
            "change": Column(
                phrases.change_with_interval, "Points against all layers, with its 95% interval."
            ),
            "test": phrases.test_name,
            "p": Column(text("p", phrases.p_value), "Two-sided, of this test alone."),
            "p Holm": Column(
                text("p_holm", phrases.p_value),
                "Corrected for all the tests of this table.",
            ),
        },
        notes=(
            Note("Read −2.18 [−3.10, −1.26] as: change in points against K=0, 95% interval."),
            Note(
                "A row with one seed is about that one network. `all 3` is the mean over seeds, "
                "for other seeds and other dev rows.",
                r"^all \d+$",
            ),
            Note(
                "mcnemar 31/11: McNemar's exact test; only K=0 gets 31 rows right, only the pruned "
                "network 11. If these are few, the interval may leave out 0 although p is large: "
                "then trust p.",
                "^mcnemar",
            ),
            Note("rows: accounts for other dev rows, for the same network.", "^rows$"),
            Note(
                "seeds and rows: accounts for other seeds and other dev rows. With two or three "
                "seeds the interval is wide: more seeds narrow it fastest.",
                "^seeds and rows$",
            ),
            Note(
                "p Holm: corrected for all the different tests of these rows together. To test "
                "less, select fewer rows (--sweep, --model, --strategy) before you look."
            ),
        ),
    ),
    "intervals": TableDef(
        title="Scores and their 95% intervals, in points",
        view="cells",
        fetch=by_statistics("interval_rows"),
        reads=_ANSWERS,
        columns={
            "strategy": phrases.strategy,
            "K": phrases.setting,
            "task": lambda row: phrases.heading(row["task"], row["metric"]),
            "mean": text("mean", phrases.points),
            "sd": Column(text("sd", phrases.points), "Sample standard deviation over seeds."),
            "95%": Column(
                lambda row: row["reason"] or f"{row['low']:.2f}–{row['high']:.2f}",
                "95% interval of the mean.",
            ),
            "over": Column(
                text("over"), "Sources of error in the interval: other seeds, other dev rows."
            ),
            "n": Column(
                lambda row: phrases.share(row["n"], row["n_expected"]), "Seeds with a score."
            ),
        },
        notes=(
            Note(
                "seeds and rows: where the mean over all seeds and texts lies. With two or three "
                "seeds the interval is wide: their spread is hardly known.",
                "^seeds and rows$",
            ),
            Note(
                "rows (one seed): where this network's score on other texts lies. Another seed can "
                "lie outside.",
                "^rows$",
            ),
            Note(
                "seeds: no stored predictions, so other dev rows are not accounted for.", "^seeds$"
            ),
        ),
    ),
    "min-layers-interval": TableDef(
        title="Layers needed to stay within a loss, in {unit}, and how sure that is",
        view="min_layers_by_unit",
        order="position, delta",
        takes=("unit", "model", "strategy"),
        fetch=min_layers_sets,
        reads=_ANSWERS,
        columns={
            "strategy": text("strategy"),
            "loss ≤": needed.allowed_loss,
            "task": text("task"),
            "layers": needed.possible_layers,
            "90%": Column(
                needed.credible_layers,
                "Answers that the scores do not rule out; the true one is among them in about 90% "
                "or more of simulated studies.",
            ),
            "seeds": lambda row: phrases.share(row["n_seeds"], row["n_seeds_asked"]),
            "seed sd": Column(
                needed.seed_spread, "How much one network moves from seed to seed, in points."
            ),
        },
        notes=(
            notes.where_nothing_was_learned,
            Note(
                "90%: the answers that the scores do not rule out. In about 90% or more of "
                "simulated studies the true answer is among them."
            ),
            Note(
                "seed sd: how much one network moves from seed to seed, in points, pooled over the "
                "model's networks of this task; `other models`: over those of other models.",
                r"^\d+\.\d\d",
            ),
            Note(
                "assumed: no network of this task has two seeds, so a spread of 1 point is "
                "assumed. Run another seed to know it.",
                " assumed$",
            ),
            Note(
                "(search): `until: min_layers` ran other seeds for other K, so it has its own set.",
                r"^\(search\)$",
            ),
            notes.SEARCHED_FOR,
            _FEWER,
            _UNTRIED,
            notes.left_out,
        ),
    ),
    "distillation": TableDef(
        title="Distilled networks, and those with a bridge, against plain ones, in points",
        view="cells",
        fetch=by_statistics("distillation_rows"),
        reads=_ANSWERS,
        prepare=named_shortly,
        columns={
            "task": text("task"),
            "strategy": phrases.strategy,
            "K": phrases.setting,
            "distill": Column(text("distill"), "What the network learns from a teacher."),
            "n": text("n"),
            "plain": Column(
                lambda row: phrases.one_side(row, "plain"), "The same layers, without a teacher."
            ),
            "distilled": lambda row: phrases.one_side(row, "distilled"),
            "gain": Column(
                phrases.change_with_interval, "Distilled minus plain, with its 95% interval."
            ),
            "p Holm": text("p_holm", phrases.p_value),
            "minutes": Column(phrases.minutes_of_both, "Minutes of a trial, plain → distilled."),
            "logits": Column(
                text("seconds_logits", phrases.minutes),
                "Minutes to compute the teacher's logits, once for all its students of a seed.",
            ),
        },
        report="open",
        notes=(
            Note(
                "Read +2.17 [−0.03, +4.36] as: the distilled network minus the plain one of the "
                "same layers and seed, mean over n seeds, 95% interval. With one seed it is about "
                "these two networks (McNemar's exact test for accuracy), with more about other "
                "seeds and other dev rows.",
                r"\[",
            ),
            Note("p Holm: corrected for all the different tests of these rows together.", r"\["),
            Note(
                "minutes: time of a trial, plain → distilled. logits: minutes to compute the "
                "teacher's logits, once for all its students of a seed. The teacher is the full "
                "model, which the sweep trains anyway.",
                "→",
            ),
            Note(
                "start: teacher is compared with direct, since the sweep has no "
                "finetune_then_drop without distillation.",
                f"{phrases.START}$",
            ),
            Note(
                "no plain one: the sweep has no network without distillation to compare with. "
                "`distill:` does not list `none`, or a search did not need this K.",
                "^no plain one$",
            ),
            Note(
                "Nothing to compare: this table needs `distill: [none, logits]`, or `bridge: "
                "[none, linear]`, in the sweep file.",
                r"\A\Z",
            ),
        ),
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
                phrases.mean_of_draws, "Mean over networks whose layers were drawn at random."
            ),
            "strategy": phrases.strategy_beside_random,
            "mean": lambda row: (
                phrases.points(row["mean"]) or ("missing" if row["strategy"] else "")
            ),
            "difference": Column(
                text("difference", phrases.signed),
                "The strategy minus the mean of the random draws.",
            ),
            "above": Column(phrases.draws_below, "How many of the draws it beats."),
        },
        notes=(
            Note(
                "Read 78.20 ±1.10 n=5 as: mean over the draws of `random` of their means over "
                "tasks, sample standard deviation over draws, draws.",
                "n=",
            ),
            Note("n=3/5: 3 of 5 draws have every task and seed.", r"n=\d+/\d+$"),
            Note(
                "difference: the strategy minus that mean. above 5/5: it scores more than 5 of the "
                "5 draws. By chance alone, one set of layers is above all n draws once in n + 1 "
                "times.",
                r"^\d+/\d+$",
            ),
            Note(
                "Nothing to compare: this table needs `{name: random, k: [2, 4], draws: 0-4}` in "
                "the strategies of the sweep file, and another strategy with the same K (named by "
                "--strategy, if given).",
                r"\A\Z",
            ),
        ),
    ),
    "setups": TableDef(
        title="Earlier setups: another recipe, data or model",
        view="attempts",  # it has no view of its own, and this one is fast
        takes=(),
        fetch=setups,
        report="never",
        columns={
            "sweep": text("sweep"),
            "setup": text("setup"),
            "against today's": lambda row: "; ".join(row["differences"]) or "not known",
            "cells": text("cells"),
            "trials finished": text("trials_finished"),
        },
        notes=(
            Note(
                "`--setup N` shows one of them in a table, a query or a report. Today's has no "
                "number."
            ),
        ),
    ),
}

GLOSSARY = {
    heading: column.meaning
    for columns in (CONTEXT, *(table.columns for table in TABLES.values()))
    for heading, column in columns.items()
    if isinstance(column, Column)
}
