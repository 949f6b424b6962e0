"""Tokenises texts once per (tokenizer, rows, max_length), and caches memory-mapped flat arrays.

A cache folder's name is a digest of everything that determines its content, so two models of the
same name never share one. A rename publishes it whole. A lock keeps processes from doing the same
work twice; results are right without it.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from filelock import FileLock, Timeout

from lp_sweep.storage.errors import MissingInputError
from lp_sweep.storage.printable import shown
from lp_sweep.trials.data.batches import EncodedSplit, EncodedTask, Padding
from lp_sweep.trials.data.columns import Labels
from lp_sweep.trials.data.datasource import LoadedTask, Split, overlap, prompted
from lp_sweep.trials.kinds import kind_of
from lp_sweep.trials.kinds.tokens import NO_TAG
from lp_sweep.trials.model.familytable import padding_side
from lp_sweep.trials.spec.identity import content_hash
from lp_sweep.trials.spec.specs import TaskDefinition

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CACHE_VERSION = 3
_META = "meta.json"
_LOCK_SECONDS = 1800.0  # then this process does the work itself
_CHUNK = 10_000  # texts per call of the tokenizer: bounds the memory of Python lists


def encode_task(
    tokenizer: PreTrainedTokenizerBase,
    task: LoadedTask,
    fingerprint: str,
    max_length: int,
    cache_dir: Path,
) -> EncodedTask:
    """Tokenises the rows, or opens the cache that an earlier call or another process has written.

    `fingerprint` identifies the rows of `task`; unlabelled rows follow train's. Texts longer than
    `max_length` tokens are cut, the longer one of a pair first. Raises MissingInputError if the
    cache can't be written.
    """
    limits = (task.limit_train, task.limit_dev)
    digest = tokenizer_digest(tokenizer)
    folder = cache_dir / cache_key(digest, task.definition, fingerprint, limits, max_length)
    if found := open_tokens(folder):
        return found
    lock = FileLock(folder.with_suffix(".lock"))
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        with suppress(Timeout):
            lock.acquire(timeout=_LOCK_SECONDS)
        try:
            return open_tokens(folder) or _build(tokenizer, task, max_length, folder)
        finally:
            lock.release()
    except OSError as error:
        raise MissingInputError(
            f"can't write tokens to {cache_dir}: {error}. Free space there or name another cache "
            f"folder."
        ) from error


def cache_key(
    digest: str,
    definition: TaskDefinition,
    fingerprint: str,
    limits: tuple[int | None, int | None],
    max_length: int,
) -> str:
    """64 hex digits that depend on everything that determines tokens and labels: the tokenizer's
    digest, the rows, the limits of train and dev, and how rows are read."""
    return content_hash(
        {
            "version": CACHE_VERSION,
            "tokenizer": digest,
            "data": fingerprint,
            "definition": asdict(definition),
            "limits": list(limits),
            "max_length": max_length,
        }
    )


def open_tokens(folder: Path) -> EncodedTask | None:
    """The contents of a cache folder; None if it is missing or incomplete."""
    try:
        meta = json.loads((folder / _META).read_text(encoding="utf-8"))
        sizes: dict[str, int] = meta["bytes"]
        if any((folder / name).stat().st_size != size for name, size in sizes.items()):
            return None
        dev = {name: _map_split(folder, i) for i, name in enumerate(meta["splits"])}
        label_names = tuple(meta["label_names"])
        train = dev.pop("train")
        found = {name: int(meta[name]) for name in ("dev_in_train", "dev_relabelled")}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    if not dev:
        return None
    return EncodedTask(
        train=train,
        dev=dev,
        label_names=label_names,
        num_labels=len(label_names) or 1,
        from_cache=True,
        **found,
    )


def _build(
    tokenizer: PreTrainedTokenizerBase, task: LoadedTask, max_length: int, folder: Path
) -> EncodedTask:
    tokenizer = copy.deepcopy(tokenizer)  # a call changes its truncation settings
    temporary = folder.with_name(f".new-{uuid.uuid4().hex}")
    temporary.mkdir()
    try:
        sizes: dict[str, int] = {}
        for position, arrays in enumerate(_all_arrays(tokenizer, task, max_length)):
            for content, array in arrays.items():
                file = f"{position}.{content}.npy"
                sizes[file] = _save(temporary / file, array)
        both = overlap(task)
        meta = {
            "splits": list(task.splits),
            "label_names": list(task.label_names),
            "dev_in_train": both.rows,
            "dev_relabelled": both.relabelled,
            "bytes": sizes,
        }
        (temporary / _META).write_text(json.dumps(meta), encoding="utf-8")
        built = open_tokens(temporary)  # memory maps stay valid when the folder moves
        assert built is not None, temporary
        _publish(temporary, folder)
        return replace(built, from_cache=False)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _all_arrays(
    tokenizer: PreTrainedTokenizerBase, task: LoadedTask, max_length: int
) -> Iterator[dict[str, npt.NDArray[Any]]]:
    """The arrays of each split, in the order of `task.splits`."""
    kind = kind_of(task.definition)
    for name, split in (task.splits | {"train": task.taught}).items():
        texts = prompted(task.definition, split, scored=name != "train")
        rows = Split(texts=texts, labels=split.labels)
        rows = _apart(rows) if kind.embeds else rows
        yield _arrays(tokenizer, rows, max_length, words=kind.words)


def rows_beyond_tables(
    tokenizer: PreTrainedTokenizerBase, task: LoadedTask, max_length: int, words: int, types: int
) -> str | None:
    """`beyond_tables` for rows that are not in a cache."""
    found = [*_all_arrays(copy.deepcopy(tokenizer), task, max_length)]
    tokens = [arrays["tokens"] for arrays in found]
    kinds = [arrays["token_types"] for arrays in found if "token_types" in arrays]
    return beyond_tables(tokenizer, tokens, kinds, words, types)


def beyond_tables(
    tokenizer: PreTrainedTokenizerBase,
    tokens: Iterable[npt.NDArray[Any]],
    token_types: Iterable[npt.NDArray[Any]],
    words: int,
    types: int,
) -> str | None:
    """Why rows can't be looked up in a network's tables of `words` tokens and `types` token types;
    0: there is no such table. Raises MissingInputError for a tokenizer without padding."""
    most = max(Padding.of(tokenizer).token_id, *(int(part.max(initial=0)) for part in tokens))
    if words and most >= words:
        return (
            f"its tokenizer gives the token {shown(tokenizer.convert_ids_to_tokens(most))} the "
            f"number {most:,}, and its embedding has {words:,} rows, from 0 on (the tokenizer has "
            f"{len(tokenizer):,} tokens). Use the tokenizer that the model was trained with, or "
            "call model.resize_token_embeddings(len(tokenizer)) and save both."
        )
    highest = max((int(part.max(initial=0)) for part in token_types), default=0)
    if types and highest >= types:
        return (
            f"its tokenizer gives the second text of a pair the token type {highest}, and its "
            f'table has {types} (type_vocab_size). Write "model_input_names": ["input_ids", '
            '"attention_mask"] into tokenizer_config.json, or use a model with types for pairs.'
        )
    return None


def _apart(split: Split) -> Split:
    """Makes each text of an example a row of its own, with the example's label."""
    if len(split.texts) == 1:
        return split
    texts = [text for example in zip(*split.texts, strict=True) for text in example]
    labels: Any = np.repeat(split.labels, len(split.texts))
    return Split(texts=(texts,), labels=labels)


def _arrays(
    tokenizer: PreTrainedTokenizerBase, split: Split, max_length: int, *, words: bool
) -> dict[str, npt.NDArray[Any]]:
    """The arrays of an `EncodedSplit`; `words`: its texts are lists of words."""
    tokenizer = for_words(tokenizer) if words else tokenizer
    types = "token_type_ids" in tokenizer.model_input_names
    tokens, lengths, kinds, firsts = [], [0], [], []
    for start in range(0, len(split), _CHUNK):
        texts = [column[start : start + _CHUNK] for column in split.texts]
        chunk = tokenizer(
            *texts,
            truncation="longest_first",
            max_length=max_length,
            return_attention_mask=False,
            return_token_type_ids=types,
            is_split_into_words=words,
        )
        tokens.append(_flat(chunk["input_ids"], np.int32))
        lengths += map(len, chunk["input_ids"])
        if types:
            kinds.append(_flat(chunk["token_type_ids"], np.uint8))
        if words:
            firsts += [_first_tokens(encoding.word_ids) for encoding in chunk.encodings]
    arrays = {"tokens": np.concatenate(tokens), "offsets": np.cumsum(lengths, dtype=np.int64)}
    arrays |= {"token_types": np.concatenate(kinds)} if types else {}
    return arrays | (_tagged(split.labels, firsts) if words else {"labels": split.labels})


def _tagged(labels: Labels, firsts: list[dict[int, int]]) -> dict[str, npt.NDArray[Any]]:
    """`words` (n, V) from each row's first tokens, and tags that are at least as wide."""
    widest = max((max(row, default=-1) for row in firsts), default=-1) + 1
    words = np.full((len(firsts), widest), -1, np.int32)
    for row, first in enumerate(firsts):
        words[row, list(first)] = list(first.values())
    tags = np.full((len(firsts), max(widest, labels.shape[1])), NO_TAG, np.int64)
    tags[:, : labels.shape[1]] = labels
    return {"labels": tags, "words": words}


def for_words(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """A copy that tokenises a list of words like the same words in a text: a byte-level tokenizer
    (RoBERTa's, ModernBERT's) marks a word by the blank before it, which words in a list lack.
    Raises MissingInputError for a tokenizer that does not map tokens to words."""
    tokenizer = copy.deepcopy(tokenizer)
    if not tokenizer.is_fast:
        raise MissingInputError(
            f"tokenizer of {tokenizer.name_or_path!r}: it does not map tokens to words, which a "
            "task of kind tokens needs. Save it as tokenizer.json: load it with "
            "AutoTokenizer, and save_pretrained into the model's folder."
        )
    backend = tokenizer.backend_tokenizer
    state = json.loads(backend.to_str())
    steps = state["pre_tokenizer"] or {}
    for step in (steps, *(steps.get("pretokenizers") or ())):
        if step.get("type") == "ByteLevel" and not step["add_prefix_space"]:
            step["add_prefix_space"] = True
            backend.pre_tokenizer = type(backend).from_str(json.dumps(state)).pre_tokenizer
            tokenizer.add_prefix_space = True  # save_pretrained writes this, and loading uses it
    return tokenizer


def _first_tokens(words: list[int | None]) -> dict[int, int]:
    """The position of each word's first token, for words that have one."""
    places = reversed([*enumerate(words)])
    return {word: place for place, word in places if word is not None}


def _flat(rows: list[list[int]], kind: type[np.integer[Any]]) -> npt.NDArray[Any]:
    return np.fromiter((value for row in rows for value in row), kind)


def _save(path: Path, array: npt.NDArray[Any]) -> int:
    """Returns the file's size in bytes."""
    with path.open("wb") as file:
        np.save(file, array, allow_pickle=False)
        file.flush()
        os.fsync(file.fileno())  # the rename must not reach the disk before the content
        return file.tell()


def _publish(temporary: Path, folder: Path) -> None:
    """Moves `temporary` to `folder`, replacing an incomplete one."""
    torn = folder.with_name(f".torn-{uuid.uuid4().hex}")
    with suppress(FileNotFoundError):
        folder.rename(torn)
    with suppress(OSError):  # another process was first: its content is the same
        temporary.rename(folder)
    shutil.rmtree(torn, ignore_errors=True)


def _map_split(folder: Path, position: int) -> EncodedSplit:
    arrays = {
        name: np.load(path, mmap_mode="r").view(np.ndarray)
        for name in ("tokens", "offsets", "token_types", "labels", "words")
        if (path := folder / f"{position}.{name}.npy").exists()
    }
    return EncodedSplit(**{"token_types": None, **arrays})


def load_tokenizer(
    path_or_id: str | Path, revision: str | None = None, local_files_only: bool = False
) -> PreTrainedTokenizerBase:
    """Loads the tokenizer of a model folder or a hub id, to pad where its model is not disturbed
    (`padding_side`). Never runs the model's own code.

    Raises MissingInputError, also for a folder without tokenizer files: transformers 5 returns an
    empty tokenizer for it, and every text would become unknown tokens.
    """
    from transformers import AutoTokenizer, PretrainedConfig

    where = {"revision": revision or "main", "local_files_only": local_files_only}
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(path_or_id), trust_remote_code=False, **where)
        config, _ = PretrainedConfig.get_config_dict(str(path_or_id), **where)
        if "model_type" in config:
            tokenizer.padding_side = padding_side(config["model_type"])
    except Exception as error:  # hub, JSON and Rust errors of many types, all about the input
        raise MissingInputError(
            f"tokenizer of {str(path_or_id)!r}: can't be loaded: {type(error).__name__}: {error}. "
            f"Check the path or hub id and the network, or copy the tokenizer's files into the "
            f"model's folder."
        ) from error
    if not set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens):
        raise MissingInputError(
            f"tokenizer of {str(path_or_id)!r}: its vocabulary has no words, so its files are "
            f"missing. Copy them (tokenizer.json, or the vocabulary) into the model's folder."
        )
    return tokenizer


def tokenizer_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """64 hex digits that depend on everything that determines the tokens; the same for every copy
    of a tokenizer, before and after use."""
    if tokenizer.is_fast:
        content = json.loads(tokenizer.backend_tokenizer.to_str())
        for left_behind in ("truncation", "padding"):  # by the last call
            content.pop(left_behind, None)
    else:
        with tempfile.TemporaryDirectory() as folder:
            tokenizer.save_pretrained(folder)
            content = {
                path.name: hashlib.sha256(path.read_bytes()).hexdigest()
                for path in Path(folder).iterdir()
            }
    return content_hash(
        {
            "class": type(tokenizer).__name__,
            "special": {name: str(token) for name, token in tokenizer.special_tokens_map.items()},
            "inputs": list(tokenizer.model_input_names),
            "sides": [tokenizer.padding_side, tokenizer.truncation_side],
            "split_special_tokens": bool(getattr(tokenizer, "split_special_tokens", False)),
            "content": content,
        }
    )
