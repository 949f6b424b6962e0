"""Which layers a strategy drops. Pure arithmetic on 1-based indices; imports no torch.

Rules and names are those of Poor Man's BERT, section 2. The "even" and "odd" of the alternate
strategies are those of an even depth such as 12: `even-alternate` starts at the last layer and
`odd-alternate` at the one below it, whatever the depth's parity.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple


class Strategy(NamedTuple):
    """`dropped(depth, k)` gives the dropped layers; `possible(depth)` the K at which it exists;
    `rule` says so to a user."""

    dropped: Callable[[int, int], tuple[int, ...]]
    possible: Callable[[int], tuple[int, ...]]
    rule: str


def _top(depth: int, k: int) -> tuple[int, ...]:
    return tuple(range(depth - k + 1, depth + 1))


def _bottom(depth: int, k: int) -> tuple[int, ...]:
    del depth
    return tuple(range(1, k + 1))


def _even_alternate(depth: int, k: int) -> tuple[int, ...]:
    return tuple(sorted(depth - 2 * i for i in range(k)))


def _odd_alternate(depth: int, k: int) -> tuple[int, ...]:
    return tuple(sorted(depth - 1 - 2 * i for i in range(k)))


def _symmetric(depth: int, k: int) -> tuple[int, ...]:
    each_side = (depth - k) // 2
    return tuple(range(each_side + 1, each_side + k + 1))


def _any(depth: int) -> tuple[int, ...]:
    return tuple(range(depth))


def _alternate(depth: int) -> tuple[int, ...]:
    return tuple(k for k in range(depth) if 2 * k <= depth)


def _same_parity(depth: int) -> tuple[int, ...]:
    # K = 0 drops nothing, so it is the full network at an odd depth too
    return tuple(k for k in range(depth) if k == 0 or (depth - k) % 2 == 0)


STRATEGIES: dict[str, Strategy] = {
    "top": Strategy(_top, _any, "0 <= K < depth"),
    "bottom": Strategy(_bottom, _any, "0 <= K < depth"),
    "even-alternate": Strategy(_even_alternate, _alternate, "2 K <= depth"),
    "odd-alternate": Strategy(_odd_alternate, _alternate, "2 K <= depth"),
    "symmetric": Strategy(_symmetric, _same_parity, "depth - K is even"),
}

# chosen by a measurement, so its K is known only when the profile is there
CONTRIBUTION = "contribution"

STRATEGY_NAMES = (*STRATEGIES, CONTRIBUTION)


def dropped_layers(strategy: str, depth: int, k: int) -> tuple[int, ...]:
    """The K layers that `strategy` drops from a network of `depth` layers, ascending.

    Raises ValueError when the strategy does not exist at this K, saying which K are possible.
    """
    rule = STRATEGIES[strategy]
    if k not in rule.possible(depth):
        allowed = ", ".join(map(str, rule.possible(depth)))
        raise ValueError(
            f"{strategy} can't drop K={k} of {depth} layers ({rule.rule}); possible K: {allowed}"
        )
    return rule.dropped(depth, k)


def contribution_dropped(cosines: Mapping[int, float], threshold: float) -> tuple[int, ...]:
    """The layers whose mean cosine before and after them is above `threshold` (section 2.3).

    cosines: 1-based layer -> mean over the dev set of cos(sentence token before, after).
    Raises ValueError when no layer would stay.
    """
    dropped = tuple(sorted(layer for layer, cosine in cosines.items() if cosine > threshold))
    if len(dropped) == len(cosines):
        raise ValueError(
            f"every layer's cosine is above {threshold}: no layer would stay. "
            f"Choose a threshold of {max(cosines.values()):.4f} or more."
        )
    return dropped


def kept_layers(depth: int, dropped: Sequence[int]) -> tuple[int, ...]:
    """The layers of 1..depth that are not dropped, ascending."""
    gone = set(dropped)
    return tuple(layer for layer in range(1, depth + 1) if layer not in gone)
