"""How many layers a task needs, in words: rows of `min_layers` in, a short text out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import compress

from lp_sweep.analysis import phrases
from lp_sweep.analysis.notes import LEARNED_NOTHING, NOT_SEARCHED, barely, guess, no_better
from lp_sweep.analysis.rows import Row, grouped
from lp_sweep.analysis.statistics import DIP
from lp_sweep.analysis.tabledef import TableCell
from lp_sweep.storage.printable import short_models, spans


def layers_needed(row: Row) -> TableCell:
    """`6 of 12 (−0.80)`, `4–6 of 12`. A search adds `, 90% 5 to 7`."""
    text, footnotes = possible_layers(row)[:2]
    if not is_open(row) and row["max_dropped_low"] and row["loss"] is not None:
        text += f" ({_change(row)})"
    if row.get("credible"):
        text += f", 90% {layers_left(row['depth'], row['credible'])}"
    seeds = "" if is_open(row) else phrases.share(row["n_seeds"], row["n_seeds_asked"])
    return TableCell(text, (*footnotes, *_assumes(row)), seeds)


# caveats of an answer that more trials may change: the first one is shown
_OPEN = {
    "missing": "{n_missing} missing or failed: they can still change the answer.",
    NOT_SEARCHED: "The search (`until: min_layers`) had other losses. Add this one, in points, to "
    "`within:` in the file, and run it again.",
    "no K=0": "No score with all layers to compare with.",
}


def is_open(row: Row) -> bool:
    """Whether trials that were asked for may still change the answer."""
    return not _OPEN.keys().isdisjoint(row["caveats"])


def possible_layers(row: Row) -> TableCell:
    """`6 of 12`, `4–6 of 12`, and why a smaller network may be enough."""
    mark = LEARNED_NOTHING if row["n_learned_nothing"] else ""
    notes = [f"{_untried(row, row['untried'])} and may be enough."] if row["untried"] else []
    notes += [_OPEN[caveat].format(**row) for caveat in _OPEN if caveat in row["caveats"]][:1]
    return TableCell(f"{_span(row, 'max_dropped')} of {row['depth']}{mark}", tuple(notes))


def best_of(rows: Iterable[Row]) -> Row | None:
    """The row with the smallest network, from rows of one task and loss; None without a score of
    the full model."""
    return min((row for row in rows if row["rank"]), key=lambda row: row["rank"], default=None)


def alone(row: Row) -> Row:
    """The row with the bounds of its own strategy and procedure in place of those of its task."""
    bounds = {f"task_dropped_{name}": row[f"max_dropped_{name}"] for name in ("low", "high")}
    return {**row, **bounds, "task_untried": row["untried"]}


def network(row: Row) -> str:
    """`top with 10 layers, iterative`: the smallest network within the loss. Adds a warning if it
    did not learn, but the full model did."""
    if not row["max_dropped_low"]:
        return "all layers"
    left = row["depth"] - row["max_dropped_low"]
    named = f"{row['strategy']} with {left} layer{'s' * (left > 1)}"
    named += "" if row["procedure"] == "direct" else f", {row['procedure']}"
    unlearned = "no better than guessing" in row["caveats"]
    return f"{named}: no better than {guess(row)}" if unlearned else named


def answer_line(rows: Sequence[Row]) -> str:
    """The answer for one task and loss in a sentence, or why there is none yet. `rows`: as for
    `best_of`."""
    best = best_of(rows)
    if best is None:
        return "no answer yet: no score with all layers to compare with"
    if best["n_learned_nothing"]:
        why = f": {best['dev_blind']}" if best["dev_blind"] else ""
        return f"no answer yet: {no_better(best)} of the full model did not learn{why}"
    return needs(best if best["rank"] == 1 else alone(best), rows)  # a better one was not asked for


def answer_lines(rows: list[Row]) -> Iterator[str]:
    """A line for each task: the best strategy within the smallest loss."""
    smallest = min((row["delta"] for row in rows), default=None)
    within = (row for row in rows if row["delta"] == smallest)
    models = short_models({row["model"] for row in rows})
    tasks = grouped(within, lambda row: (row["task"], models[row["model"]], row["sweep"]))
    several = [len(set(names)) > 1 for names in zip(*tasks, strict=True)]
    for names, of_task in tasks.items():
        yield f"{', '.join(compress(names, [True, *several[1:]]))}: {answer_line(of_task)}"


def needs(row: Row, among: Sequence[Row]) -> str:
    """`needs 6 of 12 layers to lose at most 1 point (top with 6 layers, −0.80, 3 seeds)`; or that
    they are enough, if no smaller network was tried. `among`: the rows that `row` is the best of,
    also of other strategies."""
    layers, points = _span(row, "task_dropped"), " point" if row["delta"] == 1 else " points"
    loss = f"{row['delta']:g}{'%' if row['unit'] == 'percent' else points}"
    only = ""
    if "one strategy" in row["caveats"]:
        only = f"only {next(other['strategy'] for other in among if other['tried'])} was tried"
    if layers == str(row["depth"]):
        why = f" ({only})" if only else ""
        return f"keep all {layers} layers: nothing smaller that was tried loses at most {loss}{why}"
    said = f"needs {layers} of {row['depth']} layers to lose at most {loss}"
    if row["task_untried"] and row["task_dropped_low"] == row["task_dropped_high"]:
        said = f"{layers} of {row['depth']} layers are enough to lose at most {loss}"
    change = _change(row) if row["max_dropped_low"] else ""
    count = phrases.seeds(row["n_seeds"], row["n_seeds_asked"])
    way = ", ".join(filter(None, (network(row), change, count)))
    return f"{said} ({'; '.join(filter(None, (way, _doubt(row, among), barely(row), only)))})"


def _change(row: Row) -> str:
    """`−0.80`, `−0.80%`"""
    return phrases.signed(-row["loss"], "%" if row["unit"] == "percent" else "")


def _doubt(row: Row, among: Iterable[Row]) -> str:
    """`9 layers were not tried`: why a smaller network than the answer of a task may be good
    enough; "" if none may. Arguments as for `needs`."""
    if row["task_untried"]:
        return _untried(row, row["task_untried"])
    others = (other["max_dropped_high"] for other in among if is_open(other))
    if max((row["task_dropped_high"], *others)) == row["max_dropped_low"]:
        return ""
    if NOT_SEARCHED in row["caveats"]:
        return "not searched for this loss"
    return "missing trials may bring a smaller one"


def _untried(row: Row, ks: Sequence[int]) -> str:
    """`9 layers were not tried`"""
    layers = layers_left(row["depth"], ks)
    return f"{layers} layer{' was' if layers == '1' else 's were'} not tried"


def _span(row: Row, bounds: str) -> str:
    """`6`, `4–6`: how many layers the answer may have."""
    return phrases.span(row["depth"] - row[f"{bounds}_high"], row["depth"] - row[f"{bounds}_low"])


def credible_layers(row: Row) -> TableCell:
    """The possible answers, as numbers of layers that stay, fewest first."""
    if row["reason"]:
        return TableCell("no set", phrases.state(row["reason"]).footnotes or (f"{row['reason']}.",))
    return TableCell(likely_layers(row), _assumes(row))


def likely_layers(row: Row) -> str:
    """`4 or 5`, `at most 3`: the 90% set of a row, fewest first. If the smallest network that was
    tried is in the set, a smaller one may also be good enough."""
    return layers_left(row["depth"], row["credible"], fewer=row["credible_open"])


def assumption(row: Row) -> str:
    """A clause about what the answer of a search assumes, or "" if it assumes nothing."""
    # a K that a search never ran and that is not in its 90% set
    untried = [k for k in row["assumed"] or () if k not in (row.get("credible") or ())]
    if not untried:
        return ""
    layers = layers_left(row["depth"], untried)
    return (
        f"networks of {layers} layer{'s' * (layers != '1')}, which the search never trained, lose "
        f"at most {DIP:g} points less than the better of the nearest ones that it trained"
    )


def _assumes(row: Row) -> tuple[str, ...]:
    """The same as a footnote."""
    assumed = assumption(row)
    return (f"Assumes that {assumed}. To check, list them under `include:`.",) if assumed else ()


def layers_left(depth: int, dropped: Sequence[int], *, fewer: bool = False) -> str:
    """`5 to 7 or 9`: how many layers stay for each number of dropped layers. `fewer`: the smallest
    one becomes `at most 7`."""
    left = spans(sorted(depth - k for k in dropped))
    parts = [f"at most {left.pop(0)[1]}"] if fewer else []
    for low, high in left:
        long = high - low > 1
        parts += [f"{low} to {high}"] if long else map(str, range(low, high + 1))
    return f"{', '.join(parts[:-1])} or {parts[-1]}" if parts[1:] else "".join(parts)


def seed_spread(row: Row) -> str:
    """`0.42`, `0.42 (assumed)`"""
    if row["seed_sd"] is None:
        return "–" if row["credible"] else ""
    source = row["seed_sd_from"]
    return f"{row['seed_sd']:.2f}" + ("" if source == "model and task" else f" ({source})")
