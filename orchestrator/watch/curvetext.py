"""Scores against K as lines of text: a row for each strategy and task, a column for each K.

A block before each number is its height between the lowest and the highest mean of its model and
task (5 points apart at least), so that a row reads without colour; colour says the same once more:
how much is lost of the best. Where numbers have no room there are the blocks alone, with the first
and the last mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rich.text import Text

from lp_sweep.orchestrator.plan.words import short_model
from lp_sweep.orchestrator.watch.picture import Curve, Point
from lp_sweep.storage.printable import printable

_TITLE = "score at K"
_LITTLE, _MUCH = 1.0, 5.0  # points below the best; less than much is not drawn as a height
_WIDEST_NAME, _WITH_SPREAD, _WITH_MEAN = 40, 13, 7  # characters


class _Glyphs(NamedTuple):
    """`blocks`: from low to high; `spread`: before a standard deviation; `cut`: of a long name."""

    blocks: str
    spread: str
    cut: str


_UNICODE, _ASCII = _Glyphs("▁▂▃▄▅▆▇█", "±", "…"), _Glyphs("01234567", "+-", "~")


class _Range(NamedTuple):
    """Of all means of a model and task, and no narrower than is worth a look."""

    low: float
    high: float

    def block(self, mean: float, blocks: str) -> str:
        if self.high == self.low:
            return blocks[-1]
        share = (mean - self.low) / (self.high - self.low)
        return blocks[round(share * (len(blocks) - 1))]

    def style(self, mean: float) -> str:
        """Blue to orange, which the colour-blind tell apart."""
        lost = self.high - mean
        return "cyan" if lost <= _LITTLE else "" if lost <= _MUCH else "yellow"


def with_scores(curves: Sequence[Curve]) -> list[Curve]:
    """Those that have a score by now."""
    return [curve for curve in curves if any(point.n for point in curve.points)]


def curve_lines(curves: Sequence[Curve], *, width: int, most: int, ascii_only: bool) -> list[Text]:
    """A heading and a row for each of the first `most` curves, none longer than `width`; [] without
    a curve. `curves`: `with_scores`."""
    if not curves:
        return []
    glyphs, ranges = _ASCII if ascii_only else _UNICODE, _ranges(curves)
    names = _names(curves)
    longest = max(map(len, (_TITLE, *names)))
    room = min(longest, _WIDEST_NAME, width // 2)
    ks = sorted({point.k for curve in curves for point in curve.points})
    column = next((w for w in (_WITH_SPREAD, _WITH_MEAN) if room + 2 + w * len(ks) <= width), 0)
    lines = [Text(f"{_TITLE:<{room}}  {_heading(ks, column)}".rstrip(), style="dim")]
    for name, curve in zip(names[:most], curves, strict=False):
        points = {point.k: point for point in curve.points}
        row = _numbers if column else _blocks
        scores = row([points.get(k) for k in ks], column, ranges[curve.model, curve.task], glyphs)
        lines.append(Text.assemble(f"{_cut(name, room, glyphs.cut):<{room}}  ", scores))
    return lines


def _names(curves: Sequence[Curve]) -> list[str]:
    several = len({curve.model for curve in curves}) > 1
    return [
        " ".join(
            [short_model(curve.model)] * several + [printable(f"{curve.task} {curve.strategy}")]
        )
        for curve in curves
    ]


def _cut(name: str, room: int, mark: str) -> str:
    """Both ends of a name tell the most."""
    if len(name) <= room:
        return name
    half = (room - 1) // 2
    return name[: room - 1 - half] + mark + name[len(name) - half :]


def _ranges(curves: Sequence[Curve]) -> Mapping[tuple[str, str], _Range]:
    means: dict[tuple[str, str], list[float]] = {}
    for curve in curves:
        of_task = means.setdefault((curve.model, curve.task), [])
        of_task += [point.mean for point in curve.points if point.mean is not None]
    return {
        key: _Range(min(*of_task, max(of_task) - _MUCH), max(of_task))
        for key, of_task in means.items()
    }


def _heading(ks: Sequence[int], column: int) -> str:
    if not column:
        return f"{ks[0]} to {ks[-1]}, a block each"
    return "".join(f"{k:>{_WITH_MEAN - 1}}{' ' * (column - _WITH_MEAN + 1)}" for k in ks)


def _numbers(points: Sequence[Point | None], column: int, among: _Range, glyphs: _Glyphs) -> Text:
    """`▇ 96.6±0.4`; a dot is asked for and still to come."""
    line = Text()
    for point in points:
        if point is None or point.mean is None:
            mark = "" if point is None else "."
            line.append(f"{mark:>{_WITH_MEAN - 1}}{' ' * (column - _WITH_MEAN + 1)}", style="dim")
            continue
        block = among.block(point.mean, glyphs.blocks)
        line.append(f"{block}{point.mean:5.1f}", style=among.style(point.mean))
        told = column > _WITH_MEAN and point.sd is not None
        spread = f"{glyphs.spread}{point.sd:.1f}" if told else ""
        line.append(f"{spread:<{column - _WITH_MEAN + 1}}", style="dim")
    return line


def _blocks(points: Sequence[Point | None], column: int, among: _Range, glyphs: _Glyphs) -> Text:
    """`▇▇▆▅▂ 96.6 to 56.2`."""
    del column
    line = Text()
    for point in points:
        if point is None or point.mean is None:
            line.append(" " if point is None else ".", style="dim")
        else:
            block = among.block(point.mean, glyphs.blocks)
            line.append(block, style=among.style(point.mean))
    means = [point.mean for point in points if point is not None and point.mean is not None]
    return line.append(f" {means[0]:.1f}" + (f" to {means[-1]:.1f}" if len(means) > 1 else ""))
