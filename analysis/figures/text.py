"""A figure in one sentence with its main numbers, for those who can't see it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from lp_sweep.analysis.figures import curves, panels, theme
from lp_sweep.analysis.figures.curves import network_name
from lp_sweep.analysis.figures.numbers import FULL
from lp_sweep.analysis.figures.panels import FAR, Row, curve_label, groups

_MOST = 6  # parts of one sentence


def _sentence(start: str, parts: Sequence[str]) -> str:
    more = f"; and {len(parts) - _MOST} more" if len(parts) > _MOST else ""
    return f"{start}: {'; '.join(parts[:_MOST])}{more}."


def strategies(rows: Sequence[Row]) -> str:
    parts = []
    for panel in groups(rows, "sweep", "model"):
        pruned = [row for row in panel if row["role"] == "pruned"]
        known = sorted((row for row in pruned if row["mean"] is not None), key=lambda r: r["mean"])
        said = [
            f"{label} {row['mean']:.2f}"
            for row in panel
            if row["mean"] is not None and (label := _across(row))
        ]
        if known:
            ends = (("highest", known[-1]), ("lowest", known[0]))
            said += [f"{word} {_setting(row)} {row['mean']:.2f}" for word, row in ends]
        if len(known) < len(pruned):
            said.append(f"{len(pruned) - len(known)} of {len(pruned)} not complete")
        parts.append(f"{theme.name(panel[0]['model'])} {', '.join(said)}")
    return _sentence(
        "Mean score over tasks in points by strategy and layers dropped (procedure direct)", parts
    )


def _across(row: Row) -> str | None:
    beside = f"beside {theme.name(row['reference'])}"
    return {"full": "all layers", "reference": beside}.get(row["role"])


def _setting(row: Row) -> str:
    dropped = "?" if row["k_mean"] is None else f"{row['k_mean']:g}"
    at = "" if row["threshold"] is None else f" t={row['threshold']:g}"
    return f"{row['strategy']}{at} with {dropped} dropped"


def probes(rows: Sequence[Row]) -> str:
    parts = []
    for curve in groups(rows, "model", "network", "kept_layers"):
        known = [row for row in curve if row["mean"] is not None]
        if known and curve[0]["network"] != "pruned":
            best = max(known, key=lambda row: row["mean"])
            parts.append(
                f"{curve_label(curve[0])} from {known[0]['mean']:.2f} at layer "
                f"{known[0]['layer']} to {known[-1]['mean']:.2f} at layer {known[-1]['layer']}, "
                f"highest {best['mean']:.2f} at layer {best['layer']}"
            )
    return _sentence("Score of a linear classifier on each layer, mean over tasks in points", parts)


def similarity(rows: Sequence[Row]) -> str:
    parts = []
    for curve in groups(rows, "model", "kept_layers", "part"):
        known = [row for row in curve if row["mean"] is not None]
        if known:
            least = min(known, key=lambda row: row["mean"])
            far = [str(row["layer"]) for row in known if row["mean"] < FAR]
            below = f"below {FAR} at layers {', '.join(far)}" if far else f"never below {FAR}"
            what = "sentence token" if curve[0]["part"] == "sentence" else "per-text token mean"
            parts.append(
                f"{curve_label(curve[0])}, {what}, lowest {least['mean']:.3f} at layer "
                f"{least['layer']}, {below}"
            )
    return _sentence("Cosine of each layer with the pre-trained network, mean over tasks", parts)


def contribution(rows: Sequence[Row]) -> str:
    parts = []
    for profile in groups(rows, "profile_id"):
        values = {row["layer"]: row["value"] for row in profile if row["value"] is not None}
        said = []
        if values:
            top = max(values, key=lambda layer: values[layer])
            said.append(f"highest {values[top]:.3f} at layer {top}")
        for chosen in groups([r for r in profile if r["threshold"] is not None], "threshold"):
            kept = sum(row["kept"] for row in chosen)
            said.append(f"t={chosen[0]['threshold']:g} keeps {kept} of {len(chosen)}")
        model, task = (theme.name(profile[0][key]) for key in ("model", "task"))
        parts.append(f"{model} on {task} {', '.join(said)}")
    return _sentence("Mean cosine of the sentence token before and after each layer", parts)


def cka(rows: Sequence[Row]) -> str:
    parts = []
    for network in groups(rows, "model", "kept_layers", "with_pretrained", "part"):
        same = [r for r in network if r["layer"] == r["other"] and r["value"] is not None]
        if same:
            first, last = same[0], same[-1]
            what = "layer outputs" if first["part"] == "layer" else "attention outputs"
            parts.append(
                f"{theme.name(first['model'])} {network_name(first)}, {what}, "
                f"{first['value']:.3f} at layer {first['layer']}, {last['value']:.3f} at layer "
                f"{last['layer']}"
            )
    return _sentence("Linear CKA between the same layers of two networks", parts)


def feed_forward(rows: Sequence[Row]) -> str:
    parts = []
    for settings in groups(rows, "sweep", "model"):
        said = [
            f"{theme.name(row['feed_forward'])} {_number(row['mean'], 1)} at "
            f"{_number(row['parameters'], 1e6)} million parameters"
            for row in settings
        ]
        parts.append(f"{theme.name(settings[0]['model'])} {', '.join(said)}")
    return _sentence(
        "Mean score over tasks in points by feed-forwards removed (procedure direct)", parts
    )


def feed_forward_layers(rows: Sequence[Row]) -> str:
    parts = []
    for same_layers in panels.networks(rows):
        said = []
        for curve in groups(same_layers, "network", "part"):
            known = [row for row in curve if row["mean"] is not None]
            if known:
                what = {"probes": "classifier", "attention": "CKA"}[known[0]["part"]]
                last = known[-1]
                said.append(
                    f"{panels.setting_name(last)}, {what} {last['mean']:.4g} at layer "
                    f"{last['layer']}"
                )
        parts.append(f"{panels.network_name(same_layers[0])}, {', '.join(said)}")
    start = "Classifier on each layer in points, and CKA of attention outputs with the full model"
    return _sentence(f"{start}, by feed-forwards removed (procedure direct)", parts)


def _number(value: float | None, unit: float) -> str:
    return "not complete" if value is None else f"{value / unit:.4g}"


def score(rows: Sequence[Row]) -> str:
    parts = []
    for panel in curves.score_panels(rows):
        whole = [row for row in panel if row["strategy"] == FULL]
        pruned = sorted((row for row in panel if row["strategy"] != FULL), key=lambda r: r["mean"])
        said = [f"all layers {row['mean']:.2f}" for row in whole]
        for word, row in (("highest", pruned[-1]), ("lowest", pruned[0])) if pruned else ():
            said.append(f"{word} {_setting(row)} {row['mean']:.2f}")
        task = "over tasks" if panel[0]["task"] is None else f"on {theme.name(panel[0]['task'])}"
        parts.append(f"{theme.name(panel[0]['model'])} {task} {', '.join(said)}")
    return _sentence(
        "Score in points by layers dropped, a line per strategy (procedure direct)", parts
    )


def pareto(rows: Sequence[Row]) -> str:
    parts = []
    for panel in curves.pareto_panels(rows):
        front = [
            f"{curves.network_label(row)} ×{row['speedup']:.2f} with {row['mean']:.2f}"
            for row in panel
            if row["front"]
        ]
        beaten = (
            f", and {len(panel) - len(front)} that are beaten" if len(front) < len(panel) else ""
        )
        first = panel[0]
        where = f"{theme.name(first['model'])} on {theme.name(first['device_name'] or 'unknown')}"
        parts.append(f"{where}, batch {first['batch']}: {', '.join(front)}{beaten}")
    return _sentence(
        "Networks that no other beats in measured inference speed and mean score", parts
    )
