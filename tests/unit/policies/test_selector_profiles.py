"""Selector profiles: tables that never fall, files that are refused by field, profiles that are found by digest."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pentimento.domain.errors import FailedPrecondition, InvalidArgument
from pentimento.policies.cache_selection import NIRVANA_LATENT_THRESHOLDS, Threshold, allowed_steps
from pentimento.policies.selector_profiles import (
    ProfiledStep,
    ReuseKind,
    SelectorProfiles,
    biased,
    profile_from_json,
    profile_to_json,
    profiled_steps,
    read_selector_profile,
    read_selector_profiles,
)
from pentimento.policies.selector_profiling import StepThresholds, ThresholdRule
from tests.support.selector_profiles import LATENT_PROFILE as PROFILE

IMAGES = replace(PROFILE, kind=ReuseKind.IMAGES, model="light", model_digest="sha256:light", alpha=0.95)

similarities = st.none() | st.floats(-1, 1)
tables = st.lists(similarities, min_size=1, max_size=9).map(
    lambda found: tuple(ProfiledStep(5 * number, 1, one, one, one) for number, one in enumerate(found, 1))
)


def test_the_table_is_by_the_profiles_rule_unless_another_is_asked_for() -> None:
    assert PROFILE.thresholds() == (Threshold(0.6, 0.1), Threshold(0.8, 0.2))
    assert PROFILE.thresholds(ThresholdRule.MINIMUM) == (Threshold(0.7, 0.1), Threshold(0.9, 0.2))
    assert PROFILE.thresholds(ThresholdRule.MEAN) == (
        Threshold(0.5, 0.1),
        Threshold(0.7, 0.2),
        Threshold(0.9, 0.3),
    )


def test_a_profile_is_called_by_its_models_and_its_promise() -> None:
    assert PROFILE.name == f"latents of {PROFILE.model}, alpha {PROFILE.alpha:g} by {PROFILE.rule.value}"
    assert IMAGES.name == f"images of light for {PROFILE.model}, alpha 0.95 by {PROFILE.rule.value}"


@given(tables, st.sampled_from(ReuseKind), st.sampled_from(ThresholdRule))
def test_tables_rise_in_both_columns(rows: tuple[ProfiledStep, ...], kind: ReuseKind, rule: ThresholdRule) -> None:
    table = replace(PROFILE, kind=kind, steps=rows).thresholds(rule)
    assert [row.min_similarity for row in table] == sorted({row.min_similarity for row in table})
    assert [row.saved_share for row in table] == sorted({row.saved_share for row in table})


@given(tables, st.floats(-1, 1))
def test_where_a_latent_may_be_used_every_smaller_one_may_be(rows: tuple[ProfiledStep, ...], similarity: float) -> None:
    allowed = allowed_steps(similarity, 50, replace(PROFILE, steps=rows).thresholds())
    for row in rows:
        if row.skipped_steps <= allowed:
            assert row.lower_bound is not None
            assert row.lower_bound <= similarity


@given(tables, st.floats(-1, 1))
def test_of_images_the_largest_that_may_be_used_is(rows: tuple[ProfiledStep, ...], similarity: float) -> None:
    fitting = [row.skipped_steps for row in rows if row.lower_bound is not None and row.lower_bound <= similarity]
    allowed = allowed_steps(similarity, 50, replace(IMAGES, steps=rows).thresholds())
    assert allowed == max(fitting, default=0)


def test_what_was_measured_is_rounded_up_never_down() -> None:
    (row,) = profiled_steps([StepThresholds(5, 60, 0.81231, None, -0.5)])
    assert (row.minimum, row.lower_bound, row.mean) == (0.8124, None, -0.5)


def test_a_file_gives_back_the_profile(tmp_path: Path) -> None:
    path = tmp_path / "heavy.json"
    path.write_text(profile_to_json(PROFILE))
    assert read_selector_profile(path) == PROFILE


def document(**changes: Any) -> str:
    return json.dumps({**json.loads(profile_to_json(PROFILE)), **changes})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{\n"format": 1,\n}', "line 3"),
        (document(format=2), "profile.format: must be 1"),
        (document(alpha=1.5), "profile.alpha: must be at least 0 and at most 1"),
        (document(alpha=0), "profile.alpha: must be above 0"),
        (document(rule="luck"), "profile.rule: must be one of minimum, lower_bound, mean"),
        (document(encoder_digest=""), "profile.encoder_digest: must name a digest"),
        (document(steps=[]), "profile.steps: must have at least one entry"),
        (document(surprise=1), "profile.surprise: is not known"),
        (document(steps=[{"skipped_steps": 5, "sample_count": 1, "mean": 2}]), "profile.steps[0].mean"),
        (
            document(steps=[{"skipped_steps": 50, "sample_count": 1}]),
            "steps[0].skipped_steps: must be above 0 and below",
        ),
        (
            document(steps=[{"skipped_steps": 5, "sample_count": 1}] * 2),
            "profile.steps[1].skipped_steps: must be above 5",
        ),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "wrong.json"
    path.write_text(text)
    with pytest.raises(InvalidArgument) as raised:
        read_selector_profile(path)
    assert str(path) in raised.value.message
    assert told in raised.value.message


@pytest.mark.parametrize("content", [None, b"\xff"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "absent.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidArgument, match=r"absent\.json"):
        read_selector_profile(path)


@given(st.binary(max_size=60).map(lambda data: data.decode("latin-1")) | st.text(max_size=60))
def test_rubbish_is_refused_by_type(text: str) -> None:
    with pytest.raises(InvalidArgument):
        profile_from_json(text)


def test_directories_are_read_and_twins_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(profile_to_json(PROFILE))
    (tmp_path / "b.json").write_text(profile_to_json(IMAGES))
    (tmp_path / "README.md").write_text("no profile")
    assert read_selector_profiles([tmp_path]).profiles == (PROFILE, IMAGES)
    (tmp_path / "c.json").write_text(profile_to_json(replace(PROFILE, alpha=0.5)))
    with pytest.raises(InvalidArgument, match=r"c\.json"):
        read_selector_profiles([tmp_path])


def test_a_profile_is_found_for_its_model_and_encoder_alone() -> None:
    profiles = SelectorProfiles((PROFILE, IMAGES))
    assert profiles.of_latents("sha256:heavy", "sha256:clip") is PROFILE
    assert profiles.of_latents("sha256:light", "sha256:clip") is None
    assert profiles.of_latents("sha256:heavy", "sha256:other") is None
    assert profiles.of_images("sha256:light", "sha256:clip") is IMAGES
    assert profiles.of_images("sha256:light", "sha256:clip", "sha256:heavy") is IMAGES
    assert profiles.of_images("sha256:light", "sha256:clip", "sha256:third") is None


def test_of_several_references_the_most_careful_table_serves() -> None:
    lenient = replace(IMAGES, reference_model_digest="sha256:third", steps=(ProfiledStep(5, 9, 0.1, 0.1, 0.1),))
    nothing = replace(IMAGES, reference_model_digest="sha256:fourth", steps=(ProfiledStep(5, 9),))
    assert SelectorProfiles((lenient, IMAGES)).of_images("sha256:light", "sha256:clip") is IMAGES
    assert SelectorProfiles((lenient, IMAGES, nothing)).of_images("sha256:light", "sha256:clip") is nothing


def test_a_profile_made_for_another_encoder_is_refused_by_digest() -> None:
    SelectorProfiles((PROFILE,)).check_encoder("sha256:clip")
    with pytest.raises(FailedPrecondition, match="sha256:clip, not sha256:other") as raised:
        SelectorProfiles((PROFILE,)).check_encoder("sha256:other")
    assert raised.value.reason == "SELECTOR_PROFILE_MISMATCH"


@pytest.mark.parametrize(
    ("bias", "allowed"),
    [(0, (5, 10, 15, 20, 25)), (1, (10, 15, 20, 25, 25)), (-1, (0, 5, 10, 15, 20)), (9, (25,) * 5), (-9, (0,) * 5)],
)
def test_the_bias_moves_every_k(bias: int, allowed: tuple[int, ...]) -> None:
    table = biased(NIRVANA_LATENT_THRESHOLDS, bias)
    asked = (row.min_similarity for row in NIRVANA_LATENT_THRESHOLDS)
    assert tuple(allowed_steps(similarity, 50, table) for similarity in asked) == allowed


@pytest.mark.parametrize(
    ("similarity", "kept"), [(0.80001, 0.8001), (0.8, 0.8), (0.99999, 1.0), (1.0, 1.0), (-0.50001, -0.5), (None, None)]
)
def test_similarities_are_written_with_four_digits_and_never_lower(
    similarity: float | None, kept: float | None
) -> None:
    (row,) = profiled_steps([StepThresholds(5, 80, similarity, None, 0.5)])

    assert (row.minimum, row.lower_bound, row.mean, row.skipped_steps, row.sample_count) == (kept, None, 0.5, 5, 80)
