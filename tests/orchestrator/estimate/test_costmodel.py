"""The cost model: prices from timings, and whether its 80% are 80%."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import NamedTuple

import numpy as np
import pytest

from lp_sweep.orchestrator.estimate.costmodel import CostModel, Pair, Timing, Total, fit
from lp_sweep.orchestrator.estimate.workload import Course, Terms, training_terms

RULE = Terms(3.0, 1e-13, 1e-3, 1e-13)
LAYER = {"base": 7e6, "large": 12.6e6, "small": 1.8e6}  # parameters
TOKENS = {"sst2": 9e5, "rte": 1.7e5, "qqp": 1.1e7, "mrpc": 2e5}  # of an epoch


def terms(model: str, task: str, layers: int) -> Terms:
    return training_terms(
        layer_parameters=LAYER[model],
        course=Course(3, 3 * layers),
        train_tokens=TOKENS[task],
        dev_tokens=TOKENS[task] / 10,
        steps=TOKENS[task] / 1000,
    )


class World(NamedTuple):
    """A store and what is left to do, with the truth about it."""

    timings: list[Timing]
    missing: Counter[tuple[Terms, Pair]]
    seconds: float  # that the missing work takes


def world(seed: int, *, pairs: int, share: float, between: float, within: float) -> World:
    """A device and 12 pairs, drawn at random; of `pairs` of them a share is done."""
    draw = np.random.default_rng(seed)
    prices = np.array(RULE) * np.exp(draw.normal(0, 0.8) + draw.normal(0, 0.4, len(RULE)))
    timings, missing, left = [], Counter[tuple[Terms, Pair]](), 0.0
    names = draw.permutation(list(itertools.product(LAYER, TOKENS)))
    for place, (model, task) in enumerate(names):
        factor = math.exp(draw.normal(0, between))
        for layers in [12, 10, 8, 6, 4] * 3:
            work = terms(model, task, layers)
            seconds = float(prices @ np.array(work)) * factor * math.exp(draw.normal(0, within))
            if place < pairs and draw.random() < share:
                timings.append(Timing(work, (model, task), seconds))
            else:
                missing[work, (model, task)] += 1
                left += seconds
    return World(timings, missing, left)


def estimated(given: World) -> Total:
    return fit(given.timings, RULE).total(given.missing)


SETTINGS = {
    "no record": {"pairs": 0, "share": 0.0, "between": 0.25, "within": 0.15},
    "some of two pairs": {"pairs": 2, "share": 0.4, "between": 0.25, "within": 0.2},
    "half of the pairs": {"pairs": 6, "share": 1.0, "between": 0.3, "within": 0.1},
    "half of the pairs, a noisy machine": {
        "pairs": 6, "share": 0.5, "between": 0.15, "within": 0.5,
    },
    "a third of each": {"pairs": 12, "share": 0.33, "between": 0.3, "within": 0.3},
}  # fmt: skip


def test_the_band_holds_what_it_says() -> None:
    stores = 60
    hits = {
        name: sum(
            total.low <= given.seconds <= total.high
            for given in (world(seed, **setting) for seed in range(stores))
            for total in [estimated(given)]
        )
        / stores
        for name, setting in SETTINGS.items()
    }
    assert 0.70 <= np.mean(list(hits.values())) <= 0.90, hits
    assert all(0.60 <= share <= 0.97 for share in hits.values()), hits  # 60 coins of 80%: 0.67-0.9


def test_more_records_make_a_narrower_band() -> None:
    widths = []
    for pairs, share in ((0, 0.0), (1, 0.2), (6, 0.5), (12, 0.5)):
        found = [
            estimated(world(seed, pairs=pairs, share=share, between=0.25, within=0.15))
            for seed in range(10)
        ]
        widths.append(np.median([total.high / total.low for total in found]))
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > 10  # before the first record nothing is known of the device
    assert widths[-1] < 1.4


def model_of(count: int, factor: float = 1.0, pair: Pair = ("base", "sst2")) -> CostModel:
    """Fitted to as many timings of one pair on a device of the rule's own prices."""
    work = terms("base", "sst2", 12)
    seconds = float(np.array(RULE) @ np.array(work))
    return fit([Timing(work, pair, factor * seconds)] * count, RULE)


def test_timings_replace_the_rule_of_thumb() -> None:
    work, pair = terms("base", "sst2", 12), ("base", "sst2")
    rule = model_of(0).seconds(work, pair)
    assert rule == pytest.approx(float(np.array(RULE) @ np.array(work)), rel=0.05)
    one, many = (model_of(count, 5.0).seconds(work, pair) / rule for count in (1, 30))
    assert 3 < one < many
    assert many == pytest.approx(5.0, rel=0.05)


def test_a_pair_never_seen_has_the_others_prices() -> None:
    work = terms("large", "qqp", 24)
    rule = model_of(0).seconds(work, ("large", "qqp"))
    assert model_of(30, 5.0).seconds(work, ("large", "qqp")) / rule == pytest.approx(4.3, rel=0.2)


def test_one_wild_trial_does_not_move_the_prices() -> None:
    given = world(1, pairs=12, share=0.5, between=0.2, within=0.1)
    first, *others = given.timings
    busy = first._replace(seconds=30 * first.seconds)
    calm, shaken = fit(given.timings, RULE), fit([busy, *others], RULE)
    assert shaken.log_prices == pytest.approx(calm.log_prices, abs=0.05)
    assert shaken.total(given.missing).seconds < 1.5 * calm.total(given.missing).seconds


def test_the_errors_of_a_pair_do_not_average_out() -> None:
    model = model_of(30)
    work = terms("base", "sst2", 6)
    one_pair = model.total({(work, ("new", "0")): 100})
    many_pairs = model.total({(work, ("new", str(number))): 1 for number in range(100)})
    assert one_pair.seconds == pytest.approx(many_pairs.seconds)
    assert many_pairs.high - many_pairs.low < one_pair.high - one_pair.low


def test_nothing_to_do_takes_no_time() -> None:
    assert model_of(3).total({}) == (0.0, 0.0, 0.0)


def test_a_doubt_widens_the_band() -> None:
    work = terms("base", "sst2", 12)
    timings = [Timing(work, ("base", "sst2"), 100.0)] * 10
    sure, unsure = (
        fit(timings, RULE, doubt=doubt).total({(work, ("base", "sst2")): 5}) for doubt in (0, 0.5)
    )
    assert sure.seconds == unsure.seconds
    assert unsure.high / unsure.low > 2 * sure.high / sure.low
