"""Which share of a later model's steps its start from the picture before it may spare."""

from dataclasses import replace

import pytest

from pentimento.domain.errors import InvalidArgument
from pentimento.policies.handover_profiles import (
    HandoverProfile,
    handover_from_json,
    handover_row,
    handover_to_json,
    taken_steps,
)
from pentimento.policies.selector_profiling import ThresholdRule
from tests.unit.policies.handovers import BAD, GOOD, PROFILE, ROWS


def with_row(**fields: object) -> HandoverProfile:
    return replace(PROFILE, rows=(replace(ROWS[0], **fields),))


def test_the_largest_share_is_spared_up_to_the_first_that_its_rule_does_not_allow() -> None:
    """A hundred of a hundred, 99, 60, and then all again, which is luck."""
    assert PROFILE.reuse_share() == 0.2
    assert PROFILE.reuse_share(ThresholdRule.MINIMUM) == 0.1
    assert replace(PROFILE, rows=ROWS[3:]).reuse_share() == 0.0


def test_a_row_says_how_many_keep_alpha_and_what_is_left_in_the_mean() -> None:
    row = handover_row(0.2, 40, [GOOD, GOOD, BAD], 0.95)

    assert (row.picture_count, row.kept_count, row.mean_share, row.allowed) == (3, 2, 0.94, ())


@pytest.mark.parametrize(
    ("steps", "share", "taken"), [(50, 0.0, 50), (50, 0.1, 45), (50, 0.3, 35), (12, 0.5, 6), (12, 0.9, 1), (5, 0.9, 0)]
)
def test_steps_are_taken_as_the_front_door_takes_them(steps: int, share: float, taken: int) -> None:
    assert taken_steps(steps, share) == taken


def test_a_profile_reads_back_as_it_was_written() -> None:
    assert handover_from_json(handover_to_json(PROFILE)) == PROFILE


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        (replace(PROFILE, heavy_digest=""), "profile.heavy_digest"),
        (replace(PROFILE, light_digest=""), "profile.light_digest"),
        (replace(PROFILE, rows=(replace(ROWS[0], taken_count=24),)), r"profile.rows\[0\].taken_count"),
        (replace(PROFILE, alpha=1.5), "profile.alpha"),
        (replace(PROFILE, rows=()), "profile.rows: must be 1 to 100, got 0"),
        (replace(PROFILE, rows=ROWS[:1] * 101), "profile.rows: must be 1 to 100, got 101"),
        (replace(PROFILE, rows=ROWS[:1] * 2), "profile.rows: must have each share once"),
        (with_row(kept_count=101), r"profile.rows\[0\].kept_count: must be 0 to 100, got 101"),
        (with_row(kept_count=-1), r"profile.rows\[0\].kept_count: must be 0 to 100, got -1"),
        # 95 of 100 are not surely 95 %, and not all; 100 of 100 are both. Of the mean the counts say nothing.
        (with_row(kept_count=95), r"rows\[0\].allowed: must be what 95 kept of 100 allow, are not for minimum"),
        (with_row(kept_count=95, allowed=(ThresholdRule.LOWER_BOUND,)), "are not for lower_bound"),
        (with_row(allowed=(ThresholdRule.MINIMUM, ThresholdRule.MEAN)), "are not for lower_bound"),
        (with_row(allowed=(ThresholdRule.LOWER_BOUND,)), "are not for minimum"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused_by_its_field(wrong: HandoverProfile, field: str) -> None:
    with pytest.raises(InvalidArgument, match=field):
        handover_from_json(handover_to_json(wrong))
