"""Linear CKA: how alike two networks' layers are, whatever their width, rotation and scale.

Kornblith et al. 2019, "Similarity of Neural Network Representations Revisited", section 3, the
linear case: |Y'X|_F^2 / (|X'X|_F |Y'Y|_F), features centred. Exact, although computed in batches:
memory depends on `max_bytes` and the size of a batch, not on the number of examples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel

from lp_sweep.trials.measures.subject import LayerValues, NamedValue, Subject, finite
from lp_sweep.trials.model.families import original_layers
from lp_sweep.trials.model.states import Batch, Site, layer_states
from lp_sweep.trials.spec.specs import ProfileSpec

_MAX_BYTES = 512 * 2**20
_ROWS = 1024  # converted to float64 at once

# Iterates over the same examples at each call: per batch, each layer's (N, features).
Features = Callable[[], Iterable[list[torch.Tensor]]]
# The layers of the first network are numbered from 0, those of the second go on from there.
_Pair = tuple[int, int]


def cka(subject: Subject, spec: ProfileSpec) -> LayerValues:
    """`layer` of this network with `other` of the one that it is compared with."""
    other, values = subject.other(), []
    for site in ("layer", "attention"):
        matrix = network_cka(subject.model, other, subject.dev_batches, site=site)
        begin = [0] if site == "layer" else []  # attention has no embedding output
        here, there = ([*begin, *original_layers(m.config)] for m in (subject.model, other))
        for row, layer in zip(matrix, here, strict=True):
            for value, opposite in zip(row, there, strict=True):
                values.append(NamedValue(site, layer, opposite, finite(value)))
    return LayerValues(values=values)


def network_cka(
    first: PreTrainedModel,
    second: PreTrainedModel,
    make_batches: Callable[[], Iterable[Batch]],
    *,
    site: Site = "layer",
) -> npt.NDArray[np.float64]:
    """CKA of every layer of `first` with every layer of `second`: (La + 1, Lb + 1).

    Row and column 0 are the embedding output. The site "attention" has none: the result is (La, Lb)
    from layer 1 on. Compares the sentence tokens. `make_batches` returns the same batches each time
    (see `layer_states`); for large networks it is called several times.

    A layer whose states are the same for every example has nan, such as the sentence token at
    BERT's embedding output. Raises UnsupportedModelError, or ValueError if there is no example.
    """

    def features(model: PreTrainedModel) -> Iterator[list[torch.Tensor]]:
        for states in layer_states(model, make_batches(), site, only_sentence=True):
            yield states.sentence()

    return linear_cka(lambda: features(first), lambda: features(second))


def linear_cka(
    first: Features, second: Features, *, max_bytes: int = _MAX_BYTES
) -> npt.NDArray[np.float64]:
    """CKA of each layer of `first` with each of `second`, (La, Lb), from 0 to 1.

    `first` and `second` each return a fresh iterable over the same batches of examples. Products
    of features are summed in float64. If they need more than `max_bytes` in all, they are computed
    in several passes over the examples, of at least one product each.

    nan if a layer is the same for every example, up to rounding: 0 would mean "unlike".
    Raises ValueError if there is no example or the two have different ones.
    """
    rows, widths = _sizes(first, second)
    own = [(layer, layer) for layer in range(len(widths))]
    cross = [(a, b) for a in range(rows) for b in range(rows, len(widths))]
    sums: dict[_Pair, float] = {}
    constant: dict[int, bool] = {}
    for pairs in _passes([*own, *cross], widths, max_bytes):
        moments = _Moments(pairs)
        for _, batch in _together(first, second):
            moments.add(batch)
        sums |= {pair: float(product.norm()) for pair, product in moments.products.items()}
        constant |= {a: moments.constant(a) for a, b in pairs if a == b}
    result = np.full((rows, len(widths) - rows), np.nan)
    for a, b in cross:
        if not constant[a] and not constant[b]:
            result[a, b - rows] = sums[a, b] ** 2 / (sums[a, a] * sums[b, b])
    return result


def _sizes(first: Features, second: Features) -> tuple[int, list[int]]:
    """The number of layers of `first`, and the number of features of each layer of both."""
    for rows, batch in _together(first, second):
        if len(batch[0]):
            return rows, [states.shape[1] for states in batch]
    raise ValueError("no examples to compare networks on; give at least one batch.")


def _together(first: Features, second: Features) -> Iterator[tuple[int, list[torch.Tensor]]]:
    """The number of layers of `first`, and the features of all layers of both, batch by batch."""
    for one, other in zip(first(), second(), strict=True):
        batch = [*one, *other]
        if len({len(states) for states in batch}) != 1:
            raise ValueError(
                "the two networks have batches of different sizes; give both the same."
            )
        yield len(one), batch


def _passes(pairs: Iterable[_Pair], widths: Sequence[int], max_bytes: int) -> Iterator[list[_Pair]]:
    """The pairs in lists whose products fit into `max_bytes`, or that have one pair."""
    chosen, taken = list[_Pair](), 0
    for a, b in pairs:
        size = 8 * widths[a] * widths[b]
        if chosen and taken + size > max_bytes:
            yield chosen
            chosen, taken = [], 0
        chosen.append((a, b))
        taken += size
    yield chosen


class _Moments:
    """Sums of products of centred features, over one pass.

    Each batch is centred on its own mean. One more row accounts for the difference from the mean so
    far (Chan et al. 1979), which avoids cancellation.
    """

    def __init__(self, pairs: list[_Pair]) -> None:
        self.pairs = pairs
        self.count = 0
        self.means: dict[int, torch.Tensor] = {}  # (features,)
        self.products: dict[_Pair, torch.Tensor] = {}  # (features, features)
        self.epsilon: dict[int, float] = {}

    def add(self, batch: Sequence[torch.Tensor]) -> None:
        """Rows of each layer, (N, features)."""
        device = batch[self.pairs[0][0]].device  # the two networks may be on two
        for start in range(0, len(batch[0]), _ROWS):
            needed = {layer for pair in self.pairs for layer in pair}
            piece = {layer: batch[layer][start : start + _ROWS].to(device) for layer in needed}
            self._add(piece, len(batch[0][start : start + _ROWS]))

    def _add(self, piece: Mapping[int, torch.Tensor], rows: int) -> None:
        centred = {layer: self._centred(layer, states) for layer, states in piece.items()}
        for a, b in self.pairs:
            x, y = centred[a], centred[b]
            if (a, b) not in self.products:
                self.products[a, b] = x.new_zeros(x.shape[1], y.shape[1])
            self.products[a, b].addmm_(x.T, y)
        self.count += rows

    def _centred(self, layer: int, states: torch.Tensor) -> torch.Tensor:
        """(N + 1, features), and the running mean with these rows in it."""
        self.epsilon[layer] = torch.finfo(states.dtype).eps
        rows, before = states.double(), self.count
        mean = rows.mean(dim=0)
        shift = mean - self.means.get(layer, mean)
        self.means[layer] = mean - shift * (before / (before + len(rows)))
        weight = before * len(rows) / (before + len(rows))
        return torch.cat([rows - mean, shift[None] * weight**0.5])

    def constant(self, layer: int) -> bool:
        """Whether the rows differ by no more than rounding."""
        variance = float(self.products[layer, layer].trace()) / self.count
        size = variance + float(self.means[layer].square().sum())
        return variance <= size * (4 * self.epsilon[layer]) ** 2
