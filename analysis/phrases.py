"""How a row of a view is said in a table's cell. Pure: a row in, a short text out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from lp_sweep.analysis.adaptive.posterior import DIP
from lp_sweep.analysis.legend import Note
from lp_sweep.analysis.untaught import LEARNED_NOTHING

Row = Mapping[str, Any]

NOT_ASKED = "–"
NOT_NEEDED = "not needed"  # by a search, for its answer
NOT_SEARCHED = "not searched"  # by a search, for this loss
_METRICS = {
    "f1": "F1",
    "macro_f1": "macro F1",
    "mcc": "MCC",
    "pearson": "Pearson",
    "spearman": "Spearman",
}

_SEARCHED = Note(
    f"{NOT_NEEDED}: a search (`until: min_layers`) knew its answer without.", f"^{NOT_NEEDED}"
)
SEARCHED_FOR = Note(
    f"{NOT_SEARCHED}: a search (`until: min_layers`) was for other losses, and never ran the K "
    "that could be the answer. Add the loss, in points, to `within:` in the file, and run it.",
    rf"\({NOT_SEARCHED}\)",
)
UNTRIED = Note(
    "unless 1 to 3 dip: a search never trained networks of 1 to 3 layers. The answer and its 90% "
    f"set assume that each of them loses at most {DIP:g} points less than the better of the "
    "networks trained on either side of it. To check, train them: list their K under `include:`.",
    r"unless \d[^)]* dips?\b",
)
FEWER_SEEDS = Note("n=1/3: the answer rests on 1 seed, where the sweep lists 3.", r"n=\d+/\d+")
MIN_LAYERS_NOTES = (
    Note(
        "Read 6 of 12 (−0.80) n=3 as: the fewest layers, among the K that were asked for, that "
        "stay within the loss; the change of the score at that depth; seeds. It is the largest K "
        "that does it, even if a smaller one loses more."
    ),
    Note(
        "4–6 of 12: cells that are missing or failed can still change the answer, which lies "
        "between these; (m missing) says how many pairs of K and seed.",
        r" missing\)$| \(no K=0\)$",
    ),
    Note(
        "90% 5 to 7: of a search (`until: min_layers`), the answers that its scores do not rule "
        "out.",
        r"90% \d",
    ),
    UNTRIED,
    FEWER_SEEDS,
    SEARCHED_FOR,
    Note("Loss: mean over seeds of the score with all layers minus the score, paired by seed."),
)
TASK_NOTES = (
    Note(
        "Read 90.25 ±0.31 (−2.18) n=3 as: mean over seeds after the last epoch, sample standard "
        "deviation, change against K=0 of the same seed, seeds."
    ),
    Note("(?): no K=0 to compare with.", r"\(\?\)"),
    Note("n=2/3: the mean is of 2 seeds, where the sweep lists 3.", r"n=\d+/\d+"),
    Note(
        "missing, failed, deferred, impossible: no seed is done. Impossible is where no layer "
        "would stay, or none that a feed-forward could go from.",
        r"^(missing|failed|deferred|impossible) \(0/",
    ),
    Note(f"{NOT_ASKED}: not asked for.", f"^{NOT_ASKED}$"),
    _SEARCHED,
)
STRATEGY_NOTES = (
    Note(
        "Read 80.12 ±0.20 (−2.91) n=3 as: mean over tasks of their means over seeds, standard "
        "deviation of that mean over seeds, change against K=0 of the same seeds, seeds."
    ),
    Note(
        "t=0.9: every task has its own layers by that threshold; kept is their mean over tasks.",
        "^t=",
    ),
    Note(
        "Stable tasks leave out RTE, MRPC, CoLA and WNLI, which move by points from seed to seed."
    ),
    Note("n=2/3: 2 seeds have every task, where the sweep lists 3.", r"n=\d+/\d+"),
    Note(
        "missing (5/7): only 5 of 7 tasks have every seed; a mean over fewer would compare "
        "nothing.",
        r"^missing \(",
    ),
    _SEARCHED,
)
NOT_MEASURED = "not measured"
SPEED_NOTES = (
    Note(
        "Read ×1.94 (1.92–1.96) as: a batch through all layers takes 1.94 times as long; median of "
        "the pairs in which both took turns in one process on one device, and their quartiles. "
        "There are no ratios across devices.",
        "×.*–",
    ),
    Note(
        "K=0 is the full network beside itself: what is not ×1.00 is the error of a measurement.",
        "×.*–",
    ),
    Note(
        f"{NOT_MEASURED}: a speed is not derived from anything. `measure: {{speed: cpu}}` (or "
        "cuda) in the sweep file, and `lp-sweep run`, measure what is missing.",
        f"^{NOT_MEASURED}$",
    ),
    Note("unsteady: the quartiles are more than 5% of the median apart.", " unsteady"),
    Note("busy: other processes kept more than half a core at work meanwhile.", " busy$"),
)


def signed(value: float, unit: str = "") -> str:
    """+0.14, −2.18, 0.00, with a real minus sign."""
    text = f"{value:+.2f}"
    text = "0.00" if float(text) == 0 else text
    return text.replace("-", "−") + unit


def share(part: int, whole: int) -> str:
    return str(part) if part == whole else f"{part}/{whole}"


def heading(task: str, metric: str | None) -> str:
    """`claims F1 of 'fraud'`"""
    name, of, positive = (metric or "").partition(" of ")
    return f"{task} {_METRICS.get(name, name)}{of}{positive}" if metric else task


def allowed_loss(row: Row) -> str:
    if row["unit"] == "percent":
        return f"{row['delta']:g}%"
    return f"{row['delta']:g} point{'' if row['delta'] == 1 else 's'}"


def layers_needed(row: Row) -> str:
    """`6 of 12 (−0.80) n=3`, or `4–6 of 12 (2 missing)`; of a search with `, 90% 5 to 7`."""
    credible = row.get("credible")
    of_search = f", 90% {layers_left(row['depth'], credible)}" if credible else ""
    return _layers_needed(row) + of_search + unless(row)


def unless(row: Row) -> str:
    """` unless 1 to 3 dip`: what the answer of a search assumes of the networks it never trained;
    "" where there are none that are smaller. A K in the 90% set is no assumption."""
    if not (untried := _assumed(row)):
        return ""
    return f" unless {layers_left(row['depth'], untried)} dip{'s' if len(untried) == 1 else ''}"


def _assumed(row: Row) -> list[int]:
    """The K that a search never ran and that neither the answer nor its set has."""
    return [k for k in row["untried"] or () if k not in (row.get("credible") or ())]


def assumption(row: Row) -> str:
    """A clause on what the answer of a search assumes, or "" where it assumes nothing."""
    if not (untried := _assumed(row)):
        return ""
    return (
        f"networks of {layers_left(row['depth'], untried)} layers, which the search never trained, "
        f"lose at most {DIP:g} points less than the better of the networks trained on either side"
    )


def seeds(number: int, asked: int) -> str:
    """`one seed`, `3 seeds`, `1 of the 3 seeds that the sweep lists`."""
    if number < asked:
        return f"{number} of the {asked} seeds that the sweep lists"
    return "one seed" if number == 1 else f"{number} seeds"


def layers_left(depth: int, dropped: Sequence[int]) -> str:
    """`5 to 7 or 9`: how many layers stay where so many are dropped."""
    spans: list[list[int]] = []
    for layers in sorted(depth - k for k in dropped):
        if spans and spans[-1][1] == layers - 1:
            spans[-1][1] = layers
        else:
            spans.append([layers, layers])
    parts: list[str] = []
    for low, high in spans:
        long = high - low > 1
        parts += [f"{low} to {high}"] if long else map(str, range(low, high + 1))
    return f"{', '.join(parts[:-1])} or {parts[-1]}" if parts[1:] else "".join(parts)


def _layers_needed(row: Row) -> str:
    depth = row["depth"]
    of = f"of {depth}{LEARNED_NOTHING if row['n_learned_nothing'] else ''}"
    if row["max_dropped"] is None:
        low, high = depth - row["max_dropped_high"], depth - row["max_dropped_low"]
        kept_layers = f"{low}" if low == high else f"{low}–{high}"
        return f"{kept_layers} {of} ({_open(row)})"
    change = ""
    if row["max_dropped"] and row["loss"] is not None:
        change = f" ({signed(-row['loss'], '%' if row['unit'] == 'percent' else '')})"
    return f"{row['min_layers_kept']} {of}{change} n={share(row['n_seeds'], row['n_seeds_asked'])}"


def _open(row: Row) -> str:
    """Why the answer is not known."""
    if row["n_missing"]:
        return f"{row['n_missing']} missing"
    return NOT_SEARCHED if row["n_not_searched"] else "no K=0"


def task_score(row: Row) -> str:
    """`90.25 ±0.31 (−2.18) n=3`, or why there is no number."""
    if not row["n_expected"]:
        return NOT_NEEDED
    if not row["n"]:
        return f"{_absence(row)} (0/{row['n_expected']})"
    parts = [f"{row['mean']:.2f}", _spread(row["sd"]), _change(row)]
    count = f"n={share(row['n'], max(row['n_expected'], row['n_asked']))}"
    if row["n_failed"]:
        count += f", {row['n_failed']} failed"
    return " ".join(part for part in (*parts, count) if part)


def _absence(row: Row) -> str:
    if row["n_failed"]:
        return "failed"
    for state in ("deferred", "impossible"):
        if row[f"n_{state}"] == row["n_expected"]:
            return state
    return "missing"


def _spread(deviation: float | None) -> str:
    return "" if deviation is None else f"±{deviation:.2f}"


def _change(row: Row) -> str:
    if _is_full(row):
        return ""
    if not row["n_paired"]:
        return "(?)"
    of = "" if row["n_paired"] == row["n"] else f" of {row['n_paired']}"
    return f"({signed(row['change'])}{of})"


def _is_full(row: Row) -> bool:
    """Whether it is the network that the others are compared with."""
    return bool(row["k"] == 0 and row["feed_forward"] == "none")


def mean_over_tasks(row: Row, scope: Literal["all", "stable"]) -> str:
    """`80.12 ±0.20 (−2.91) n=3`, or `missing (5/7)`."""
    mean, change = row[f"mean_{scope}"], row[f"change_{scope}"]
    count = "n_tasks" if scope == "all" else "n_stable"
    expected = row[f"{count}_expected"]
    if not expected:
        return NOT_ASKED
    if mean is None:
        left_out = expected - row[count] <= row["n_not_needed"]
        return f"{NOT_NEEDED if left_out else 'missing'} ({row[count]}/{expected})"
    against = "" if _is_full(row) else "(?)" if change is None else f"({signed(change)})"
    count = share(row[f"n_seeds_{scope}"], row["n_seeds_asked"])
    parts = (f"{mean:.2f}", _spread(row[f"sd_{scope}"]), against, f"n={count}")
    return " ".join(part for part in parts if part)


def majorities(rows: Sequence[Row]) -> tuple[Note, ...]:
    """One note with the score of the constant answer on each task that has one."""
    known = {row["task"]: row["majority"] for row in rows if row["majority"] is not None}
    if not known:
        return ()
    listed = ", ".join(f"{task} {value:.2f}" for task, value in known.items())
    return (Note(f"The constant answer scores: {listed}."),)


def strategy(row: Row) -> str:
    """K=0 is one network, whichever strategy lists it."""
    return "all layers" if row["k"] == 0 and row["threshold"] is None else str(row["strategy"])


def setting(row: Row) -> str:
    return str(row["k"]) if row["threshold"] is None else f"t={row['threshold']:g}"


def kept(rows: Sequence[Row]) -> str:
    """`6 of 12`; `8–10 of 12` where a threshold keeps more on one task than on another."""
    depth = rows[0]["depth"]
    counts = sorted({depth - row["k"] for row in rows if row["k"] is not None})
    if not counts:
        return f"? of {depth}"
    span = str(counts[0]) if len(counts) == 1 else f"{counts[0]}–{counts[-1]}"
    return f"{span} of {depth}"


def kept_of_mean(row: Row) -> str:
    if row["k_mean"] is None:
        return f"? of {row['depth']}"
    return f"{row['depth'] - row['k_mean']:.3g} of {row['depth']}"


def device(row: Row) -> str:
    """`NVIDIA H200, bf16`, `AMD EPYC, 1 thread`; no word of fp32."""
    if row["profile_id"] is None:
        return NOT_ASKED
    parts = [row["device_name"] or "unknown"]
    if (threads := row["threads"]) is not None:
        parts.append(f"{threads} thread{'' if threads == 1 else 's'}")
    parts += [row["precision"]] if row["precision"] != "fp32" else []
    return ", ".join(parts)


def batch(row: Row) -> str:
    """`32×128`: rows and their tokens."""
    return NOT_ASKED if row["batch"] is None else f"{row['batch']}×{row['length']}"


def parameters(count: int | None) -> str:
    if count is None:
        return "?"
    return f"{count / 1e6:.1f} M" if count >= 100_000 else f"{count / 1e3:.1f} k"


def percent(value: float | None) -> str:
    return "?" if value is None else f"{value:.1f}%"


def speedup(row: Row, quantity: Literal["finetune", "inference"]) -> str:
    """`×1.94 (1.92–1.96)`, with what speaks against it, or that there is none."""
    value = row[f"{quantity}_speedup"]
    if value is None:
        return NOT_MEASURED
    low, high = row[f"{quantity}_q25"], row[f"{quantity}_q75"]
    doubts = "" if row[f"{quantity}_steady"] else " unsteady"
    doubts += " busy" if row["busy"] else ""
    return f"×{value:.2f} ({low:.2f}–{high:.2f}){doubts}"
