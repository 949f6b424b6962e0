"""The shipped quickstart data and model are what the generator says, and mean what they say."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice
from statistics import mean, pstdev

import pyarrow.parquet as pq
import pytest

from benchmarks.toy_language import build, grammar, lexicon, scenes

QUICKSTART = build.QUICKSTART
TASKS = tuple(grammar.ROWS)
PARTS = {"train": build.N_TRAIN, "validation": build.N_VALIDATION}
generated = pytest.mark.slow  # what is shipped changes only with the generator


def shipped(task: str, part: str) -> list[grammar.Row]:
    rows: list[grammar.Row] = pq.read_table(
        QUICKSTART / "data" / task / f"{part}.parquet"
    ).to_pylist()
    return rows


def shipped_rows(task: str) -> list[grammar.Row]:
    return [row for part in PARTS for row in shipped(task, part)]


@generated
@pytest.mark.parametrize("task", TASKS)
def test_the_same_seed_gives_the_same_rows_and_another_seed_others(task: str) -> None:
    first = grammar.task_rows(task, 3, 40, 20)
    assert grammar.task_rows(task, 3, 40, 20) == first
    assert grammar.task_rows(task, 4, 40, 20) != first


@generated
def test_pretraining_text_is_deterministic_and_leaves_out_validation_texts() -> None:
    held_out = build.held_out()
    drawn = list(islice(grammar.passages(build.RECIPE.seed, held_out), 4_000))
    assert drawn == list(islice(grammar.passages(build.RECIPE.seed, held_out), 4_000))
    telling = set(grammar.telling_words())
    for passage in drawn:
        assert (passage.first,) not in held_out
        plain = " ".join(w for w in (passage.second or "").split() if w not in telling)
        assert (passage.first, plain) not in held_out


@generated
def test_the_vocabulary_holds_every_word_of_rows_and_pretraining_text() -> None:
    known = set(grammar.vocabulary())
    for passage in islice(grammar.passages(0), 4_000):
        assert known.issuperset(f"{passage.first} {passage.second or ''}".split()), passage
    for task in TASKS:
        for text in grammar.texts(shipped_rows(task)):
            assert known.issuperset(" ".join(text).split()), text


@generated
def test_telling_words_stay_out_of_the_tasks() -> None:
    telling = set(grammar.telling_words())
    for task in TASKS:
        for text in grammar.texts(shipped_rows(task)):
            assert telling.isdisjoint(" ".join(text).split()), text


@generated
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("task", TASKS)
def test_shipped_rows_are_the_generated_rows(task: str, part: str) -> None:
    split = grammar.task_rows(task, build.DATA_SEED, build.N_TRAIN, build.N_VALIDATION)
    table = pq.read_table(QUICKSTART / "data" / task / f"{part}.parquet")
    assert table.to_pylist() == getattr(split, part)
    assert table.num_rows == PARTS[part]
    assert table.schema.equals(build.to_table(task, table.to_pylist()).schema, check_metadata=True)


@pytest.mark.parametrize("task", TASKS)
def test_no_text_occurs_twice_so_the_parts_are_disjoint(task: str) -> None:
    texts = grammar.texts(shipped_rows(task))
    assert len(set(texts)) == len(texts) == sum(PARTS.values())


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("task", ["toy-sentiment", "toy-entailment"])
def test_classes_are_balanced_and_named_in_the_file(task: str, part: str) -> None:
    counts = Counter(row["label"] for row in shipped(task, part))
    assert max(counts.values()) - min(counts.values()) <= 1
    schema = pq.read_schema(QUICKSTART / "data" / task / f"{part}.parquet")
    assert schema.field("label").type == "int64"
    features = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
    assert tuple(features["label"]["names"]) == grammar.CLASSES[task]
    assert sorted(counts) == list(range(len(features["label"]["names"])))


@pytest.mark.parametrize("part", PARTS)
def test_similarity_scores_spread_over_the_scale(part: str) -> None:
    scores = [float(row["label"]) for row in shipped("toy-similarity", part)]
    assert min(scores) >= 0
    assert max(scores) == 5
    assert 2.5 < mean(scores) < 3.5
    assert pstdev(scores) > 1.0
    schema = pq.read_schema(QUICKSTART / "data" / "toy-similarity" / f"{part}.parquet")
    assert schema.field("label").type == "float"


# --- labels, derived again from the words alone -------------------------------------------------


def polarity(sentence: str) -> int:
    """0 or 1: the adjective of the main clause, turned round by every negation before it."""
    if sentence.startswith("although "):
        sentence = sentence.split(" , ")[1]
    elif " , although " in sentence:
        sentence = sentence.split(" , ")[0]
    else:
        sentence = sentence.split(" , but ")[-1]
    words = sentence.split()
    turns = sum(word in {"not", "never", "hardly", "nobody", "doubt"} for word in words)
    return int((words[-1] in lexicon.POSITIVE) != (turns % 2 == 1))


@generated
def test_sentiment_labels_follow_the_main_clause() -> None:
    for row in shipped_rows("toy-sentiment"):
        assert polarity(str(row["sentence"])) == row["label"], row


CONCEPTS = {synonym: concept for concept, synonym in lexicon.SYNONYMS.items()}


def parse(sentence: str) -> tuple[str, dict[str, str | None]]:
    """The quantifier and the concept of every slot."""
    quantifier, rest = sentence.split(" ", 1)
    rest = rest.replace(" in the ", " in_the_")
    slots: dict[str, str | None] = dict.fromkeys(scenes.TREES)
    for word in rest.split():
        phrase = word.replace("_", " ")
        concept = CONCEPTS.get(phrase, phrase)
        (slot,) = (name for name, tree in scenes.TREES.items() if concept in tree)
        assert slots[slot] is None
        slots[slot] = concept
    return quantifier, slots


def extension(slots: dict[str, str | None], names: tuple[str, ...]) -> frozenset[tuple[str, ...]]:
    """Every combination of most specific concepts that the named slots allow."""
    allowed: list[tuple[str, ...]] = [()]
    for name in names:
        tree = scenes.TREES[name]
        kinds = [leaf for leaf in lexicon.leaves(tree) if lexicon.is_under(tree, leaf, slots[name])]
        allowed = [(*head, leaf) for head in allowed for leaf in kinds]
    return frozenset(allowed)


def relation(sentence1: str, sentence2: str) -> str:
    """Entailment by sets: subjects and predicates are what they apply to."""
    (q, one), (r, other) = parse(sentence1), parse(sentence2)
    s, t = (subjects(slots) for slots in (one, other))
    p, u = (extension(slots, ("verb", "place")) for slots in (one, other))
    nested = s <= t or t <= s
    entails = {
        "the the": s <= t and p <= u,
        "the a": s <= t and p <= u,
        "a a": s <= t and p <= u,
        "every every": t <= s and p <= u,
        "every the": t <= s and p <= u,
        "every a": nested and p <= u,
        "no no": t <= s and u <= p,
    }
    clash = {
        "the the": not s & t or not p & u,
        "every the": t <= s and not p & u,
        "every a": t <= s and not p & u,
        "the every": s <= t and not p & u,
        "a every": s <= t and not p & u,
        "every every": nested and not p & u,
        "no the": t <= s and u <= p,
        "no a": t <= s and u <= p,
        "the no": s <= t and p <= u,
        "a no": s <= t and p <= u,
        "no every": nested and u <= p,
        "every no": nested and p <= u,
    }
    if entails.get(f"{q} {r}", False):
        return "entailment"
    return "contradiction" if clash.get(f"{q} {r}", False) else "neutral"


def subjects(slots: dict[str, str | None]) -> frozenset[tuple[str, ...]]:
    """Noun x size x age: two dimensions, for a size and an age exclude nothing of each other."""
    sizes, ages = ("small", "big"), ("young", "old")
    adjective = slots["adjective"]
    return frozenset(
        (*noun, size, age)
        for noun in extension(slots, ("noun",))
        for size in (sizes if adjective not in sizes else (adjective,))
        for age in (ages if adjective not in ages else (adjective,))
    )


@generated
def test_entailment_labels_follow_from_sets() -> None:
    for row in shipped_rows("toy-entailment"):
        expected = relation(str(row["sentence1"]), str(row["sentence2"]))
        assert scenes.ENTAILMENT[int(row["label"])] == expected, row


@generated
def test_similarity_scores_add_up_slot_by_slot() -> None:
    points = {"noun": 2.0, "verb": 1.5, "place": 1.0, "adjective": 0.5}
    for row in shipped_rows("toy-similarity"):
        (_, one), (_, other) = parse(str(row["sentence1"])), parse(str(row["sentence2"]))
        score = 0.0
        for slot, most in points.items():
            parent = scenes.TREES[slot]
            a, b = str(one[slot]), str(other[slot])
            score += most if a == b else most / 2 if parent[a] == parent[b] else 0.0
        assert row["label"] == score, row


# --- the model folder ---------------------------------------------------------------------------


def test_the_model_folder_holds_safetensors_and_twelve_layers() -> None:
    import torch
    from transformers import AutoModelForSequenceClassification

    folder = QUICKSTART / "model"
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    model = AutoModelForSequenceClassification.from_pretrained(
        folder, num_labels=3, use_safetensors=True
    )
    assert model.config.num_hidden_layers == len(model.bert.encoder.layer) == 12
    assert all(torch.isfinite(p).all() for p in model.parameters())


def test_the_shipped_tokenizer_knows_every_word_and_fits_every_row() -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(QUICKSTART / "model")
    assert tokenizer.is_fast
    assert tokenizer.get_vocab() == build.make_tokenizer().get_vocab()
    for task in TASKS:
        columns = list(zip(*grammar.texts(shipped_rows(task)), strict=True))
        batch = tokenizer(*(list(column) for column in columns))
        assert all(tokenizer.unk_token_id not in ids for ids in batch["input_ids"])
        assert max(map(len, batch["input_ids"])) <= 32
        assert {t for types in batch["token_type_ids"] for t in types} == set(range(len(columns)))


def test_everything_shipped_is_small() -> None:
    shipped_bytes = sum(
        path.stat().st_size
        for folder in ("model", "data")
        for path in (QUICKSTART / folder).rglob("*")
        if path.is_file()
    )
    assert shipped_bytes < 5_000_000
