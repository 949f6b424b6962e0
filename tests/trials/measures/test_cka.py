"""Linear CKA in mini-batches, against the definition on the whole matrices."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lp_sweep.trials.measures import cka
from lp_sweep.trials.measures.cka import Features, linear_cka, network_cka
from lp_sweep.trials.model.states import Site, layer_states
from tests.support.networks import LENGTHS, batches, network, sentences, shaken


@pytest.fixture(autouse=True)
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A longer batch is taken in pieces of so many rows."""
    monkeypatch.setattr(cka, "_ROWS", 3)


def direct(x: np.ndarray, y: np.ndarray) -> float:
    """By examples x examples, the other way round: HSIC of the centred Gram matrices."""
    middle = np.eye(len(x)) - 1 / len(x)
    k, g = middle @ x @ x.T @ middle, middle @ y @ y.T @ middle
    return float((k * g).sum() / np.sqrt((k * k).sum() * (g * g).sum()))


def drawn(rng: np.random.Generator, rows: int, widths: list[int], offset: float = 0.0):
    """One (rows, width) of float64 for each width, correlated among each other."""
    common = rng.normal(size=(rows, 3))
    return [
        offset * rng.normal(size=width)
        + common @ rng.normal(size=(3, width))
        + rng.normal(size=(rows, width))
        for width in widths
    ]


def features(layers: list[np.ndarray], cuts: list[int]) -> Features:
    def run() -> Iterator[list[torch.Tensor]]:
        for start, end in zip([0, *cuts], [*cuts, len(layers[0])], strict=True):
            yield [torch.from_numpy(layer[start:end]) for layer in layers]

    return run


@st.composite
def worlds(draw: st.DrawFn):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows = draw(st.integers(2, 30))
    widths = st.lists(st.integers(1, 7), min_size=1, max_size=4)
    offset = draw(st.sampled_from([0.0, 1.0, 1e6]))
    first, second = (drawn(rng, rows, draw(widths), offset) for _ in range(2))
    cuts = sorted(draw(st.lists(st.integers(0, rows), max_size=4)))  # empty batches, too
    return first, second, cuts


@given(worlds(), st.integers(1, 2000))
def test_cka_is_the_definition_however_it_is_batched_and_passed(world, max_bytes: int) -> None:
    first, second, cuts = world
    centred = ([x - x.mean(axis=0) for x in side] for side in (first, second))
    expected = [[direct(x, y) for y in ys] for xs, ys in [tuple(centred)] for x in xs]
    found = linear_cka(features(first, cuts), features(second, cuts), max_bytes=max_bytes)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("kind", [np.float32, np.float64], ids=["float32", "float64"])
def test_a_layer_that_is_always_the_same_has_none(kind: type) -> None:
    rng = np.random.default_rng(1)
    (x,) = drawn(rng, 20, [4])
    same = np.tile(rng.normal(size=3), (20, 1)).astype(kind)
    same = np.where(rng.random(same.shape) < 0.5, same, np.nextafter(same, kind(9)))  # rounding
    layers = features([x.astype(kind), same.astype(kind)], [8])
    found = linear_cka(layers, layers)
    np.testing.assert_array_equal(np.isnan(found), [[False, True], [True, True]])


@pytest.mark.parametrize("site", ["layer", "attention"])
def test_networks(site: Site) -> None:
    """XLNet's, whose padding and sentence token are at the other end."""
    full = network("xlnet")
    small = shaken(network("xlnet", kept_layers=(1, 4)))
    rows = sentences(LENGTHS * 4)

    def collected(model) -> list[np.ndarray]:
        states = list(layer_states(model, batches(rows, 7, left=True), site))
        parts = [s.sentence() for s in states]
        return [torch.cat(layer).double().numpy() for layer in zip(*parts, strict=True)]

    firsts, seconds = collected(full), collected(small)
    expected = [[direct(x, y) for y in seconds] for x in firsts]
    for size in (3, 20):
        make = partial(batches, rows, size, left=True)
        found = network_cka(full, small, make, site=site)
        assert found.shape == ((5, 3) if site == "layer" else (4, 2))
        np.testing.assert_allclose(found, expected, atol=1e-5)
