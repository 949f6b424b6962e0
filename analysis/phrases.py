"""The words and numbers in a table's cells. Pure: takes a row, returns a short text, and sentences
about it as footnotes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from lp_sweep.analysis.notes import NOT_ASKED, guess, no_better_than
from lp_sweep.analysis.rows import Row
from lp_sweep.analysis.tabledef import TableCell
from lp_sweep.trials.spec.scoring import facts_of

DISTURBED = (
    "Other processes used more than half a core meanwhile. Measure again on an idle machine."
)
# states and reasons of the views -> the word for people, and what it means
_STATES: dict[str, tuple[str, ...]] = {
    "deferred": ("waiting", "Waits for a measurement, or for what a search tries first."),
    "impossible": (
        "impossible",
        "No layer would stay, or not layer 1, which a bridge needs, or too few for the "
        "feed-forwards to remove.",
    ),
    **dict.fromkeys(
        ("not needed", "not_needed"),
        ("–", "Not needed: a search (`until: min_layers`) found its answer without it."),
    ),
    "not timed": (
        "–",
        "Not measured: a speed is never estimated from the layers. `lp-sweep run` measures it if "
        "the sweep file has `measure: {speed: cpu}` (or cuda).",
    ),
    "pending": ("missing",),
    "no K=0": ("no full model", "No score with all layers and the same seed to compare with."),
    "no predictions": ("no answers", "The store has no answers to the dev rows for a test."),
    "no plain one": (
        "–",
        "The sweep has no network without distillation to compare with: `distill:` does not list "
        "`none`, or a search did not need this number of layers.",
    ),
}


# -- numbers


def points(loss: float) -> str:
    """`1 point`, `2.5 points`"""
    return f"{loss:g} point{'s' * (loss != 1)}"


def signed(value: float | None, unit: str = "", decimals: int = 2) -> str:
    """+0.14, −2.18, 0.00, with a real minus sign; "" for None."""
    if value is None:
        return ""
    text = f"{value:+.{decimals}f}"
    return (text[1:] if float(text) == 0 else text.replace("-", "−")) + unit


def span(low: int, high: int) -> str:
    """`6`, `4–6`"""
    return str(low) if low == high else f"{low}–{high}"


def share(part: int, whole: int) -> str:
    """`3`, `2 of 3`"""
    return str(part) if part == whole else f"{part} of {whole}"


def p_value(value: float | None) -> str:
    if value is None:
        return ""
    return "<0.0001" if value < 0.0001 else f"{value:.4f}" if value < 0.1 else f"{value:.2f}"


def parameters(count: int | None) -> str:
    if count is None:
        return "?"
    return f"{count / 1e6:.1f} M" if count >= 100_000 else f"{count / 1e3:.1f} k"


def score(mean: float, sd: float | None, *rest: str) -> str:
    """`90.25 ±0.31 (−2.18) n=3`"""
    parts = (f"{mean:.2f}", "" if sd is None else f"±{sd:.2f}", *rest)
    return " ".join(filter(None, parts))


def seeds(number: int, asked: int) -> str:
    """`one seed`, `3 seeds`, `1 of the 3 seeds that the sweep lists`."""
    if number < asked:
        return f"{number} of the {asked} seeds that the sweep lists"
    return "one seed" if number == 1 else f"{number} seeds"


# -- what a row describes


def heading(task: str, metric: str | None) -> str:
    """`claims F1 of 'fraud'`"""
    name, of, positive = (metric or "").partition(" of ")
    return f"{task} {facts_of(name).label}{of}{positive}" if metric else task


def strategy(row: Row) -> str:
    """`top`, `contribution t=0.9`; `all layers` for K=0, one network for all strategies."""
    if row["strategy"] is None:
        return NOT_ASKED
    if row["threshold"] is None:
        return "all layers" if row["k"] == 0 else str(row["strategy"])
    return f"{row['strategy']} t={row['threshold']:g}"


def state(name: str) -> TableCell:
    """A state or reason of a view, in words."""
    word, *meaning = _STATES.get(name, (name,))
    return TableCell(word, tuple(meaning))


def kept(rows: Sequence[Row]) -> str:
    """`6 of 12`; `8–10 of 12` if a threshold keeps more layers on one task than on another."""
    depth = rows[0]["depth"]
    counts = [depth - row["k"] for row in rows if row["k"] is not None]
    return f"{span(min(counts), max(counts)) if counts else '?'} of {depth}"


def kept_of(row: Row, k: str = "k") -> str:
    """`4 of 6`, `4.5 of 6` for a mean"""
    layers = "?" if row[k] is None else f"{row['depth'] - row[k]:.3g}"
    return f"{layers} of {row['depth']}"


def device(row: Row) -> str:
    """`NVIDIA H200, bf16`, `AMD EPYC, 1 thread`; leaves out fp32."""
    if row["precision"] is None:
        return NOT_ASKED
    parts = [row["device_name"] or "unknown"]
    if (threads := row["threads"]) is not None:
        parts.append(f"{threads} thread{'' if threads == 1 else 's'}")
    parts += [row["precision"]] if row["precision"] != "fp32" else []
    return ", ".join(parts)


def batch(row: Row) -> str:
    """`32×128`: rows and tokens per row."""
    return NOT_ASKED if row["batch"] is None else f"{row['batch']}×{row['length']}"


# -- scores and speeds


def task_score(row: Row) -> TableCell:
    """`90.25 ±0.31 (−2.18)`, or why there is no number."""
    if not row["n"]:
        return state(row["state"])
    of = "" if row["n_paired"] == row["n"] else f" of {row['n_paired']}"
    change = f"({signed(row['change'])}{of})" if row["n_paired"] else ""
    full = is_full(row, row["change"])
    notes = [] if row["n_paired"] or full else list(_STATES["no K=0"][1:])
    notes += [f"{row['n_failed']} more failed."] if row["n_failed"] else []
    if row["majority"] is not None and no_better_than(row["majority"], row["mean"]):
        notes.append(f"No better than {guess(row)}.")
    shown = score(row["mean"], row["sd"], "" if full else change)
    return TableCell(shown, tuple(notes), share(row["n"], max(row["n_expected"], row["n_asked"])))


def is_full(row: Row, change: float | None) -> bool:
    """Whether this is the full model, with which the others are compared. A K=0 that learned from
    another model is not."""
    return bool(row["k"] == 0 and row["feed_forward"] == "none" and not change)


def mean_over_tasks(row: Row, scope: Literal["all", "stable"]) -> str | TableCell:
    """`80.12 ±0.20 (−2.91)`, or `missing (5 of 7)`."""
    mean, change = row[f"mean_{scope}"], row[f"change_{scope}"]
    tasks = row["n_tasks" if scope == "all" else "n_stable"]
    expected = row["n_tasks_expected" if scope == "all" else "n_stable_expected"]
    if not expected:
        return NOT_ASKED
    if mean is None:
        left_out = expected - tasks <= row["n_not_needed"]
        return state("not needed") if left_out else f"missing ({tasks} of {expected})"
    if is_full(row, change):
        return score(mean, row[f"sd_{scope}"])
    notes = _STATES["no K=0"][1:] if change is None else ()
    against = "" if change is None else f"({signed(change)})"
    return TableCell(score(mean, row[f"sd_{scope}"], against), notes)


def seeds_of_means(row: Row) -> str:
    return share(max(row["n_seeds_all"], row["n_seeds_stable"]), row["n_seeds_asked"])


def mean_of_draws(row: Row) -> str:
    """`78.20 ±1.10`, or `missing`."""
    return "missing" if row["random_mean"] is None else score(row["random_mean"], row["random_sd"])


def mean_beside_random(row: Row) -> str:
    if row["mean"] is None:
        return "missing" if row["strategy"] else ""
    return f"{row['mean']:.2f}"


def change_with_interval(row: Row) -> TableCell:
    """`−0.80 [−2.35, +0.74]`"""
    if row.get("error"):
        return TableCell("failed")
    if row["reason"]:
        return state(row["reason"])
    return TableCell(f"{signed(row['change'])} [{signed(row['low'])}, {signed(row['high'])}]")


def mean_interval(row: Row) -> TableCell:
    """`88.10–91.30`"""
    if row["reason"]:
        return state(row["reason"])
    return TableCell(f"{row['low']:.2f}–{row['high']:.2f}")


def one_side(side: Literal["plain", "distilled"], row: Row) -> str:
    """`91.00`, `91.00 (2 of 3)`, `missing`; – if the sweep does not list it."""
    if side == "plain" and row["plain"] is None:
        return NOT_ASKED
    n = row[f"n_{side}"]
    count = "" if n == row["n"] else f"({n} of {row['n']})"
    return score(row[f"mean_{side}"], None, count) if n else "missing"


def minutes(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds / 60:.0f}" if seconds >= 6000 else f"{seconds / 60:.3g}"


def minutes_of_both(row: Row) -> str:
    """`0.61 → 0.3`"""
    both = [minutes(row[f"seconds_{side}"]) or "?" for side in ("plain", "distilled")]
    return "" if both == ["?", "?"] else " → ".join(both)


def test_name(row: Row) -> str:
    """`mcnemar 31/11`, `rows`"""
    if row["test"] is None:
        return ""
    return str(row["test"]) + ("" if row["b"] is None else f" {row['b']}/{row['c']}")


def speedup(quantity: Literal["finetune", "inference"], row: Row) -> TableCell:
    """`×1.94 (1.92–1.96)`"""
    value = row[f"{quantity}_speedup"]
    if value is None:
        return state("not timed")
    low, high = row[f"{quantity}_q25"], row[f"{quantity}_q75"]
    doubts = ("Unsteady: the standard error is more than 1%.",) * (not row[f"{quantity}_steady"])
    return TableCell(f"×{value:.2f} ({low:.2f}–{high:.2f})", doubts)


def rate(value: float | None) -> TableCell:
    """Texts per second, to three digits."""
    if value is None:
        return state("not timed")
    return TableCell(f"{value:,.3g}" if value < 100 else f"{value:,.0f}")
