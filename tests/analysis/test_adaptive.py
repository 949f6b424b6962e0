"""The search for the fewest layers, over grids whose every score is known."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from benchmarks.adaptive import (
    CURVES,
    DIP_LOSS,
    DIPPED,
    drawn,
    grid_losses,
    is_off,
    losses_of,
    replay,
)
from lp_sweep.analysis.statistics.answerset import Pair, credible, curve_of_scores
from lp_sweep.analysis.statistics.search import SearchGrid, largest_within, next_step

DELTAS = (1, 2, 3)
Grid = dict[tuple[int, int], float]


def grid_of(losses: list[float], deviation: float = 0.0, seed: int = 0) -> Grid:
    return drawn(losses, deviation, 0.0, seed)


def of_grid(grid: Grid, delta: float) -> int:
    return largest_within(grid_losses(grid), delta)


# -- the parts


def test_the_set_is_that_of_the_tables() -> None:
    grid = grid_of([0, 0.2, 0.95, 1.05, 4, 9], 0.3)
    curve = curve_of_scores((0, 1, 2, 3, 4, 5), grid)
    assert credible(curve, 2, 1.0) == [0, 1, 2, 3]
    assert credible(curve, 4, 1.0) == [0, 1, 2, 3, 4]  # the answer always is in it
    assert credible(curve, 5, 30.0) == [5]
    assert credible(curve, 2, 1.0 / 0.9, "percent") == [0, 1, 2, 3]
    assert credible(curve, 0, 0.0)[0] == 0


def test_a_k_that_was_not_run_may_dip_below_its_neighbours_but_not_by_more() -> None:
    grid = grid_of([0, 4, 6, 20, 21, 22], 0.1)
    run = {pair: points for pair, points in grid.items() if pair[0] in (0, 2, 4)}
    assert credible(curve_of_scores((0, 1, 2, 3, 4, 5), run), 0, 1.0) == [0, 1, 3]


# -- the search


@pytest.mark.parametrize("curve", CURVES)
def test_without_noise_the_answer_is_true_and_most_is_never_run(curve: str) -> None:
    losses = losses_of(curve, 12)
    found = replay(grid_of(losses), DELTAS)
    assert not any(is_off(losses, answer.k, answer.delta) for answer in found.answers)
    assert {answer.why for answer in found.answers} == {"decided"}
    assert len(found.trials) < 0.3 * 5 * 12


@pytest.mark.parametrize("deviation", [0.3, 2.0])
@pytest.mark.parametrize("curve", CURVES)
def test_the_grids_answer_is_in_the_set_unless_scores_vary_by_points(
    curve: str, deviation: float
) -> None:
    grid = grid_of(losses_of(curve, 12), deviation)
    found = replay(grid, DELTAS)
    run = {k for k, _ in found.trials}
    assert len(set(found.trials)) == len(found.trials), "every pair once"
    assert all((0, seed) in found.trials for _, seed in found.trials), "and its full network"
    for answer in found.answers:
        assert answer.k in answer.credible
        assert of_grid(grid, answer.delta) in answer.credible or deviation > 1
        assert answer.why is not None
        assert answer.k in run
        assert answer.k == 11 or answer.k + 1 in run, "the next larger K is run"


def test_with_the_whole_budget_spent_the_answer_is_the_grids() -> None:
    """Noise beyond all measure: it runs all that could be the answer, and is not sure."""
    spent = 0
    for seed in range(12):
        grid = grid_of([0, 1, 1, 2], 8.0, seed)
        found = replay(grid, DELTAS)
        if len(found.trials) == len(grid):
            spent += 1
            assert [a.k for a in found.answers] == [of_grid(grid, a.delta) for a in found.answers]
            assert "budget" in {answer.why for answer in found.answers}
    assert spent >= 3


@pytest.mark.parametrize("done", [(), (0, 3), (3, 6)])
def test_the_first_batch_comes_before_all_else(done: tuple[int, ...]) -> None:
    grid = grid_of(losses_of("flat, falling", 12), 0.3)
    step = next_step(curve_of({Pair(k, 0): grid[k, 0] for k in done}), DELTAS)
    assert {*step.ask} == {Pair(k, 0) for k in (0, 3, 6, 9) if k not in done}
    assert step.answers == ()


def test_it_goes_on_from_any_part_of_the_grid() -> None:
    """Scores that other sweeps have left, with K=0 or without, are used and not asked for."""
    losses = losses_of("flat, falling", 12)
    grid = grid_of(losses, 0.3)
    rng = np.random.default_rng(3)
    for _ in range(3):
        points = {Pair(*pair): grid[*pair] for pair in rng.permutation(list(grid))[:20].tolist()}
        while (step := next_step(curve_of(points), DELTAS)).ask:
            assert not points.keys() & {*step.ask}
            points |= {pair: grid[pair] for pair in step.ask}
        assert not any(is_off(losses, answer.k, answer.delta) for answer in step.answers)


def curve_of(points: dict[Pair, float]) -> SearchGrid:
    return SearchGrid(ks=tuple(range(12)), seeds=tuple(range(5)), points=points)


# -- a dip at a K that the first batch does not see


@pytest.mark.parametrize("place", [2, 5, 8])
def test_a_hidden_dip_is_in_the_set_and_no_answer_is_decided_without_it(place: int) -> None:
    losses = [*DIPPED]
    losses[place] = DIP_LOSS
    for seed in range(3):
        for answer in replay(grid_of(losses, 0.3, seed), DELTAS).answers:
            assert place in answer.credible
            assert answer.k == place or answer.why != "decided"


def test_the_answer_names_the_larger_k_that_it_assumes_do_not_dip() -> None:
    """Between K=6 and K=9, which lose 11 and 20 points, only a dip of eight points could hide."""
    found = replay(grid_of(losses_of("steep", 12), 0.3), (1,))
    [answer] = found.answers
    run = {k for k, _ in found.trials}
    assert answer.why == "decided"
    assert answer.untried == tuple(k for k in range(12) if k > answer.k and k not in run) != ()


# -- what fails


def test_a_failed_pair_is_not_asked_again_and_another_seed_takes_its_place() -> None:
    losses = losses_of("steep", 12)
    found = replay(grid_of(losses, 0.3), DELTAS, failing=[(0, 0), (2, 1), (1, 2)])
    assert len(set(found.trials)) == len(found.trials)
    assert not any(is_off(losses, a.k, a.delta) for a in found.answers)


@pytest.mark.parametrize(
    ("losses", "failing", "k", "credible"),
    [([0, 0.1, 0.2, 4, 9, 15], 2, 1, (1, 2)), ([*DIPPED], 5, 0, (0, 5))],
    ids=["it could be the answer", "it may dip"],
)
def test_a_k_that_always_fails_stays_in_the_set(
    losses: list[float], failing: int, k: int, credible: tuple[int, ...]
) -> None:
    found = replay(grid_of(losses, 0.1), (1,), failing=[(failing, seed) for seed in range(5)])
    [answer] = found.answers
    assert (answer.k, answer.why, answer.credible) == (k, "budget", credible)


def test_without_a_full_network_there_is_no_answer() -> None:
    grid = grid_of([0, 1, 2, 3])
    found = replay(grid, DELTAS, failing=[(0, seed) for seed in range(5)])
    assert found.answers == ()


def test_the_set_of_a_loss_that_was_not_searched_for_holds_the_truth() -> None:
    """Above the last K that was run the curve may go anywhere."""
    held: dict[float, list[bool]] = {0.25: [], 10: [], 15: [], 20: []}
    for curve, seed in itertools.product(CURVES, range(2)):
        losses = losses_of(curve, 12)
        grid = grid_of(losses, 0.3, seed)
        run = {pair: grid[pair] for pair in replay(grid, DELTAS).trials}
        searched = curve_of_scores(tuple(range(12)), run)
        for delta, found in held.items():
            found.append(
                largest_within(dict(enumerate(losses)), delta) in credible(searched, 0, delta)
            )
    assert min(map(np.mean, held.values())) >= 0.9
