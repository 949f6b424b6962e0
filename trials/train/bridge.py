"""A linear map in place of a dropped block of layers: ReplaceMe, also for post-norm layers.

Shopkhoev et al. 2025 (arXiv 2505.02819): the map T acts on the MLP's output of the layer below the
block; the residual path stays. If layers i+1 to i+n are dropped, M_i is that output, Y_i the state
after attention, and S_i = Y_i + M_i their sum:

    T = argmin |w (M_i T + Y_i - S_i+n)|^2 + ridge |T - I|^2
      = I + (M_i' w^2 M_i + ridge I)^-1 M_i' w^2 (S_i+n - S_i)

over the tokens of a few thousand texts; w is 1 / the standard deviation of the token's S_i+n.
M_i = g W' + b is a linear layer's output, so T is merged into it (W becomes T'W, b becomes T'b):
no weight is added.

Different from the paper:
- The weights w. The layer above reads S_i+n after a norm, which divides by that deviation; without
  w, a few tokens with states hundreds of times larger than the rest decide the map. (The cosine,
  which the paper finds better than squares, also ignores a state's length.)
- The ridge draws T to the identity, that is to plain dropping, instead of 0.
- If the linear has a bias, so has the map.
- In a post-norm layer, whose output is LN_i(S_i), the sums are those before the norm, and LN_i+n
  replaces LN_i: the layer above reads what the block's last layer would have returned.

Each of several blocks has a map, fitted from the lowest up: M and Y are those of the network with
the maps below it, the target is the full network's.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from lp_sweep.storage.errors import UnsupportedModelError
from lp_sweep.trials.data.batches import EncodedSplit, Padding, chunks, to_device
from lp_sweep.trials.model.families import find_layers, original_layers, time_comes_first
from lp_sweep.trials.model.feedforward import feed_forward_of, parts
from lp_sweep.trials.model.prune import keep_original
from lp_sweep.trials.spec.procedures import BRIDGE_ROWS, bridged_blocks

RIDGE = 1e-3  # times the mean of the diagonal of M'M

Batches = Callable[[], Iterator[Mapping[str, torch.Tensor]]]


class Fit(NamedTuple):
    """One bridge."""

    layer: int  # the layer it was merged into, by its number in the very first network
    left: float  # the part of the block's weighted squared change that the map leaves


def bridge(model: PreTrainedModel, kept: Sequence[int], batches: Batches) -> list[Fit]:
    """Drop the layers that are not `kept`, in place, with a map for each block of them.

    `kept`: numbers in the very first network, 1 included. `batches`: token ids on the model's
    device, the same at each call. The network is in eval mode. Raises UnsupportedModelError for an
    unlisted family or a layer without its feed-forward.
    """
    whole = copy.deepcopy(model)
    blocks = bridged_blocks(kept, len(original_layers(model.config)))
    keep_original(model, kept)
    fits: list[Fit] = []
    for block in blocks:
        layer = block[0] - 1
        below = model if fits else whole  # the same below the lowest block
        site, last = _Site.of(below, layer), _Site.of(whole, block[-1])
        moments = _moments(below, site, whole, last, batches)
        fitted = moments.solve(RIDGE, shift=site.down.bias is not None)
        _merge(_Site.of(model, layer), last, fitted)
        fits.append(Fit(layer, fitted.left))
    return fits


def calibration(
    split: EncodedSplit, padding: Padding, device: torch.device, batch_size: int
) -> Batches:
    """Batches of at most BRIDGE_ROWS rows, sorted by length."""
    rows = np.random.default_rng(0).permutation(len(split))[:BRIDGE_ROWS]
    order = rows[np.argsort(split.lengths[rows], kind="stable")]
    return lambda: (to_device(split, part, padding, device) for part in chunks(order, batch_size))


class _Site(NamedTuple):
    """The end of a layer: the linear whose output is M, and the norm of the sum, if any."""

    layer: nn.Module
    down: nn.Linear
    norm: nn.Module | None

    @classmethod
    def of(cls, model: PreTrainedModel, number: int) -> _Site:
        kind = feed_forward_of(model.config, "layers can't be bridged in")
        layer = find_layers(model).layers[original_layers(model.config).index(number)]
        found = parts(layer, [kind.linears[1], kind.norm])
        if len(found) != 2 or not isinstance(found[0], nn.Linear):
            raise UnsupportedModelError(
                f"{model.config.model_type}: layer {number} has no feed-forward to merge a bridge "
                "into. Use `bridge: none` for networks without some of their feed-forwards."
            )
        return cls(layer, found[0], found[1] if kind.norm_can_stay else None)

    @contextmanager
    def noted(self, found: dict[str, torch.Tensor]) -> Iterator[None]:
        """Puts `mlp` and `sum` of the forward pass inside into `found`."""

        def note_sum(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            state = output if isinstance(output, torch.Tensor) else output[0]
            found["sum"] = state if self.norm is None else args[0]

        hooks = (
            self.down.register_forward_hook(lambda _, args, output: found.update(mlp=output)),
            (self.norm or self.layer).register_forward_hook(note_sum),
        )
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


class _Map(NamedTuple):
    """A map: M becomes M T + shift."""

    map: torch.Tensor  # (H, H)
    shift: torch.Tensor | None  # (H,)
    left: float


class _Moments:
    """Weighted sums over tokens of M, of R = S_i+n - S_i and of their products, in fp64."""

    def __init__(self, width: int, device: torch.device) -> None:
        def zeros(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=torch.float64, device=device)

        self.weight, self.square = zeros(), zeros()
        self.mlp, self.rest = zeros(width), zeros(width)
        self.gram, self.cross = zeros(width, width), zeros(width, width)

    def add(self, mlp: torch.Tensor, rest: torch.Tensor, weight: torch.Tensor) -> None:
        """mlp, rest: (N, H) of N tokens. weight: (N,), of each token's squared error."""
        mlp, rest, weight = mlp.double(), rest.double(), weight.double()[:, None]
        weighted = mlp * weight
        self.weight += weight.sum()
        self.square += (weight * rest.square()).sum()
        self.mlp += weighted.sum(0)
        self.rest += (weight * rest).sum(0)
        self.gram += mlp.T @ weighted
        self.cross += weighted.T @ rest

    def solve(self, ridge: float, *, shift: bool) -> _Map:
        """Least squares of M D + shift = R; T = I + D. The shift has no ridge."""
        # The ridge is on D = T - I, so a large one gives plain dropping. The best shift for any D
        # is (mean of R) - (mean of M) D, so it drops out if M and R are centred: that is what the
        # outer products take away from both moments. What is left of the squares is then that of
        # the fit, |R|^2 - 2 <D, M'R> + <D, M'M D>, without a second pass over the tokens.
        gram, cross, square = self.gram, self.cross, self.square
        if shift:
            gram = gram - torch.outer(self.mlp, self.mlp) / self.weight
            cross = cross - torch.outer(self.mlp, self.rest) / self.weight
        size = self.gram.diagonal().mean()
        identity = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
        change = torch.linalg.solve(gram + (ridge * size) * identity, cross)
        moved = (self.rest - self.mlp @ change) / self.weight if shift else None
        left = square - 2 * (change * cross).sum() + (change * (gram @ change)).sum()
        left = left - self.rest.square().sum() / self.weight if shift else left
        return _Map(identity + change, moved, float(left / square) if square else 0.0)


def _moments(
    below: PreTrainedModel, site: _Site, whole: PreTrainedModel, last: _Site, batches: Batches
) -> _Moments:
    """Over the real tokens of all batches, in one pass if `below` is `whole`."""
    found = _Moments(site.down.out_features, below.device)
    time_first = time_comes_first(below.config)
    for batch in batches():
        here: dict[str, torch.Tensor] = {}
        there: dict[str, torch.Tensor] = {}
        with torch.no_grad(), ExitStack() as hooks:
            hooks.enter_context(site.noted(here))
            hooks.enter_context(last.noted(there))
            for network in dict.fromkeys((below, whole)):
                network.base_model(**batch)
        real = batch["attention_mask"] != 0

        def tokens(states: torch.Tensor, real: torch.Tensor = real) -> torch.Tensor:
            return (states.transpose(0, 1) if time_first else states)[real]

        target = tokens(there["sum"]).double()
        weight = 1 / target.var(-1).clamp_min(torch.finfo(torch.float32).tiny)
        found.add(tokens(here["mlp"]), target - tokens(here["sum"]), weight)
    return found


def _merge(site: _Site, last: _Site, fitted: _Map) -> None:
    down = site.down
    with torch.no_grad():
        down.weight.copy_(fitted.map.T @ down.weight.double())
        if down.bias is not None:
            assert fitted.shift is not None
            down.bias.copy_(down.bias.double() @ fitted.map + fitted.shift)
    if site.norm is not None and last.norm is not None:
        site.norm.load_state_dict(last.norm.state_dict())
