"""Renders a picture as lines for a terminal of any size: parts that don't fit get fewer lines.

Each line is a `rich.text.Text` no wider than the screen, so the terminal wraps nothing. Text from
elsewhere is escaped (`printable`).

Scores against K have a row for each strategy and task, and a column for each K. The block before a
score is its height between the lowest and the highest mean of its model and task (at least 5 points
apart), so that a row can be read without colour; the colour repeats the loss against the best.
Without room for numbers, a row has only the blocks and the first and last mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from lp_sweep.orchestrator.plan.naming import short_model
from lp_sweep.orchestrator.watch.picture import Curve, Picture, Point, Slot, Waiting
from lp_sweep.storage.printable import clock, listed, printable

_WIDEST_BAR = 40
_FEWEST_RECENT = 1
_SLOTS_SHARE = 5  # slots get up to a fifth of the screen


class Screen:
    """The picture and the latest results, as a renderable."""

    def __init__(self, picture: Picture, recent: Sequence[Text] = ()) -> None:
        self._picture, self._recent = picture, recent

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Leaves the last line of the screen to the cursor."""
        yield from screen_lines(
            self._picture,
            self._recent,
            width=options.max_width,
            height=max(1, console.size.height - 1),
            ascii_only=options.ascii_only,
        )


class _Part(NamedTuple):
    """A part of the screen, in full and in as few lines as possible."""

    full: list[Text]
    folded: list[Text]


def screen_lines(
    picture: Picture, recent: Sequence[Text], *, width: int, height: int, ascii_only: bool
) -> list[Text]:
    """At most `height` lines of at most `width` characters. If there is no room, the latest
    results, the slots and the notes are folded, in this order, and then the scores are cut."""
    scored = with_scores(picture.curves)
    scores = curve_lines(scored, width=width, most=height, ascii_only=ascii_only)
    parts = {
        "head": _whole(_head(picture, width, ascii_only)),
        "slots": _slots(picture.slots, width, (_ASCII if ascii_only else _UNICODE).cut),
        "scores": _whole(scores),
        "notes": _Part(_notes(picture), []),
        "recent": _Part([*recent], [*recent][-_FEWEST_RECENT:]),
    }
    chosen = {name: part.full for name, part in parts.items()}
    folding = ["recent", "notes"]
    if len(parts["slots"].full) > height // _SLOTS_SHARE:
        folding.insert(1, "slots")
    for name in folding:
        if sum(map(len, chosen.values())) > height:
            chosen[name] = parts[name].folded
    rest = sum(len(lines) for name, lines in chosen.items() if name != "scores")
    chosen["scores"] = _cut(scores, len(scored), height - rest)
    lines = [line.copy() for part in chosen.values() for line in part][:height]
    for line in lines:
        line.no_wrap = True
        line.truncate(width, overflow="crop" if ascii_only else "ellipsis")
    return lines


def _notes(picture: Picture) -> list[Text]:
    unread = f"{picture.unread} records are still to be read" if picture.unread else ""
    lines = [Text(printable(note), style="yellow") for note in (unread, *picture.notes) if note]
    others = [name for name in picture.sweeps if name != picture.sweep]
    if others:
        lines.append(Text(f"--sweep shows another: {listed(others)}", style="dim"))
    return lines


def _whole(lines: list[Text]) -> _Part:
    return _Part(lines, lines)


def _cut(scores: list[Text], curves: int, room: int) -> list[Text]:
    """The heading, the first rows, and how many more there are."""
    if curves + 1 <= room:
        return scores
    if room < 3:  # a heading and a count alone say nothing
        return []
    more = curves - (room - 2)
    return [*scores[: room - 1], Text(f"and {more} more: lp-sweep table tasks", style="dim")]


def _head(picture: Picture, width: int, ascii_only: bool) -> list[Text]:
    ended, total = picture.done + picture.failed, picture.total
    name = Text(printable(picture.sweep), style="bold")
    name.truncate(max(10, width // 3))
    share = f" {ended}/{total}  {100 * ended // total if total else 100}%"
    room = min(_WIDEST_BAR, width - name.cell_len - len(share) - 2)
    bar = _bar(ended, total, room, ascii_only) if room >= 5 else Text()
    lines = [Text.assemble(name, "  ", bar, share)]
    lines += [*_packed(_state(picture), width), *_packed(_times(picture), width)]
    if picture.failures:
        told = "  ".join(f"{kind} {count}" for kind, count in picture.failures.items())
        lines.append(Text(f"failures: {printable(told)}", style="red"))
    if waiting := _waiting(picture.waiting, width):
        lines.append(Text(waiting))
    return lines


def _bar(ended: int, total: int, room: int, ascii_only: bool) -> Text:
    full = room * ended // total if total else room
    on, off = ("#", "-") if ascii_only else ("━", "─")
    return Text.assemble((on * full, "cyan"), (off * (room - full), "dim"))


def _state(picture: Picture) -> list[Text]:
    running = len(picture.running)
    parts = [Text(f"done {picture.done}"), Text(f"running {running}")]
    parts.append(Text(f"failed {picture.failed}", style="red" if picture.failed else "dim"))
    parts.append(Text(f"waiting {max(0, picture.left - running)}"))
    if deferred := picture.counts.get("cells_deferred", 0):
        parts.append(Text(f"deferred {deferred} cells"))
    return parts


def _times(picture: Picture) -> list[Text]:
    used = Text(f"{picture.slot_hours:.2f} slot-hours used")
    is_open = picture.left or picture.counts.get("cells_deferred", 0)
    if picture.elapsed is None:
        told = "no run is at work" if is_open else "ended" if picture.failed else "complete"
        return [Text(told, style="dim"), used]
    eta = f"ETA {picture.eta.text()}" if is_open else "nothing left, reading the results"
    return [Text(f"{clock(picture.elapsed)} elapsed"), Text(eta), used]


def _packed(parts: Iterable[Text], width: int) -> list[Text]:
    """Puts parts next to each other, in as few lines as possible."""
    lines: list[Text] = []
    for part in parts:
        if lines and lines[-1].cell_len + 2 + part.cell_len <= width:
            lines[-1] = Text.assemble(lines[-1], "  ", part)
        else:
            lines.append(part)
    return lines


def _waiting(waiting: Sequence[Waiting], width: int) -> str:
    """`waiting: rte 12  mrpc 9`, with the models if there are several and they fit."""
    by_task: dict[str, int] = {}
    for item in waiting:
        task = item.task or "speeds"
        by_task[task] = by_task.get(task, 0) + item.pieces
    short = "  ".join(f"{task} {count}" for task, count in by_task.items())
    if len({item.model for item in waiting}) > 1:
        long = "  ".join(
            f"{short_model(item.model)} {item.task or 'speeds'} {item.pieces}" for item in waiting
        )
        short = long if len(long) + len("waiting: ") <= width else short
    return f"waiting: {printable(short)}" if short else ""


def _slots(slots: Sequence[Slot], width: int, cut: str) -> _Part:
    if not slots:
        return _Part([], [])
    room = min(max(len(slot.place) for slot in slots), max(1, width // 4))
    busy = [slot for slot in slots if slot.work]
    longest = max(busy, key=lambda slot: slot.seconds or 0.0, default=None)
    told = f"slots: {len(busy)} of {len(slots)} busy"
    if longest is not None:
        told += f", the longest {clock(longest.seconds)} {longest.work}"
    return _Part([_slot(slot, room, width, cut) for slot in slots], [Text(printable(told))])


def _slot(slot: Slot, room: int, width: int, cut: str) -> Text:
    """One slot. Without room it omits the loss, then the beginning of the name, the model."""
    place = f"{printable(slot.place)[:room]:<{room}}  "
    if not slot.work:
        return Text.assemble(place, ("idle", "dim"))
    work, since = printable(slot.work), "" if slot.seconds is None else f"  {clock(slot.seconds)}"
    time, left = since, width - len(place) - cell_len(work)
    if slot.underway is not None:
        time = f"{since}  {slot.underway.text}"
        if cell_len(time) > left:
            time = f"{since}  {slot.underway._replace(loss=None).text}"
    if (over := cell_len(time) - left) > 0:
        work = cut + work[over + 1 :]
    return Text.assemble(place, work, time)


_TITLE = "score at K"
_LITTLE, _MUCH = 1.0, 5.0  # points below the best; less than much is not drawn as a height
_WIDEST_NAME, _WITH_SPREAD, _WITH_MEAN = 40, 13, 7  # characters


class _Glyphs(NamedTuple):
    blocks: str  # from low to high
    spread: str  # before a standard deviation
    cut: str  # in place of the rest of a name


_UNICODE, _ASCII = _Glyphs("▁▂▃▄▅▆▇█", "±", "…"), _Glyphs("01234567", "+-", "~")


class _Range(NamedTuple):
    """The lowest and highest mean of a model and task, at least 5 points apart."""

    low: float
    high: float

    def block(self, mean: float, blocks: str) -> str:
        if self.high == self.low:
            return blocks[-1]
        share = (mean - self.low) / (self.high - self.low)
        return blocks[round(share * (len(blocks) - 1))]

    def style(self, mean: float) -> str:
        """Cyan to yellow, which the colour-blind can tell apart."""
        lost = self.high - mean
        return "cyan" if lost <= _LITTLE else "" if lost <= _MUCH else "yellow"


def with_scores(curves: Sequence[Curve]) -> list[Curve]:
    """The curves that have a score."""
    return [curve for curve in curves if any(point.n for point in curve.points)]


def curve_lines(curves: Sequence[Curve], *, width: int, most: int, ascii_only: bool) -> list[Text]:
    """A heading and a row for each of the first `most` curves, at most `width` wide; [] without
    curves. `curves`: all must have scores."""
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
        among, own = ranges[curve.model, curve.task], [points.get(k) for k in ks]
        scores = _numbers(own, column, among, glyphs) if column else _blocks(own, among, glyphs)
        lines.append(Text.assemble(f"{_shortened(name, room, glyphs.cut):<{room}}  ", scores))
    return lines


def _names(curves: Sequence[Curve]) -> list[str]:
    several = len({curve.model for curve in curves}) > 1
    return [
        " ".join(
            [short_model(curve.model)] * several + [printable(f"{curve.task} {curve.strategy}")]
        )
        for curve in curves
    ]


def _shortened(name: str, room: int, mark: str) -> str:
    """Cuts a long name in the middle."""
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
    """`▇ 96.6±0.4`; a dot for a score that is still to come."""
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


def _blocks(points: Sequence[Point | None], among: _Range, glyphs: _Glyphs) -> Text:
    """`▇▇▆▅▂ 96.6 to 56.2`."""
    line = Text()
    for point in points:
        if point is None or point.mean is None:
            line.append(" " if point is None else ".", style="dim")
        else:
            block = among.block(point.mean, glyphs.blocks)
            line.append(block, style=among.style(point.mean))
    means = [point.mean for point in points if point is not None and point.mean is not None]
    return line.append(f" {means[0]:.1f}" + (f" to {means[-1]:.1f}" if len(means) > 1 else ""))
