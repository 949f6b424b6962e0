"""A tag for each word: from sentences to tokens and back, in training, in a trial, in a sweep."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, pre_tokenizers
from torch.nn.functional import cross_entropy, kl_div
from transformers import (
    AutoModelForTokenClassification,
    AutoTokenizer,
    PreTrainedModel,
    RobertaTokenizerFast,
)

from lp_sweep.storage.networks import fetch_network
from lp_sweep.storage.store import Store
from lp_sweep.trials.data.batches import EncodedSplit, EncodedTask
from lp_sweep.trials.data.datasource import LoadedTask, Split, overlap
from lp_sweep.trials.data.encode import encode_task, for_words
from lp_sweep.trials.fast.forward import forward
from lp_sweep.trials.kinds import KINDS, tokens
from lp_sweep.trials.kinds.tokens import NO_TAG, SILENT, flat, unflat
from lp_sweep.trials.spec.specs import Distillation, TaskDefinition
from lp_sweep.trials.train.distill import Teaching
from lp_sweep.trials.train.graphs import GraphPass
from lp_sweep.trials.train.metrics import majority_score, score
from lp_sweep.trials.train.steps import EagerPass, evaluate
from tests.support.families import NAMES
from tests.support.fastnets import (
    CPU,
    assert_same_gradients,
    assert_within_1e5,
    network,
    padding_of,
    set_overhead,
    setting,
    split_of,
)
from tests.support.kindworlds import in_order, tagged, token_world
from tests.support.plain_jobs import done
from tests.support.tiny import tiny_tokenizer

KIND = KINDS["tokens"]
ENTITIES = TaskDefinition(
    text_columns=("tokens",), label_column="tags", kind="tokens", metric="entity_f1"
)
PARTS = replace(ENTITIES, metric="accuracy")
TAGS = ("B-x", "I-x", "O")

# -- from words to tokens


def encoded(sentences: list[list[str]], tags: list[list[int]], most: int, to: Path) -> EncodedTask:
    labels = np.full((len(tags), max(map(len, tags))), NO_TAG)
    for row, own in zip(labels, tags, strict=True):
        row[: len(own)] = own
    split = Split(texts=(sentences,), labels=labels)
    task = LoadedTask(train=split, dev={"validation": split}, label_names=TAGS, definition=ENTITIES)
    tokenizer = tiny_tokenizer()
    # a word may be several tokens, or none
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Split("-", "removed")
    return encode_task(tokenizer, task, "print", most, to)


def test_a_word_is_answered_at_its_first_token(tmp_path: Path) -> None:
    data = encoded([["a", "b-c-d", "-", "c"], ["d"]], [[0, 1, 2, 2], [2]], 20, tmp_path)
    split = data.dev["validation"]
    assert split.tokens.tolist() == [2, 4, 5, 6, 7, 6, 3, 2, 7, 3]
    assert split.words is not None
    assert split.words.tolist() == [[1, 2, -1, 5], [1, -1, -1, -1]]
    assert split.labels.tolist() == [[0, 1, 2, 2], [2, *[NO_TAG] * 3]]
    rows = np.array([1, 0])
    assert split.target(rows).tolist() == [[2, *[NO_TAG] * 3], [0, 1, NO_TAG, 2]]
    assert (split.answers(rows), split.answers(rows[:1])) == (4, 1)
    assert split.target(rows[:1]).tolist() == [[2]]
    assert split.take([1, 1]).words.tolist() == [[1, -1, -1, -1]] * 2  # type: ignore[union-attr]


def test_words_that_are_cut_off_are_not_learned_and_count_as_wrong(tmp_path: Path) -> None:
    data = encoded([["a", "b-c-d", "c"], ["d"]], [[0, 1, 0], [2]], 4, tmp_path)
    split = data.train
    assert split.words is not None
    assert split.words.tolist() == [[1, 2], [1, -1]]
    assert split.target(np.array([0, 1])).tolist() == [[0, 1], [2, NO_TAG]]
    assert split.labels.shape == (2, 3)
    right = np.full((2, 3, 3), SILENT, np.float32)
    right[0, :2] = np.eye(3)[[0, 1]]
    right[1, 0] = [0, 0, 1]
    assert score(PARTS, split.labels, right, TAGS)["accuracy"] == 3 / 4
    assert score(ENTITIES, split.labels, right, TAGS)["entity_f1"] == pytest.approx(2 / 3)


def test_a_byte_level_tokenizer_sees_the_blank_before_each_word(tmp_path: Path) -> None:
    words = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "Ġ": 4, "a": 5, "b": 6, "Ġa": 7, "Ġb": 8}
    tokenizer = RobertaTokenizerFast(
        vocab=words, merges=[("Ġ", "a"), ("Ġ", "b")], mask_token=AddedToken("<mask>")
    )
    before = tokenizer.backend_tokenizer.to_str()
    found = for_words(tokenizer)
    assert tokenizer.backend_tokenizer.to_str() == before
    found.save_pretrained(tmp_path)
    for each in (found, AutoTokenizer.from_pretrained(tmp_path)):
        assert each(["a", "b"], is_split_into_words=True)["input_ids"] == [0, 7, 8, 2]


def test_sentences_of_both_splits() -> None:
    """Alike whatever the longest row of their split is."""
    train = Split(texts=([["a", "b"], ["c"]],), labels=np.array([[0, 1], [2, NO_TAG]]))
    dev = Split(texts=([["c"], ["a", "b"], ["ab"]],), labels=np.array([[2], [0], [0]]))
    found = overlap(
        LoadedTask(train=train, dev={"dev": dev}, label_names=TAGS, definition=ENTITIES)
    )
    assert found == (2, 1, 3)


# -- forward passes

LENGTHS = [3, 9, 2, 5]


def sentences() -> EncodedSplit:
    """The first word at place 1; one without a token; rows of no equal number of words."""
    words = np.array([[1, -1, -1], [1, -1, 7], [1, -1, -1], [1, 2, 3]], np.int32)
    tags = np.array([[0, 1, NO_TAG, NO_TAG], [1, 0, 0, NO_TAG], [1, *[NO_TAG] * 3], [0, 1, 1, 0]])
    return replace(split_of(LENGTHS), labels=tags, words=words)


def tagger(name: str) -> PreTrainedModel:
    return network(name, problem_type="token_classification")


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_every_compute_answers_alike(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `AutoModelForTokenClassification`, sentence by sentence."""
    set_overhead(monkeypatch, 1)
    model = tagger(name).eval()
    assert type(model).__name__.endswith("ForTokenClassification")
    split, rows = sentences(), np.array([2, 0, 3, 1])
    assert split.words is not None
    padding = padding_of(name)
    for compute in ("reference", "fast"):
        found = forward(model, split, rows, padding, CPU, compute)
        assert found.shape == (4, 3, 2)
        for place, row in enumerate(rows):
            ids = torch.tensor(split.tokens[split.offsets[row] : split.offsets[row + 1]])
            expected = model(input_ids=ids[None].long()).logits[0]
            there = split.words[row] >= 0
            alone = expected[split.words[row][there]]
            torch.testing.assert_close(found[place, there], alone, atol=5e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["bert", "xlnet"])
@pytest.mark.parametrize("taught", [False, True], ids=["labels", "teacher"])
def test_every_compute_learns_alike(name: str, taught: bool) -> None:
    model = tagger(name).train()
    split, rows = sentences(), np.array([2, 0, 3, 1])
    teaching = None
    if taught:
        logits = np.random.default_rng(0).normal(size=(4, 3, 2)).astype(np.float32)
        assert split.words is not None
        logits[split.words < 0] = SILENT
        teaching = Teaching(settings=Distillation(alpha=0.3), logits=logits)

    def passes(compute: str, *parts: np.ndarray) -> tuple[float, dict[str, Any]]:
        model.zero_grad()
        padding = padding_of(name)
        how = setting(compute, teaching=teaching, definition=ENTITIES, padding=padding)
        learn = (GraphPass if compute == "graphs" else EagerPass)(model, how)
        total = 0.0
        for part in parts:
            share = split.answers(part) / split.answers(rows)
            loss = learn.loss(learn.on_device(split, part)) * share
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
        return total, {n: p.grad for n, p in model.named_parameters() if p.grad is not None}

    loss, expected = passes("reference", rows)
    packed = ["graphs"] if name == "bert" else []
    for other, found in (
        *(passes(compute, rows) for compute in ("fast", *packed)),
        *(passes(compute, rows[:1], rows[1:]) for compute in ("fast", *packed)),
        passes("reference", rows[:3], rows[3:]),
    ):
        assert other == pytest.approx(loss, abs=1e-5)
        assert_same_gradients(found, expected)


def test_an_evaluation_is_silent_where_there_is_no_token() -> None:
    model, split = tagger("bert"), sentences()
    assert split.words is not None
    padding = padding_of()
    found = evaluate(model, split, padding, precision="fp32", batch_size=3, compute="fast")
    assert found.shape == (4, 4, 2)
    answered = np.pad(split.words, ((0, 0), (0, 1)), constant_values=-1) >= 0
    assert (found[~answered] == SILENT).all()
    with torch.no_grad():
        each = forward(model, split, np.arange(4), padding, CPU, "reference").numpy()
    assert_within_1e5(found[:, :3][answered[:, :3]], each[answered[:, :3]])


# -- losses and scores


def test_losses() -> None:
    draw = torch.Generator().manual_seed(0)
    logits, taught = torch.randn(2, 2, 3, generator=draw), torch.randn(2, 4, 3, generator=draw)
    taught[1, 1:] = taught[0, 2:] = SILENT
    target = torch.tensor([[0, 2], [1, NO_TAG]])
    there = torch.tensor([[True, True], [True, False]])
    expected = cross_entropy(logits[there], target[there])
    assert KIND.mean_loss(logits, target) == pytest.approx(float(expected))
    # a word that nobody tagged counts in the mean alone
    some = torch.tensor([[0, 2], [-1, NO_TAG]])
    expected = cross_entropy(logits[0], target[0], reduction="sum") / 3
    assert KIND.labelled_loss(logits, some) == pytest.approx(float(expected))
    own, other = ((of / 2.0).log_softmax(-1) for of in (logits[there], taught[:, :2][there]))
    expected = kl_div(own, other, log_target=True, reduction="batchmean") * 4
    assert KIND.imitation_loss(logits, taught, 2.0) == pytest.approx(float(expected))
    assert float(KIND.mean_loss(logits, torch.full((2, 2), NO_TAG))) == 0.0  # and no NaN


def test_logits_are_stored_flat() -> None:
    logits = np.random.default_rng(0).normal(size=(3, 4, 2)).astype(np.float32)
    logits[0, 3], logits[1], logits[2, 1] = SILENT, SILENT, SILENT
    rows = [*flat(logits)]
    assert [*map(len, rows)] == [6, 0, 8]
    np.testing.assert_array_equal(unflat(rows, 4, 2), logits)
    with pytest.raises(ValueError, match="4 words"):
        unflat(rows, 3, 2)


def test_what_guessing_scores() -> None:
    labels = np.array([[0, 2, 2], [2, NO_TAG, NO_TAG]])
    assert majority_score(PARTS, labels, TAGS) == 0.75
    assert majority_score(ENTITIES, labels, TAGS) == 0.0


# -- a trial


def test_a_network_learns_its_tags(tmp_path: Path, store: Store) -> None:
    full, _ = in_order(token_world(tmp_path / "world"))
    record = done(store, {**full, "keep": "all"})
    assert record["last"] > 0.8
    assert (record["majority"], record["compute_used"]) == (0.0, "unpadded")
    stored = sorted(store.read("predictions", full["id"]), key=lambda row: row["example"])
    part, whole = np.array([row["tally"] for row in stored]).sum(axis=0)
    assert record["last"] == pytest.approx(part / whole)
    names = ("B-x", "I-x", "B-y", "I-y", "O")
    logits = [np.reshape(row["scores"], (-1, len(names))) for row in stored]
    lines = tagged(40, 2)
    assert [*map(len, logits)] == [len(line["tags"]) for line in lines]
    for row, each, line in zip(stored, logits, lines, strict=True):
        right = [names[tag] == own for tag, own in zip(each.argmax(1), line["tags"], strict=True)]
        assert (row["label"], row["prediction"]) == (len(right), sum(right))
    kept = tmp_path / "kept"
    kept.mkdir()
    assert fetch_network(store, full["id"], kept)
    model = AutoModelForTokenClassification.from_pretrained(kept).eval()
    assert [*model.config.id2label.values()] == [*names]
    tokenizer = AutoTokenizer.from_pretrained(kept)
    inputs = tokenizer(lines[0]["tokens"], is_split_into_words=True, return_tensors="pt")
    with torch.no_grad():
        assert_within_1e5(logits[0], model(**inputs).logits[0, 1:-1].numpy())


# -- strict entity F1, as published examples of seqeval 1.2.2 (MIT) and its broken sequences have it

BIO = tokens.closure(["B-PER", "B-LOC", "I-MISC", "B-NP"])
BIOES = tokens.closure(["S-PER", "B-LOC", "O"])


def coded(rows: list[str], names: tuple[str, ...]) -> np.ndarray:
    """Each row's tags apart by blanks; `.` is a word without an answer."""
    split = [row.split() for row in rows]
    found = np.full((len(rows), max(map(len, split))), -100)
    for row, tags in zip(found, split, strict=True):
        row[: len(tags)] = [-1 if tag == "." else names.index(tag) for tag in tags]
    return found


@pytest.mark.parametrize(
    ("labelled", "answered", "expected"),
    [
        # the readme of seqeval, and of its strict mode
        (
            ["O O O B-MISC I-MISC I-MISC O", "B-PER I-PER O"],
            ["O O B-MISC I-MISC I-MISC I-MISC O", "B-PER I-PER O"],
            0.5,
        ),
        (["B-NP I-NP O"], ["I-NP I-NP O"], 0.0),
        (["B-PER O B-LOC"], ["B-LOC O B-LOC"], 0.5),
        (["B-PER I-PER", "O O"], ["B-PER O", "B-PER O"], 0.0),
        (["B-PER B-PER"], ["B-PER I-PER"], 0.0),
        (["O O"], ["O O"], None),
        (["B-PER I-PER"], ["B-PER ."], 0.0),  # cut off after the first word
    ],
    ids=["readme", "strict", "type", "boundary", "two in one", "none", "cut"],
)
def test_f1(labelled: list[str], answered: list[str], expected: float | None) -> None:
    tally = tokens.f1_tally(coded(labelled, BIO), coded(answered, BIO), tokens.scheme_of(BIO))
    assert tally.shape == (len(labelled), 2)
    part, whole = tally.sum(axis=0)
    assert (part / whole if whole else None) == expected


@pytest.mark.parametrize(
    ("row", "names", "expected"),
    [
        ("B-PER I-PER I-LOC I-PER O", BIO, ["PER 0-1"]),
        ("I-PER B-LOC", BIO, ["LOC 1-1"]),
        ("B-PER . I-PER", BIO, ["PER 0-0"]),
        ("S-PER O B-LOC I-LOC E-LOC", BIOES, ["PER 0-0", "LOC 2-4"]),
        ("B-LOC E-LOC S-LOC", BIOES, ["LOC 0-1", "LOC 2-2"]),
        ("B-LOC I-LOC O", BIOES, []),
        ("B-LOC E-PER", BIOES, []),
        ("I-LOC E-LOC", BIOES, []),
        ("B-LOC S-PER", BIOES, ["PER 1-1"]),
    ],
)
def test_what_breaks_the_scheme_is_no_entity(row: str, names: Any, expected: list[str]) -> None:
    types = sorted({name[2:] for name in names if name != "O"})
    _, *parts = tokens.entities(coded([row], names), tokens.scheme_of(names))
    found = [f"{types[kind - 1]} {first}-{last}" for first, last, kind in zip(*parts, strict=True)]
    assert found == expected


@given(st.lists(st.lists(st.sampled_from(BIOES), min_size=1, max_size=8), min_size=1, max_size=4))
def test_rows_do_not_meet(rows: list[list[str]]) -> None:
    """An entity is of one row: all at once are found as each alone."""
    scheme = tokens.scheme_of(BIOES)
    tags = coded([" ".join(row) for row in rows], BIOES)
    together = tokens.entities(tags, scheme)
    alone = [tokens.entities(tags[i : i + 1], scheme) for i in range(len(rows))]
    assert together.first.tolist() == [int(at) for each in alone for at in each.first]
    assert together.rows.tolist() == [i for i, each in enumerate(alone) for _ in each.rows]


def test_a_network_knows_every_tag_of_each_type() -> None:
    assert tokens.closure(["B-x", "O", "I-y"]) == ("B-x", "I-x", "B-y", "I-y", "O")
    assert tokens.closure(["S-x"]) == ("B-x", "I-x", "E-x", "S-x", "O")
    assert all(map(tokens.is_tag, ("O", "B-a b")))
    assert not any(map(tokens.is_tag, ("U-x", "B", "B-", "x")))
