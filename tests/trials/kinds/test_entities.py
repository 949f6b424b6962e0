"""Strict entity F1 of BIO and BIOES, held to the published examples of seqeval 1.2.2 (MIT) and to
what it gave for broken sequences."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lp_sweep.trials.kinds.entities import closure, entities, f1_tally, is_tag, scheme_of

BIO = closure(["B-PER", "B-LOC", "I-MISC", "B-NP"])
BIOES = closure(["S-PER", "B-LOC", "O"])


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
    tally = f1_tally(coded(labelled, BIO), coded(answered, BIO), scheme_of(BIO))
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
def test_what_breaks_the_scheme_is_no_entity(
    row: str, names: tuple[str, ...], expected: list[str]
) -> None:
    types = sorted({name[2:] for name in names if name != "O"})
    _, *parts = entities(coded([row], names), scheme_of(names))
    found = [f"{types[kind - 1]} {first}-{last}" for first, last, kind in zip(*parts, strict=True)]
    assert found == expected


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
    assert all(map(is_tag, ("O", "B-a b")))
    assert not any(map(is_tag, ("U-x", "B", "B-", "x")))
