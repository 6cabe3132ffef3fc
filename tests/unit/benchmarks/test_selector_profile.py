"""Test the counts of `selector_profile` on outcomes with known shares."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchmarks.selector_profile import HeldOut, figures_of_rule
from pentimento.policies.selector_profiles import ProfiledStep
from pentimento.policies.selector_profiling import ThresholdRule
from services.unet_worker.models.reuse_study import ReuseOutcome, ReusePair
from tests.support.selector_profiles import LATENT_PROFILE

PROFILE = replace(LATENT_PROFILE, steps=(ProfiledStep(5, 80, None, 0.8, 0.8), ProfiledStep(10, 80, None, 0.9, 0.9)))
PAIRS = tuple(ReusePair(number, 0, 0.75 + number * 0.001) for number in range(200))


class Scripted(HeldOut):
    """Keep quality at every K up to the one that the similarity allows, and count generated images."""

    painted: int = 0

    def _generate(self, pairs: Sequence[ReusePair], step: int) -> Iterator[ReuseOutcome]:
        self.painted += len(pairs)
        for pair in pairs:
            worth = 10 if pair.similarity >= 0.92 else 5
            yield ReuseOutcome(pair, step, 1.0 if step <= worth else 0.5, 1.0)


@pytest.fixture
def held_out() -> Scripted:
    study = SimpleNamespace(prompts=[f"prompt {number % 100}" for number in range(201)])
    return Scripted(PROFILE, cast("Any", study), cast("Any", None), PAIRS)


def test_threshold_figure_uses_pairs_from_threshold(held_out: Scripted) -> None:
    five, ten, *_ = figures_of_rule(held_out, ThresholdRule.LOWER_BOUND)
    # From 0.8 on there are 150 pairs, and all keep it; from 0.9 on 50, and the 30 from 0.92 on do.
    assert (five.value, len(five.samples), five.ok) == (1.0, 150, True)
    assert (ten.value, len(ten.samples), ten.ok) == (0.6, 50, False)


def test_share_with_low_interval_is_short(held_out: Scripted) -> None:
    held_out.pairs = tuple(pair for pair in PAIRS if pair.similarity >= 0.92)
    _, ten, *_ = figures_of_rule(held_out, ThresholdRule.LOWER_BOUND)
    # 30 of 30: the exact interval begins at 0.884.
    assert (ten.value, ten.ok) == (1.0, False)


def test_as_selected_serves_every_pair_once(held_out: Scripted) -> None:
    *_, kept, quality, saved = figures_of_rule(held_out, ThresholdRule.MEAN)
    assert kept.value == pytest.approx((100 + 30) / 150)
    assert quality.value == pytest.approx((130 + 20 * 0.5) / 150)
    assert saved.value == pytest.approx((100 * 5 + 50 * 10) / 50 / 100)


def test_rules_share_generated_images(held_out: Scripted) -> None:
    list(figures_of_rule(held_out, ThresholdRule.LOWER_BOUND))
    before = held_out.painted
    list(figures_of_rule(held_out, ThresholdRule.MEAN))
    assert before == held_out.painted == 150 + 50


def test_empty_table_is_missing_and_short(held_out: Scripted) -> None:
    held_out.profile = replace(PROFILE, steps=(ProfiledStep(5, 80),))
    (lower_bound,) = figures_of_rule(held_out, ThresholdRule.LOWER_BOUND)
    (minimum,) = figures_of_rule(held_out, ThresholdRule.MINIMUM)
    assert (lower_bound.value, lower_bound.ok) == (None, False)
    assert (minimum.value, minimum.ok) == (None, True)
