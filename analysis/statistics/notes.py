"""What stands below the tables of statistics: how a cell reads, and what it does not say."""

from __future__ import annotations

from lp_sweep.analysis.legend import Note

SIGNIFICANCE = (
    Note("Read −2.18 [−3.10, −1.26] as: change in points against K=0, 95% interval."),
    Note(
        "A row is one seed, which says nothing of other seeds; `all 3` is the network over its "
        "seeds.",
        r"^all \d+$",
    ),
    Note(
        "mcnemar 31/11: exact, on the examples that only K=0 / only the pruned network answers "
        "rightly.",
        "^mcnemar",
    ),
    Note(
        "bootstrap: 10,000 draws of examples, and of seeds where there are several; its p is "
        "never below 0.0002, and too small with two or three seeds.",
        "^bootstrap",
    ),
    Note(
        "p Holm: corrected for all the different tests of these rows together. To test less, ask "
        "for less (--sweep, --model, --strategy), before looking."
    ),
)
INTERVAL = (
    Note(
        "Over seeds: where the mean of other seeds would lie, on this dev set. Over few it is "
        "rough, and too narrow: of 2 seeds it holds the true mean half of the time, of 3 in 3 of 4 "
        "cases, whatever the 95% says.",
        "^seeds$",
    ),
    Note(
        "Over examples (one seed): where this network's score on other examples would lie, blind "
        "to the seed.",
        "^examples$",
    ),
)
MIN_LAYERS = (
    Note(
        "Each resample draws other seeds and other dev examples and asks again. agree: how often "
        "it gives the same answer. 90%: the fewest answers that together have 90% of the resamples."
    ),
    Note(
        "No probability that an answer is true: one seed says nothing of others, two or three say "
        "too little, and of several K near the allowed loss the larger is favoured."
    ),
    Note(
        "search: by `until: min_layers`, with other seeds for other K; 90%: the answers that its "
        "scores do not rule out.",
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
