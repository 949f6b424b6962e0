"""Which layers each strategy drops: the paper's examples, and the rules over all depths."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lp_sweep.trials.spec.select import (
    STRATEGIES,
    LayerScores,
    contribution_dropped,
    dropped_layers,
    is_strategy,
    kept_layers,
    listed_name,
    possible_k,
    rule_text,
)

RULES = {name: s for name, s in STRATEGIES.items() if s.by_position and not s.family}
DEPTHS = st.integers(1, 48)


@pytest.mark.parametrize(
    ("strategy", "depth", "k", "expected"),
    [
        # section 4, "As an example, for K = 2 on a 12-layer model"
        ("top", 12, 2, (11, 12)),
        ("bottom", 12, 2, (1, 2)),
        ("even-alternate", 12, 2, (10, 12)),
        ("odd-alternate", 12, 2, (9, 11)),
        ("symmetric", 12, 2, (6, 7)),
        # section 2.2, K = 4
        ("odd-alternate", 12, 4, (5, 7, 9, 11)),
        ("even-alternate", 12, 4, (6, 8, 10, 12)),
        # section 2.4, "if K = 6, we retain three top and three bottom layers"
        ("symmetric", 12, 6, (4, 5, 6, 7, 8, 9)),
        # section 4.2: "only three layers - {1, 2, 3}" after dropping 9
        ("top", 12, 9, (4, 5, 6, 7, 8, 9, 10, 11, 12)),
        # not the paper's: an odd depth is also counted from the top
        ("even-alternate", 7, 3, (3, 5, 7)),
        ("odd-alternate", 7, 3, (2, 4, 6)),
        # drawn sets never change
        ("random 0", 12, 3, (4, 7, 9)),
        ("random 1", 12, 6, (4, 5, 6, 7, 8, 11)),
        ("random 7", 24, 5, (3, 4, 7, 12, 20)),
        ("random 999999999", 4, 3, (1, 2, 3)),
    ],
)
def test_the_papers_examples_and_ours(
    strategy: str, depth: int, k: int, expected: tuple[int, ...]
) -> None:
    assert dropped_layers(strategy, depth, k) == expected


@given(st.sampled_from(sorted(RULES)), DEPTHS, st.integers(-3, 65))
def test_size_order_and_bounds(strategy: str, depth: int, k: int) -> None:
    if k not in RULES[strategy].possible(depth):
        with pytest.raises(ValueError, match="possible K"):
            dropped_layers(strategy, depth, k)
        return
    dropped = dropped_layers(strategy, depth, k)
    assert len(dropped) == k
    kept = kept_layers(depth, dropped)
    assert kept
    assert sorted((*kept, *dropped)) == list(range(1, depth + 1))
    assert list(dropped) == sorted(dropped)
    if strategy == "symmetric" and k:
        assert dropped[0] - 1 == depth - dropped[-1]


@given(DEPTHS)
def test_the_k_at_which_each_strategy_exists(depth: int) -> None:
    assert RULES["top"].possible(depth) == tuple(range(depth))
    assert all(2 * k <= depth for k in RULES["even-alternate"].possible(depth))
    assert all(k == 0 or (depth - k) % 2 == 0 for k in RULES["symmetric"].possible(depth))


def test_contribution() -> None:
    # section 4.1: BERT drops {3, 5} at 0.95 and {3, 5, 8, 9} at 0.925
    cosines = dict.fromkeys(range(1, 13), 0.8) | {3: 0.96, 5: 0.951, 8: 0.93, 9: 0.926}
    assert contribution_dropped(cosines, 0.95) == (3, 5)
    assert contribution_dropped(cosines, 0.925) == (3, 5, 8, 9)
    assert contribution_dropped(cosines, 0.96) == ()  # strictly above
    with pytest.raises(ValueError, match=r"no layer would stay.*0\.9300 or more"):
        contribution_dropped({1: 0.91, 2: 0.93}, 0.9)


@given(st.integers(0, 10**9 - 1), st.integers(1, 24), st.data())
def test_random_sets_hold_one_another(draw: int, depth: int, data: st.DataObject) -> None:
    """Those of fewer layers, and those of a shallower network."""
    name, k = f"random {draw}", data.draw(st.integers(0, depth - 1))
    dropped = dropped_layers(name, depth, k)
    assert len(dropped) == k
    assert list(dropped) == sorted({*dropped} & {*range(1, depth + 1)})
    assert all(set(dropped_layers(name, depth, fewer)) < set(dropped) for fewer in range(k))
    assert possible_k(name, depth) == tuple(range(depth))
    shared = [layer for layer in dropped_layers(name, 2 * depth, depth) if layer <= depth]
    if len(shared) < depth:
        assert dropped_layers(name, depth, len(shared)) == tuple(shared)


@given(st.sets(st.integers(1, 40), min_size=1, max_size=10), DEPTHS)
def test_a_list_drops_its_layers(layers: set[int], depth: int) -> None:
    name = listed_name([*layers, *layers])
    if max(layers) <= depth and len(layers) < depth:
        assert possible_k(name, depth) == (len(layers),)
        assert dropped_layers(name, depth, len(layers)) == tuple(sorted(layers))
        return
    assert possible_k(name, depth) == ()
    with pytest.raises(ValueError, match="possible K: none"):
        dropped_layers(name, depth, len(layers))


@pytest.mark.parametrize(
    "name",
    [
        *("random", "random -1", "random x", "random 1234567890", "random1"),
        *("drop", "drop 0", "drop 1+", "drop 1,2", "drop +1", "drop 12345"),
    ],
)
def test_what_is_no_strategy(name: str) -> None:
    assert not is_strategy(name)
    with pytest.raises(KeyError):
        dropped_layers(name, 12, 2)
    assert rule_text("drop 3+5") == "the layers 3, 5, of a deeper network"  # this is one


# -- chosen by a measurement


def test_a_measured_strategy_has_no_rule() -> None:
    for name in ("block-influence", "angular", "greedy"):
        assert possible_k(name, 3) == (0, 1, 2)
        with pytest.raises(KeyError):
            dropped_layers(name, 3, 1)


# few values, so that ties are common
@given(st.lists(st.sampled_from([0.1, 0.5, 0.9]), min_size=1, max_size=16), st.data())
def test_block_influence_drops_what_changes_its_input_least(
    values: list[float], data: st.DataObject
) -> None:
    cosines = dict(enumerate(values, start=1))
    k = data.draw(st.integers(0, len(values) - 1))
    dropped = STRATEGIES["block-influence"].chosen(LayerScores(cosines), k)
    assert len(dropped) == k
    for gone in dropped:
        for stays in kept_layers(len(values), dropped):  # of equals the higher layer goes
            assert (cosines[gone], gone) > (cosines[stays], stays)


@given(st.integers(2, 10), st.data())
def test_angular_drops_a_run_of_layers_whose_ends_are_nearest(
    depth: int, data: st.DataObject
) -> None:
    blocks = {
        (start, length): data.draw(st.sampled_from([0.1, 0.2, 0.3]))
        for length in range(1, depth)
        for start in range(1, depth - length + 2)
    }
    k = data.draw(st.integers(1, depth - 1))
    dropped = STRATEGIES["angular"].chosen(LayerScores({}, blocks), k)
    assert dropped == tuple(range(dropped[0], dropped[0] + k))
    assert dropped[-1] <= depth
    least = blocks[dropped[0], k]
    for (start, length), value in blocks.items():
        assert length != k or value > least or (value == least and start <= dropped[0])
    assert STRATEGIES["angular"].chosen(LayerScores({}, {(1, 1): 0.5}), 2) == ()  # no such block


@given(st.permutations(range(1, 9)), st.integers(0, 7))
def test_greedy_drops_in_its_own_order(order: list[int], k: int) -> None:
    """The layer that is left at the end has no step."""
    steps = {layer: float(step) for step, layer in enumerate(order[:-1], start=1)}
    found = LayerScores(steps | {order[-1]: 0.0})
    assert STRATEGIES["greedy"].chosen(found, k) == tuple(sorted(order[:k]))
