"""Makes the texts of the toy language: labelled rows of three tasks, and pre-training text.

Deterministic for a seed. Pure Python: no files, no torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from random import Random
from typing import NamedTuple

from benchmarks.toy_language import lexicon, reviews, scenes

Row = dict[str, str | int | float]
Text = tuple[str, ...]

# Words that may open the second sentence of a pre-training pair. To guess one when it is masked, a
# model must know how the two sentences are related. The tasks' own rows never contain one.
CONNECTIVES = {"entailment": "so", "neutral": "perhaps", "contradiction": "instead"}
# Shares of plain, negated, reported and two-clause reviews.
DEPTHS = (0, 0, 0, 1, 1, 1, 2, 2, 3, 3)


class Passage(NamedTuple):
    """One line of pre-training text. `second` is None for a single sentence."""

    first: str
    second: str | None


# --- tasks --------------------------------------------------------------------------------------


def sentiment_row(rng: Random) -> Row:
    """`sentence`, `label` (index into reviews.SENTIMENT)."""
    verdict = reviews.review(rng, rng.choice(DEPTHS))
    return {"sentence": verdict.words, "label": int(verdict.polarity > 0)}


def entailment_row(rng: Random) -> Row:
    """`sentence1`, `sentence2`, `label` (index into scenes.ENTAILMENT)."""
    premise, hypothesis = _scene_pair(rng)
    return {
        "sentence1": scenes.say(premise, rng),
        "sentence2": scenes.say(hypothesis, rng),
        "label": scenes.ENTAILMENT.index(scenes.entailment(premise, hypothesis)),
    }


def similarity_row(rng: Random) -> Row:
    """`sentence1`, `sentence2`, `label` (0..5 in steps of 0.25)."""
    one, other = _similar_pair(rng)
    return {
        "sentence1": scenes.say(one, rng),
        "sentence2": scenes.say(other, rng),
        "label": scenes.similarity(one, other),
    }


def _scene_pair(rng: Random) -> tuple[scenes.Scene, scenes.Scene]:
    """Premise and hypothesis; each relation is equally likely. Three rows in five use "the"."""
    wanted = rng.choice(scenes.ENTAILMENT)
    plain = rng.random() < 0.6
    while True:
        premise = scenes.random_scene(rng, "the" if plain else rng.choice(scenes.QUANTIFIERS[1:]))
        hypothesis = scenes.vary(premise, rng, keep=0.6)
        if not plain:
            hypothesis = scenes.requantify(hypothesis, rng.choice(scenes.QUANTIFIERS))
        if scenes.entailment(premise, hypothesis) == wanted and premise != hypothesis:
            return premise, hypothesis


def _similar_pair(rng: Random) -> tuple[scenes.Scene, scenes.Scene]:
    one = scenes.random_scene(rng, "the", full=True)
    return one, scenes.vary_leaves(one, rng, keep=rng.random())


ROWS: dict[str, Callable[[Random], Row]] = {
    "toy-sentiment": sentiment_row,
    "toy-entailment": entailment_row,
    "toy-similarity": similarity_row,
}
CLASSES: dict[str, tuple[str, ...] | None] = {
    "toy-sentiment": reviews.SENTIMENT,
    "toy-entailment": scenes.ENTAILMENT,
    "toy-similarity": None,
}


class Split(NamedTuple):
    """A task's rows; no text of `validation` occurs in `train`, and none occurs twice."""

    train: list[Row]
    validation: list[Row]


def task_rows(task: str, seed: int, n_train: int, n_validation: int) -> Split:
    """The task's rows for this seed. In each part, class sizes differ by at most one row."""
    rng = Random(f"{task}/{seed}")
    seen: set[Text] = set()
    parts = [_draw(task, rng, n, seen) for n in (n_train, n_validation)]
    return Split(*parts)


def texts(rows: list[Row]) -> list[Text]:
    """Each row without its label: one or two sentences."""
    return [tuple(str(v) for column, v in row.items() if column != "label") for row in rows]


def _draw(task: str, rng: Random, n_rows: int, seen: set[Text]) -> list[Row]:
    classes = CLASSES[task]
    quota = -(-n_rows // len(classes)) if classes else n_rows
    taken: Counter[str | int | float] = Counter()
    rows: list[Row] = []
    while len(rows) < n_rows:
        row = ROWS[task](rng)
        (text,) = texts([row])
        if text in seen or (classes and taken[row["label"]] >= quota):
            continue
        seen.add(text)
        taken[row["label"]] += 1
        rows.append(row)
    return rows


# --- pre-training text --------------------------------------------------------------------------


def passages(seed: int, held_out: frozenset[Text] = frozenset()) -> Iterator[Passage]:
    """Endless text without labels: pairs of sentences, and one single sentence in twenty passages.

    Passages that contain a text of `held_out` (see `texts`), ignoring telling words, are left out.
    """
    rng = Random(f"passages/{seed}")
    telling = frozenset(telling_words())
    while True:
        first, relation, second = rng.choice((_review_pair, _entailment_pair, _similarity_pair))(
            rng
        )
        plain = " ".join(word for word in second.split() if word not in telling)
        if (first,) in held_out or (first, plain) in held_out:
            continue
        if rng.random() < 0.05:
            yield Passage(first, None)
        else:  # most pairs name the relation
            named = relation and rng.random() < 0.85
            yield Passage(first, f"{relation} {second}" if named else second)


def _review_pair(rng: Random) -> tuple[str, str, str]:
    verdict = reviews.review(rng, rng.choice(DEPTHS))
    return verdict.words, "so", reviews.consequence(verdict, rng)


def _entailment_pair(rng: Random) -> tuple[str, str, str]:
    premise, hypothesis = _scene_pair(rng)
    word = CONNECTIVES[scenes.entailment(premise, hypothesis)]
    return scenes.say(premise, rng), word, scenes.say(hypothesis, rng, since=premise)


def _similarity_pair(rng: Random) -> tuple[str, str, str]:
    one, other = _similar_pair(rng)
    return scenes.say(one, rng), "", scenes.say(other, rng, since=one)


def telling_words() -> list[str]:
    """The words of a second sentence that can be guessed only from the meaning of the first."""
    return [*CONNECTIVES.values(), *scenes.PARTICLES.values(), *lexicon.PRAISE, *lexicon.BLAME]


def vocabulary() -> list[str]:
    """Every word that a sentence can contain, in a fixed order."""
    fixed = " ".join(
        [
            *scenes.QUANTIFIERS,
            *CONNECTIVES.values(),
            *scenes.PARTICLES.values(),
            *scenes.all_words(),
            *reviews.all_words(),
        ]
    )
    return list(dict.fromkeys(fixed.split()))
