"""The figures that are files: Figures 2 to 5 of Poor Man's BERT (Sajjad et al. 2020), other figures
layer by layer, and the plots of the page.

    rows = FIGURES["4"].rows(catalog)
    print(save("4", rows, folder) if rows else FIGURES["4"].needs)

A figure without numbers in the store is not drawn, never an empty frame; it says what it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure

from lp_sweep.analysis.figures import numbers, painters, plots
from lp_sweep.analysis.rows import Row
from lp_sweep.analysis.tables import TABLES
from lp_sweep.storage.catalog import Catalog
from lp_sweep.storage.errors import SpecError


class FigureDef(NamedTuple):
    title: str  # also for people who can't see it
    numbers: Callable[[Catalog], list[Row]]
    drawn_if: Callable[[Row], bool]  # of one row of its numbers
    paint: Callable[[Figure, Sequence[Row]], None]
    needs: str  # the numbers, and the setting that brings them

    def rows(self, catalog: Catalog) -> list[Row]:
        """The rows that it is drawn from; none if the store has too few numbers for it."""
        found = self.numbers(catalog)
        return found if any(map(self.drawn_if, found)) else []


def _selected(sql: str, **parameters: object) -> Callable[[Catalog], list[Row]]:
    return lambda catalog: catalog.query(sql, parameters).to_pylist()


def _has(column: str) -> Callable[[Row], bool]:
    return lambda row: row[column] is not None


def _by_strategy(models: str, *, six: bool) -> FigureDef:
    return FigureDef(
        title="Mean score over tasks, by strategy and layers dropped (procedure direct)",
        numbers=_selected(numbers.STRATEGIES, six=six),
        drawn_if=lambda row: row["k"] != 0 and row["mean"] is not None,
        paint=painters.strategies,
        needs=f"score on every task at one K, for {models}: see examples/poor-mans-bert.yaml",
    )


FIGURES = {
    "2": _by_strategy("a model without exactly 6 layers", six=False),
    "3": _by_strategy("a model of 6 layers", six=True),
    "4": FigureDef(
        title="Score of a linear classifier on each layer, mean over tasks",
        numbers=_selected(numbers.PROBES),
        drawn_if=_has("mean"),
        paint=painters.probes,
        needs="probes. Add `measure: {probes: full}`, as in examples/poor-mans-bert.yaml",
    ),
    "5": FigureDef(
        title="Similarity of pre-trained and fine-tuned layers, mean over tasks",
        numbers=_selected(numbers.SIMILARITY),
        drawn_if=_has("mean"),
        paint=painters.similarity,
        needs="similarity. Add `measure: {similarity: full}`, as in examples/poor-mans-bert.yaml",
    ),
    "score": FigureDef(
        title="Score by layers kept",
        numbers=_selected(numbers.NETWORKS),
        drawn_if=lambda row: row["k"] != 0,
        paint=partial(painters.of_tasks, make=plots.by_layers),
        needs="score with fewer layers, with all feed-forwards: see examples/poor-mans-bert.yaml",
    ),
    "pareto": FigureDef(
        title="Score against speed, or against size where no speed is measured",
        numbers=_selected(numbers.NETWORKS),
        drawn_if=lambda row: row["k"] != 0,
        paint=partial(painters.of_tasks, make=plots.by_cost),
        needs="score with fewer layers, nor a speed (`measure: {speed: cuda}`)",
    ),
    "candidates": FigureDef(
        title="Score against milliseconds and megabytes of networks as they are shipped",
        numbers=lambda catalog: TABLES["candidates"](catalog).long.to_pylist(),
        drawn_if=_has("ms"),
        paint=partial(
            painters.of_tasks,
            make=plots.of_candidates,
            keys=("model", "task", "device_name", "threads"),
            columns=2,
        ),
        needs="network measured as it is shipped. Add `deploy: [torch, onnx-int8]`, or measure "
        "one: `lp-sweep measure --task TASK`",
    ),
    "contribution": FigureDef(
        title="Mean cosine before and after each layer (high: it does little), and what a "
        "threshold keeps",
        numbers=_selected(numbers.CONTRIBUTION),
        drawn_if=lambda row: True,
        paint=painters.contribution,
        needs="contribution of layers. Add `{name: contribution, threshold: [0.95, 0.9]}` to the "
        "strategies",
    ),
    "cka": FigureDef(
        title="Linear CKA between layers: 1 is the same up to rotation and scale",
        numbers=_selected(numbers.CKA),
        drawn_if=_has("value"),
        paint=painters.cka,
        needs="CKA. Add `measure: {cka: full}`",
    ),
    "feed-forward-layers": FigureDef(
        title="Layers of networks with and without feed-forwards",
        numbers=_selected(numbers.FEED_FORWARD_LAYERS),
        drawn_if=_has("mean"),
        paint=painters.feed_forward_layers,
        needs="probes or CKA without some feed-forwards. Add `feed_forward: [none, top 3]` and "
        "`measure: {probes: [full, pruned], cka: pruned}`, as in examples/undivided-attention.yaml",
    ),
}


def save(
    name: str, rows: Sequence[Row], folder: Path, formats: Sequence[str] = painters.FORMATS
) -> list[Path]:
    """Writes `figure-<name>.<format>` for each format; the same numbers give the same bytes.

    Creates the folder if it is missing. Raises SpecError for a file that can't be written.
    """
    files = {kind: folder / f"figure-{name}.{kind}" for kind in formats}
    figure = FIGURES[name]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        painters.write(lambda drawn: figure.paint(drawn, rows), files, figure.title)
    except OSError as error:
        raise SpecError(
            f"can't write a figure into {folder}: {error}. Choose another folder."
        ) from error
    return list(files.values())


def save_all(
    catalog: Catalog, folder: Path, absent: Callable[[str], object] = lambda _: None
) -> list[Path]:
    """Writes each figure that the store has numbers for; `absent` receives what another needs.
    Raises SpecError."""
    files: list[Path] = []
    for name, figure in FIGURES.items():
        if rows := figure.rows(catalog):
            files += save(name, rows, folder)
        else:
            absent(f"figure {name}: no {figure.needs}")
    return files
