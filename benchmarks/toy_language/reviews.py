"""Reviews, "although the plot was dull , the cast was not bad": their words and their polarity.

A review has the polarity of its main judgement, reversed once by each negation.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from benchmarks.toy_language import lexicon

SENTIMENT = ("negative", "positive")
NEGATIONS = ("not", "never", "hardly")
DEGREES = ("very", "really", "rather")
# Each reverses the clause that follows it.
DENIALS = ("nobody said that", "we doubt that")
# These don't.
REPORTS = ("everybody said that", "we think that")


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """A review. `polarity` is +1 or -1, after negations; `item` is the main judgement's subject."""

    words: str
    polarity: int
    item: str


def judgement(rng: Random, depth: int) -> Review:
    """One clause with `depth` 0, 1 or 2 places for a negation."""
    item = rng.choice(lexicon.ITEMS)
    polarity = rng.choice((-1, 1))
    adjective = rng.choice(_side(polarity))
    words = ["the", item, "was"]
    # Below one half, so that an adjective alone still hints at the verdict.
    if depth >= 1 and rng.random() < 0.4:
        words += [rng.choice(NEGATIONS), adjective]
        polarity = -polarity
    elif rng.random() < 0.5:
        words += [adjective, "and", rng.choice(_side(polarity))]
    else:
        words += [rng.choice(DEGREES), adjective]
    if depth >= 2:
        denies = rng.random() < 0.4
        words.insert(0, rng.choice(DENIALS if denies else REPORTS))
        polarity = -polarity if denies else polarity
    return Review(words=" ".join(words), polarity=polarity, item=item)


def _side(polarity: int) -> tuple[str, ...]:
    return lexicon.POSITIVE if polarity > 0 else lexicon.NEGATIVE


def review(rng: Random, depth: int) -> Review:
    """A review of this `depth`: 0 plain, 1 negated, 2 reported or denied, 3 two clauses."""
    if depth < 3:
        return judgement(rng, depth)
    main, aside = judgement(rng, rng.randrange(2)), judgement(rng, rng.randrange(2))
    pattern = rng.choice(
        ("although {aside} , {main}", "{main} , although {aside}", "{aside} , but {main}")
    )
    words = pattern.format(aside=aside.words, main=main.words)
    return Review(words=words, polarity=main.polarity, item=main.item)


def consequence(verdict: Review, rng: Random) -> str:
    """A second sentence. To complete it, one must have understood the review."""
    verb = rng.choice(lexicon.PRAISE if verdict.polarity > 0 else lexicon.BLAME)
    return f"we {verb} the {verdict.item}"


def all_words() -> list[str]:
    """Every phrase that a review or its consequence can contain."""
    return [
        *("the", "was", "and", "although", "but", ",", "so", "we"),
        *(*NEGATIONS, *DEGREES, *DENIALS, *REPORTS),
        *(*lexicon.ITEMS, *lexicon.POSITIVE, *lexicon.NEGATIVE, *lexicon.PRAISE, *lexicon.BLAME),
    ]
