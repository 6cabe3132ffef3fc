"""Selector profiles: monotonic tables, files rejected by field, and profiles found by digest."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pentimento.domain.errors import FailedPrecondition
from pentimento.policies.cache_selection import NIRVANA_LATENT_THRESHOLDS, Threshold, allowed_steps
from pentimento.profiles.catalogue import ProfileSet
from pentimento.profiles.document import ProfileRow, ReuseKind
from pentimento.profiles.kinds import biased, profile_name, reuse_row, thresholds
from pentimento.profiles.rules import ImageSample, ThresholdRule
from tests.support.profiles import LATENT_PROFILE as PROFILE
from tests.support.profiles import changed, reuse_step

IMAGES = changed(PROFILE, start=ReuseKind.IMAGES, model="light", model_digest="sha256:light", alpha=0.95)

similarities = st.none() | st.floats(-1, 1)
tables = st.lists(similarities, min_size=1, max_size=9).map(
    lambda found: tuple(reuse_step(5 * number, 1, one, one, one) for number, one in enumerate(found, 1))
)


def test_table_follows_rule_of_profile_or_given_rule() -> None:
    assert thresholds(PROFILE) == (Threshold(0.6, 0.1), Threshold(0.8, 0.2))
    assert thresholds(PROFILE, ThresholdRule.MINIMUM) == (Threshold(0.7, 0.1), Threshold(0.9, 0.2))
    assert thresholds(PROFILE, ThresholdRule.MEAN) == (
        Threshold(0.5, 0.1),
        Threshold(0.7, 0.2),
        Threshold(0.9, 0.3),
    )


def test_a_profile_is_called_by_its_models_and_its_promise() -> None:
    assert profile_name(PROFILE) == "latents of heavy, alpha 0.9 by lower_bound"
    assert profile_name(IMAGES, ThresholdRule.MEAN) == "images of light for heavy, alpha 0.95 by mean"


@given(tables, st.sampled_from(ReuseKind), st.sampled_from(ThresholdRule))
def test_tables_rise_in_both_columns(rows: tuple[ProfileRow, ...], kind: ReuseKind, rule: ThresholdRule) -> None:
    table = thresholds(changed(PROFILE, start=kind, rows=rows), rule)
    assert [row.min_similarity for row in table] == sorted({row.min_similarity for row in table})
    assert [row.saved_share for row in table] == sorted({row.saved_share for row in table})


@given(tables, st.floats(-1, 1))
def test_where_a_latent_may_be_used_every_smaller_one_may_be(rows: tuple[ProfileRow, ...], similarity: float) -> None:
    allowed = allowed_steps(similarity, 50, thresholds(replace(PROFILE, rows=rows)))
    for row in rows:
        if row.place("skipped_steps") <= allowed:
            assert row.allowed["lower_bound"] <= similarity


@given(tables, st.floats(-1, 1))
def test_of_images_the_largest_that_may_be_used_is(rows: tuple[ProfileRow, ...], similarity: float) -> None:
    fitting = [row.place("skipped_steps") for row in rows if row.allowed.get("lower_bound", 2.0) <= similarity]
    allowed = allowed_steps(similarity, 50, thresholds(replace(IMAGES, rows=rows)))
    assert allowed == max(fitting, default=0)


def test_a_profile_is_found_for_its_model_and_encoder_alone() -> None:
    profiles = ProfileSet((PROFILE, IMAGES))
    assert profiles.reuse(ReuseKind.LATENTS, "sha256:heavy", "sha256:clip") is PROFILE
    assert profiles.reuse(ReuseKind.LATENTS, "sha256:light", "sha256:clip") is None
    assert profiles.reuse(ReuseKind.LATENTS, "sha256:heavy", "sha256:other") is None
    assert profiles.reuse(ReuseKind.IMAGES, "sha256:light", "sha256:clip") is IMAGES
    assert profiles.reuse(ReuseKind.IMAGES, "sha256:light", "sha256:clip", "sha256:heavy") is IMAGES
    assert profiles.reuse(ReuseKind.IMAGES, "sha256:light", "sha256:clip", "sha256:third") is None


def test_of_several_references_the_most_careful_table_serves() -> None:
    lenient = changed(IMAGES, reference_digest="sha256:third", rows=(reuse_step(5, 9, 0.1, 0.1, 0.1),))
    nothing = changed(IMAGES, reference_digest="sha256:fourth", rows=(reuse_step(5, 9),))
    assert ProfileSet((lenient, IMAGES)).reuse(ReuseKind.IMAGES, "sha256:light", "sha256:clip") is IMAGES
    assert ProfileSet((lenient, IMAGES, nothing)).reuse(ReuseKind.IMAGES, "sha256:light", "sha256:clip") is nothing


def test_a_profile_made_for_another_encoder_is_refused_by_digest() -> None:
    ProfileSet((PROFILE,)).check_encoder("sha256:clip")
    with pytest.raises(FailedPrecondition, match="sha256:clip, not sha256:other") as raised:
        ProfileSet((PROFILE,)).check_encoder("sha256:other")
    assert raised.value.reason == "SELECTOR_PROFILE_MISMATCH"


@pytest.mark.parametrize(
    ("bias", "allowed"),
    [
        (0, (5, 10, 15, 20, 25)),
        (1, (10, 15, 20, 25, 30)),
        (-1, (0, 5, 10, 15, 20)),
        (6, (35, 40, 45, 45, 45)),
        (9, (45,) * 5),
        (-9, (0,) * 5),
    ],
)
def test_the_bias_moves_every_k(bias: int, allowed: tuple[int, ...]) -> None:
    table = biased(NIRVANA_LATENT_THRESHOLDS, bias)
    asked = (row.min_similarity for row in NIRVANA_LATENT_THRESHOLDS)
    assert tuple(allowed_steps(similarity, 50, table) for similarity in asked) == allowed


@pytest.mark.parametrize(("bias", "allowed"), [(-2, 4), (-1, 6), (0, 7), (1, 8), (2, 9), (9, 10)])
def test_the_bias_moves_the_k_of_a_single_row(bias: int, allowed: int) -> None:
    assert allowed_steps(0.8, 12, biased((Threshold(0.7074, 0.6),), bias)) == allowed


@pytest.mark.parametrize(
    ("similarity", "kept"), [(0.80001, 0.8001), (0.8, 0.8), (0.99999, 1.0), (1.0, 1.0), (-0.50001, -0.5)]
)
def test_reuse_row_rounds_similarities_up(similarity: float, kept: float) -> None:
    row = reuse_row(5, [ImageSample(1.0, 1.0, similarity)], 0.9)

    assert (row.at, row.count, row.kept) == ({"skipped_steps": 5}, 1, 1)
    assert row.allowed == {"minimum": kept}


def test_reuse_row_without_any_good_image_allows_nothing() -> None:
    assert reuse_row(5, [ImageSample(0.1, 1.0, 0.8)], 0.9).allowed == {}
