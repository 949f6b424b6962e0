"""Scenes, "every small dog runs in the garden": their words, and the rules for pairs of scenes.

Labels are computed from the meaning, never from the words that express it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random

from benchmarks.toy_language import lexicon
from benchmarks.toy_language.lexicon import ADJECTIVES, NOUNS, PLACES, VERBS, is_under

ENTAILMENT = ("entailment", "neutral", "contradiction")
QUANTIFIERS = ("the", "a", "every", "no")
TREES = {"adjective": ADJECTIVES, "noun": NOUNS, "verb": VERBS, "place": PLACES}
# They occur only in pre-training text: see `say`.
PARTICLES = {"same": "still", "wider": "thus", "narrower": "even", "near": "almost", "far": "now"}
# They sum to 5, the top of the similarity scale.
SLOT_POINTS = {"noun": 2.0, "verb": 1.5, "place": 1.0, "adjective": 0.5}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One sentence's meaning. None in a slot means that the sentence leaves it open."""

    quantifier: str
    adjective: str | None
    noun: str
    verb: str
    place: str | None


def say(scene: Scene, rng: Random, since: Scene | None = None) -> str:
    """The scene in words; each concept uses one of its synonyms at random.

    After another scene (`since`), half of the slots start with a particle that says how they have
    changed: "the big dog runs" -> "the still large thus animal now sleeps".
    """
    words = [scene.quantifier]
    for slot in ("adjective", "noun", "verb", "place"):
        concept = getattr(scene, slot)
        if concept is None:
            continue
        if since is not None and rng.random() < 0.5:
            words.append(PARTICLES[change(slot, getattr(since, slot), concept)])
        words.append(_word(concept, rng))
    return " ".join(words)


def change(slot: str, before: str | None, after: str) -> str:
    """How a slot's filler changed: a key of PARTICLES."""
    tree = TREES[slot]
    if before == after:
        return "same"
    if before is None or is_under(tree, after, before):
        return "narrower"
    if is_under(tree, before, after):
        return "wider"
    return "near" if tree[before] == tree[after] else "far"


def _word(concept: str, rng: Random) -> str:
    synonym = lexicon.SYNONYMS.get(concept)
    return synonym if synonym is not None and rng.random() < 0.5 else concept


def random_scene(rng: Random, quantifier: str, *, full: bool = False) -> Scene:
    """A scene of specific concepts; unless `full`, adjective and place may be left open."""
    return Scene(
        quantifier=quantifier,
        adjective=rng.choice(lexicon.leaves(ADJECTIVES)) if full or rng.random() < 0.6 else None,
        noun=_lift(NOUNS, rng.choice(lexicon.leaves(NOUNS)), rng, 0.0 if full else 0.2),
        verb=_lift(VERBS, rng.choice(lexicon.leaves(VERBS)), rng, 0.0 if full else 0.2),
        place=rng.choice(lexicon.leaves(PLACES)) if full or rng.random() < 0.6 else None,
    )


def _lift(tree: lexicon.Tree, concept: str, rng: Random, chance: float) -> str:
    """The concept, or with probability `chance` the one above it."""
    parent = tree[concept]
    return parent if parent is not None and rng.random() < chance else concept


def requantify(scene: Scene, quantifier: str) -> Scene:
    """The same scene with another quantifier."""
    return replace(scene, quantifier=quantifier)


def all_words() -> list[str]:
    """Every phrase that a scene can contain besides its quantifier."""
    return [*(c for tree in TREES.values() for c in tree), *lexicon.SYNONYMS.values()]


# --- entailment ---------------------------------------------------------------------------------


def within(inner: Scene, outer: Scene, *slots: str) -> bool:
    """Whether, slot by slot, `inner` is at least as specific as `outer`."""
    return all(is_under(TREES[s], getattr(inner, s), getattr(outer, s)) for s in slots)


def exclusive(one: Scene, other: Scene, *slots: str) -> bool:
    """Whether some slot has two concepts that exclude each other."""
    return any(_exclude(s, getattr(one, s), getattr(other, s)) for s in slots)


def _exclude(slot: str, one: str | None, other: str | None) -> bool:
    if one is None or other is None:
        return False
    tree = TREES[slot]
    if slot == "adjective":  # small and old do not exclude each other, small and big do
        return one != other and tree[one] == tree[other]
    return not is_under(tree, one, other) and not is_under(tree, other, one)


def entailment(premise: Scene, hypothesis: Scene) -> str:
    """One of ENTAILMENT, by monotonicity.

    With "the" and "a", subject and predicate may become more general. With "every", the subject may
    become more specific and the predicate more general. With "no", both may become more specific.
    Two "the" refer to one individual, and "every" refers to at least one.
    """
    if _entails(premise, hypothesis):
        return "entailment"
    if _contradicts(premise, hypothesis) or _contradicts(hypothesis, premise):
        return "contradiction"
    return "neutral"


def _entails(p: Scene, h: Scene) -> bool:
    subject_up, subject_down = _subject(p, h), _subject(h, p)
    up, down = _predicate(p, h), _predicate(h, p)
    match (p.quantifier, h.quantifier):
        case ("the", "the") | ("the", "a") | ("a", "a"):
            return subject_up and up
        case ("every", "every") | ("every", "the"):
            return subject_down and up
        case ("every", "a"):
            return (subject_down or subject_up) and up
        case ("no", "no"):
            return subject_down and down
    return False


def _contradicts(p: Scene, h: Scene) -> bool:
    match (p.quantifier, h.quantifier):
        case ("the", "the"):
            return exclusive(p, h, "adjective", "noun", "verb", "place")
        case ("every", "the") | ("every", "a"):
            return _subject(h, p) and exclusive(p, h, "verb", "place")
        case ("every", "every"):
            return (_subject(h, p) or _subject(p, h)) and exclusive(p, h, "verb", "place")
        case ("no", "the") | ("no", "a"):
            return _subject(h, p) and _predicate(h, p)
        case ("no", "every"):
            return (_subject(h, p) or _subject(p, h)) and _predicate(h, p)
    return False


def _subject(inner: Scene, outer: Scene) -> bool:
    return within(inner, outer, "adjective", "noun")


def _predicate(inner: Scene, outer: Scene) -> bool:
    return within(inner, outer, "verb", "place")


# --- similarity ---------------------------------------------------------------------------------


def similarity(one: Scene, other: Scene) -> float:
    """0..5 in steps of 0.25: a slot's points if it is equal, half of them if it shares a parent."""
    return sum(
        points * _closeness(TREES[slot], getattr(one, slot), getattr(other, slot))
        for slot, points in SLOT_POINTS.items()
    )


def _closeness(tree: lexicon.Tree, one: str, other: str) -> float:
    if one == other:
        return 1.0
    return 0.5 if tree[one] == tree[other] else 0.0


# --- variants of a scene ------------------------------------------------------------------------


def vary(scene: Scene, rng: Random, keep: float) -> Scene:
    """Vary a scene: each slot stays with probability `keep`. Otherwise it is left open, filled, or
    moved near or far in its tree."""
    return _rewrite(scene, {s: _move(s, getattr(scene, s), rng, keep) for s in TREES})


def _move(slot: str, concept: str | None, rng: Random, keep: float) -> str | None:
    if rng.random() < keep:
        return concept
    tree = TREES[slot]
    sayable = lexicon.leaves(tree) if slot == "adjective" else tuple(tree)
    if slot in ("adjective", "place") and rng.random() < 0.6:
        return None if concept is not None else rng.choice(sayable)
    near = [c for c in sayable if concept is not None and _adjacent(tree, c, concept)]
    return rng.choice(near) if near and rng.random() < 0.7 else rng.choice(sayable)


def _adjacent(tree: lexicon.Tree, one: str, other: str) -> bool:
    """Whether these are parent and child, or siblings."""
    return one != other and (tree[one] in (other, tree[other]) or one == tree[other])


def vary_leaves(scene: Scene, rng: Random, keep: float) -> Scene:
    """As `vary`, but every slot keeps a most specific concept."""
    return _rewrite(scene, {s: _swap(TREES[s], getattr(scene, s), rng, keep) for s in TREES})


def _swap(tree: lexicon.Tree, concept: str, rng: Random, keep: float) -> str:
    if rng.random() < keep:
        return concept
    leaves = lexicon.leaves(tree)
    siblings = [leaf for leaf in leaves if leaf != concept and tree[leaf] == tree[concept]]
    return rng.choice(siblings if rng.random() < 0.4 else leaves)


def _rewrite(scene: Scene, slots: Mapping[str, str | None]) -> Scene:
    noun, verb = slots["noun"], slots["verb"]
    assert noun is not None
    assert verb is not None
    return replace(scene, adjective=slots["adjective"], noun=noun, verb=verb, place=slots["place"])
