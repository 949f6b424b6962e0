"""Linear CKA: how alike two networks' layers are, whatever their width, rotation and scale.

Kornblith et al. 2019, "Similarity of Neural Network Representations Revisited", section 3, the
linear case: |Y'X|_F^2 / (|X'X|_F |Y'Y|_F), features centred. Exact, although computed in batches:
memory depends on `max_bytes` and the size of a batch, not on the number of examples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel

from lp_sweep.trials.model.states import Batch, Site, layer_states

MAX_BYTES = 512 * 2**20
_ROWS = 1024  # converted to float64 at once

# Iterates over the same examples at each call: per batch, each layer's (N, features).
Features = Callable[[], Iterable[list[torch.Tensor]]]


def network_cka(
    first: PreTrainedModel,
    second: PreTrainedModel,
    make_batches: Callable[[], Iterable[Batch]],
    *,
    site: Site = "layer",
    tokens: bool = False,
    max_bytes: int = MAX_BYTES,
) -> npt.NDArray[np.float64]:
    """CKA of every layer of `first` with every layer of `second`: (La + 1, Lb + 1).

    Row and column 0 are the embedding output. The site "attention" has none: the result is (La, Lb)
    from layer 1 on. Compares the sentence tokens, or with `tokens` all real tokens. `make_batches`
    returns the same batches each time (see `layer_states`); for large networks it is called
    several times.

    A layer whose states are the same for every example has nan, such as the sentence token at
    BERT's embedding output. Raises UnsupportedModelError, or ValueError if there is no example.
    """

    def features(model: PreTrainedModel) -> Features:
        def run() -> Iterator[list[torch.Tensor]]:
            for states in layer_states(model, make_batches(), site, only_sentence=not tokens):
                yield states.tokens()

        return run

    return linear_cka(features(first), features(second), max_bytes=max_bytes)


def linear_cka(
    first: Features, second: Features, *, max_bytes: int = MAX_BYTES
) -> npt.NDArray[np.float64]:
    """CKA of each layer of `first` with each of `second`, (La, Lb), from 0 to 1.

    `first` and `second` each return a fresh iterable over the same batches of examples. Products
    of features are summed in float64. If they need more than `max_bytes` in all, they are computed
    in several passes over the examples, of at least one product each.

    nan if a layer is the same for every example, up to rounding: 0 would mean "unlike".
    Raises ValueError if there is no example or the two have different ones.
    """
    sums: dict[Pair, float] = {}
    constant: dict[Layer, bool] = {}
    for pairs in _passes(_widths(first, second), max_bytes):
        moments = _gather(first, second, pairs)
        sums |= {pair: float(product.norm()) for pair, product in moments.products.items()}
        constant |= {a: moments.constant(a) for a, b in pairs if a == b}
    rows, columns = ([layer for layer in constant if layer.side == side] for side in (0, 1))
    result = np.full((len(rows), len(columns)), np.nan)
    for a in rows:
        for b in columns:
            if not constant[a] and not constant[b]:
                cross, own = sums[a, b], sums[a, a] * sums[b, b]
                result[a.place, b.place] = cross**2 / own
    return result


class Layer(NamedTuple):
    side: int  # 0: the first network
    place: int


Pair = tuple[Layer, Layer]


def _widths(first: Features, second: Features) -> dict[Layer, int]:
    """Number of features of each layer, from the first batch."""
    for batch in _together(first, second):
        if _size(batch):
            return {layer: states.shape[1] for layer, states in batch.items()}
    raise ValueError("no examples to compare networks on; give at least one batch.")


def _together(first: Features, second: Features) -> Iterator[dict[Layer, torch.Tensor]]:
    for batches in zip(first(), second(), strict=True):
        batch = {
            Layer(side, place): states
            for side, layers in enumerate(batches)
            for place, states in enumerate(layers)
        }
        if len({len(states) for states in batch.values()}) != 1:
            raise ValueError(
                "the two networks have batches of different sizes; give both the same."
            )
        yield batch


def _passes(widths: Mapping[Layer, int], max_bytes: int) -> Iterator[list[Pair]]:
    """All products, in lists that fit into `max_bytes` or hold one product."""
    rows, columns = ([layer for layer in widths if layer.side == side] for side in (0, 1))
    chosen: list[Pair] = []
    taken = 0
    for pair in [*((a, a) for a in widths), *((a, b) for a in rows for b in columns)]:
        size = 8 * widths[pair[0]] * widths[pair[1]]
        if chosen and taken + size > max_bytes:
            yield chosen
            chosen, taken = [], 0
        chosen.append(pair)
        taken += size
    yield chosen


def _gather(first: Features, second: Features, pairs: list[Pair]) -> _Moments:
    moments = _Moments(pairs)
    for batch in _together(first, second):
        needed = {layer: batch[layer] for pair in pairs for layer in pair}
        device = next(iter(needed.values())).device  # the two networks may be on two
        for start in range(0, _size(batch), _ROWS):
            rows = slice(start, start + _ROWS)
            moments.add({layer: states[rows].to(device) for layer, states in needed.items()})
    return moments


def _size(batch: Mapping[Layer, torch.Tensor]) -> int:
    return len(next(iter(batch.values())))


class _Moments:
    """Sums of products of centred features, over one pass.

    Each batch is centred on its own mean. One more row accounts for the difference from the mean so
    far (Chan et al. 1979), which avoids cancellation.
    """

    def __init__(self, pairs: list[Pair]) -> None:
        self.pairs = pairs
        self.count = 0
        self.means: dict[Layer, torch.Tensor] = {}  # (features,)
        self.products: dict[Pair, torch.Tensor] = {}  # (features, features)
        self.epsilon: dict[Layer, float] = {}

    def add(self, batch: Mapping[Layer, torch.Tensor]) -> None:
        """Rows of each layer, (N, features), N > 0."""
        centred = {layer: self._centred(layer, states) for layer, states in batch.items()}
        for a, b in self.pairs:
            x, y = centred[a], centred[b]
            if (a, b) not in self.products:
                self.products[a, b] = x.new_zeros(x.shape[1], y.shape[1])
            self.products[a, b].addmm_(x.T, y)
        self.count += _size(batch)

    def _centred(self, layer: Layer, states: torch.Tensor) -> torch.Tensor:
        """(N + 1, features), and the running mean with these rows in it."""
        self.epsilon[layer] = torch.finfo(states.dtype).eps
        rows, before = states.double(), self.count
        mean = rows.mean(dim=0)
        shift = mean - self.means.get(layer, mean)
        self.means[layer] = mean - shift * (before / (before + len(rows)))
        weight = before * len(rows) / (before + len(rows))
        return torch.cat([rows - mean, shift[None] * weight**0.5])

    def constant(self, layer: Layer) -> bool:
        """Whether the rows differ by no more than rounding."""
        variance = float(self.products[layer, layer].trace()) / self.count
        size = variance + float(self.means[layer].square().sum())
        return variance <= size * (4 * self.epsilon[layer]) ** 2
