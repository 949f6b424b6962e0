"""Every example of the paper, and the rules as properties over all depths."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lp_sweep.storage.select import (
    STRATEGIES,
    contribution_dropped,
    dropped_layers,
    kept_layers,
)

RULES = {name: s for name, s in STRATEGIES.items() if s.by_position and not s.family}


@pytest.mark.parametrize(
    ("strategy", "k", "expected"),
    [
        # section 4, "As an example, for K = 2 on a 12-layer model"
        ("top", 2, (11, 12)),
        ("bottom", 2, (1, 2)),
        ("even-alternate", 2, (10, 12)),
        ("odd-alternate", 2, (9, 11)),
        ("symmetric", 2, (6, 7)),
        # section 2.2, K = 4
        ("odd-alternate", 4, (5, 7, 9, 11)),
        ("even-alternate", 4, (6, 8, 10, 12)),
        # section 2.4, "if K = 6, we retain three top and three bottom layers"
        ("symmetric", 6, (4, 5, 6, 7, 8, 9)),
        # figure 1: dropping the top 4 and 6
        ("top", 4, (9, 10, 11, 12)),
        ("top", 6, (7, 8, 9, 10, 11, 12)),
        # section 4.2: "only three layers - {1, 2, 3}" after dropping 9
        ("top", 9, (4, 5, 6, 7, 8, 9, 10, 11, 12)),
        ("odd-alternate", 6, (1, 3, 5, 7, 9, 11)),
        ("even-alternate", 6, (2, 4, 6, 8, 10, 12)),
    ],
)
def test_the_papers_examples(strategy: str, k: int, expected: tuple[int, ...]) -> None:
    assert dropped_layers(strategy, 12, k) == expected


@given(st.sampled_from(sorted(RULES)), st.integers(1, 60), st.integers(-3, 65))
def test_size_order_and_bounds(strategy: str, depth: int, k: int) -> None:
    if k not in RULES[strategy].possible(depth):
        with pytest.raises(ValueError, match="possible K"):
            dropped_layers(strategy, depth, k)
        return
    dropped = dropped_layers(strategy, depth, k)
    assert len(set(dropped)) == len(dropped) == k
    assert list(dropped) == sorted(dropped)
    assert all(1 <= layer <= depth for layer in dropped)
    kept = kept_layers(depth, dropped)
    assert len(kept) == depth - k >= 1
    assert sorted((*kept, *dropped)) == list(range(1, depth + 1))


@given(st.integers(1, 60))
def test_the_k_at_which_each_strategy_exists(depth: int) -> None:
    assert RULES["top"].possible(depth) == tuple(range(depth))
    assert all(2 * k <= depth for k in RULES["even-alternate"].possible(depth))
    assert all(k == 0 or (depth - k) % 2 == 0 for k in RULES["symmetric"].possible(depth))


@given(st.integers(3, 60), st.data())
def test_symmetric_keeps_as_many_at_the_top_as_at_the_bottom(
    depth: int, data: st.DataObject
) -> None:
    k = data.draw(st.sampled_from([k for k in RULES["symmetric"].possible(depth) if k]))
    dropped = dropped_layers("symmetric", depth, k)
    assert dropped[0] - 1 == depth - dropped[-1]
    assert dropped == tuple(range(dropped[0], dropped[-1] + 1))


def test_alternate_goes_from_the_top_at_odd_depths_too() -> None:
    assert dropped_layers("even-alternate", 7, 3) == (3, 5, 7)
    assert dropped_layers("odd-alternate", 7, 3) == (2, 4, 6)


def test_contribution_with_the_papers_sets() -> None:
    # section 4.1: BERT drops {3, 5} at 0.95 and {3, 5, 8, 9} at 0.925
    cosines = dict.fromkeys(range(1, 13), 0.8) | {3: 0.96, 5: 0.951, 8: 0.93, 9: 0.926}
    assert contribution_dropped(cosines, 0.95) == (3, 5)
    assert contribution_dropped(cosines, 0.925) == (3, 5, 8, 9)
    assert contribution_dropped(cosines, 0.97) == ()


def test_contribution_is_strictly_above_the_threshold() -> None:
    assert contribution_dropped({1: 0.9, 2: 0.5}, 0.9) == ()


def test_contribution_leaves_a_layer() -> None:
    with pytest.raises(ValueError, match=r"no layer would stay.*0\.9300 or more"):
        contribution_dropped({1: 0.91, 2: 0.93}, 0.9)
