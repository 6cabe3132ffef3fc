"""Which share of a later model's steps its start from the picture before it may spare."""

from dataclasses import replace
from pathlib import Path

import pytest

from pentimento.domain.errors import InvalidArgument
from pentimento.policies.handover_profiles import (
    HandoverProfile,
    handover_from_json,
    handover_row,
    handover_to_json,
    read_handover_profile,
    taken_steps,
)
from pentimento.policies.selector_profiling import ThresholdRule
from pentimento.policies.thinning_profiling import ThinnedSample

GOOD, BAD = ThinnedSample(0.96, 1.0), ThinnedSample(0.9, 1.0)
ROWS = (
    handover_row(0.5, 25, [GOOD] * 100, 0.95),
    handover_row(0.1, 45, [GOOD] * 100, 0.95),
    handover_row(0.2, 40, [*([GOOD] * 99), BAD], 0.95),
    handover_row(0.3, 35, [*([GOOD] * 60), *([BAD] * 40)], 0.95),
)
PROFILE = HandoverProfile(
    *("light", "sha256:l", "heavy", "sha256:h"),
    step_count=50,
    guidance_scale=5.0,
    encoder="clip",
    encoder_digest="sha256:c",
    quality="clip_score",
    alpha=0.95,
    rule=ThresholdRule.LOWER_BOUND,
    light_share=0.84,
    rows=ROWS,
)


def test_the_largest_share_is_spared_up_to_the_first_that_its_rule_does_not_allow() -> None:
    """A hundred of a hundred, 99, 60, and then all again, which is luck."""
    assert PROFILE.reuse_share() == 0.2
    assert PROFILE.reuse_share(ThresholdRule.MINIMUM) == 0.1
    assert replace(PROFILE, rows=ROWS[3:]).reuse_share() == 0.0
    assert replace(PROFILE, rows=()).reuse_share() == 0.0


def test_a_row_says_how_many_keep_alpha_and_what_is_left_in_the_mean() -> None:
    row = handover_row(0.2, 40, [GOOD, GOOD, BAD], 0.95)

    assert (row.picture_count, row.kept_count, row.mean_share, row.allowed) == (3, 2, 0.94, ())


@pytest.mark.parametrize(
    ("steps", "share", "taken"), [(50, 0.0, 50), (50, 0.1, 45), (50, 0.3, 35), (12, 0.5, 6), (12, 0.9, 1), (5, 0.9, 0)]
)
def test_steps_are_taken_as_the_front_door_takes_them(steps: int, share: float, taken: int) -> None:
    assert taken_steps(steps, share) == taken


def test_a_file_says_what_was_measured(tmp_path: Path) -> None:
    (tmp_path / "pair.json").write_text(handover_to_json(PROFILE))

    assert read_handover_profile(tmp_path / "pair.json") == PROFILE


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        (replace(PROFILE, heavy_digest=""), "profile.heavy_digest"),
        (replace(PROFILE, light_digest=""), "profile.light_digest"),
        (replace(PROFILE, rows=(replace(ROWS[0], taken_count=24),)), r"profile.rows\[0\].taken_count"),
        (replace(PROFILE, alpha=1.5), "profile.alpha"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused_by_its_field(wrong: HandoverProfile, field: str) -> None:
    with pytest.raises(InvalidArgument, match=field):
        handover_from_json(handover_to_json(wrong))
