"""The figures from a store: their numbers against sums by hand, and files that never change."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lp_sweep.analysis.figures import numbers, plots
from lp_sweep.analysis.figures.drawings import FIGURES, picture, save, save_all
from lp_sweep.analysis.rows import grouped
from lp_sweep.analysis.views import open_views
from lp_sweep.storage.catalog import Catalog
from lp_sweep.storage.errors import SpecError
from tests.support.fake_records import FakeSweep
from tests.support.measured import (
    DEEP,
    SIX,
    measured_speeds,
    pruned_networks,
    put_profile,
    whole_networks,
    without_feed_forwards,
)

matplotlib = pytest.importorskip("matplotlib")
Figure = pytest.importorskip("matplotlib.figure").Figure


DRAWN = ("2-3", "4")


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Catalog]:
    fake = FakeSweep(tmp_path_factory.mktemp("figures") / "store")
    whole_networks(fake)
    pruned_networks(fake)
    without_feed_forwards(fake)
    measured_speeds(fake)
    with open_views(fake.publish()) as opened:
        yield opened


@pytest.fixture(scope="module")
def folder(catalog: Catalog, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few: drawing takes long."""
    folder = tmp_path_factory.mktemp("drawn") / "new"
    for name in DRAWN:
        assert len(save(name, catalog, folder)) == 2
    return folder


def only(rows: Any, **wanted: Any) -> dict[str, Any]:
    """The one row with these values."""
    found = [
        row for row in rows.to_pylist() if all(row[key] == value for key, value in wanted.items())
    ]
    assert len(found) == 1, found
    return dict(found[0])


def has(rows: pa.Table, where: dict[str, Any], **expected: Any) -> None:
    row = only(rows, **where)
    assert {name: row[name] for name in expected} == pytest.approx(expected), where


def test_lines_over_tasks_and_seeds(catalog: Catalog) -> None:
    """A level for all layers; none for a strategy with a cell that has no score."""
    both = catalog.query(numbers.STRATEGIES)
    six, rows = (
        both.filter(pc.field("panel") == f"{model} ({depth} layers)")
        for model, depth in ((SIX, 6), (DEEP, 8))
    )
    whole, sd = (91 + 92 + 81 + 82) / 4, math.sqrt(0.5)  # 86 and 87
    has(rows, {"line": "all layers"}, x=None, y=whole, low=whole - sd, high=whole + sd)
    has(rows, {"line": "top"}, x=2, y=73)
    has(rows, {"line": "contribution"}, x=1.5, y=60)  # K differs by task
    assert (rows.num_rows, both.num_rows) == (3, 5)
    assert six["x"].to_pylist() == [None, 1]
    top = {"model": DEEP, "strategy": "top", "task": "SST-2", "k": 2}
    has(catalog.query(numbers.NETWORKS), top, mean=73, n_seeds=2, sd=math.sqrt(2))


def test_numbers_of_layers(catalog: Catalog) -> None:
    """The mean of the main metric over tasks."""
    rows, whole = catalog.query(numbers.PROBES), {"line": f"all layers: {DEEP}, tasks: 2"}
    has(rows, whole | {"x": 4}, y=(45 + 40) / 2 + 4 + 3, low=48.5, high=50.5)
    has(rows, whole | {"x": 3}, y=(45 + 40) / 2 + 3 + 4)  # the other seed lacks a task
    has(rows, {"line": f"pre-trained: {SIX}, tasks: 2"}, x=2, y=50)
    rows = catalog.query(numbers.SIMILARITY)
    eighth = {"line": f"all layers: {DEEP}, tasks: 2", "x": 8}
    has(rows, eighth | {"panel": "sentence token"}, y=0.95 - 8 * 0.05 - 0.015)
    has(rows, eighth | {"panel": "per-text token mean"}, y=0.95 - 8 * 0.02 - 0.015)
    rows = catalog.query(numbers.CKA)
    panel = {"panel": f"{DEEP} (8 of 8 layers)\nlayer outputs, x: pre-trained"}
    has(rows, panel | {"y": 1}, value=0.375)
    has(rows, panel | {"y": 0}, value=None)


def test_layers_with_and_without_feed_forwards(catalog: Catalog) -> None:
    rows = catalog.query(numbers.FEED_FORWARD_LAYERS)
    panels = {panel.split("\n")[1]: panel for panel in rows["panel"].to_pylist()}
    probes, attention = (
        panels["classifier on the layer (points)"],
        panels["attention outputs (CKA)"],
    )
    assert set(panels.values()) == {probes, attention}, "no network of the other lacks one"
    assert all(SIX in panel for panel in panels.values())
    has(rows, {"panel": probes, "x": 4, "line": "top 3 removed, tasks: 2"}, y=40)
    has(rows, {"panel": probes, "x": 4, "line": "none removed, tasks: 2"}, y=(35 + 30) / 2 + 4 + 3)
    has(rows, {"panel": attention, "x": 1}, y=0.13)  # with the full network of its seed


def rows_of(fake: FakeSweep) -> list[Any]:
    """Its networks, with the speeds of the first device and batch."""
    read = ("cells", "trials", "task_table", "speed_table", "min_layers")
    with open_views(fake.publish(), deltas=(1, 5), only=read) as opened:
        return opened.query(numbers.NETWORKS).to_pylist()


def test_the_draws_of_random_are_one_series_of_dots(fake: FakeSweep) -> None:
    fake.cell(k=0, score=90.0)
    for draw, dropped in enumerate([(3, 5), (2, 8)]):
        fake.cell(k=2, strategy=f"random {draw}", dropped=dropped, score=88.0 + draw)
    [plot] = plots.by_layers(rows_of(fake))
    assert [*series_of(plot)] == ["all layers", "random"]
    assert sorted((mark.x, mark.y) for mark in plot.marks) == [(10, 88), (10, 89), (12, 90)]
    axes = painted(plot)
    assert {line.get_linestyle() for line in axes.lines if line.get_label() == "random"} == {"None"}


def series_of(plot: plots.Plot) -> dict[str, list[tuple[float, float]]]:
    named = grouped(plot.marks, lambda mark: mark.name)
    return {name: [(mark.x, mark.y) for mark in marks] for name, marks in named.items()}


def painted(plot: plots.Plot) -> Any:
    axes = Figure().subplots()
    plots.paint(axes, plot)
    return axes


def test_a_plot_is_zoomed_to_the_answer_and_counts_the_rest(fake: FakeSweep) -> None:
    fake.curve({0: 99.9, 2: 100.0, 4: 97.0, 8: 40.0})
    fake.cell(k=6, score=99.6, procedure="iterative")
    fake.cell(k=0, score=99.9, procedure="iterative")
    rows = rows_of(fake)
    rows[-1]["mean"] += 1e-13  # the last bit of a mean, which threads add up in any order
    [plot] = plots.by_layers(rows)
    assert [mark.x for mark in plot.marks].count(12) == 1, "all layers are one network"
    assert plot.below == 1, "far below the allowed losses"
    (answer,) = [mark for mark in plot.marks if mark.label]
    assert (answer.x, answer.y, answer.label) == (6, 99.6, "6 of 12 (−0.30)")
    assert "layers 1-6, top, iterative: 99.60 (−0.30), one seed" in answer.tip
    axes = painted(plot)
    low, high = axes.get_ylim()
    assert 80 < low < 97, "the answer, of whatever procedure, is in"
    assert high > 100, "no dot is cut at 100"
    assert "1 lower, not shown" in axes.get_legend_handles_labels()[1]
    shown = picture(plot)
    places = {tip: (x, y) for x, y, tip in shown["spots"]}
    x, y = places[answer.tip]
    assert 0 < x < shown["width"]
    assert 0 < y < max(y for _, y in places.values()) < shown["height"]


def test_where_nothing_is_near_the_allowed_loss_the_best_network_is_shown(fake: FakeSweep) -> None:
    fake.curve({0: 90.0, 2: 40.0, 4: 30.0})
    [plot] = plots.by_layers(rows_of(fake))
    assert (sorted(mark.y for mark in plot.marks), plot.below) == ([40, 90], 1)


def test_speeds_are_of_one_device(fake: FakeSweep) -> None:
    fake.curve({0: 90.0, 2: 85.0, 4: 84.0, 6: 82.9})
    fake.cell(k=4, strategy="bottom", score=86.0)
    for kept, speedup in (((1, 10), 1.2), ((1, 8), 1.5), ((5, 12), 1.4), ((1, 6), 1.9)):
        layers = list(range(kept[0], kept[1] + 1))
        fake.speed(1.0, speedup, kept_layers=layers)
    fake.speed(1.0, 9.0, device_name="another", batches=(8,))
    [plot] = plots.by_speed(rows_of(fake))
    assert {(round(mark.x, 2), mark.y) for mark in plot.marks} == {
        (1, 90),  # timed beside the others: it has no measurement of its own
        (1.2, 85),
        (1.5, 84),
        (1.4, 86),
        (1.9, 82.9),
    }
    assert "speed" in plot.x_label


def test_without_a_speed_of_the_answer_there_is_no_plot_of_speeds(fake: FakeSweep) -> None:
    fake.curve({0: 90.0, 2: 91.0, 4: 89.5})
    fake.speed(1.0, 1.2, kept_layers=list(range(1, 11)))
    assert plots.by_speed(rows_of(fake)) == []


def test_candidates_by_milliseconds_and_megabytes() -> None:
    row = {
        **{"task": "a", "metric": "accuracy", "vocabulary": "full", "error": None, "mb": 90.0},
        **{"device_name": "EPYC", "threads": 1, "reason": "one", "share_of_size": 1.0, "ms": 10.0},
        **{"kept_layers": [1, 2], "artefact": "torch", "format": "torch", "score": 90.0},
        **{"change": 0.0, "times_as_fast": 1.0, "chosen_within": [], "nearest_within": []},
    }
    small = {"artefact": "onnx-int8, task", "format": "onnx-int8", "vocabulary": "task"}
    chosen = {**row, **small, "ms": 1.0, "mb": 9.0, "score": 89.5, "change": -0.5}
    worse = {**row, "ms": 12.0, "score": 20.0, "change": -70.0}
    failed = {**row, "error": "it broke", "ms": None, "score": None, "change": None}
    rows = [row, {**chosen, "chosen_within": [1.0]}, worse, failed]
    ms, mb = plots.of_candidates(rows)
    assert series_of(ms) == {"torch": [(10, 90)], "onnx-int8 task": [(1, 89.5)]}
    assert [mark.label for mark in mb.marks] == ["", "layers 1-2"]
    assert (ms.below, painted(ms).get_xscale()) == (1, "log")
    assert plots.of_candidates([failed]) == []


def test_learning_curves_are_of_trials_with_several_epochs() -> None:
    names = ("all layers, seed 1", "4 of 6 layers, seed 1")
    rows: list[dict[str, Any]] = [
        {"task": "sst2", "metric": "accuracy", "line": line, "epoch": epoch, "score": 80.0 + epoch}
        for line in names
        for epoch in (1, 2, 3)
    ]
    (plot,) = plots.by_epoch(rows)
    assert series_of(plot) == {name: [(1, 81), (2, 82), (3, 83)] for name in names}
    assert plot.marks[0].tip == "all layers, seed 1, epoch 1: 81.00"
    assert plots.by_epoch(rows[:1]) == plots.by_epoch([]) == []


def test_every_figure_is_there(catalog: Catalog) -> None:
    for figure in FIGURES.values():
        rows = figure.rows(catalog)
        assert rows
        figure.paint(Figure(), rows)


def test_files_stay_the_same(catalog: Catalog, folder: Path, tmp_path: Path) -> None:
    def settings_now() -> dict[str, Any]:
        """But for the backend: asking for it loads pyplot."""
        return {key: matplotlib.rcParams[key] for key in matplotlib.rcParams if key != "backend"}

    settings = settings_now()
    with matplotlib.rc_context({"lines.linewidth": 9, "svg.fonttype": "path", "font.size": 30}):
        for path in save("4", catalog, tmp_path):
            assert path.read_bytes() == (folder / path.name).read_bytes(), path.name
    assert settings_now() == settings
    assert "matplotlib.pyplot" not in sys.modules


def test_names_are_written_as_they_are(folder: Path) -> None:
    for name in DRAWN:
        text = (folder / f"figure-{name}.svg").read_text(encoding="utf-8")
        assert all(model in text for model in (DEEP, SIX))
        assert "<dc:date>" not in text
        says_which = "procedure direct" in text.split("</metadata>")[1]
        assert says_which == (name == "2-3")


def test_an_empty_store_has_no_figure_and_says_what_brings_it(tmp_path: Path) -> None:
    with open_views(FakeSweep(tmp_path).publish()) as empty:
        told: list[str] = []
        assert save_all(empty, tmp_path / "figures", told.append) == []
    for name, text in zip(FIGURES, told, strict=True):
        assert text.startswith(f"figure {name}: no ")
        examples = re.findall(r"examples/[a-z-]+\.yaml", text)
        assert examples or re.search(r"`.*\w+: .+`", text), "what to add"
        assert all((Path(__file__).parents[2] / example).is_file() for example in examples)


def test_a_figure_of_pending_cells_or_of_another_procedure_is_none(fake: FakeSweep) -> None:
    for depth in (6, 12):
        fake.cell(k=2, depth=depth)
        fake.cell(strategy="contribution", threshold=0.9, state="deferred", depth=depth)
    fake.cells.append({**fake.cells[0], "feed_forward": "top 3", "cell": len(fake.cells)})
    for feed_forward in ("none", "top 3"):
        row = fake.cell(k=2 + 2 * (feed_forward == "none"), score=80.0, procedure="iterative")
        row["feed_forward"] = feed_forward
        for measure, name in (("probes", "accuracy"), ("similarity", "tokens"), ("cka", "layer")):
            put_profile(fake, measure, [(name, 1, 1, 0.5)], row)
    with open_views(fake.publish()) as catalog:
        assert not any(figure.rows(catalog) for figure in FIGURES.values())


def test_a_figure_that_can_not_be_written_says_why(catalog: Catalog, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SpecError, match=r"can't write a figure into .*file"):
        save("2-3", catalog, tmp_path / "file")
