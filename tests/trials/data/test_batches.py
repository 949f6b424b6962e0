"""Padded batches, and the order of an epoch's rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lp_sweep.storage.errors import MissingInputError
from lp_sweep.trials.data.batches import EncodedSplit, Padding, epoch_order
from tests.support.tiny import tiny_tokenizer


@given(
    rows=st.lists(st.lists(st.integers(1, 99), max_size=9), min_size=1, max_size=8),
    data=st.data(),
    pad_left=st.booleans(),
)
def test_batch_holds_exactly_the_tokens(
    rows: list[list[int]], data: st.DataObject, pad_left: bool
) -> None:
    split = EncodedSplit(
        tokens=np.array([token for row in rows for token in row], np.int32),
        offsets=np.cumsum([0] + [len(row) for row in rows]),
        token_types=np.array([token % 2 for row in rows for token in row], np.uint8),
        labels=np.zeros(len(rows), np.int64),
    )
    indices = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=10))
    batch = split.batch(indices, Padding(-7, 5, pad_left))
    width = max((len(rows[i]) for i in indices), default=0)
    assert {array.shape for array in batch.values()} == {(len(indices), width)}
    for position, i in enumerate(indices):
        mask = batch["attention_mask"][position].astype(bool)
        ids, types = batch["input_ids"][position], batch["token_type_ids"][position]
        assert mask.sum() == len(rows[i])
        assert ids[mask].tolist() == rows[i]
        assert types[mask].tolist() == [token % 2 for token in rows[i]]
        assert set(ids[~mask]) <= {-7}
        assert set(types[~mask]) <= {5}
        assert mask.tolist() == sorted(mask, reverse=not pad_left)


def test_without_a_padding_token_no_batch_is_made() -> None:
    """0 is a word of some models, and would be read as one."""
    tokenizer = tiny_tokenizer()
    tokenizer.pad_token = None
    with pytest.raises(MissingInputError, match="no padding token"):
        Padding.of(tokenizer)


# -- order

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

    def batches(grouped: bool) -> list[np.ndarray]:
        order = epoch_order(lengths, seed=1, epoch=0, batch_size=32, group_by_length=grouped)
        return [lengths[batch] for batch in np.split(order[:3200], 100)]

    spread, usual = (np.mean([np.ptp(batch) for batch in batches(way)]) for way in (True, False))
    assert spread < 5 < 100 < usual
    # long ones come at any time: not first, as the learning rate falls
    means = [batch.mean() for batch in batches(True)]
    assert abs(np.corrcoef(means, np.arange(100))[0, 1]) < 0.3


def test_epochs_of_little_data_have_other_batches() -> None:
    lengths = np.random.default_rng(0).integers(3, 128, 320)

    def batches(epoch: int) -> set[frozenset[int]]:
        order = epoch_order(lengths, seed=1, epoch=epoch, batch_size=32, group_by_length=True)
        return {frozenset(batch.tolist()) for batch in np.split(order, 10)}

    assert not batches(0) & batches(1)


def test_the_rows_of_a_query_follow_each_other() -> None:
    queries = np.random.default_rng(0).integers(0, 9, 60)
    order, other = (
        epoch_order(np.ones(60), seed=1, epoch=epoch, batch_size=8, groups=queries)
        for epoch in (0, 1)
    )
    assert sorted(order) == [*range(60)]
    assert np.count_nonzero(np.diff(queries[order])) == len(np.unique(queries)) - 1
    assert queries[other].tolist() != queries[order].tolist()
