"""Reuse tables by precedence: given ones, a model's own profile, none."""

from dataclasses import replace

import pytest

from pentimento.policies.cache_selection import SelectionRules, Threshold, capture_steps, keeps_image
from pentimento.policies.reuse_rules import NO_PROFILE, UNPROFILED, ReuseRules, followed_rows
from pentimento.profiles.catalogue import ProfileSet
from pentimento.profiles.document import ReuseKind
from pentimento.profiles.kinds import profile_name, thresholds
from pentimento.profiles.rules import ThresholdRule
from tests.support.profiles import LATENT_PROFILE, changed, reuse_step

NOTHING = SelectionRules(latents=(), images=())
TOLD = SelectionRules(latents=(Threshold(0.5, 0.5),), images=(Threshold(0.2, 0.2),), quality=0.8)
LATENTS = changed(LATENT_PROFILE, rows=(reuse_step(5, 80, 0.8, 0.7, 0.6), reuse_step(10, 80, 0.95, 0.9, 0.8)))
IMAGES = changed(LATENTS, start=ReuseKind.IMAGES, alpha=0.95, model="light", model_digest="sha256:light")
BOTH = changed(IMAGES, model="heavy", model_digest="sha256:heavy")
PROFILES = ProfileSet((LATENTS, IMAGES, BOTH))


def test_a_model_without_a_profile_reuses_nothing() -> None:
    reuse = ReuseRules(NOTHING, PROFILES).of("another-digest", "sha256:clip")
    assert (reuse.latents.thresholds, reuse.images.thresholds) == ((), ())
    assert reuse.latents.source == NO_PROFILE


def test_profile_of_other_encoder_is_ignored() -> None:
    reuse = ReuseRules(NOTHING, PROFILES).of("sha256:heavy", "another-encoder")
    assert (reuse.latents.thresholds, reuse.images.thresholds) == ((), ())


def test_given_kind_overrides_every_profile() -> None:
    reuse = ReuseRules(replace(TOLD, images=()), PROFILES).of("sha256:heavy", "sha256:clip")
    assert (reuse.latents.thresholds, reuse.images.thresholds) == (TOLD.latents, thresholds(BOTH))
    assert (reuse.latents.alpha, reuse.latents.source) == (0.8, UNPROFILED)


def test_each_kind_has_table_of_its_encoder() -> None:
    sentences = changed(LATENTS, encoder_digest="sha256:sentences", rows=(reuse_step(5, 80, 0.9, 0.8, 0.7),))
    rules = ReuseRules(NOTHING, ProfileSet((LATENTS, BOTH, sentences)))

    two = rules.of("sha256:heavy", "sha256:sentences", image_encoder_digest="sha256:clip")
    swapped = rules.of("sha256:heavy", "sha256:clip", image_encoder_digest="sha256:sentences")
    rows = followed_rows(two, "sha256:heavy", "sha256:sentences", "sha256:clip")

    assert (two.latents.thresholds, two.images.thresholds) == (thresholds(sentences), thresholds(BOTH))
    assert (swapped.latents.thresholds, swapped.images.thresholds) == (thresholds(LATENTS), ())
    assert {(row.watched.from_image, row.watched.encoder_digest) for row in rows} == {
        (False, "sha256:sentences"),
        (True, "sha256:clip"),
    }


def test_each_kind_has_its_own_profile_and_alpha() -> None:
    reuse = ReuseRules(NOTHING, PROFILES).of("sha256:heavy", "sha256:clip")
    assert (reuse.latents.alpha, reuse.images.alpha) == (0.9, 0.95)
    assert (reuse.latents.source, reuse.images.source) == (profile_name(LATENTS), profile_name(BOTH))
    light = ReuseRules(NOTHING, PROFILES).of("sha256:light", "sha256:clip")
    assert (light.latents.thresholds, light.images.thresholds) == ((), thresholds(IMAGES))


@pytest.mark.parametrize(
    ("quality", "has_latents", "has_images", "profiled"),
    [(None, True, True, 0.95), (0.9, True, True, 0.95), (0.93, False, True, 0.95), (0.99, True, True, 0.95)],
)
def test_request_gets_the_tables_that_promise_its_quality(
    quality: float | None, has_latents: bool, has_images: bool, profiled: float
) -> None:
    rules = ReuseRules(NOTHING, PROFILES).of("sha256:heavy", "sha256:clip").rules(quality)
    assert (bool(rules.latents), bool(rules.images), rules.quality) == (has_latents, has_images, profiled)


def test_other_rules_stay_as_given() -> None:
    given = replace(NOTHING, quality=0.7)
    assert ReuseRules(given, PROFILES).of("another-digest", "sha256:clip").rules() == given


def test_another_rule_is_used_and_named() -> None:
    reuse = ReuseRules(NOTHING, PROFILES, ThresholdRule.MINIMUM).of("sha256:heavy", "sha256:clip")
    assert reuse.latents.thresholds == thresholds(LATENTS, ThresholdRule.MINIMUM)
    assert reuse.latents.source.endswith("by minimum")


def test_bias_moves_the_table_and_a_larger_one_promises_nothing() -> None:
    cheaper = ReuseRules(NOTHING, PROFILES, bias=1).of("sha256:heavy", "sha256:clip").latents
    closer = ReuseRules(NOTHING, PROFILES, bias=-1).of("sha256:heavy", "sha256:clip").latents
    moved = [(row.min_similarity, round(row.saved_share, 6)) for row in cheaper.thresholds]
    assert (moved, cheaper.alpha) == ([(0.7, 0.2), (0.9, 0.3)], 0.0)
    assert (closer.thresholds, closer.alpha) == ((Threshold(0.9, 0.1),), 0.9)
    assert cheaper.source.endswith("cache bias +1")


def test_bias_moves_given_tables_too() -> None:
    cheaper = ReuseRules(TOLD, bias=2).of("another-digest", "sha256:clip")
    assert (cheaper.latents.thresholds, cheaper.images.thresholds) == ((Threshold(0.5, 0.7),), (Threshold(0.2, 0.4),))
    assert (cheaper.latents.alpha, cheaper.latents.source) == (0.0, f"{UNPROFILED}, cache bias +2")


def test_largest_bias_keeps_and_retrieves_images_by_the_tables_of_latents() -> None:
    rules = ReuseRules(NOTHING, ProfileSet((LATENTS,)), bias=10)
    reuse = rules.of("sha256:heavy", "sha256:clip")
    refines = ReuseRules(NOTHING, PROFILES, bias=9).of("sha256:heavy", "sha256:clip")
    assert (reuse.rules().retrieves, refines.rules().retrieves) == (True, False)
    assert (reuse.latents.thresholds, reuse.latents.alpha) == (thresholds(LATENTS), 0.0)
    assert keeps_image(0, rules.keeping("sha256:heavy", "sha256:clip"))


def test_latents_of_model_are_kept_at_steps_of_its_table() -> None:
    rules = ReuseRules(NOTHING, PROFILES)
    assert capture_steps(50, rules.keeping("sha256:heavy", "sha256:clip")) == (5, 10)
    assert capture_steps(50, rules.keeping("sha256:light", "sha256:clip")) == ()
    # Before the cache has an encoder its first entries are kept all the same.
    assert capture_steps(50, rules.keeping("sha256:heavy", None)) == (5, 10)


def test_images_are_kept_when_any_model_may_refine_them() -> None:
    def keeps(rules: ReuseRules) -> bool:
        return keeps_image(0, rules.keeping("another-digest", "sha256:clip"))

    assert keeps(ReuseRules(NOTHING, PROFILES))
    assert not keeps(ReuseRules(NOTHING, ProfileSet((LATENTS,))))
    assert not keeps(ReuseRules(NOTHING, ProfileSet((changed(IMAGES, rows=(reuse_step(5, 9),)),))))
    assert keeps(ReuseRules(TOLD))


def test_nothing_is_reused_where_no_table_allows_anything() -> None:
    assert not ReuseRules(NOTHING).reuses_anything
    assert ReuseRules(NOTHING, PROFILES).reuses_anything
    assert ReuseRules(TOLD).reuses_anything


@pytest.mark.parametrize(
    ("bias", "alpha", "named"), [(-1, 0.9, ", cache bias -1"), (0, 0.9, ""), (1, 0.0, ", cache bias +1")]
)
def test_table_states_its_bias_and_expected_quality(bias: int, alpha: float, named: str) -> None:
    rules = ReuseRules(NOTHING, ProfileSet((LATENTS,)), bias=bias)

    table = rules.of(LATENTS.of.model_digest, LATENTS.of.encoder_digest).latents

    assert (table.alpha, table.source) == (alpha, profile_name(LATENTS) + named)
    assert (table.rule, table.reference_model_digest) == (LATENTS.asked.rule, LATENTS.of.reference_digest)
