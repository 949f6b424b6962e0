"""Strict entity F1 of BIO and BIOES, held to the published examples of seqeval 1.2.2 (MIT) and to
what it gave for broken sequences."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lp_sweep.trials.kinds.entities import (
    closure,
    entities,
    f1_tally,
    first_stray,
    is_tag,
    scheme_of,
)

BIO = closure(["B-PER", "B-LOC", "I-MISC", "B-NP"])
BIOES = closure(["S-PER", "B-LOC", "O"])


def coded(rows: list[str], names: tuple[str, ...]) -> np.ndarray:
    """Each row's tags apart by blanks; `.` is a word without an answer."""
    split = [row.split() for row in rows]
    found = np.full((len(rows), max(map(len, split))), -100)
    for row, tags in zip(found, split, strict=True):
        row[: len(tags)] = [-1 if tag == "." else names.index(tag) for tag in tags]
    return found


def found_in(row: str, names: tuple[str, ...]) -> list[str]:
    types = sorted({name[2:] for name in names if name != "O"})
    found = entities(coded([row], names), scheme_of(names))
    return [
        f"{types[kind - 1]} {first}-{last}"
        for _, first, last, kind in zip(*(part.tolist() for part in found), strict=True)
    ]


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
        (["B-PER O O"], ["B-PER O ."], 1.0),
    ],
    ids=["readme", "strict", "type", "boundary", "two in one", "none", "cut", "cut outside"],
)
def test_f1(labelled: list[str], answered: list[str], expected: float | None) -> None:
    tally = f1_tally(coded(labelled, BIO), coded(answered, BIO), scheme_of(BIO))
    assert tally.shape == (len(labelled), 2)
    part, whole = tally.sum(axis=0)
    assert (part / whole if whole else None) == expected


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("B-PER I-PER I-LOC I-PER O", ["PER 0-1"]),
        ("I-PER B-LOC", ["LOC 1-1"]),
        ("B-LOC I-LOC", ["LOC 0-1"]),
        ("B-PER . I-PER", ["PER 0-0"]),
    ],
)
def test_what_breaks_bio_is_no_entity(row: str, expected: list[str]) -> None:
    assert found_in(row, BIO) == expected


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("S-PER O B-LOC I-LOC E-LOC", ["PER 0-0", "LOC 2-4"]),
        ("B-LOC E-LOC S-LOC", ["LOC 0-1", "LOC 2-2"]),
        ("B-LOC O", []),
        ("B-LOC I-LOC O", []),
        ("B-LOC E-PER", []),
        ("I-LOC E-LOC", []),
        ("B-LOC S-PER", ["PER 1-1"]),
    ],
)
def test_what_breaks_bioes_is_no_entity(row: str, expected: list[str]) -> None:
    assert found_in(row, BIOES) == expected


@given(st.lists(st.lists(st.sampled_from(BIOES), min_size=1, max_size=8), min_size=1, max_size=4))
def test_rows_do_not_meet(rows: list[list[str]]) -> None:
    """An entity is of one row: all at once are found as each alone."""
    scheme = scheme_of(BIOES)
    tags = coded([" ".join(row) for row in rows], BIOES)
    together = entities(tags, scheme)
    alone = [entities(tags[i : i + 1], scheme) for i in range(len(rows))]
    assert together.first.tolist() == [int(at) for each in alone for at in each.first]
    assert together.rows.tolist() == [i for i, each in enumerate(alone) for _ in each.rows]


def test_a_network_knows_every_tag_of_each_type() -> None:
    assert closure(["B-x", "O", "I-y"]) == ("B-x", "I-x", "B-y", "I-y", "O")
    assert closure(["S-x"]) == ("B-x", "I-x", "E-x", "S-x", "O")
    assert [is_tag(name) for name in ("O", "B-a b", "U-x", "B", "B-", "x")] == [
        *(True, True, False, False, False, False)
    ]


def test_the_first_tag_of_no_entity() -> None:
    scheme = scheme_of(BIO)
    assert first_stray(coded(["B-PER I-PER O", "O B-LOC"], BIO), scheme) is None
    assert first_stray(coded(["O O", "O I-LOC I-LOC"], BIO), scheme) == (1, 1)
