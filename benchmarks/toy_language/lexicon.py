"""The words of the toy language, as trees of concepts. Data only: no rules, no randomness.

A tree maps a concept to its parent ("dog" -> "pet" -> "animal"). A concept may have several surface
words ("dog", "hound"). All rules treat them alike, so only pre-training text or many labelled rows
can teach that they mean the same.
"""

from __future__ import annotations

Tree = dict[str, str | None]


def _tree(branches: dict[str, tuple[str, ...]]) -> Tree:
    """Turns parent -> children into child -> parent; the parent of a root is None."""
    parents: Tree = dict.fromkeys(branches)
    for parent, children in branches.items():
        parents.update(dict.fromkeys(children, parent))
    return parents


NOUNS = _tree(
    {
        "animal": ("pet", "bird"),
        "person": ("artist", "worker"),
        "pet": ("dog", "cat", "rabbit", "pony"),
        "bird": ("crow", "eagle", "owl", "duck"),
        "artist": ("singer", "painter", "dancer", "poet"),
        "worker": ("farmer", "baker", "driver", "nurse"),
    }
)
VERBS = _tree(
    {
        "moves": ("runs", "walks", "jumps"),
        "rests": ("sleeps", "sits", "waits"),
        "talks": ("shouts", "whispers", "argues"),
        "consumes": ("eats", "drinks", "chews"),
    }
)
PLACES = _tree(
    {
        "outdoors": ("in the garden", "in the forest", "in the field"),
        "indoors": ("in the kitchen", "in the attic", "in the hall"),
    }
)
ADJECTIVES = _tree({"size": ("small", "big"), "age": ("young", "old")})

SYNONYMS: dict[str, str] = {
    "dog": "hound",
    "cat": "kitty",
    "rabbit": "bunny",
    "crow": "raven",
    "singer": "vocalist",
    "painter": "illustrator",
    "poet": "bard",
    "driver": "chauffeur",
    "farmer": "grower",
    "nurse": "medic",
    "runs": "sprints",
    "walks": "strolls",
    "jumps": "leaps",
    "sleeps": "naps",
    "waits": "lingers",
    "shouts": "yells",
    "whispers": "murmurs",
    "argues": "quarrels",
    "eats": "devours",
    "drinks": "sips",
    "chews": "nibbles",
    "small": "little",
    "big": "large",
    "young": "juvenile",
    "old": "elderly",
    "in the garden": "in the yard",
    "in the forest": "in the woods",
    "in the kitchen": "in the cookhouse",
    "in the attic": "in the loft",
}

POSITIVE = ("good", "great", "lovely", "clever", "funny", "warm", "superb", "charming", "fresh")
NEGATIVE = ("bad", "awful", "dull", "silly", "boring", "cold", "weak", "tedious", "stale")
ITEMS = ("film", "story", "plot", "acting", "music", "ending", "script", "cast")
PRAISE = ("loved", "enjoyed", "recommended", "admired")
BLAME = ("hated", "disliked", "regretted", "avoided")


def leaves(tree: Tree) -> tuple[str, ...]:
    """The most specific concepts, in the order above."""
    parents = set(tree.values())
    return tuple(concept for concept in tree if concept not in parents)


def is_under(tree: Tree, concept: str | None, ancestor: str | None) -> bool:
    """Whether `concept` is `ancestor` or below it; None, "anything", is above all concepts."""
    while concept != ancestor and concept is not None:
        concept = tree[concept]
    return concept == ancestor
