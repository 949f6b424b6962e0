"""Makes text from any source (names, values, messages) safe for messages and screens."""

from __future__ import annotations

import difflib
import os
import re
import sys
import textwrap
import threading
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

_SLOW_SECONDS = 0.7  # a step that takes longer is announced
_WIDEST = 80  # characters of a value in a message
_BACKTICKED = re.compile(r"`[^`\n]*`")


def printable(text: str, *, keep: str = "") -> str:
    """Escapes (`\\x1b`) control characters, bidirectional overrides, surrogates and line breaks,
    except those in `keep`."""
    if text.isprintable():
        return text
    if keep:  # parts between what is kept are mostly plain: faster than letter by letter
        return keep[0].join(printable(part, keep=keep[1:]) for part in text.split(keep[0]))
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def page(lines: Iterable[str]) -> str:
    """Joins lines. Whatever a line quotes (a name, a path, a message) stays in that line."""
    return "\n".join(map(printable, lines))


def shown(value: Any) -> str:
    """A value as quoted in a message: its repr, in one line of bounded length."""
    try:
        text = repr(value[: 2 * _WIDEST] if isinstance(value, str | bytes) else value)
    except ValueError:  # a whole number of thousands of digits
        text = f"a huge {type(value).__name__}"
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 3]}..."


def short(text: str, most: int = 300) -> str:
    """Shortens text, such as a library's error, to one line of bounded length."""
    line = printable(text[: 2 * most])
    return line if len(line) <= most else f"{line[: most - 3]}..."


def listed(names: Iterable[object], most: int = 20) -> str:
    """Joins names with commas, at most `most` of them."""
    parts = [short(str(name), _WIDEST) for name in names]
    return ", ".join(parts[:most]) + (", ..." if len(parts) > most else "")


def ranges(layers: Sequence[int], most: int | None = None) -> str:
    """`1-4,6` for (1, 2, 3, 4, 6); `1,3,...` for more than `most` parts."""
    texts = [str(a) if a == b else f"{a}-{b}" for a, b in spans(layers)]
    return ",".join(texts if most is None or len(texts) <= most else [*texts[:most], "..."])


def layers(numbers: Sequence[int], most: int | None = None) -> str:
    """`layers 1-4,6`, `layer 6`"""
    return f"layer{'s' * (len(numbers) > 1)} {ranges(numbers, most)}"


def spans(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """The first and the last of each run of numbers that follow one another."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        follows = found and found[-1][1] == number - 1
        found.append((found.pop()[0] if follows else number, number))
    return found


_SAYS_NOTHING = ("", ".", "..", "~", "model", "checkpoint", "encoder")  # parts of a path


def short_model(name: str) -> str:
    """A hub id as it is; the id in a path of the hub's cache; of another folder the last part that
    says something."""
    parts = printable(name).rstrip("/").split("/")
    cached = [part for part in parts[:-2] if part.startswith("models--")]
    if cached:
        return cached[-1].removeprefix("models--").replace("--", "/")
    is_id = len(parts) <= 2 and parts[0] not in ("", ".", "..", "~")
    telling = [part for part in parts if part not in _SAYS_NOTHING] or parts
    return "/".join(parts) if is_id else telling[-1]


def short_models(names: Iterable[str]) -> dict[str, str]:
    """A short name for each model. Two that would have the same keep theirs."""
    short = {name: short_model(name) for name in names}
    often = Counter(short.values())
    return {name: own if often[own] == 1 else name for name, own in short.items()}


def clock(seconds: float | None) -> str:
    """`1:02:03`, `2:03`, or `--` when unknown."""
    if seconds is None:
        return "--"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def say(text: str) -> None:
    """Prints a note or a warning to stderr, in one line."""
    print(on_terminal(printable(text), sys.stderr), file=sys.stderr, flush=True)


@contextmanager
def said_if_slow(
    tell: Callable[[str], None], what: str, *, after: float = _SLOW_SECONDS, in_logs: bool = False
) -> Iterator[None]:
    """Announces a step that takes longer than `after` seconds: on a terminal, or everywhere."""
    if not (in_logs or sys.stderr.isatty()):
        yield
        return
    timer = threading.Timer(after, tell, [what])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def on_terminal(text: str, stream: TextIO) -> str:
    """Breaks long lines between words if the stream is a terminal. A line with a command stays
    whole, to be copied; a command in `backticks` counts as one word."""
    try:
        width = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):  # a file, a pipe, a test's stream
        return text
    if not width:  # unknown, as under `ssh -tt` from a script
        return text
    return "\n".join(broken(line, width) for line in text.split("\n"))


def broken(line: str, width: int) -> str:
    """Breaks a line as `on_terminal` does."""
    glued = _BACKTICKED.sub(lambda quoted: quoted[0].replace(" ", "\0"), line)
    if len(line) <= width or "lp-sweep " in glued:
        return line
    hanging = " " * (len(line) - len(line.lstrip()) + 2)
    whole = textwrap.TextWrapper(
        width, subsequent_indent=hanging, break_long_words=False, break_on_hyphens=False
    )
    return whole.fill(glued).replace("\0", " ")


# -- words that several rooms use


# letters and marks that are drawn alike: Cyrillic, Greek, dashes, quotation marks
_TWINS = str.maketrans(
    "АВЕЅІЈКМНОРСТУХаеѕіјорсухΑΒΕΖΗΙΚΜΝΟΡΤΥΧο‐‒–—−‘’“”",
    "ABESIJKMHOPCTYXaesijopcyxABEZHIKMNOPTYXo-----''\"\"",
)
# drawn as nothing: control and format characters, variation selectors, fillers. Not tags, which
# tell flags apart
_UNSEEN = re.compile("[\\u034f\\u115f\\u1160\\u180b-\\u180d\\ufe00-\\ufe0f]")


def look(name: str) -> str:
    """A name as a reader sees it: equal for names that differ only in blanks, in characters that
    are not drawn or are drawn alike, in how accents or wide letters are coded, or as 1, +1, 1.0."""
    if not name.isascii():
        name = _UNSEEN.sub("", unicodedata.normalize("NFKC", name).translate(_TWINS))
    if not name.isprintable():
        name = "".join(
            c for c in name if c.isspace() or unicodedata.category(c)[0] != "C" or c > "\U000e0000"
        )
    name = " ".join(name.split())
    return re.sub(r"^\+?(-?(0|[1-9]\d*))(\.0+)?$", r"\1", name)


def nearest(name: str, allowed: Iterable[str]) -> str | None:
    """The name that was probably meant; None if none is similar. The beginning of one name alone
    (`acc`) means that name."""
    name, names = {"gpu": "cuda"}.get(name, name), list(allowed)
    if alike := [other for other in names if look(other).casefold() == look(name).casefold()]:
        return alike[0]
    longer = [other for other in names if name and other.startswith(name)]
    near = difflib.get_close_matches(name[:80], names, n=1, cutoff=0.6)
    near = longer if len(longer) == 1 else near
    return near[0] if near else None


def did_you_mean(name: str, allowed: Iterable[str]) -> str:
    """` Did you mean 'bottom'?`, or "" if no name is similar."""
    near = nearest(name, allowed)
    if near and look(near) == look(name):  # the two must not be printed alike
        return f" Did you mean {near!a}, not {name!a}?"
    return f" Did you mean {near!r}?" if near else ""


def choose(what: str, name: str, allowed: Iterable[str], *, given: str | None = None) -> str:
    """Returns `name` if it, or its canonical form `given`, is allowed.

    Raises ValueError with the allowed names and a similar one.
    """
    names = list(allowed)
    if (given or name) in names:
        return name
    raise ValueError(
        f"unknown {what} {shown(name)}. Choose one of: {', '.join(names)}."
        f"{did_you_mean(name, names)}"
    )


_GUESSES = {  # by kind of task
    "classification": "the majority class",
    "multi_label": "the best fixed set of labels",
    "tokens": "the most frequent tag",
    "ranking": "a random order",
    "regression": "a constant prediction",
    "embedding": "a constant prediction",
}
_KINDS = {  # by metric, for records without the kind
    **{"ndcg@10": "ranking", "mrr@10": "ranking", "entity_f1": "tokens"},
    **{"micro_f1": "multi_label", "pearson": "regression", "spearman": "regression"},
}


def guess_name(kind: str | None, metric: str | None = None) -> str:
    """`the majority class`: the trivial answer that a network of this kind of task has to beat."""
    return _GUESSES[kind if kind in _GUESSES else _KINDS.get(metric or "", "classification")]


def metric_name(metric: str, positive: str | None) -> str:
    """`f1 of 'fraud'`: the metric, and the class it scores if the task names one."""
    return f"{metric} of {positive!r}" if positive else metric


def also_in_train(rows: int, relabelled: int | None, of: int) -> str:
    """`37 of 500 dev rows also occur in train, 2 of them with another label.`"""
    other = f", {relabelled:,} of them with another label" if relabelled else ""
    return f"{rows:,} of {of:,} dev rows also occur in train{other}. Scores on them are optimistic."
