"""Test cells of reuse that trials open: how surely, their order, and how rarely a bad one."""

import random

import pytest

from pentimento.domain.online_quality import QualitySample, ThresholdPosition
from pentimento.policies.cache_selection import Threshold
from pentimento.policies.earned_reuse import (
    CLOSED,
    EVIDENCE,
    IMAGE_CELLS,
    LATENT_CELLS,
    MOST_SAMPLES,
    TURN_SAMPLES,
    Cells,
    earned,
    evidence,
    explored_from,
    next_row,
)

ALPHA = 0.9
GOOD, BAD = 0.95, 0.5
START = ThresholdPosition()
# Trials without a failure that open a cell.
SHOWN = 76


def several(count: int, quality: float, similarity: float = 0.96, first: int = 1) -> list[QualitySample]:
    return [QualitySample(first + each, similarity, quality, 1.0) for each in range(count)]


def after(
    samples: list[QualitySample],
    standing: float = CLOSED,
    own: float = CLOSED,
    position: ThresholdPosition = START,
    cells: Cells = LATENT_CELLS,
) -> ThresholdPosition:
    return earned(samples, position, own, standing, ALPHA, cells)


def crossing_probability(share: float, needed: float, count: int) -> float:
    """Return the exact probability that evidence reaches `needed` at any of `count` trials, by their failures."""
    below, crossed = {0: 1.0}, 0.0
    for trials in range(1, count + 1):
        following: dict[int, float] = {}
        for failed, weight in below.items():
            following[failed] = following.get(failed, 0.0) + weight * share
            following[failed + 1] = following.get(failed + 1, 0.0) + weight * (1.0 - share)
        reached = [failed for failed in following if evidence(trials - failed, failed) >= needed]
        crossed += sum(following.pop(failed) for failed in reached)
        below = {failed: weight for failed, weight in following.items() if weight > 1e-12}
    return crossed


@pytest.mark.parametrize("needed", [EVIDENCE, LATENT_CELLS.narrower_evidence, IMAGE_CELLS.narrower_evidence])
def test_evidence_for_a_bad_cell_rarely_reaches_its_ratio(needed: float) -> None:
    assert crossing_probability(0.95, needed, MOST_SAMPLES) <= 1.0 / needed
    assert crossing_probability(0.99, needed, MOST_SAMPLES) >= 0.99


def test_earned_opens_bad_first_cell_in_few_histories() -> None:
    """At the limit, 0.95 of the starts keep alpha at any similarity; every fifteenth trial is looked at."""
    rng, opened, count = random.Random(3), 0, 60
    for _ in range(count):
        history = [
            QualitySample(number, rng.uniform(0.95, 1.0), GOOD if rng.random() < 0.95 else BAD, 1.0)
            for number in range(1, 301)
        ]
        opened += any(after(history[:seen]) != START for seen in range(15, 301, 15))
    assert opened <= 0.05 * count


def test_earned_opens_first_cell_after_enough_good_trials() -> None:
    assert after(several(SHOWN - 2, GOOD)) == START
    assert after(several(SHOWN, GOOD)) == ThresholdPosition(0.95, SHOWN)
    assert after([*several(SHOWN, GOOD), *several(1, BAD, first=SHOWN + 1)]) == START


def test_earned_opens_narrower_cell_where_first_one_fails() -> None:
    """A tenth of the trials below 0.97 fail."""
    samples = several(110, GOOD, 0.98) + several(10, BAD, 0.955, first=111)
    assert after(samples) == ThresholdPosition(0.97, 120)


def test_earned_opens_image_cells_at_similarities_of_their_encoder() -> None:
    """Half of the trials from images below 0.7 fail; narrower cells need 152 good trials."""
    far = several(100, GOOD, 0.62) + several(100, BAD, 0.62, first=101)
    near = several(152, GOOD, 0.71, first=201)

    assert after(far + near[:-1], cells=IMAGE_CELLS) == START
    assert after(far + near, cells=IMAGE_CELLS) == ThresholdPosition(0.65, 352)
    assert after(several(SHOWN, GOOD, 0.31), cells=IMAGE_CELLS) == ThresholdPosition(0.3, SHOWN)
    assert explored_from(0.3, IMAGE_CELLS) == 0.28


def test_earned_tests_next_cell_by_its_own_trials() -> None:
    near, below = several(500, GOOD, 0.99), several(SHOWN, GOOD, 0.94, first=501)

    assert after(near, standing=0.95) == START
    assert after(near + below, standing=0.95) == ThresholdPosition(0.93, 500 + SHOWN)
    assert explored_from(0.95) == 0.93
    # None of the trials that opened a cell opens another.
    assert after(near + below, 0.93, position=ThresholdPosition(0.93, 500 + SHOWN)).similarity == 0.93


def test_earned_closes_cell_that_surely_breaks_its_promise() -> None:
    position = ThresholdPosition(0.95, SHOWN)
    bad = several(30, BAD, first=SHOWN + 1)

    assert after(bad, 0.95, position=position) == ThresholdPosition(CLOSED, SHOWN + 30)
    mixed = bad + several(60, GOOD, 0.98, first=SHOWN + 31)
    assert after(mixed, 0.95, position=position) == ThresholdPosition(0.98, SHOWN + 90)


def test_earned_row_of_profile_widens_and_returns() -> None:
    """The row begins with similarity 0.94."""
    below = several(SHOWN, GOOD, 0.93)
    assert after(below, standing=0.94, own=0.94) == ThresholdPosition(0.92, SHOWN)
    raised = ThresholdPosition(0.98, 10)
    lowered = after(several(59, GOOD, 0.99, first=11), standing=0.98, own=0.94, position=raised)
    assert lowered == ThresholdPosition(pytest.approx(0.96), 69)  # type: ignore[arg-type]


def test_earned_leaves_undecided_cell_closed() -> None:
    samples = several(MOST_SAMPLES, GOOD, first=2)
    assert after(samples) == START
    assert after(samples, position=ThresholdPosition(moved_at_number=1)).similarity == 0.95


def test_next_row_takes_turns_from_most_steps_on() -> None:
    def chosen(*counts: int) -> float | None:
        rows = [(Threshold(CLOSED, 0.1 * (index + 1)), count) for index, count in enumerate(counts)]
        found = next_row(rows)
        return None if found is None else round(found[0].saved_share, 3)

    assert chosen(0, 0, TURN_SAMPLES - 1) == 0.3
    assert chosen(0, 0, TURN_SAMPLES) == 0.2
    assert chosen(TURN_SAMPLES, TURN_SAMPLES, TURN_SAMPLES) == 0.3
    assert chosen(MOST_SAMPLES, MOST_SAMPLES, MOST_SAMPLES) is None
