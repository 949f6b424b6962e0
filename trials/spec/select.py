"""The layers that a strategy drops: pure arithmetic on 1-based indices, without torch.

Rules and names are those of Poor Man's BERT, section 2. The "even" and "odd" of the alternate
strategies are those of an even depth such as 12: `even-alternate` starts at the last layer and
`odd-alternate` at the one below it, whatever the depth's parity.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal, NamedTuple


class LayerScores(NamedTuple):
    """A profile's values by layer, 1-based, and by block: (start, n) -> value of the n layers from
    `start`."""

    layers: Mapping[int, float]
    blocks: Mapping[tuple[int, int], float] = MappingProxyType({})


def _any(depth: int) -> tuple[int, ...]:
    return tuple(range(depth))


def _unmeasured(depth: int, k: int) -> tuple[int, ...]:
    raise KeyError("this strategy needs a measurement")


class Strategy(NamedTuple):
    """One entry of STRATEGIES.

    help: one line for the schema, `--help`, completion and the docs.
    dropped(depth, k): the layers that a strategy drops by position.
    possible(depth): the possible K; `rule` describes them to a user.
    measure: the measurement that the strategy needs; `chosen(found, value)` then returns the
    dropped layers for a K or a threshold.
    takes: the key of the sweep file that says how many layers go.
    family: finds the strategy for the rest of a longer name.
    """

    help: str
    dropped: Callable[[int, int], tuple[int, ...]] = _unmeasured
    possible: Callable[[int], tuple[int, ...]] = _any
    rule: str = "0 <= K < depth"
    measure: str = ""
    chosen: Callable[[LayerScores, float], tuple[int, ...]] = lambda found, value: ()
    takes: Literal["k", "threshold", "layers"] = "k"
    family: Callable[[str], Strategy | None] | None = None

    @property
    def by_position(self) -> bool:
        return not self.measure


def _every_other(last: int, k: int) -> tuple[int, ...]:
    return tuple(range(last - 2 * (k - 1), last + 1, 2))


def _symmetric(depth: int, k: int) -> tuple[int, ...]:
    each_side = (depth - k) // 2
    return tuple(range(each_side + 1, each_side + k + 1))


def _alternate(depth: int) -> tuple[int, ...]:
    return tuple(k for k in range(depth) if 2 * k <= depth)


def _same_parity(depth: int) -> tuple[int, ...]:
    # K = 0, the full model, is possible at every depth
    return tuple(k for k in range(depth) if k == 0 or (depth - k) % 2 == 0)


def _random(number: str) -> Strategy | None:
    """Drops the first K of an order that depends only on (number, layer): a larger K includes a
    smaller one, and no library's version matters."""
    if not re.fullmatch(r"[0-9]{1,9}", number):
        return None
    draw = int(number)

    def dropped(depth: int, k: int) -> tuple[int, ...]:
        def place(layer: int) -> bytes:
            return hashlib.sha256(f"{draw}:{layer}".encode()).digest()

        return tuple(sorted(sorted(range(1, depth + 1), key=place)[:k]))

    return Strategy(f"draw {draw} of random", dropped)


def _listed(text: str) -> Strategy | None:
    """`3+5`: an explicit list of layers."""
    if not re.fullmatch(r"[0-9]{1,4}(?:\+[0-9]{1,4})*", text):
        return None
    layers = tuple(sorted({int(layer) for layer in text.split("+")}))
    if layers[0] < 1:
        return None

    def possible(depth: int) -> tuple[int, ...]:
        return (len(layers),) if max(layers) <= depth and len(layers) < depth else ()

    named = ", ".join(map(str, layers))
    rule = f"the layers {named}, of a deeper network"
    return Strategy(f"the layers {named}", lambda depth, k: layers, possible, rule, takes="layers")


def _most_similar(found: LayerScores, k: float) -> tuple[int, ...]:
    """The K layers that change their input least; of equals, the higher layer."""
    order = sorted(found.layers, key=lambda layer: (-found.layers[layer], -layer))
    return tuple(sorted(order[: int(k)]))


def _first_dropped(found: LayerScores, k: float) -> tuple[int, ...]:
    """The layers dropped in the first K steps; `layers` holds each layer's step, from 1."""
    return tuple(sorted(layer for layer, step in found.layers.items() if 0 < step <= k))


def _nearest_ends(found: LayerScores, k: float) -> tuple[int, ...]:
    """The K consecutive layers that turn the sentence token least; of equals, the higher block."""
    starts = [start for start, length in found.blocks if length == k]
    if not starts:
        return ()
    start = min(starts, key=lambda start: (found.blocks[start, int(k)], -start))
    return tuple(range(start, start + int(k)))


def contribution_dropped(cosines: Mapping[int, float], threshold: float) -> tuple[int, ...]:
    """The layers whose mean cosine is above `threshold` (section 2.3).

    cosines: 1-based layer -> mean over the dev set of cos(sentence token before, after the layer).
    Raises ValueError if no layer would stay.
    """
    dropped = tuple(sorted(layer for layer, cosine in cosines.items() if cosine > threshold))
    if len(dropped) == len(cosines):
        raise ValueError(
            f"every layer's cosine is above {threshold}: no layer would stay. "
            f"Choose a threshold of {max(cosines.values()):.4f} or more."
        )
    return dropped


CONTRIBUTION, RANDOM, DROP = "contribution", "random", "drop"

# A new strategy is one entry here: see docs/extending.md
STRATEGIES: dict[str, Strategy] = {
    "top": Strategy(
        "the highest K layers", lambda depth, k: tuple(range(depth - k + 1, depth + 1))
    ),
    "bottom": Strategy("the lowest K layers", lambda depth, k: tuple(range(1, k + 1))),
    "even-alternate": Strategy(
        "every other layer, from the last one down", _every_other, _alternate, "2 K <= depth"
    ),
    "odd-alternate": Strategy(
        "every other layer, from the last but one down",
        lambda depth, k: _every_other(depth - 1, k),
        _alternate,
        "2 K <= depth",
    ),
    "symmetric": Strategy("K layers in the middle", _symmetric, _same_parity, "depth - K is even"),
    CONTRIBUTION: Strategy(
        "the layers that keep the sentence token's cosine, from input to output, above a threshold",
        measure="contribution",
        chosen=lambda found, threshold: contribution_dropped(found.layers, threshold),
        takes="threshold",
    ),
    DROP: Strategy("the layers that you name", takes="layers", family=_listed),
    RANDOM: Strategy("K random layers, drawn by a seed of their own", family=_random),
    "block-influence": Strategy(
        "the K layers that change their input least",
        measure="block_influence",
        chosen=_most_similar,
    ),
    "angular": Strategy(
        "the K consecutive layers that turn the sentence token least",
        measure="angular",
        chosen=_nearest_ends,
    ),
    "greedy": Strategy(
        "one layer after another, each time the one that hurts the score least",
        measure="greedy",
        chosen=_first_dropped,
    ),
}


def listed_name(layers: Sequence[int]) -> str:
    """`drop 3+5`: the strategy name for an explicit list of layers."""
    return f"{DROP} {'+'.join(map(str, sorted(set(layers))))}"


def find_strategy(name: str) -> Strategy | None:
    """Finds a strategy by its full name, such as `top`, `random 3` or `drop 3+5`. None for an
    unknown name, and for a family's name alone."""
    found = STRATEGIES.get(name)
    if found is not None:
        return None if found.family else found
    family, _, rest = name.partition(" ")
    found = STRATEGIES.get(family)
    return found.family(rest) if found is not None and found.family else None


def by_position() -> str:
    """Lists the strategies that need no measurement: `top, ..., 'drop 3+5', 'random 1'`."""
    example = {DROP: "'drop 3+5'", RANDOM: "'random 1'"}
    return ", ".join(example.get(name, name) for name, s in STRATEGIES.items() if s.by_position)


def find_rule(name: str) -> Strategy | None:
    """Finds a strategy by position; None if it needs a measurement or is unknown."""
    found = find_strategy(name)
    return found if found is not None and found.by_position else None


def is_strategy(name: str) -> bool:
    return find_strategy(name) is not None


def possible_k(name: str, depth: int) -> tuple[int, ...]:
    """The possible K of a strategy in a network of `depth` layers."""
    found = find_strategy(name)
    return _any(depth) if found is None else found.possible(depth)


def askable_k(strategy: str, depth: int) -> tuple[int, ...]:
    """The K >= 1 that a sweep file can ask for; () if the strategy takes a threshold."""
    found = find_strategy(strategy)
    if found is not None and found.takes == "threshold":
        return ()
    return tuple(k for k in possible_k(strategy, depth) if k)


def rule_text(name: str) -> str:
    found = find_strategy(name)
    return "0 <= K < depth" if found is None else found.rule


def dropped_layers(strategy: str, depth: int, k: int) -> tuple[int, ...]:
    """The K layers that `strategy` drops from a network of `depth` layers, ascending.

    Raises ValueError with the possible K if this one is not, and KeyError if the strategy needs a
    measurement.
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


def kept_layers(depth: int, dropped: Sequence[int]) -> tuple[int, ...]:
    """The layers in 1..depth that are not dropped, ascending."""
    gone = set(dropped)
    return tuple(layer for layer in range(1, depth + 1) if layer not in gone)


def held_out_rows(train_rows: int) -> int:
    """A tenth of the train rows, at least 1 and at most 2,000."""
    return min(2000, train_rows, max(1, int(train_rows * 0.1)))
