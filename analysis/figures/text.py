"""A figure's caption: sentences with its main numbers, also for people who can't see it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from lp_sweep.analysis import phrases
from lp_sweep.analysis.figures import curves, layers, theme
from lp_sweep.analysis.figures.layers import FAR, curve_label, network_name
from lp_sweep.analysis.figures.numbers import FULL, PANEL
from lp_sweep.analysis.figures.panels import groups
from lp_sweep.analysis.rows import Row
from lp_sweep.storage.printable import listed

_MOST = 6  # panels that a caption describes
_DIRECT = "The networks are pruned first, then fine-tuned (procedure direct)."


def _said(*start: str, parts: Sequence[str]) -> str:
    more = len(parts) - _MOST
    shown = [*start, *parts[:_MOST]]
    return " ".join([*shown, f"There are {more} more in the figure."] if more > 0 else shown)


def strategies(rows: Sequence[Row]) -> str:
    parts = []
    for panel in groups(rows, "sweep", "model"):
        pruned = [row for row in panel if row["role"] == "pruned"]
        known = sorted((row for row in pruned if row["mean"] is not None), key=lambda r: r["mean"])
        said = [text for row in panel if row["mean"] is not None and (text := _across(row))]
        if known:
            said.append(f"{_best_and_worst(known)}.")
        if len(known) < len(pruned):
            said.append(f"{len(pruned) - len(known)} of {len(pruned)} bars are not complete.")
        parts.append(" ".join(said))
    return _said("Each bar is the mean over tasks of one strategy.", _DIRECT, parts=parts)


def _across(row: Row) -> str:
    """A sentence about a horizontal line; "" for a bar."""
    mean = f"{row['mean']:.2f}"
    return {
        "full": f"{theme.name(row['model'])} averages {mean} with all layers.",
        "reference": f"{theme.name(row['reference'])}, a smaller whole model, averages {mean}.",
    }.get(row["role"], "")


def _best_and_worst(known: Sequence[Row]) -> str:
    """A clause about the best and the worst network; `known` is sorted by its mean."""
    best, worst = known[-1], known[0]
    said = f"The best smaller network is {_setting(best)} ({best['mean']:.2f})"
    if len(known) == 1:
        return said
    return f"{said}, the worst {_setting(worst)} ({worst['mean']:.2f})"


def _setting(row: Row) -> str:
    dropped = "?" if row["k_mean"] is None else f"{row['k_mean']:g}"
    at = "" if row["threshold"] is None else f" t={row['threshold']:g}"
    return f"{theme.name(row['strategy'])}{at} with {dropped} dropped"


def probes(rows: Sequence[Row]) -> str:
    parts = []
    for curve in groups(rows, "model", "network", "kept_layers"):
        known = [row for row in curve if row["mean"] is not None]
        if known and curve[0]["network"] != "pruned":
            best = max(known, key=lambda row: row["mean"])
            parts.append(
                f"For {curve_label(curve[0])}, it goes from {known[0]['mean']:.2f} at layer "
                f"{known[0]['layer']} to {known[-1]['mean']:.2f} at layer {known[-1]['layer']}, "
                f"and is highest at layer {best['layer']} ({best['mean']:.2f})."
            )
    return _said(
        "A linear classifier reads each layer; its score is averaged over tasks.", parts=parts
    )


def similarity(rows: Sequence[Row]) -> str:
    parts = []
    for curve in groups(rows, "model", "kept_layers", "part"):
        known = [row for row in curve if row["mean"] is not None]
        if known:
            least = min(known, key=lambda row: row["mean"])
            far = [str(row["layer"]) for row in known if row["mean"] < FAR]
            changed = f"below {FAR} at {listed(far)}" if far else f"never below {FAR}"
            what = "sentence token" if curve[0]["part"] == "sentence" else "per-text token mean"
            parts.append(
                f"For the {what} of {curve_label(curve[0])} it is lowest at layer "
                f"{least['layer']} ({least['mean']:.3f}), and {changed}."
            )
    start = "The cosine shows how much fine-tuning has changed each layer, as a mean over tasks."
    return _said(start, parts=parts)


def contribution(rows: Sequence[Row]) -> str:
    parts = []
    for profile in groups(rows, "profile_id"):
        values = {row["layer"]: row["value"] for row in profile if row["value"] is not None}
        said = []
        if values:
            top = max(values, key=lambda layer: values[layer])
            said.append(f"layer {top} changes it least ({values[top]:.3f})")
        for chosen in groups([r for r in profile if r["threshold"] is not None], "threshold"):
            kept = sum(row["kept"] for row in chosen)
            said.append(f"t={chosen[0]['threshold']:g} keeps {kept} of {len(chosen)} layers")
        model, task = (theme.name(profile[0][key]) for key in ("model", "task"))
        parts.append(f"In {model} on {task}, {', '.join(said)}." if said else "")
    start = "Each bar compares the sentence token before and after a layer; a high bar is a layer "
    start += "that does little, and a threshold drops those above it."
    return _said(start, parts=list(filter(None, parts)))


def cka(rows: Sequence[Row]) -> str:
    parts = []
    for network in groups(rows, *layers.NETWORK, "part"):
        same = [r for r in network if r["layer"] == r["other"] and r["value"] is not None]
        if same:
            first, last = same[0], same[-1]
            what = "layer outputs" if first["part"] == "layer" else "attention outputs"
            parts.append(
                f"The {what} of {theme.name(first['model'])}, {network_name(first)}, agree to "
                f"{first['value']:.3f} at layer {first['layer']} and to {last['value']:.3f} at "
                f"layer {last['layer']}."
            )
    start = "Each square compares a layer of one network with a layer of another; 1 is the same up "
    return _said(f"{start}to rotation and scale.", parts=parts)


def feed_forward(rows: Sequence[Row]) -> str:
    parts = []
    for settings in groups(rows, "sweep", "model"):
        said = [
            f"{_number(row['mean'], 1)} at {_number(row['parameters'], 1e6)} million parameters "
            f"with {theme.name(row['feed_forward'])} removed"
            for row in settings
        ]
        parts.append(f"{theme.name(settings[0]['model'])} scores {', '.join(said)}.")
    return _said("Mean score over tasks without some feed-forwards.", _DIRECT, parts=parts)


def feed_forward_layers(rows: Sequence[Row]) -> str:
    parts = []
    for same_layers in layers.networks(rows):
        said = []
        for curve in groups(same_layers, "network", "part"):
            known = [row for row in curve if row["mean"] is not None]
            if known:
                what = {"probes": "the classifier", "attention": "CKA"}[known[0]["part"]]
                last = known[-1]
                said.append(
                    f"with {layers.setting_name(last)} {what} is {last['mean']:.4g} at layer "
                    f"{last['layer']}"
                )
        parts.append(f"In {layers.shown_layers(same_layers[0])}, {', '.join(said)}.")
    start = "A classifier on each layer, in points, and the CKA of attention outputs with the full "
    return _said(f"{start}model's.", _DIRECT, parts=parts)


def _number(value: float | None, unit: float) -> str:
    return "not complete" if value is None else f"{value / unit:.4g}"


def _on(panel: Sequence[Row], rows: Sequence[Row]) -> str:
    """`On rte`, with the model if there are several."""
    task = "Over all tasks" if panel[0]["task"] is None else f"On {theme.name(panel[0]['task'])}"
    several = len({(row["sweep"], row["model"]) for row in rows}) > 1
    return f"{task} with {theme.name(panel[0]['model'])}" if several else task


def score(rows: Sequence[Row]) -> str:
    parts = []
    for panel in groups(rows, *curves.TASK):
        pruned = sorted((row for row in panel if row["strategy"] != FULL), key=lambda r: r["mean"])
        whole = [f"all layers score {r['mean']:.2f}" for r in panel if r["strategy"] == FULL]
        said = f"{_on(panel, rows)}, {whole[0]}." if whole else f"{_on(panel, rows)}:"
        parts.append(f"{said} {_best_and_worst(pruned)}." if pruned else said)
    return _said(
        "A line for each strategy; a band is one standard deviation.", _DIRECT, parts=parts
    )


def heat_map(rows: Sequence[Row]) -> str:
    parts = []
    for panel in groups(rows, *curves.TASK):
        pruned = [row for row in panel if row["strategy"] != FULL]
        best: dict[float, Row] = {}
        for row in sorted(pruned, key=lambda row: (row["k_mean"], row["mean"])):
            best[row["k_mean"]] = row
        by_name: dict[str, list[str]] = {}
        for k, row in best.items():
            by_name.setdefault(row["strategy"], []).append(f"{k:.3g} dropped ({row['mean']:.2f})")
        said = [f"{theme.name(name)} with {listed(ks)}" for name, ks in by_name.items()]
        parts.append(f"{_on(panel, rows)}, the best is {'; '.join(said)}." if said else "")
    start = "Each square is a strategy's mean score. Darker is better, and bold is the best of its "
    return _said(f"{start}column.", _DIRECT, parts=list(filter(None, parts)))


def pareto(rows: Sequence[Row]) -> str:
    parts = []
    for panel in groups(rows, *PANEL):
        front = [
            f"{curves.network_label(row)} ({_place(row)}, {row['mean']:.2f})"
            for row in panel
            if row["front"]
        ]
        where = f"{_on(panel, rows)} ({curves.measured_on(panel[0])})"
        parts.append(f"{where}, the front is {', '.join(front)}.")
    start = "A network is on the front (filled) if no other is at least as good in both the score "
    start += "and the speed or size."
    if rows[0]["task"] is None:
        start += " The score is in points against all layers, as a mean over tasks."
    return _said(start, _DIRECT, parts=parts)


def embeddings(rows: Sequence[Row]) -> str:
    parts = []
    for panel in groups(rows, *PANEL):
        known = [row for row in panel if not row["k"]] + curves.best_of_depths(panel)
        said = [
            f"{phrases.layers(row['kept_layers']) if row['k'] else FULL} {row['mean']:.2f} at "
            f"{row['texts_per_second']:.3g}"
            for row in known
        ]
        parts.append(f"{_on(panel, rows)} in batches of {panel[0]['batch']}: {'; '.join(said)}.")
    return _said(
        "Score by texts a second; of each number of layers the best network is named.", parts=parts
    )


def _place(row: Row) -> str:
    return f"{row['size']:.0f}%" if row["speedup"] is None else f"×{row['speedup']:.2f}"
