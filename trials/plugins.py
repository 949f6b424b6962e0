"""Strategies and metrics of the user's own, from a file that his sweep file names.

    plugins: [my.py]          # in the sweep file

    from lp_sweep import metric, strategy          # my.py

    @strategy
    def outer(depth, k): ...    # the layers that stay

    @metric
    def cost(labels, predictions): ...    # 0 to 100

Such a file is code, which `load` runs: only for a sweep file that the user has named, and on the
workers of its run. A store holds a copy to read, and nothing runs that.
"""

from __future__ import annotations

import hashlib
import inspect
import linecache
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from lp_sweep.storage.errors import SpecError
from lp_sweep.storage.printable import choose
from lp_sweep.trials.spec.scoring import METRIC_FACTS, MetricFacts
from lp_sweep.trials.spec.select import STRATEGIES, Strategy, kept_layers

GROUP = "lp_sweep.plugins"  # of entry points
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,99}")
_BUILT_IN = {*STRATEGIES, *METRIC_FACTS}
_PROFILES = ("block_influence", "contribution")  # measurements with a value for each layer
_FILES: dict[str, tuple[str, str]] = {}  # module -> the name and text of its file


def strategy(
    function: Callable[..., Sequence[int] | None] | None = None,
    *,
    name: str = "",
    measure: str = "",
) -> Any:
    """Declares `function(depth, k)`, which returns the `depth - k` layers that stay, numbered from
    1, or None where that K is impossible. With `measure` ("block_influence" or "contribution") it
    is `function(depth, k, profile)`, and `profile` has the value of each layer. Its name is the
    function's, or `name`. Raises SpecError."""
    if function is None:
        return partial(strategy, name=name, measure=measure)
    named = _named(function, name)

    @cache
    def dropped(depth: int, k: int) -> tuple[int, ...] | None:
        return gone(depth, k) if k else ()

    def gone(depth: int, k: int, *profile: Mapping[int, float]) -> tuple[int, ...] | None:
        with _said(f"strategy {named!r} of {depth} layers at K={k}"):
            found = function(depth, k, *profile)
            layers = {int(layer) for layer in (() if found is None else found)}
        none = "" if profile else ", or None"
        if found is None and none:
            return None
        if len(layers) != depth - k or not layers <= {*range(1, depth + 1)}:
            raise SpecError(
                f"strategy {named!r} keeps {sorted(layers)} of {depth} layers at K={k}: return "
                f"{depth - k} different numbers from 1 to {depth}{none}."
            )
        return kept_layers(depth, [*layers])  # the others

    text = (inspect.getdoc(function) or "a strategy of your own").splitlines()[0]
    if measure:
        _chosen_from("measurement of layers", measure, _PROFILES)
        STRATEGIES[named] = Strategy(
            text,
            measure=measure,
            chosen=lambda found, k: gone(len(found.layers), int(k), found.layers) or (),
        )
    else:
        STRATEGIES[named] = Strategy(
            text,
            lambda depth, k: dropped(depth, k) or (),
            lambda depth: tuple(k for k in range(depth) if dropped(depth, k) is not None),
            "as its function says",
        )
    return function


def metric(function: Callable[[Any, Any], float] | None = None, *, name: str = "") -> Any:
    """Declares `function(labels, predictions)`, which returns a score from 0 to 100, the higher the
    better. Both are arrays: (n,) classes from 0 or numbers, or (n, labels) marks and logits of
    multi_label. Its name is the function's, or `name`; its source is part of a trial's identifier.
    Raises SpecError."""
    if function is None:
        return partial(metric, name=name)
    named = _named(function, name)
    if function.__module__ == "__main__":
        raise SpecError(
            f"metric {named!r}: workers need its file. Write it in one of its own, and name "
            "that: `plugins: [my.py]`."
        )
    file = _FILES.get(function.__module__, (function.__module__, ""))

    def share(labels: Any, predictions: Any) -> float:
        with _said(f"metric {named!r}"):
            found = float(function(labels, predictions))
        if not (math.isfinite(found) and 0 <= found <= 100):
            raise SpecError(f"metric {named!r} returned {found:g}: return a number from 0 to 100.")
        return found / 100

    source = hashlib.sha256(inspect.getsource(function).encode()).hexdigest()[:16]
    METRIC_FACTS[named] = MetricFacts(named, own=share, source=source, file=file)
    return function


def read(names: Sequence[str], folder: Path) -> dict[str, str]:
    """The files of `plugins:`, relative to `folder`, with their texts. An entry point of the group
    lp_sweep.plugins becomes the name of its module, with no text. Raises SpecError."""
    points = {point.name: point.module for point in entry_points(group=GROUP)}
    found = {}
    for name in names:
        path = folder / Path(name).expanduser()
        if not name.endswith(".py"):
            _chosen_from("entry point (a file ends in .py)", name, [*points])
            found[points[name]] = ""
        elif path.is_file():
            with _said(f"plugin {path}"):
                found[str(path)] = path.read_text(encoding="utf-8")
        else:
            raise SpecError(f"plugins: no file {path}.")
    return found


def load(name: str, text: str) -> None:
    """Runs the `text` of the plugin `name`, or imports the module of that name without a text, so
    that what it declares is known in this process. Raises SpecError."""
    with _said(f"plugin {name}"):
        if not text:
            import_module(name)
            return
        module = ModuleType(f"lp_sweep_plugin_{hashlib.sha256(text.encode()).hexdigest()[:16]}")
        module.__file__ = name
        sys.modules[module.__name__] = module  # dataclasses look there
        _FILES[module.__name__] = (name, text)
        # the lines of a file that need not be on this machine: for tracebacks, and for its source
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        exec(compile(text, name, "exec"), module.__dict__)


@contextmanager
def _said(what: str) -> Iterator[None]:
    """Turns an error of the user's code, also its own end of the process, into one sentence."""
    try:
        yield
    except SpecError:
        raise
    except (Exception, SystemExit) as error:
        raise SpecError(f"{what}: {type(error).__name__}: {error}") from error


def _named(function: Callable[..., Any], name: str) -> str:
    found = name or getattr(function, "__name__", "")
    if not _NAME.fullmatch(found) or found in _BUILT_IN:
        raise SpecError(
            f"plugin: {found!r} is no name for a strategy or metric of your own: take letters, "
            "digits, '_', '.' and '-', and no built-in one's."
        )
    return found


def _chosen_from(what: str, name: str, allowed: Sequence[str]) -> None:
    try:
        choose(what, name, allowed)
    except ValueError as error:
        raise SpecError(f"plugins: {error}") from None
