"""Rules for the layers that lose their feed-forward: arithmetic on 1-based indices, without torch.

A rule is `all`, `none`, `top N`, `bottom N`, `every 2nd` (3rd, 4th, ...), or a list of layers. It
is about the kept layers; the result is their original indices.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from lp_sweep.trials.spec.specs import SecondNorm

REMOVED = "lp_sweep_removed_feed_forwards"  # the field of a config that lists them
ALLOWED = (
    "Use all, none, top N, bottom N, every 2nd (3rd, 4th, ...), or a list of layers such as 9,10,11"
)
ALL, NONE, TOP, BOTTOM = "all", "none", "top", "bottom"

NO_NORM = " no norm"

Rule = str | Sequence[int]


class FeedForward(NamedTuple):
    """Which layers lose their feed-forward, and whether the norm behind it stays."""

    rule: str = NONE
    second_norm: SecondNorm = "keep"

    @property
    def label(self) -> str:
        return self.rule + (NO_NORM if self.second_norm == "drop" and self.rule != NONE else "")

    @classmethod
    def parse(cls, label: str) -> FeedForward:
        """The inverse of `label`. Raises ValueError."""
        dropped = label.endswith(NO_NORM)
        return cls(canonical_rule(label.removesuffix(NO_NORM)), "drop" if dropped else "keep")


def removed_feed_forwards(rule: Rule, kept_layers: Sequence[int]) -> tuple[int, ...]:
    """The kept layers that lose their feed-forward, as original indices, ascending.

    `every 2nd` is the 2nd, 4th, ... kept layer counted from the bottom. Layers of a list that are
    not kept are ignored.
    Raises ValueError for an invalid rule, or if `top` or `bottom` asks for more than is kept.
    """
    kept = _layers(kept_layers, "kept layers")
    what = canonical_rule(rule)
    if what in (ALL, NONE):
        return kept if what == ALL else ()
    if " " not in what:
        listed = {int(layer) for layer in what.split(",")}
        return tuple(layer for layer in kept if layer in listed)
    word, number = what.split()
    if word == "every":
        step = int(number[:-2])
        return kept[step - 1 :: step]
    if int(number) > len(kept):
        raise ValueError(
            f"feed-forwards: {what!r} of {len(kept)} kept layers; N is at most {len(kept)}."
        )
    return kept[-int(number) :] if word == TOP else kept[: int(number)]


def some_removed(rule: Rule, kept_layers: Sequence[int]) -> tuple[int, ...]:
    """`removed_feed_forwards`; raises ValueError if a rule other than `none` finds no layer."""
    removed = removed_feed_forwards(rule, kept_layers)
    if not removed and canonical_rule(rule) != NONE:
        raise ValueError(f"feed-forwards: {rule!r} takes none of the layers {list(kept_layers)}.")
    return removed


def needed_layers(rule: Rule) -> int:
    """The smallest depth that the rule fits: N of `top N` and `every Nth`, or a list's highest."""
    return max(map(int, re.findall(r"[0-9]+", canonical_rule(rule))), default=0)


def canonical_rule(rule: Rule) -> str:
    """The rule in its one short spelling, for tables. Raises ValueError for an invalid rule.

    "Top  3" -> "top 3", [11, 9, 10] -> "9,10,11", [] -> "none".
    """
    if not isinstance(rule, str):
        return ",".join(map(str, _layers(rule, "feed-forwards"))) or NONE
    text = " ".join(rule.lower().split())
    if text in (ALL, NONE):
        return text
    if match := re.fullmatch(rf"({TOP}|{BOTTOM}) ([0-9]+)", text):
        return f"{match[1]} {_at_least(1, match[2], rule)}"
    if match := re.fullmatch(r"every ([0-9]+)(st|nd|rd|th)", text):
        step = _at_least(2, match[1], rule)
        return f"every {step}{_suffix(step)}"
    if re.fullmatch(r"[0-9]+( ?, ?[0-9]+)*", text):
        return canonical_rule([int(layer) for layer in text.split(",")])
    raise ValueError(f"feed-forwards: {rule!r} is not a rule. {ALLOWED}.")


def _layers(layers: Sequence[int], what: str) -> tuple[int, ...]:
    """The layers, checked and sorted."""
    for layer in layers:
        if isinstance(layer, bool) or not isinstance(layer, int) or layer < 1:
            raise ValueError(f"{what}: {layer!r} is not a layer; layers are whole numbers from 1.")
    if len(set(layers)) != len(layers):
        raise ValueError(f"{what}: {list(layers)} names a layer twice; name each once.")
    return tuple(sorted(layers))


def _at_least(least: int, number: str, rule: str) -> int:
    if int(number) < least:
        raise ValueError(f"feed-forwards: {rule!r}: the number is {least} or more. {ALLOWED}.")
    return int(number)


def _suffix(number: int) -> str:
    if number % 100 in (11, 12, 13):
        return "th"
    return {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
