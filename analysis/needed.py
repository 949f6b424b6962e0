"""How many layers a task needs, in words: rows of `min_layers` in, a short text out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lp_sweep.analysis import phrases
from lp_sweep.analysis.adaptive import DIP
from lp_sweep.analysis.notes import LEARNED_NOTHING, NOT_SEARCHED, barely, no_better
from lp_sweep.analysis.rows import Row
from lp_sweep.storage.printable import ranges
from lp_sweep.storage.select import askable_k


def allowed_loss(row: Row) -> str:
    if row["unit"] == "percent":
        return f"{row['delta']:g}%"
    return f"{row['delta']:g} point{'' if row['delta'] == 1 else 's'}"


def layers_needed(row: Row) -> str:
    """`6 of 12 (−0.80) n=3`, `9–10 of 12 (K=3 not tried) n=3`, `4–6 of 12 (2 missing)`. A search
    adds `, 90% 5 to 7`."""
    credible = row.get("credible")
    of_search = f", 90% {layers_left(row['depth'], credible)}" if credible else ""
    if row["max_dropped"] is None:
        return f"{_possible_layers(row)} ({_open(row)}){of_search}{unless(row)}"
    change = ""
    if row["max_dropped"] and row["loss"] is not None:
        change = f" ({phrases.signed(-row['loss'], '%' if row['unit'] == 'percent' else '')})"
    count = phrases.share(row["n_seeds"], row["n_seeds_asked"])
    return f"{_possible_layers(row)}{change} n={count}{of_search}{unless(row)}"


def possible_layers(row: Row) -> str:
    """`6 of 12`, `4–6 of 12 (not searched)`."""
    return _possible_layers(row) + (f" ({NOT_SEARCHED})" if row["n_not_searched"] else "")


def best_of(rows: Iterable[Row]) -> Row | None:
    """The row with the smallest network, from rows of one task and loss; None without a score of
    the full model."""
    return max(
        (row for row in rows if row["n_seeds"]),
        key=lambda row: (row["max_dropped_low"], row["score_kept"] or 0.0, -row["position"]),
        default=None,
    )


def network(row: Row) -> str:
    """`top K=2, iterative`: the smallest network within the loss. Adds a warning if it did not
    learn, but the full model did."""
    if not row["max_dropped_low"]:
        return "all layers"
    named = f"{row['strategy']} K={row['max_dropped_low']}"
    named += "" if row["procedure"] == "direct" else f", {row['procedure']}"
    majority = row["majority"]
    if majority is None or row["n_learned_nothing"] or row["score_kept"] >= majority + 0.005:
        return named
    return f"{named}: no better than the majority class"


def answer_line(rows: Sequence[Row]) -> str:
    """The answer for one task and loss in a sentence, or why there is none yet. `rows`: as for
    `best_of`."""
    best = best_of(rows)
    if best is None:
        return "no answer yet: no score with all layers to compare with"
    if best["n_learned_nothing"]:
        return f"no answer yet: {no_better(best)} of the full model did not learn"
    return needs(best, rows)


def needs(row: Row, among: Sequence[Row] = ()) -> str:
    """`needs 6 of 12 layers to lose at most 1 point (top K=6, −0.80, 3 seeds)`, or `needs 6 of 12
    layers to lose at most 1 point; with distillation 4 (top K=8, ...)`; `... are enough ...` if
    no smaller network was tried. `among`: the rows that `row` is the best of, also of other
    strategies."""
    (layers, distilled), loss = layers_of(row, among), allowed_loss(row)
    keep_all = layers == str(row["depth"])
    said = f"needs {layers} of {row['depth']} layers to lose at most {loss}"
    side = [other for other in among if not is_distilled(other)] if distilled else among
    of = best_of(side) if distilled else row
    if of and _between(of, side) and max(_tried(of, side)) <= of["max_dropped_low"]:
        said = f"{layers} of {row['depth']} layers are enough to lose at most {loss}"
    if keep_all:
        said = f"keep all {layers} layers: nothing smaller that was tried loses at most {loss}"
    unit = "%" if row["unit"] == "percent" else ""
    change = phrases.signed(-row["loss"], unit) if row["max_dropped_low"] else ""
    count = phrases.seeds(row["n_seeds"], row["n_seeds_asked"])
    way = ", ".join(filter(None, (network(row), change, count)))
    way = f" ({'; '.join(filter(None, (way, doubt(row, among), barely(row))))})"
    beside = f"; with distillation {distilled}" if distilled else ""
    if distilled and is_distilled(row):
        return said + beside + way
    return said + ("" if keep_all else way) + beside


def layers_of(row: Row, among: Sequence[Row] = ()) -> tuple[str, str]:
    """`6`, or `4–6`: how many layers the answer may have, and how many with distillation. The
    second is "" unless both kinds exist and differ; then the first is of plain networks only.
    Arguments as for `needs`."""
    sides = [[other for other in among if is_distilled(other) == side] for side in (False, True)]
    spans = [possible_span(best, side) for side in sides if (best := best_of(side))]
    if len(set(spans)) < 2:
        return possible_span(row, among), ""
    plain, distilled = spans
    return plain, distilled


def is_distilled(row: Row) -> bool:
    return " distill " in row["procedure"]


def possible_span(row: Row, among: Sequence[Row] = ()) -> str:
    """`6`, `4–6`: how many layers the answer may have."""
    depth, most, between = row["depth"], _most(row, among), _between(row, among)
    if between and max(_tried(row, among)) > between[-1]:  # else nothing smaller was tried
        most = max(most, between[-1])
    return phrases.span(depth - most, depth - row["max_dropped_low"])


def doubt(row: Row, among: Sequence[Row] = ()) -> str:
    """`K=3 not tried`: why a smaller network than the answer may be good enough; "" if none may."""
    if _most(row, among) > row["max_dropped_low"]:
        if row["n_not_searched"]:
            return "not searched for this loss"
        return "missing trials may bring a smaller one"
    between = _between(row, among)
    return f"K={ranges(between)} not tried" if between else ""


def _most(row: Row, among: Sequence[Row]) -> int:
    """The largest K that more trials may reach."""
    return max(int(other["max_dropped_high"]) for other in among or [row])


def _tried(row: Row, among: Sequence[Row]) -> set[int]:
    return {0, *(k for other in among or [row] for k in other["tried"] or ())}


def _between(row: Row, among: Sequence[Row]) -> list[int]:
    """The K above a known answer and below the next K that was tried. Leaves out the K that a
    search never ran: `unless` reports those."""
    low, left_out = row["max_dropped_low"], row["untried"] or ()
    if row["max_dropped"] is None or _most(row, among) > low:
        return []
    above = min((k for k in _tried(row, among) if k > low), default=row["depth"])
    there = {k for other in among or [row] for k in askable_k(other["strategy"], row["depth"])}
    return [k for k in range(low + 1, above) if k in there and k not in left_out]


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
    """The possible answers, as numbers of layers that stay, fewest first."""
    if row["reason"]:
        return f"no set: {row['reason']}"
    return likely_layers(row) + unless(row)


def likely_layers(row: Row) -> str:
    """`4 or 5`, `at most 3`: the 90% set of a row, fewest first. If the smallest network that was
    tried is in the set, a smaller one may also be good enough."""
    depth, largest = row["depth"], max(row["credible"])
    smaller = 0 < largest >= max(_tried(row, ())) and largest < max(
        askable_k(row["strategy"], depth), default=0
    )
    return layers_left(depth, row["credible"], fewer=smaller)


def unless(row: Row) -> str:
    """` unless 1 to 3 dip`: what the answer of a search assumes about the smaller networks that it
    never trained; "" if there are none. Nothing is assumed about a K in the 90% set."""
    if not (untried := _assumed(row)):
        return ""
    return f" unless {layers_left(row['depth'], untried)} dip{'s' if len(untried) == 1 else ''}"


def assumption(row: Row) -> str:
    """A clause about what the answer of a search assumes, or "" if it assumes nothing."""
    if not (untried := _assumed(row)):
        return ""
    layers = layers_left(row["depth"], untried)
    return (
        f"networks of {layers} layer{'s' * (layers != '1')}, which the search never trained, lose "
        f"at most {DIP:g} points less than the better of the networks trained on either side"
    )


def _assumed(row: Row) -> list[int]:
    """The K that a search never ran and that are not in its 90% set."""
    return [k for k in row["untried"] or () if k not in (row.get("credible") or ())]


def layers_left(depth: int, dropped: Sequence[int], *, fewer: bool = False) -> str:
    """`5 to 7 or 9`: how many layers stay for each number of dropped layers. `fewer`: the smallest
    one becomes `at most 7`."""
    spans: list[list[int]] = []
    for layers in sorted(depth - k for k in dropped):
        if spans and spans[-1][1] == layers - 1:
            spans[-1][1] = layers
        else:
            spans.append([layers, layers])
    parts: list[str] = []
    if fewer:
        parts, spans = [f"at most {spans[0][1]}"], spans[1:]
    for low, high in spans:
        long = high - low > 1
        parts += [f"{low} to {high}"] if long else map(str, range(low, high + 1))
    return f"{', '.join(parts[:-1])} or {parts[-1]}" if parts[1:] else "".join(parts)


def seed_spread(row: Row) -> str:
    """`0.42`, `1.00 assumed`."""
    if row["seed_sd"] is None:
        return "(search)" if row["credible"] else ""
    marks = {"model and task": "", "task": " other models", "untrained": " untrained"}
    mark = marks.get(row["seed_sd_from"], " assumed")
    return f"{row['seed_sd']:.2f}{mark}"
