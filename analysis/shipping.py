"""Networks as they are shipped, in words: rows of `candidates` in, texts and sentences out."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from lp_sweep.analysis import phrases
from lp_sweep.analysis.rows import Row, grouped, picked
from lp_sweep.analysis.tabledef import TableCell
from lp_sweep.storage.printable import layers

_BUSY = 0.5  # cores, as in the view `speed_table`


def to_ship(rows: list[Row]) -> Iterator[str]:
    for sentence, command in choices(rows):
        yield sentence
        yield f"  {command}"


def choices(rows: list[Row]) -> Iterator[tuple[str, str]]:
    """The choice for each task, device and loss, and the command that exports it; losses with the
    same choice share a sentence."""
    devices = {(row["device_name"], row["threads"]) for row in rows}
    for row in rows:
        if row["chosen_within"]:
            on = f" on {row['device_name']}" if len(devices) > 1 else ""
            losses = chosen_within(row)
            points = "point" if losses == "1" else "points"
            sentence = f"{row['task']}{on}, within {losses} {points}: ship {shipped(row)}"
            yield sentence, row["command"]


def failures(rows: Sequence[Row], *_: Any) -> Iterator[str]:
    for row in rows:
        if row["error"]:
            network = f"{layers(row['kept_layers']).capitalize()} as {row['artefact']}"
            yield f"{network} failed: {row['error']}."


def other_seeds(rows: Sequence[Row], *_: Any) -> Iterator[str]:
    """Names the networks that were not trained with the full model's seed, as with `keep: best`."""
    for (_model, task), alike in grouped(rows, lambda row: picked(row, ("model", "task"))).items():
        whole = {row["seed"] for row in alike if row["n_kept"] == row["depth"]}
        other = dict.fromkeys(
            layers(row["kept_layers"]) for row in alike if row["seed"] not in whole
        )
        if whole and other:
            yield (
                f"{task}: not of the full model's seed: {'; '.join(other)}. Changes of the same "
                "seed, and means over seeds: lp-sweep table tasks."
            )


def nothing_fits(rows: Sequence[Row], *_: Any) -> Iterator[str]:
    """Names what comes closest for each task, device and loss without a choice."""
    near = [(loss, row) for row in rows for loss in row["nearest_within"]]
    for (loss, *_place, task), found in grouped(near, _limit_of).items():
        told = "; ".join(shipped(row) + _as_torch(row) for _loss, row in found)
        limit = phrases.points(loss)
        yield f"Nothing on {task} loses at most {limit} within the budget. Nearest: {told}."


def _as_torch(row: Row) -> str:
    """`, as torch −1.50`, where that is what counts."""
    counts = row["loses"] + row["change"] > 0.005
    return f", as torch {phrases.signed(-row['loses'])}" if counts else ""


def _limit_of(near: tuple[float, Row]) -> tuple[Any, ...]:
    return near[0], *picked(near[1], ("model", "device_name", "threads", "task"))


def shipped(row: Row) -> str:
    """`layers 1,3,5-6 as onnx-int8: 85.42 (full model 86.72: −1.30, 95% −1.70 to −0.90), 1.5 ms
    (10.2 times as fast), 19.5 MB (21%)`. The full model is in fp32, whatever it was trained in."""
    change = f"full model {row['score'] - row['change']:.2f}: {phrases.signed(row['change'])}"
    if row["reason"] is None:
        change += f", 95% {phrases.signed(row['low'])} to {phrases.signed(row['high'])}"
    return (
        f"{layers(row['kept_layers'])} as {row['artefact']}: {row['score']:.2f} ({change}), "
        f"{milliseconds(row['ms'])} ({row['times_as_fast']:.1f} times as fast), "
        f"{row['mb']:.1f} MB ({percent_of(row['share_of_size'])})"
    )


def form(row: Row) -> str:
    """`onnx-int8 texts`: shorter than the artefact, so that a candidate is one line of a screen."""
    return str(row["artefact"]).replace("task and texts", "texts").replace(",", "")


def one_text(row: Row) -> TableCell:
    """`1.11`"""
    disturbed = row["ms"] is not None and is_disturbed(row)
    task = shlex.quote(row["task"])
    again = f"{phrases.DISTURBED[:-1]}: lp-sweep measure --task {task} --again."
    return TableCell("" if row["ms"] is None else f"{row['ms']:.3g}", (again,) * disturbed)


def is_disturbed(row: Row) -> bool:
    return (row["others_busy_cores"] or 0) > _BUSY


def served_by(row: Row) -> str:
    return f"{row['device_name']}, {row['threads']} thread{'s' * (row['threads'] > 1)}"


def milliseconds(value: float) -> str:
    return f"{value:.3g} ms" if value < 100 else f"{value:,.0f} ms"


def percent_of(share: float | None) -> str:
    return "?" if share is None else f"{100 * share:.0f}%"


def chosen_within(row: Row) -> str:
    """`1, 2`: the allowed losses whose choice it is."""
    return ", ".join(f"{loss:g}" for loss in row["chosen_within"])
