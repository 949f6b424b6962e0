"""The order of an epoch's rows."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lp_sweep.trials.data.batches import epoch_order

LENGTHS = st.lists(st.integers(1, 128), min_size=1, max_size=400).map(np.array)


@given(lengths=LENGTHS, seed=st.integers(0, 2**31), batch=st.integers(1, 40), group=st.booleans())
def test_every_row_once_and_by_seed_and_epoch_alone(
    lengths: np.ndarray, seed: int, batch: int, group: bool
) -> None:
    def order(epoch: int) -> list[int]:
        return epoch_order(
            lengths, seed=seed, epoch=epoch, batch_size=batch, group_by_length=group
        ).tolist()

    assert sorted(order(0)) == list(range(len(lengths)))
    assert order(1) == order(1)
    if len(lengths) > 30 and not group:
        assert order(0) != order(1)


def test_the_plain_order_is_that_of_every_stored_record() -> None:
    found = epoch_order(np.ones(10), seed=42, epoch=1, batch_size=4)
    assert found.tolist() == np.random.default_rng((42, 1)).permutation(10).tolist()


def test_batches_of_like_length() -> None:
    lengths = np.random.default_rng(0).integers(3, 128, 3210)

    def spread(grouped: bool) -> float:
        order = epoch_order(lengths, seed=1, epoch=0, batch_size=32, group_by_length=grouped)
        return float(np.mean([np.ptp(lengths[batch]) for batch in np.split(order[:3200], 100)]))

    assert spread(True) < 5 < 100 < spread(False)


def test_long_batches_come_at_any_time() -> None:
    """Not the longest first, as the learning rate falls."""
    lengths = np.random.default_rng(0).integers(3, 128, 3200)
    order = epoch_order(lengths, seed=1, epoch=0, batch_size=32, group_by_length=True)
    means = [lengths[batch].mean() for batch in np.split(order, 100)]
    assert abs(np.corrcoef(means, np.arange(100))[0, 1]) < 0.3


def test_epochs_of_little_data_have_other_batches() -> None:
    lengths = np.random.default_rng(0).integers(3, 128, 320)

    def batches(epoch: int) -> set[frozenset[int]]:
        order = epoch_order(lengths, seed=1, epoch=epoch, batch_size=32, group_by_length=True)
        return {frozenset(batch.tolist()) for batch in np.split(order, 10)}

    assert not batches(0) & batches(1)
