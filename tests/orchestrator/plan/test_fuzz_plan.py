"""The plan of any sweep: what must hold of its cells, whatever is asked for."""

from __future__ import annotations

import copy
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from lp_sweep.orchestrator.plan.plan import Cell, Plan, WorkHistory
from lp_sweep.orchestrator.plan.planning import make_plan
from lp_sweep.storage.errors import SpecError
from lp_sweep.trials.spec.identity import profile_id, trial_id
from lp_sweep.trials.spec.select import STRATEGIES, LayerScores
from tests.support.fuzzing import fuzz
from tests.support.sweepfiles import bare_sweep

RULES = {name: s for name, s in STRATEGIES.items() if s.by_position and not s.family}

AXES = ("models", "tasks", "seeds", "strategies")
DEPTHS = {f"m{depth}": depth for depth in (1, 2, 3, 6, 7, 12)}


def one_or_more(values: st.SearchStrategy[Any], most: int = 3) -> st.SearchStrategy[Any]:
    return st.lists(values, min_size=1, max_size=most, unique_by=str)


@st.composite
def asked(draw: Any) -> dict[str, Any]:
    """A valid sweep over models of known depth, with every kind of axis."""
    models = draw(one_or_more(st.sampled_from(sorted(DEPTHS))))
    shallowest = min(DEPTHS[model] for model in models)
    strategies: list[dict[str, Any]] = []
    for name in draw(one_or_more(st.sampled_from([*RULES, "contribution"]))):
        if name == "contribution":
            measured = draw(st.sampled_from(["own", None]))
            threshold = draw(one_or_more(st.floats(-1, 1), 2))
            strategies.append({"name": name, "threshold": threshold, "measured_on": measured})
        else:
            of_each = (set(RULES[name].possible(DEPTHS[model])) for model in models)
            possible = set.intersection(*of_each)
            k = draw(st.just("all") | one_or_more(st.sampled_from(sorted(possible)), 4))
            strategies.append({"name": name, "k": k})
    excluded = st.fixed_dictionaries({"seed": st.integers(0, 3), "k": st.integers(0, 2)})
    own = st.none() | one_or_more(st.integers(0, shallowest - 1), 2)
    return {
        "schema_version": 1,
        "name": "any",
        "models": [{"id": model, "k": draw(own)} for model in models],
        "tasks": draw(one_or_more(st.sampled_from(["rte", "mrpc", "cola"]))),
        "seeds": draw(one_or_more(st.integers(0, 9))),
        "strategies": strategies,
        "include": draw(st.lists(st.just({"strategy": "top", "k": 0}), max_size=1)),
        "exclude": draw(st.lists(excluded, max_size=2)),
    }


def plan_of(content: dict[str, Any], known: WorkHistory | None = None) -> Plan | None:
    """None where every cell is excluded."""
    try:
        return make_plan(bare_sweep(content, DEPTHS), known or WorkHistory.nothing())
    except SpecError as error:
        if "every one is excluded" not in str(error):
            raise
        return None


def measured(plan: Plan, value: float) -> WorkHistory:
    """Profiles in which every second layer does nothing much."""
    found = {
        id_: LayerScores({i: value if i % 2 else -1.0 for i in range(1, work.model.depth + 1)})
        for id_, work in plan.profiles.items()
    }
    return WorkHistory(frozenset(), {}, found)


def unnamed(cell: Cell) -> str:
    """A full model that a plan adds is listed under the first strategy."""
    return repr(cell if cell.dropped else replace(cell, asked=cell.asked._replace(strategy="")))


def plan_laws(folder: Path, content: dict[str, Any], order: Any, value: float) -> None:
    blank = plan_of(content)
    if blank is None:
        return
    known = measured(blank, value)
    plan = plan_of(content, known)
    assert plan is not None
    assert plan.cells == plan_of(copy.deepcopy(content), known).cells  # a function of its inputs
    networks: dict[str, set[Any]] = {}
    for cell in plan.cells:
        assert cell.state in ("pending", "impossible")
        assert cell.kept is not None
        assert cell.dropped is not None
        assert sorted(cell.kept + cell.dropped) == list(range(1, cell.depth + 1))
        assert (cell.kept == ()) == (cell.state == "impossible") == (cell.trial_id is None)
        if cell.trial_id is not None:
            of = (cell.asked.model, cell.asked.task, cell.asked.seed, cell.kept)
            networks.setdefault(cell.trial_id, set()).add(of)
    assert all(len(same) == 1 for same in networks.values())  # one identifier, one network
    assert len({next(iter(same)) for same in networks.values()}) == len(networks)
    assert set(networks) == set(plan.trials)
    assert all(id_ == work.id == trial_id(work.spec) for id_, work in plan.trials.items())
    assert all(id_ == work.id == profile_id(work.spec) for id_, work in plan.profiles.items())
    assert len({cell.asked for cell in plan.cells}) == len(plan.cells)
    turned = plan_of({**content, **{axis: order.permute(content[axis]) for axis in AXES}}, known)
    assert turned is not None
    assert sorted(map(unnamed, turned.cells)) == sorted(map(unnamed, plan.cells))
    assert (set(turned.trials), set(turned.profiles)) == (set(plan.trials), set(plan.profiles))


class Order:
    """A permutation of a list of any length, drawn once."""

    def __init__(self, draws: list[float]) -> None:
        self.draws = draws

    def permute(self, items: list[Any]) -> list[Any]:
        pairs = zip(itertools.cycle(self.draws), items, strict=False)
        return [item for _, item in sorted(pairs, key=lambda pair: pair[0])]

    def __repr__(self) -> str:
        return f"Order({self.draws})"


test_plan_laws = fuzz(
    plan_laws,
    4_000,
    content=asked(),
    order=st.lists(st.floats(0, 1), min_size=3, max_size=7).map(Order),
    value=st.floats(-1, 1),
)


def add_and_remove(folder: Path, content: dict[str, Any], extra: int) -> None:
    """A further seed adds exactly its cells, and nothing else gets another identifier."""
    content = {**content, "exclude": [], "include": []}
    seeds = content["seeds"]
    before, after = plan_of(content), plan_of({**content, "seeds": [*seeds, 100 + extra]})
    if before is None or after is None:  # a model's own K at which no strategy has a network
        assert before is after
        return
    assert set(before.trials) <= set(after.trials)
    assert before.profiles.keys() == after.profiles.keys()
    new = [cell for cell in after.cells if cell.trial_id and cell.trial_id not in before.trials]
    assert {cell.asked.seed for cell in new} <= {100 + extra}
    assert len(after.cells) * len(seeds) == len(before.cells) * (len(seeds) + 1)


test_adding_a_seed = fuzz(add_and_remove, 1_000, content=asked(), extra=st.integers(0, 9))
