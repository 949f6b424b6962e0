"""Tokens as the tokenizer gives them, and their cache: its key, torn folders, several processes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from transformers import EsmTokenizer

from lp_sweep.storage.errors import MissingInputError
from lp_sweep.trials.data import encode
from lp_sweep.trials.data.batches import EncodedTask, Padding
from lp_sweep.trials.data.datasource import LoadedTask, Split
from lp_sweep.trials.data.encode import cache_key, encode_task, load_tokenizer, tokenizer_digest
from lp_sweep.trials.spec.specs import TaskDefinition
from tests.support.tiny import WORDS, tiny_tokenizer


def tiny_task(*, pair: bool = True, rows: int = 3) -> LoadedTask:
    first = ["a b c", "", "d"] * (rows // 3)
    texts = (first, ["d", "a", "b b b b b"] * (rows // 3)) if pair else (first,)
    split = Split(texts=texts, labels=np.array([0, 1, 0] * (rows // 3)))
    return LoadedTask(
        train=split,
        dev={"validation_matched": split, "validation_mismatched": split},
        label_names=("x", "y"),
        definition=TaskDefinition(text_columns=("t", "u") if pair else ("t",)),
    )


@pytest.mark.parametrize(
    ("pair", "how"),
    [(True, {}), (True, {"xlnet": True}), (False, {"types": False})],
    ids=["bert", "xlnet", "no types"],
)
def test_tokens_and_padding_are_the_tokenizers_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pair: bool, how: dict[str, bool]
) -> None:
    monkeypatch.setattr(encode, "_CHUNK", 2)
    tokenizer, task = tiny_tokenizer(**how), tiny_task(pair=pair)
    found = encode_task(tokenizer, task, "sha256:x", 7, tmp_path)
    assert list(found.dev) == ["validation_matched", "validation_mismatched"]
    assert (found.label_names, found.num_labels) == (("x", "y"), 2)
    assert found.train.labels.tolist() == [0, 1, 0]
    batch = found.train.batch([2, 0, 1], Padding.of(tokenizer))
    texts = [[column[i] for i in (2, 0, 1)] for column in task.train.texts]
    expected = tokenizer(
        *texts, truncation="longest_first", max_length=7, padding=True, return_tensors="np"
    )
    assert set(batch) == set(expected)
    for name, array in batch.items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)
        assert array.dtype == np.int64


def test_a_tokenizer_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(MissingInputError, match="its vocabulary has no words"):
        load_tokenizer(tmp_path, local_files_only=True)
    with pytest.raises(MissingInputError, match=r"can't be loaded.*Check the path or hub id"):
        load_tokenizer(tmp_path / "nothing", local_files_only=True)


# -- the cache


def encoded(cache_dir: Path) -> EncodedTask:
    return encode_task(tiny_tokenizer(), tiny_task(), "sha256:x", 16, cache_dir)


def test_key_changes_with_all_that_counts() -> None:
    definition = tiny_task().definition
    settings = {
        "digest": tokenizer_digest(tiny_tokenizer()),
        "definition": definition,
        "fingerprint": "sha256:x",
        "limits": (None, None),
        "max_length": 16,
    }
    changes = [
        {},
        {"fingerprint": "sha256:y"},
        {"max_length": 17},
        {"limits": (3, None)},
        {"limits": (None, 3)},
        {"definition": replace(definition, label_column="other")},
        {"digest": tokenizer_digest(tiny_tokenizer([*WORDS[:4], "d", "c", "b", "a"]))},
        {"digest": tokenizer_digest(tiny_tokenizer(types=False))},
        {"digest": tokenizer_digest(tiny_tokenizer(xlnet=True))},
    ]
    keys = [cache_key(**(settings | change)) for change in changes]
    assert len(set(keys)) == len(keys)


def test_digest_is_the_same_for_a_copy_and_after_use(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    before = tokenizer_digest(tokenizer)
    tokenizer(["a b"], truncation=True, max_length=3, padding="max_length")
    assert tokenizer_digest(tokenizer) == before
    for folder in ("x", "y"):
        tokenizer.save_pretrained(tmp_path / folder)
    copies = [load_tokenizer(tmp_path / folder) for folder in ("x", "y")]
    assert tokenizer_digest(copies[0]) == tokenizer_digest(copies[1])


def test_digest_of_a_slow_tokenizer_is_of_its_files(tmp_path: Path) -> None:
    digests = []
    for folder, words in (("a", "L A"), ("b", "L A"), ("c", "A L")):
        (tmp_path / folder).mkdir()
        vocabulary = tmp_path / folder / "vocab.txt"
        vocabulary.write_text("\n".join(f"<cls> <pad> <eos> <unk> {words} <mask>".split()))
        tokenizer = EsmTokenizer(str(vocabulary))
        assert not tokenizer.is_fast
        digests.append(tokenizer_digest(tokenizer))
    assert digests[0] == digests[1] != digests[2]


def cut_short(folder: Path) -> None:
    file = folder / "1.tokens.npy"
    file.write_bytes(file.read_bytes()[:-4])


NO_DEV = '{"splits": ["train"], "label_names": [], "bytes": {}}'
TEARS: dict[str, Callable[[Path], object]] = {
    "nothing": lambda folder: None,
    "file cut short": cut_short,
    "meta cut short": lambda folder: (folder / "meta.json").write_text('{"spl'),
    "no dev split": lambda folder: (folder / "meta.json").write_text(NO_DEV),
}


@pytest.mark.parametrize("torn", TEARS)
def test_a_folder_is_read_again_or_where_it_is_torn_made_again(tmp_path: Path, torn: str) -> None:
    expected, cache = encoded(tmp_path / "another"), tmp_path / "cache"
    first = encoded(cache)
    (folder,) = (path for path in cache.iterdir() if path.is_dir())
    TEARS[torn](folder)
    again, last = encoded(cache), encoded(cache)
    found = [task.from_cache for task in (first, again, last)]
    assert found == [False, torn == "nothing", True]
    for task in (again, last):
        assert list(task.dev) == list(expected.dev)
        for ours, theirs in zip(
            (task.train, *task.dev.values()), (expected.train, *expected.dev.values()), strict=True
        ):
            for name in ("tokens", "offsets", "token_types", "labels"):
                np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
    assert [path for path in cache.iterdir() if path.is_dir()] == [folder]
    assert not [path for path in cache.iterdir() if path.name.startswith(".")]


def test_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(MissingInputError, match=r"can't write tokens to .*another cache folder"):
        encoded(tmp_path / "file" / "cache")


def fill(cache_dir: Path, barrier, results, lock: bool) -> None:
    if not lock:
        encode._LOCK_SECONDS = 0  # then a process does the work itself
    tokenizer, task = tiny_tokenizer(), tiny_task(rows=3000)
    barrier.wait(timeout=60)
    encoded = encode_task(tokenizer, task, "sha256:x", 16, cache_dir)
    batch = encoded.train.batch(np.arange(3000), Padding(0, 0, False))
    results.put((encoded.from_cache, int(batch["input_ids"].sum())))


@pytest.mark.slow
@pytest.mark.parametrize("lock", [True, False], ids=["locked", "no lock"])
def test_processes_that_fill_at_once(tmp_path: Path, lock: bool) -> None:
    context = multiprocessing.get_context("spawn")
    count = 3
    barrier, results = context.Barrier(count), context.Queue()
    processes = [
        context.Process(target=fill, args=(tmp_path, barrier, results, lock)) for _ in range(count)
    ]
    for process in processes:
        process.start()
    got = [results.get(timeout=90) for _ in processes]
    for process in processes:
        process.join(timeout=30)
        assert process.exitcode == 0
    assert len({total for _, total in got}) == 1
    made = sum(not from_cache for from_cache, _ in got)
    assert made == 1 if lock else made >= 1
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == 1
