"""Tokens: what the tokenizer gives, and padded batches."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lp_sweep.storage.errors import MissingInputError
from lp_sweep.trials.data import encode
from lp_sweep.trials.data.batches import EncodedSplit, Padding
from lp_sweep.trials.data.encode import encode_task, load_tokenizer
from tests.support.tiny import example, tiny_task, tiny_tokenizer

# -- tokens


def test_tokens_types_and_labels(tmp_path: Path) -> None:
    encoded = encode_task(tiny_tokenizer(), tiny_task(), "sha256:x", 16, tmp_path)
    train = encoded.train
    assert [example(train, i) for i in range(3)] == [
        [2, 4, 5, 6, 3, 7, 3],
        [2, 3, 4, 3],
        [2, 7, 3, 5, 5, 5, 5, 5, 3],
    ]
    assert train.token_types is not None
    assert train.token_types[:7].tolist() == [0, 0, 0, 0, 0, 1, 1]
    assert train.lengths.tolist() == [7, 4, 9]
    assert train.labels.tolist() == [0, 1, 0]
    assert list(encoded.dev) == ["validation_matched", "validation_mismatched"]
    assert (encoded.label_names, encoded.num_labels, len(train)) == (("x", "y"), 2, 3)


def test_single_texts_without_token_types(tmp_path: Path) -> None:
    task = tiny_task(pair=False)
    train = encode_task(tiny_tokenizer(types=False), task, "sha256:x", 16, tmp_path).train
    assert train.token_types is None
    assert set(train.batch([0], Padding(0, 0, False))) == {"input_ids", "attention_mask"}
    assert example(train, 1) == [2, 3]


def test_chunks_and_padding_are_the_tokenizers_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encode, "_CHUNK", 2)
    for xlnet in (False, True):
        tokenizer, task = tiny_tokenizer(xlnet=xlnet), tiny_task()
        train = encode_task(tokenizer, task, "sha256:x", 7, tmp_path).train
        batch = train.batch([2, 0, 1], Padding.of(tokenizer))
        texts = [[column[i] for i in (2, 0, 1)] for column in task.train.texts]
        expected = tokenizer(
            *texts, truncation="longest_first", max_length=7, padding=True, return_tensors="np"
        )
        assert set(batch) == set(expected)
        for name, array in batch.items():
            np.testing.assert_array_equal(array, expected[name], err_msg=name)
            assert array.dtype == np.int64


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


# -- loading


def test_a_tokenizer_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(MissingInputError, match="its vocabulary has no words"):
        load_tokenizer(tmp_path, local_files_only=True)
    with pytest.raises(MissingInputError, match=r"can't be loaded.*Check the path or hub id"):
        load_tokenizer(tmp_path / "nothing", local_files_only=True)


def test_without_a_padding_token_no_batch_is_made() -> None:
    """0 is a word of some models, and would be read as one."""
    tokenizer = tiny_tokenizer()
    tokenizer.pad_token = None
    with pytest.raises(MissingInputError, match="no padding token"):
        Padding.of(tokenizer)
