"""Which layers a strategy drops. Pure arithmetic on 1-based indices; imports no torch.

Rules and names are those of Poor Man's BERT, section 2. The "even" and "odd" of the alternate
strategies are those of an even depth such as 12: `even-alternate` starts at the last layer and
`odd-alternate` at the one below it, whatever the depth's parity.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
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


def _random(draw: int) -> Strategy:
    """The K first of an order drawn from (draw, layer) alone: larger K hold smaller ones, and no
    library's version changes it."""

    def dropped(depth: int, k: int) -> tuple[int, ...]:
        def place(layer: int) -> bytes:
            return hashlib.sha256(f"{draw}:{layer}".encode()).digest()

        return tuple(sorted(sorted(range(1, depth + 1), key=place)[:k]))

    return Strategy(dropped, _any, "0 <= K < depth")


def _listed(layers: tuple[int, ...]) -> Strategy:
    def possible(depth: int) -> tuple[int, ...]:
        return (len(layers),) if max(layers) <= depth and len(layers) < depth else ()

    rule = f"the layers {', '.join(map(str, layers))}, of a deeper network"
    return Strategy(lambda depth, k: layers, possible, rule)


STRATEGIES: dict[str, Strategy] = {
    "top": Strategy(_top, _any, "0 <= K < depth"),
    "bottom": Strategy(_bottom, _any, "0 <= K < depth"),
    "even-alternate": Strategy(_even_alternate, _alternate, "2 K <= depth"),
    "odd-alternate": Strategy(_odd_alternate, _alternate, "2 K <= depth"),
    "symmetric": Strategy(_symmetric, _same_parity, "depth - K is even"),
}


class Measured(NamedTuple):
    """What a profile says of a network's layers, 1-based. `blocks`: (start, n) -> value, of the n
    layers from `start` on."""

    layers: Mapping[int, float]
    blocks: Mapping[tuple[int, int], float] = MappingProxyType({})


class MeasuredStrategy(NamedTuple):
    """A strategy that needs `measure` first; `dropped(found, k)`."""

    measure: str
    dropped: Callable[[Measured, int], tuple[int, ...]]


def _most_similar(found: Measured, k: int) -> tuple[int, ...]:
    """The K layers that change their input least; of equals, the higher."""
    order = sorted(found.layers, key=lambda layer: (-found.layers[layer], -layer))
    return tuple(sorted(order[:k]))


def _first_dropped(found: Measured, k: int) -> tuple[int, ...]:
    """`layers` holds the step, from 1, at which each was dropped."""
    return tuple(sorted(layer for layer, step in found.layers.items() if 0 < step <= k))


def _nearest_ends(found: Measured, k: int) -> tuple[int, ...]:
    """The K layers in a row between whose ends the sentence token turns least; of equals, the
    higher."""
    starts = [start for start, length in found.blocks if length == k]
    if not starts:
        return ()
    start = min(starts, key=lambda start: (found.blocks[start, k], -start))
    return tuple(range(start, start + k))


# chosen by a measurement, so its K is known only when the profile is there
CONTRIBUTION = "contribution"

# chosen by a measurement for a K that is asked for
BY_MEASURE: dict[str, MeasuredStrategy] = {
    "block-influence": MeasuredStrategy("block_influence", _most_similar),
    "angular": MeasuredStrategy("angular", _nearest_ends),
    "greedy": MeasuredStrategy("greedy", _first_dropped),
}

RANDOM, DROP = "random", "drop"  # of families of rules: `random 3`, `drop 3+5`
STRATEGY_NAMES = (*STRATEGIES, CONTRIBUTION, *BY_MEASURE, RANDOM, DROP)
_RANDOM = re.compile(r"random ([0-9]{1,9})")
_DROP = re.compile(r"drop ([0-9]{1,4}(?:\+[0-9]{1,4})*)")


def listed_name(layers: Sequence[int]) -> str:
    """`drop 3+5`: an explicit list of layers as a strategy of its own."""
    return f"{DROP} {'+'.join(map(str, sorted(set(layers))))}"


def find_rule(name: str) -> Strategy | None:
    """The rule of a strategy's full name; None for one that needs a measurement, or an unknown."""
    if drawn := _RANDOM.fullmatch(name):
        return _random(int(drawn[1]))
    if listed := _DROP.fullmatch(name):
        layers = tuple(sorted({int(layer) for layer in listed[1].split("+")}))
        return _listed(layers) if layers[0] > 0 else None
    return STRATEGIES.get(name)


def is_strategy(name: str) -> bool:
    return name == CONTRIBUTION or name in BY_MEASURE or find_rule(name) is not None


def possible_k(name: str, depth: int) -> tuple[int, ...]:
    """The K at which a strategy has a network of `depth` layers."""
    rule = find_rule(name)
    return _any(depth) if rule is None else rule.possible(depth)


def rule_text(name: str) -> str:
    rule = find_rule(name)
    return "0 <= K < depth" if rule is None else rule.rule


def dropped_layers(strategy: str, depth: int, k: int) -> tuple[int, ...]:
    """The K layers that `strategy` drops from a network of `depth` layers, ascending.

    Raises ValueError when the strategy does not exist at this K, saying which K are possible;
    KeyError for one that needs a measurement.
    """
    rule = find_rule(strategy)
    if rule is None:
        raise KeyError(strategy)
    if k not in rule.possible(depth):
        allowed = ", ".join(map(str, rule.possible(depth))) or "none"
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


_SHARE, _MOST = 0.1, 2000


def held_out_rows(train_rows: int) -> int:
    """A tenth of them, at least one and at most 2,000."""
    return min(_MOST, train_rows, max(1, int(train_rows * _SHARE)))
