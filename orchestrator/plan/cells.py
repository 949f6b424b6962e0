"""The cells that a sweep file asks for: its axes multiplied, plus `include`, minus `exclude`."""

from __future__ import annotations

import fnmatch
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from lp_sweep.orchestrator.inputs.models import ModelInput
from lp_sweep.orchestrator.inputs.resolve import SweepInputs
from lp_sweep.orchestrator.sweepfile.axes import canonical_strategy
from lp_sweep.orchestrator.sweepfile.entries import CellMatch
from lp_sweep.orchestrator.sweepfile.yamlfile import Location
from lp_sweep.storage.errors import SpecError
from lp_sweep.storage.printable import choose, shown
from lp_sweep.trials.spec import select
from lp_sweep.trials.spec.feedforward import NONE, FeedForward, needed_layers, some_removed
from lp_sweep.trials.spec.procedures import Procedure, bridged_blocks

_MOST_CELLS = 20_000  # planning them takes two seconds
_Points = list[tuple[int | None, float | None]]  # (K, threshold); one of the two is None


class CellAxes(NamedTuple):
    """The axes of one cell: a threshold for contribution, else K."""

    model: str
    procedure: Procedure
    strategy: str
    k: int | None
    threshold: float | None
    task: str
    seed: int
    feed_forward: FeedForward = FeedForward()


def asked_cells(sweep: SweepInputs) -> list[CellAxes]:
    """Every cell once, in the file's order, with the full models that losses are counted from.
    Raises SpecError for an impossible K, and for feed-forwards that a model does not have.

    Adds notes to `sweep.notes` on cells that are left out: a model's own K at which a strategy has
    no network, a K that leaves no feed-forward to remove; and on full models that are added.
    """
    _check_removals(sweep)
    asked = itertools.chain(_multiplied(sweep), included_cells(sweep))
    wanted = dict.fromkeys(itertools.islice(asked, _MOST_CELLS))
    if next(asked, None) is not None:
        raise SpecError(
            f"{sweep.document.where(())}: asks for more than {_MOST_CELLS:,} cells. Split the "
            "sweep: sweeps over one store share their trials."
        )
    cells = [cell for cell in wanted if not any(matches(m, cell) for m in sweep.spec.exclude)]
    empty = _empty_networks(sweep, cells)
    cells = [cell for cell in cells if _network(cell) not in empty]
    part = any(origin.startswith("override ") for origin in sweep.document.origins.values())
    for index, match in enumerate([] if part else sweep.spec.exclude):
        if not any(matches(match, cell) for cell in wanted):
            where = sweep.document.where(("exclude", index))
            _note(sweep, f"{where}: this exclude matches no cell")
    if not cells:
        where = sweep.document.where(("exclude",))
        raise SpecError(f"{where}: no cell is left: every one is excluded, or has no network")
    return _with_full_models(sweep, cells)


def _with_full_models(sweep: SweepInputs, cells: list[CellAxes]) -> list[CellAxes]:
    """Adds K=0 where the file or an override leaves it out: one for each procedure, task and seed,
    and for each strategy with a search."""
    depths = {model.name: model.depth for model in sweep.models}
    searched = {name for entry in sweep.spec.strategies if entry.until for name in entry.names}

    def answered(cell: CellAxes) -> CellAxes:
        search = cell.strategy if cell.strategy in searched else ""
        return cell._replace(strategy=search, k=0, threshold=None, feed_forward=FeedForward())

    there = [cell for cell in cells if cell.k == 0 and cell.feed_forward == FeedForward()]
    full = {
        answered(cell)._replace(strategy=name) for cell in there for name in ("", cell.strategy)
    }
    added: list[CellAxes] = []
    for cell in cells:
        if (key := answered(cell)) not in full:
            own = cell.k is not None and 0 in select.possible_k(cell.strategy, depths[cell.model])
            added.append(key._replace(strategy=cell.strategy if own else "top"))
            full |= {key, key._replace(strategy="")}
    if added:
        _note(sweep, "the full model (K=0) is added: every loss is counted from its score")
    return [*cells, *added]


def _network(cell: CellAxes) -> CellAxes:
    """The cell without its task and seed."""
    return cell._replace(task="", seed=0)


def _multiplied(sweep: SweepInputs) -> Iterator[CellAxes]:
    spec = sweep.spec
    axes = itertools.product(
        range(len(sweep.models)), spec.trainings, spec.removals, range(len(spec.strategies))
    )
    for position, procedure, removal, index in axes:
        model, strategy = sweep.models[position].name, spec.strategies[index]
        for name in strategy.names:
            points, seeds = _points(sweep, position, index, name), spec.seeds[: strategy.max_seeds]
            for (k, threshold), task, seed in itertools.product(points, sweep.tasks, seeds):
                yield CellAxes(model, procedure, name, k, threshold, task, seed, removal)


def _points(sweep: SweepInputs, position: int, index: int, name: str) -> _Points:
    """Those of one strategy for one model."""
    strategy, model = sweep.spec.strategies[index], sweep.models[position]
    if strategy.takes == "threshold":
        return [(None, threshold) for threshold in strategy.threshold or ()]
    own, possible = sweep.spec.models[position].k, select.possible_k(name, model.depth)
    if own is None and strategy.k == "all":
        return [(k, None) for k in possible]
    location: Location = ("models", position, "k") if own else ("strategies", index, "k")
    of_all = strategy.k if isinstance(strategy.k, list) else []
    points: _Points = []
    for k in of_all if own is None else own:
        if k in possible:
            points.append((k, None))
        elif own is not None and 0 <= k < model.depth:
            _note(sweep, f"{model.name}: {name} has no network at K={k} (left out)")
        else:
            raise SpecError(f"{sweep.document.where(location)}: {_impossible(name, k, model)}")
    return points


def _impossible(strategy: str, k: int, model: ModelInput) -> str:
    possible = ", ".join(map(str, select.possible_k(strategy, model.depth)))
    layers, rule = f"the {model.depth} layers of {model.name}", select.rule_text(strategy)
    if not possible:
        return (
            f"{strategy} is not possible for {layers} ({rule}). Choose layers of 1 to "
            f"{model.depth}, or leave it out."
        )
    return (
        f"{strategy} can't drop K={k} of {layers} ({rule}). Possible K: {possible}. To give this "
        f"model its own: {{id: {model.name}, k: [...]}}."
    )


def included_cells(sweep: SweepInputs) -> Iterator[CellAxes]:
    """The cells of `include:`, also those that the axes have. Raises SpecError."""
    for index, entry in enumerate(sweep.spec.include):
        where = sweep.document.where(("include", index))
        try:
            yield from _include(sweep, entry)
        except ValueError as error:
            raise SpecError(f"{where}: {error}") from None


def _include(sweep: SweepInputs, entry: CellMatch) -> Iterator[CellAxes]:
    if not entry.strategy or (entry.k is None) == (entry.threshold is None):
        raise ValueError("an included cell needs `strategy:` and `k:` (or `threshold:`)")
    depths = {model.name: model.depth for model in sweep.models}
    models = _own("model", entry.model, depths)
    by_label = {training.label: training for training in sweep.spec.trainings}
    procedures = [by_label[name] for name in _own("procedure", entry.procedure, by_label)]
    tasks = _own("task", entry.task, sweep.tasks)
    removals = _own("feed_forward", entry.feed_forward, sweep.spec.feed_forward)
    feed_forwards = [FeedForward.parse(label) for label in removals]
    strategies = [canonical_strategy(name) for name in entry.strategy]
    seeds = entry.seed or sweep.spec.seeds
    for model, procedure, strategy in itertools.product(models, procedures, strategies):
        points = _included_points(strategy, entry, depths[model], model)
        rest = itertools.product(points, feed_forwards, tasks, seeds)
        for (k, threshold), removal, task, seed in rest:
            yield CellAxes(model, procedure, strategy, k, threshold, task, seed, removal)


def _own(what: str, named: list[str] | None, of_sweep: Iterable[str]) -> list[str]:
    """The named values, which the sweep must have; all of the sweep's where none is named."""
    allowed = list(of_sweep)
    return [choose(f"{what} of this sweep", name, allowed) for name in named or allowed]


def _included_points(strategy: str, entry: CellMatch, depth: int, model: str) -> _Points:
    found = select.find_strategy(strategy)
    if found is None:
        choose("strategy", strategy, select.STRATEGIES)
        raise ValueError(f"strategy {strategy!r}: name one, such as `random 3` or `drop 3+5`")
    if (found.takes == "threshold") != (entry.threshold is not None):
        raise ValueError("`threshold:` belongs to contribution, `k:` to every other strategy")
    for k in entry.k or ():
        if k not in select.possible_k(strategy, depth):
            raise ValueError(f"{strategy} can't drop K={k} of the {depth} layers of {model}")
    return [(k, None) for k in entry.k or ()] + [(None, value) for value in entry.threshold or ()]


def matches(match: CellMatch, cell: CellAxes) -> bool:
    return bool(match.model_fields_set) and all(
        _fits(getattr(match, name), getattr(cell, name)) for name in match.model_fields_set
    )


def _fits(allowed: Iterable[Any] | None, value: Any) -> bool:
    if allowed is None:
        return True
    value = getattr(value, "label", value)  # of a procedure, of a removal
    if isinstance(value, str):
        return any(fnmatch.fnmatchcase(value, str(pattern)) for pattern in allowed)
    return value in allowed


def _note(sweep: SweepInputs, text: str) -> None:
    if text not in sweep.notes:  # of an earlier plan
        sweep.notes.append(text)


def _check_removals(sweep: SweepInputs) -> None:
    """Raises SpecError where a model has too few layers for a removal of feed-forwards."""
    for index, removal in enumerate(sweep.spec.removals):
        needed = needed_layers(removal.rule)
        for model in sweep.models:
            if needed > model.depth:
                where = sweep.document.where(("feed_forward", index))
                raise SpecError(
                    f"{where}: feed_forward {shown(removal.label)} can't be removed from the "
                    f"{model.depth} layers of {model.name}: it needs {shown(needed)}. Use up to "
                    f"{model.depth}, or put this model into its own sweep."
                )


def _empty_networks(sweep: SweepInputs, cells: Iterable[CellAxes]) -> set[CellAxes]:
    """The networks whose strategy drops every layer that would lose its feed-forward, or the layer
    that a bridge needs; a note names them. What a measurement drops is known only later."""
    depths = {model.name: model.depth for model in sweep.models}
    networks = dict.fromkeys(map(_network, cells))
    empty = [network for network in networks if _is_empty(network, depths[network.model])]
    points: dict[tuple[str, str, str], dict[str, None]] = defaultdict(dict)
    for network in empty:
        what = f"leaves no network for feed_forward {shown(network.feed_forward.label)}"
        if bridge := network.procedure.bridge:
            what = f"drops layer 1, and a bridge ({bridge}) needs a layer below it,"
        points[network.model, network.strategy, what][str(network.k)] = None
    for (model, strategy, what), k in points.items():
        _note(sweep, f"{model}: {strategy} {what} at K={', '.join(k)} (left out)")
    return set(empty)


def _is_empty(network: CellAxes, depth: int) -> bool:
    rule, bridge = network.feed_forward.rule, network.procedure.bridge
    known = network.k is not None and select.find_rule(network.strategy) is not None
    if not known or (rule == NONE and not bridge):
        return False
    kept = select.kept_layers(depth, select.dropped_layers(network.strategy, depth, network.k or 0))
    try:
        some_removed(rule, kept)
        if bridge:
            bridged_blocks(kept, depth)
    except ValueError:
        return True
    return False
