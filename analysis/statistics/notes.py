"""The notes below the tables of statistics: how to read a cell, and what it does not cover."""

from __future__ import annotations

from lp_sweep.analysis.legend import Note

SIGNIFICANCE = (
    Note("Read −2.18 [−3.10, −1.26] as: change in points against K=0, 95% interval."),
    Note(
        "A row with one seed is about that one network. `all 3` is the mean over seeds, for other "
        "seeds and other dev rows.",
        r"^all \d+$",
    ),
    Note(
        "mcnemar 31/11: exact, on the rows that only K=0 / only the pruned network gets right.",
        "^mcnemar",
    ),
    Note("rows: other dev rows, the same network.", "^rows$"),
    Note(
        "seeds and rows: other seeds and other dev rows. With two or three seeds the interval is "
        "wide: more seeds narrow it fastest.",
        "^seeds and rows$",
    ),
    Note(
        "p Holm: corrected for all the different tests of these rows together. To test less, ask "
        "for less (--sweep, --model, --strategy), before looking."
    ),
)
INTERVAL = (
    Note(
        "seeds and rows: where the mean over all seeds and texts lies. With two or three seeds the "
        "interval is wide: their spread is hardly known.",
        "^seeds and rows$",
    ),
    Note(
        "rows (one seed): where this network's score on other texts lies. Another seed can lie "
        "outside.",
        "^rows$",
    ),
    Note("seeds: no stored predictions, so other dev rows are not accounted for.", "^seeds$"),
)
MIN_LAYERS = (
    Note(
        "90%: the answers that the scores do not rule out. In nine of ten studies the true answer "
        "is among them."
    ),
    Note(
        "seed sd: how much one network moves from seed to seed, in points, pooled over the model's "
        "networks of this task; `other models`: over those of other models.",
        r"^\d+\.\d\d",
    ),
    Note(
        "assumed: no network of this task has two seeds, so a spread of 1 point is assumed. Run "
        "another seed to know it.",
        " assumed$",
    ),
    Note(
        "search: `until: min_layers` ran other seeds for other K and has a set of its own.",
        "^search$",
    ),
)
CONTROL = (
    Note(
        "Read 78.20 ±1.10 n=5 as: mean over the draws of `random` of their means over tasks, "
        "sample standard deviation over draws, draws.",
        "n=",
    ),
    Note("n=3/5: 3 of 5 draws have every task and seed.", r"n=\d+/\d+$"),
    Note(
        "difference: the strategy minus that mean. above 5/5: it scores more than 5 of the 5 "
        "draws. It is one set of layers: chance alone puts it above all of n draws once in n + 1 "
        "times.",
        r"^\d+/\d+$",
    ),
    Note(
        "Nothing to compare: it takes `{name: random, k: [2, 4], draws: 0-4}` among the strategies "
        "of the sweep file, and another strategy of the same K (and of --strategy, if given).",
        r"\A\Z",
    ),
)
