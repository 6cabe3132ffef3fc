"""Test the counts of `selector_profile` on outcomes with known shares."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchmarks.selector_profile import HeldOut, figures_of_rule
from pentimento.profiles.rules import ThresholdRule
from services.unet_worker.profiling.reuse_study import ReuseOutcome, ReusePair
from tests.support.profiles import LATENT_PROFILE, reuse_step

PROFILE = replace(LATENT_PROFILE, rows=(reuse_step(5, 80, None, 0.8, 0.8), reuse_step(10, 80, None, 0.9, 0.9)))
EMPTY = replace(PROFILE, rows=(reuse_step(5, 80),))
PAIRS = tuple(ReusePair(number, 0, 0.75 + number * 0.001) for number in range(200))
ALL_KEPT = tuple(pair for pair in PAIRS if pair.similarity >= 0.92)


class Scripted(HeldOut):
    """Keep quality at every K up to the bound that the similarity allows, and count generated images."""

    generated: int = 0

    def _generate(self, pairs: Sequence[ReusePair], step: int) -> Iterator[ReuseOutcome]:
        self.generated += len(pairs)
        for pair in pairs:
            worth = 10 if pair.similarity >= 0.92 else 5
            yield ReuseOutcome(pair, step, 1.0 if step <= worth else 0.5, 1.0)


@pytest.fixture
def held_out() -> Scripted:
    study = SimpleNamespace(prompts=[f"prompt {number % 100}" for number in range(201)])
    return Scripted(PROFILE, cast("Any", study), cast("Any", None), PAIRS)


@pytest.mark.parametrize(
    ("changes", "rule", "expected"),
    [
        # From 0.8 on there are 150 pairs, and all keep it; from 0.9 on 50, and the 30 from 0.92 on do.
        pytest.param({}, ThresholdRule.LOWER_BOUND, [(1.0, 150, True), (0.6, 50, False)], id="from the threshold"),
        # The exact interval of 30 of 30 begins at 0.884.
        pytest.param({"pairs": ALL_KEPT}, ThresholdRule.LOWER_BOUND, [(1.0, 30, False)] * 2, id="low interval"),
        pytest.param({"profile": EMPTY}, ThresholdRule.LOWER_BOUND, [(None, 0, False)], id="empty table"),
        pytest.param({"profile": EMPTY}, ThresholdRule.MINIMUM, [(None, 0, True)], id="empty table, no target"),
    ],
)
def test_threshold_figures_count_pairs(
    held_out: Scripted, changes: dict[str, Any], rule: ThresholdRule, expected: list[tuple[float | None, int, bool]]
) -> None:
    for name, value in changes.items():
        setattr(held_out, name, value)

    found = list(figures_of_rule(held_out, rule))[: len(expected)]

    assert [(figure.value, figure.n, figure.ok) for figure in found] == expected


def test_as_selected_serves_each_pair_once(held_out: Scripted) -> None:
    list(figures_of_rule(held_out, ThresholdRule.LOWER_BOUND))
    *_, kept, quality, saved = figures_of_rule(held_out, ThresholdRule.MEAN)

    assert held_out.generated == 150 + 50
    assert kept.value == pytest.approx((100 + 30) / 150)
    assert quality.value == pytest.approx((130 + 20 * 0.5) / 150)
    assert saved.value == pytest.approx((100 * 5 + 50 * 10) / 50 / 100)
