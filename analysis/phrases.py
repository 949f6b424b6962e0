"""The words and numbers in a table's cells. Pure: takes a row, returns a short text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from lp_sweep.analysis.notes import NOT_ASKED, NOT_MEASURED, NOT_NEEDED
from lp_sweep.analysis.rows import Row
from lp_sweep.storage.printable import ranges
from lp_sweep.trials.spec.procedures import own_label
from lp_sweep.trials.spec.scoring import facts_of

_BUSY = 0.5  # cores, as in the view `speed_table`


# -- numbers


def signed(value: float | None, unit: str = "", decimals: int = 2) -> str:
    """+0.14, −2.18, 0.00, with a real minus sign; "" for None."""
    if value is None:
        return ""
    text = f"{value:+.{decimals}f}"
    return (text[1:] if float(text) == 0 else text.replace("-", "−")) + unit


def rate(value: float | None) -> str:
    """Texts per second, to three digits."""
    return NOT_MEASURED if value is None else f"{value:,.3g}" if value < 100 else f"{value:,.0f}"


def span(low: int, high: int) -> str:
    """`6`, `4–6`"""
    return str(low) if low == high else f"{low}–{high}"


def share(part: int, whole: int) -> str:
    return str(part) if part == whole else f"{part}/{whole}"


def p_value(value: float | None) -> str:
    if value is None:
        return ""
    return "<0.0001" if value < 0.0001 else f"{value:.4f}" if value < 0.1 else f"{value:.2f}"


def parameters(count: int | None) -> str:
    if count is None:
        return "?"
    return f"{count / 1e6:.1f} M" if count >= 100_000 else f"{count / 1e3:.1f} k"


def percent(value: float | None) -> str:
    return "?" if value is None else f"{value:.1f}%"


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
    """The strategy's name; `all layers` for K=0, which is one network for all strategies."""
    return "all layers" if row["k"] == 0 and row["threshold"] is None else str(row["strategy"])


def setting(row: Row) -> str:
    return str(row["k"]) if row["threshold"] is None else f"t={row['threshold']:g}"


def strategy_beside_random(row: Row) -> str:
    if row["strategy"] is None:
        return NOT_ASKED
    return str(row["strategy"]) + ("" if row["threshold"] is None else f" t={row['threshold']:g}")


def kept(rows: Sequence[Row]) -> str:
    """`6 of 12`; `8–10 of 12` if a threshold keeps more layers on one task than on another."""
    depth = rows[0]["depth"]
    counts = [depth - row["k"] for row in rows if row["k"] is not None]
    return f"{span(min(counts), max(counts)) if counts else '?'} of {depth}"


def layers(kept: Sequence[int]) -> str:
    """`layers 1-4, 6`"""
    return f"layers {ranges(kept).replace(',', ', ')}"


def kept_of_mean(row: Row) -> str:
    layers = "?" if row["k_mean"] is None else f"{row['depth'] - row['k_mean']:.3g}"
    return f"{layers} of {row['depth']}"


def device(row: Row) -> str:
    """`NVIDIA H200, bf16`, `AMD EPYC, 1 thread`; leaves out fp32."""
    if row["profile_id"] is None:
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


def task_score(row: Row) -> str:
    """`90.25 ±0.31 (−2.18) n=3`, or why there is no number."""
    if not row["n_expected"]:
        return str(row["state"])
    if not row["n"]:
        return f"{row['state']} (0/{row['n_expected']})"
    of = "" if row["n_paired"] == row["n"] else f" of {row['n_paired']}"
    change = f"({signed(row['change'])}{of})" if row["n_paired"] else "(?)"
    count = f"n={share(row['n'], max(row['n_expected'], row['n_asked']))}"
    if row["n_failed"]:
        count += f", {row['n_failed']} failed"
    against = "" if is_full(row, row["change"]) else change
    return score(row["mean"], row["sd"], against, count)


def is_full(row: Row, change: float | None) -> bool:
    """Whether this is the full model, with which the others are compared. A K=0 that learned from
    another model is not."""
    return bool(row["k"] == 0 and row["feed_forward"] == "none" and not change)


def mean_over_tasks(row: Row, scope: Literal["all", "stable"]) -> str:
    """`80.12 ±0.20 (−2.91) n=3`, or `missing (5/7)`."""
    mean, change = row[f"mean_{scope}"], row[f"change_{scope}"]
    tasks = row["n_tasks" if scope == "all" else "n_stable"]
    expected = row["n_tasks_expected" if scope == "all" else "n_stable_expected"]
    if not expected:
        return NOT_ASKED
    if mean is None:
        left_out = expected - tasks <= row["n_not_needed"]
        return f"{NOT_NEEDED if left_out else 'missing'} ({tasks}/{expected})"
    against = "" if is_full(row, change) else "(?)" if change is None else f"({signed(change)})"
    count = share(row[f"n_seeds_{scope}"], row["n_seeds_asked"])
    return score(mean, row[f"sd_{scope}"], against, f"n={count}")


def mean_of_draws(row: Row) -> str:
    """`78.20 ±1.10 n=5`, or `missing (0/5)`."""
    if row["random_mean"] is None:
        return f"missing (0/{row['n_draws_expected']})"
    count = share(row["n_draws"], row["n_draws_expected"])
    return score(row["random_mean"], row["random_sd"], f"n={count}")


def mean_beside_random(row: Row) -> str:
    if row["mean"] is None:
        return "missing" if row["strategy"] else ""
    return f"{row['mean']:.2f}"


def draws_below(row: Row) -> str:
    return "" if row["difference"] is None else f"{row['n_below']}/{row['n_draws']}"


def seed(row: Row) -> str:
    return f"all {row['n_seeds']}" if row["seed"] is None else str(row["seed"])


# -- networks as they are shipped


def shipped(row: Row) -> str:
    """`layers 1,3,5-6 as onnx-int8: 85.42 (−1.30, 95% −1.70 to −0.90), 1.5 ms (10.2 times as fast),
    19.5 MB (21%)`."""
    change = signed(row["change"])
    if row["reason"] is None:
        change += f", 95% {signed(row['low'])} to {signed(row['high'])}"
    return (
        f"layers {ranges(row['kept_layers'])} as {row['artefact']}: {row['score']:.2f} ({change}), "
        f"{milliseconds(row['ms'])} ({row['times_as_fast']:.1f} times as fast), "
        f"{row['mb']:.1f} MB ({percent_of(row['share_of_size'])})"
    )


def one_text(row: Row) -> str:
    """`1.11`, `1.11 busy`."""
    if row["ms"] is None:
        return ""
    return f"{row['ms']:.3g}" + " busy" * is_disturbed(row)


def is_disturbed(row: Row) -> bool:
    return (row["others_busy_cores"] or 0) > _BUSY


def served_by(row: Row) -> str:
    return f"{row['device_name']}, {row['threads']} thread{'s' * (row['threads'] > 1)}"


def milliseconds(value: float) -> str:
    return f"{value:.3g} ms" if value < 100 else f"{value:,.0f} ms"


def percent_of(share: float | None) -> str:
    return "?" if share is None else f"{100 * share:.0f}%"


def shipped_change(row: Row) -> str:
    return "failed" if row["error"] else change_with_interval(row)


def chosen_within(row: Row) -> str:
    """`1, 2`: the allowed losses whose choice it is."""
    return ", ".join(f"{loss:g}" for loss in row["chosen_within"])


def change_with_interval(row: Row) -> str:
    if row["reason"]:
        return str(row["reason"])
    return f"{signed(row['change'])} [{signed(row['low'])}, {signed(row['high'])}]"


START = "start: teacher"


def distillation(row: Row) -> str:
    """`logits T=4`; `logits, iterative`; `logits, start: teacher`; `logits, bridge linear`; `bridge
    linear`."""
    way, bridge = str(row["distill"]), f"bridge {row['bridge']}"
    own = own_label(row["procedure"], bridge=row["bridge"], distill=way)
    ways = [way, *([bridge] if row["bridge"] != "none" and way != bridge else [])]
    if own != "direct":
        began = row["plain"] == "direct" and own == "finetune_then_drop"
        ways.append(START if began else own)
    return ", ".join(ways)


def one_side(row: Row, side: Literal["plain", "distilled"]) -> str:
    """`91.00`, `91.00 n=2/3`, `missing`; – if the sweep does not list it."""
    if side == "plain" and row["plain"] is None:
        return NOT_ASKED
    n = row[f"n_{side}"]
    count = "" if n == row["n"] else f"n={n}/{row['n']}"
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


def speedup(row: Row, quantity: Literal["finetune", "inference"]) -> str:
    """`×1.94 (1.92–1.96)`, `×1.94 (1.90–2.05) unsteady busy`, `not measured`."""
    value = row[f"{quantity}_speedup"]
    if value is None:
        return NOT_MEASURED
    low, high = row[f"{quantity}_q25"], row[f"{quantity}_q75"]
    doubts = "" if row[f"{quantity}_steady"] else " unsteady"
    doubts += " busy" if row["busy"] else ""
    return f"×{value:.2f} ({low:.2f}–{high:.2f}){doubts}"
