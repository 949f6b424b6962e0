"""Finds entities in rows of BIO or BIOES tags, and counts them for a strict F1.

BIO: an entity begins with B-x and continues with I-x. BIOES: it is S-x, or B-x, any I-x, then E-x.
Tags that break the scheme are no entity (an I-x after O; in BIOES a B-x without its E-x). An entity
is right if its type, first word and last word are those of a labelled one.
This is seqeval's `mode="strict"` with IOB2 and IOBES (Nakayama 2018): see
tests/trials/kinds/test_entities.py. conlleval (CoNLL 2000) counts a lone I-x as an entity.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
OUTSIDE = "O"
_TAG = re.compile(r"([BIES])-(.+)", re.DOTALL)
_BIO, _BIOES = "BI", "BIES"


class Scheme(NamedTuple):
    """The parts of each tag, indexed by its number; -1 (no tag) is outside."""

    prefixes: Array  # (C + 1,) one letter each, the last O
    types: Array  # (C + 1,) int64, 0 outside
    closed: bool  # BIOES: the end of an entity is tagged


def is_tag(name: str) -> bool:
    return name == OUTSIDE or _TAG.fullmatch(name) is not None


def closure(names: Sequence[str]) -> tuple[str, ...]:
    """Completes tags (see `is_tag`) to all tags of each type in their scheme, O last, so that a
    network can tag entities of any length."""
    found = [match for name in names if (match := _TAG.fullmatch(name))]
    letters = _BIOES if {match[1] for match in found} & {"E", "S"} else _BIO
    types = sorted({match[2] for match in found})
    return (*(f"{letter}-{each}" for each in types for letter in letters), OUTSIDE)


@functools.lru_cache(maxsize=64)
def scheme_of(names: tuple[str, ...]) -> Scheme:
    """The scheme of these tags (see `is_tag`)."""
    parts = [_TAG.fullmatch(name) for name in names]
    types = sorted({match[2] for match in parts if match})
    return Scheme(
        np.array([*(match[1] if match else OUTSIDE for match in parts), OUTSIDE]),
        np.array([*(1 + types.index(match[2]) if match else 0 for match in parts), 0]),
        any(match and match[1] in "ES" for match in parts),
    )


class Entities(NamedTuple):
    """m entities, in the order of their rows and words."""

    rows: Array  # (m,)
    first: Array  # (m,) words, from 0
    last: Array  # (m,)
    types: Array  # (m,) as in the scheme


def entities(tags: Array, scheme: Scheme) -> Entities:
    """Entities in (n, W) numbers of tags; negative: no word, or no tag."""
    width = tags.shape[1]
    apart = np.pad(np.maximum(tags, -1), ((0, 0), (0, 1)), constant_values=-1).ravel()
    prefix, types = scheme.prefixes[apart], scheme.types[apart]  # -1: the last
    goes_on = np.isin(prefix[1:], ["I", "E"]) & np.isin(prefix[:-1], ["B", "I"])
    goes_on &= types[1:] == types[:-1]
    breaks = np.flatnonzero(~np.append(False, goes_on))
    begins = np.flatnonzero(np.isin(prefix, ["B", "S"]))
    ends = breaks[np.searchsorted(breaks, begins, side="right")] - 1
    if scheme.closed:
        whole = np.isin(prefix[ends], ["E", "S"])
        begins, ends = begins[whole], ends[whole]
    found = begins // (width + 1)
    return Entities(found, begins % (width + 1), ends % (width + 1), types[begins])


def first_stray(tags: Array, scheme: Scheme) -> tuple[int, int] | None:
    """Row and word, from 0, of the first tag other than O outside any entity."""
    found = entities(tags, scheme)
    steps = np.zeros((len(tags), tags.shape[1] + 1), np.int64)
    steps[found.rows, found.first] += 1
    np.add.at(steps, (found.rows, found.last + 1), -1)
    covered = steps.cumsum(axis=1)[:, :-1] > 0
    stray = np.argwhere(~covered & (scheme.prefixes[np.maximum(tags, -1)] != OUTSIDE))
    return (int(stray[0, 0]), int(stray[0, 1])) if len(stray) else None


def f1_tally(targets: Array, answers: Array, scheme: Scheme) -> Array:
    """(n, 2) for two (n, W) arrays of tags: twice each row's right entities, and its labelled plus
    answered entities. F1 is the ratio of their sums."""
    n, width = targets.shape
    labelled, answered = entities(targets, scheme), entities(answers, scheme)

    def keys(found: Entities) -> Array:
        place = (found.rows * width + found.first) * width + found.last
        return np.asarray(place * len(scheme.types) + found.types)

    found = labelled.rows[np.isin(keys(labelled), keys(answered))]
    right, labels, others = (
        np.bincount(rows, minlength=n) for rows in (found, labelled.rows, answered.rows)
    )
    return np.stack([2 * right, labels + others], axis=1).astype(np.float64)
