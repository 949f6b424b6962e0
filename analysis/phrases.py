"""The words and numbers of a table's cell. Pure: a row in, a short text out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from lp_sweep.analysis.adaptive import DIP
from lp_sweep.analysis.notes import (
    LEARNED_NOTHING,
    NOT_ASKED,
    NOT_MEASURED,
    NOT_NEEDED,
    NOT_SEARCHED,
    no_better,
)
from lp_sweep.storage.printable import ranges

Row = Mapping[str, Any]

_METRICS = {
    "f1": "F1",
    "macro_f1": "macro F1",
    "mcc": "MCC",
    "pearson": "Pearson",
    "spearman": "Spearman",
    "ndcg@10": "nDCG@10",
    "mrr@10": "MRR@10",
    "recall@100": "recall@100",
}


# -- numbers


def signed(value: float | None, unit: str = "", decimals: int = 2) -> str:
    """+0.14, −2.18, 0.00, with a real minus sign; "" for None."""
    if value is None:
        return ""
    text = f"{value:+.{decimals}f}"
    return (text[1:] if float(text) == 0 else text.replace("-", "−")) + unit


def points(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def spread(deviation: float | None, decimals: int = 2) -> str:
    return "" if deviation is None else f"±{deviation:.{decimals}f}"


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


def seeds(number: int, asked: int) -> str:
    """`one seed`, `3 seeds`, `1 of the 3 seeds that the sweep lists`."""
    if number < asked:
        return f"{number} of the {asked} seeds that the sweep lists"
    return "one seed" if number == 1 else f"{number} seeds"


# -- what a row is of


def heading(task: str, metric: str | None) -> str:
    """`claims F1 of 'fraud'`"""
    name, of, positive = (metric or "").partition(" of ")
    return f"{task} {_METRICS.get(name, name)}{of}{positive}" if metric else task


def strategy(row: Row) -> str:
    """K=0 is one network, whichever strategy lists it."""
    return "all layers" if row["k"] == 0 and row["threshold"] is None else str(row["strategy"])


def setting(row: Row) -> str:
    return str(row["k"]) if row["threshold"] is None else f"t={row['threshold']:g}"


def strategy_beside_random(row: Row) -> str:
    if row["strategy"] is None:
        return NOT_ASKED
    return str(row["strategy"]) + ("" if row["threshold"] is None else f" t={row['threshold']:g}")


def kept(rows: Sequence[Row]) -> str:
    """`6 of 12`; `8–10 of 12` where a threshold keeps more on one task than on another."""
    depth = rows[0]["depth"]
    counts = [depth - row["k"] for row in rows if row["k"] is not None]
    return f"{span(min(counts), max(counts)) if counts else '?'} of {depth}"


def kept_of_mean(row: Row) -> str:
    layers = "?" if row["k_mean"] is None else f"{row['depth'] - row['k_mean']:.3g}"
    return f"{layers} of {row['depth']}"


def device(row: Row) -> str:
    """`NVIDIA H200, bf16`, `AMD EPYC, 1 thread`; fp32 is not mentioned."""
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


# -- layers needed


def allowed_loss(row: Row) -> str:
    if row["unit"] == "percent":
        return f"{row['delta']:g}%"
    return f"{row['delta']:g} point{'' if row['delta'] == 1 else 's'}"


def layers_needed(row: Row) -> str:
    """`6 of 12 (−0.80) n=3`, `9–10 of 12 (K=3 not tried) n=3`, `4–6 of 12 (2 missing)`; of a search
    with `, 90% 5 to 7`."""
    credible = row.get("credible")
    of_search = f", 90% {layers_left(row['depth'], credible)}" if credible else ""
    if row["max_dropped"] is None:
        return f"{_possible_layers(row)} ({_open(row)}){of_search}{unless(row)}"
    change = ""
    if row["max_dropped"] and row["loss"] is not None:
        change = f" ({signed(-row['loss'], '%' if row['unit'] == 'percent' else '')})"
    count = share(row["n_seeds"], row["n_seeds_asked"])
    return f"{_possible_layers(row)}{change} n={count}{of_search}{unless(row)}"


def possible_layers(row: Row) -> str:
    """`6 of 12`, `4–6 of 12 (not searched)`."""
    return _possible_layers(row) + (f" ({NOT_SEARCHED})" if row["n_not_searched"] else "")


def best_of(rows: Iterable[Row]) -> Row | None:
    """The row with the smallest network, among those of one task and loss; None without a score of
    the full model."""
    return max(
        (row for row in rows if row["n_seeds"]),
        key=lambda row: (row["max_dropped_low"], row["score_kept"] or 0.0, -row["position"]),
        default=None,
    )


def network(row: Row) -> str:
    """`top K=2, iterative`: the smallest network that is within the loss. With a warning where it,
    unlike that of all layers, did not learn."""
    if not row["max_dropped_low"]:
        return "all layers"
    named = f"{row['strategy']} K={row['max_dropped_low']}"
    named += "" if row["procedure"] == "direct" else f", {row['procedure']}"
    majority = row["majority"]
    if majority is None or row["n_learned_nothing"] or row["score_kept"] >= majority + 0.005:
        return named
    return f"{named}: no better than the majority class"


def answer_line(rows: Sequence[Row]) -> str:
    """The answer for one task and loss in a sentence, or why there is none yet; rows as
    `best_of`."""
    best = best_of(rows)
    if best is None:
        return "no answer yet: no score with all layers to compare with"
    if best["n_learned_nothing"]:
        return f"no answer yet: {no_better(best)} of the full model did not learn"
    return needs(best, rows)


def needs(row: Row, among: Sequence[Row] = ()) -> str:
    """`needs 6 of 12 layers to lose at most 1 point (top K=6, −0.80, 3 seeds)`, or `needs 6 of 12
    layers to lose at most 1 point; with distillation 4 (top K=8, ...)`. `among`: the rows, of other
    strategies as well, that it is the best of."""
    (layers, distilled), loss = layers_of(row, among), allowed_loss(row)
    keep_all = layers == str(row["depth"])
    said = f"needs {layers} of {row['depth']} layers to lose at most {loss}"
    if keep_all:
        said = f"keep all {layers} layers: nothing smaller that was tried loses at most {loss}"
    unit = "%" if row["unit"] == "percent" else ""
    change = signed(-row["loss"], unit) if row["max_dropped_low"] else ""
    count = seeds(row["n_seeds"], row["n_seeds_asked"])
    way = ", ".join(filter(None, (network(row), change, count)))
    way = f" ({'; '.join(filter(None, (way, doubt(row, among))))})"
    beside = f"; with distillation {distilled}" if distilled else ""
    if distilled and is_distilled(row):
        return said + beside + way
    return said + ("" if keep_all else way) + beside


def layers_of(row: Row, among: Sequence[Row] = ()) -> tuple[str, str]:
    """`6`, or `4–6`: how many layers the answer may be; and with distillation, where both are
    there and differ. Then the first is of plain networks alone. Arguments as of `needs`."""
    sides = [[other for other in among if is_distilled(other) == side] for side in (False, True)]
    spans = [possible_span(best, side) for side in sides if (best := best_of(side))]
    if len(set(spans)) < 2:
        return possible_span(row, among), ""
    plain, distilled = spans
    return plain, distilled


def is_distilled(row: Row) -> bool:
    return " distill " in row["procedure"]


def possible_span(row: Row, among: Sequence[Row] = ()) -> str:
    """`6`, `4–6`: how many layers the answer may be."""
    depth, most, between = row["depth"], _most(row, among), _between(row, among)
    if between and between[-1] < depth - 1:  # else nothing smaller was tried: the answer has no end
        most = max(most, between[-1])
    return span(depth - most, depth - row["max_dropped_low"])


def doubt(row: Row, among: Sequence[Row] = ()) -> str:
    """`K=3 not tried`: why a smaller network than the answer may do; "" where none may."""
    if _most(row, among) > row["max_dropped_low"]:
        if row["n_not_searched"]:
            return "not searched for this loss"
        return "missing trials may bring a smaller one"
    between = _between(row, among)
    return f"K={ranges(between)} not tried" if between else ""


def _most(row: Row, among: Sequence[Row]) -> int:
    """The K that more trials may bring."""
    return max(int(other["max_dropped_high"]) for other in among or [row])


def _between(row: Row, among: Sequence[Row]) -> list[int]:
    """The K above a known answer and below the next that was tried. Of those that a search left out
    `unless` speaks."""
    low, left_out = row["max_dropped_low"], row["untried"] or ()
    if row["max_dropped"] is None or _most(row, among) > low:
        return []
    tried = {k for other in among or [row] for k in other["tried"] or ()}
    above = min((k for k in tried if k > low), default=row["depth"])
    return [k for k in range(low + 1, above) if k not in left_out]


def _possible_layers(row: Row) -> str:
    mark = LEARNED_NOTHING if row["n_learned_nothing"] else ""
    gap = f" ({doubt(row)})" if _between(row, ()) else ""
    return f"{possible_span(row)} of {row['depth']}{mark}{gap}"


def _open(row: Row) -> str:
    """Why the answer is not known."""
    if row["n_missing"]:
        return f"{row['n_missing']} missing"
    return NOT_SEARCHED if row["n_not_searched"] else "no K=0"


def credible_layers(row: Row) -> str:
    """The answers in layers that stay, fewest first."""
    if row["reason"]:
        return f"no set: {row['reason']}"
    return layers_left(row["depth"], row["credible"]) + unless(row)


def unless(row: Row) -> str:
    """` unless 1 to 3 dip`: what the answer of a search assumes of the networks it never trained;
    "" where there are none that are smaller. A K in the 90% set is no assumption."""
    if not (untried := _assumed(row)):
        return ""
    return f" unless {layers_left(row['depth'], untried)} dip{'s' if len(untried) == 1 else ''}"


def assumption(row: Row) -> str:
    """A clause on what the answer of a search assumes, or "" where it assumes nothing."""
    if not (untried := _assumed(row)):
        return ""
    layers = layers_left(row["depth"], untried)
    return (
        f"networks of {layers} layer{'s' * (layers != '1')}, which the search never trained, lose "
        f"at most {DIP:g} points less than the better of the networks trained on either side"
    )


def _assumed(row: Row) -> list[int]:
    """The K that a search never ran and that neither the answer nor its set has."""
    return [k for k in row["untried"] or () if k not in (row.get("credible") or ())]


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


def seed_spread(row: Row) -> str:
    """`0.42`, `1.00 assumed`."""
    if row["seed_sd"] is None:
        return "search" if row["credible"] else ""
    mark = {"model and task": "", "task": " other models"}.get(row["seed_sd_from"], " assumed")
    return f"{row['seed_sd']:.2f}{mark}"


# -- scores and speeds


def task_score(row: Row) -> str:
    """`90.25 ±0.31 (−2.18) n=3`, or why there is no number."""
    if not row["n_expected"]:
        return NOT_NEEDED
    if not row["n"]:
        return f"{_absence(row)} (0/{row['n_expected']})"
    of = "" if row["n_paired"] == row["n"] else f" of {row['n_paired']}"
    change = f"({signed(row['change'])}{of})" if row["n_paired"] else "(?)"
    count = f"n={share(row['n'], max(row['n_expected'], row['n_asked']))}"
    if row["n_failed"]:
        count += f", {row['n_failed']} failed"
    against = "" if is_full(row, row["change"]) else change
    return _joined(points(row["mean"]), spread(row["sd"]), against, count)


def _absence(row: Row) -> str:
    if row["n_failed"]:
        return "failed"
    for state in ("deferred", "impossible"):
        if row[f"n_{state}"] == row["n_expected"]:
            return state
    return "missing"


def is_full(row: Row, change: float | None) -> bool:
    """Whether it is the network that the others are compared with. K=0 that learned from another
    model is not."""
    return bool(row["k"] == 0 and row["feed_forward"] == "none" and not change)


def _joined(*parts: str) -> str:
    return " ".join(part for part in parts if part)


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
    return _joined(points(mean), spread(row[f"sd_{scope}"]), against, f"n={count}")


def mean_of_draws(row: Row) -> str:
    """`78.20 ±1.10 n=5`, or `missing (0/5)`."""
    if row["random_mean"] is None:
        return f"missing (0/{row['n_draws_expected']})"
    count = share(row["n_draws"], row["n_draws_expected"])
    return _joined(points(row["random_mean"]), spread(row["random_sd"]), f"n={count}")


def draws_below(row: Row) -> str:
    return "" if row["difference"] is None else f"{row['n_below']}/{row['n_draws']}"


def seed(row: Row) -> str:
    return f"all {row['n_seeds']}" if row["seed"] is None else str(row["seed"])


def change_with_interval(row: Row) -> str:
    if row["reason"]:
        return str(row["reason"])
    return f"{signed(row['change'])} [{signed(row['low'])}, {signed(row['high'])}]"


START = "start: teacher"


def distillation(row: Row) -> str:
    """`logits T=4`; `logits, iterative`; `logits, start: teacher`; `logits, bridge linear`; `bridge
    linear`."""
    whole, _, taught = str(row["procedure"]).partition(" distill ")
    own, _, bridge = whole.partition(" bridge ")
    ways = [str(row["distill"]), *([f"bridge {bridge}"] if bridge and taught else [])]
    if own != "direct":
        began = row["plain"] == "direct" and own == "finetune_then_drop"
        ways.append(START if began else own)
    return ", ".join(ways)


def one_side(row: Row, side: Literal["plain", "distilled"]) -> str:
    """`91.00`, `91.00 n=2/3`, `missing`; – where the sweep does not list it."""
    if side == "plain" and row["plain"] is None:
        return NOT_ASKED
    n = row[f"n_{side}"]
    count = "" if n == row["n"] else f"n={n}/{row['n']}"
    return _joined(points(row[f"mean_{side}"]), count) if n else "missing"


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
    """`×1.94 (1.92–1.96)`, with what speaks against it, or that there is none."""
    value = row[f"{quantity}_speedup"]
    if value is None:
        return NOT_MEASURED
    low, high = row[f"{quantity}_q25"], row[f"{quantity}_q75"]
    doubts = "" if row[f"{quantity}_steady"] else " unsteady"
    doubts += " busy" if row["busy"] else ""
    return f"×{value:.2f} ({low:.2f}–{high:.2f}){doubts}"
