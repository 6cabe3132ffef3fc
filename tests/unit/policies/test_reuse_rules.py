"""Whose table decides: a model's own profile, tables that somebody gave, or none."""

from dataclasses import replace

import pytest

from pentimento.policies.cache_selection import SelectionRules, Threshold, capture_steps, keeps_image
from pentimento.policies.reuse_rules import NO_PROFILE, UNPROFILED, ReuseRules
from pentimento.policies.selector_profiles import ProfiledStep, ReuseKind, SelectorProfiles
from pentimento.policies.selector_profiling import ThresholdRule
from tests.support.selector_profiles import LATENT_PROFILE

NOTHING = SelectionRules(latents=(), images=())
TOLD = SelectionRules(latents=(Threshold(0.5, 0.5),), images=(Threshold(0.2, 0.2),), quality=0.8)
LATENTS = replace(LATENT_PROFILE, steps=(ProfiledStep(5, 80, 0.8, 0.7, 0.6), ProfiledStep(10, 80, 0.95, 0.9, 0.8)))
IMAGES = replace(LATENTS, kind=ReuseKind.IMAGES, alpha=0.95, model="light", model_digest="sha256:light")
BOTH = replace(IMAGES, model="heavy", model_digest="sha256:heavy")
PROFILES = SelectorProfiles((LATENTS, IMAGES, BOTH))


def test_a_model_without_a_profile_reuses_nothing() -> None:
    reuse = ReuseRules(NOTHING, PROFILES).of("another-digest", "sha256:clip")
    assert (reuse.latents.thresholds, reuse.images.thresholds) == ((), ())
    assert reuse.latents.source == NO_PROFILE


def test_a_profile_made_for_another_encoder_is_none() -> None:
    reuse = ReuseRules(NOTHING, PROFILES).of("sha256:heavy", "another-encoder")
    assert (reuse.latents.thresholds, reuse.images.thresholds) == ((), ())


def test_tables_that_were_given_serve_models_without_a_profile_alone() -> None:
    rules = ReuseRules(TOLD, PROFILES)
    assert rules.of("another-digest", "sha256:clip").latents.thresholds == TOLD.latents
    assert rules.of("another-digest", "sha256:clip").latents.source == UNPROFILED
    assert rules.of("sha256:heavy", "sha256:clip").latents.thresholds == LATENTS.thresholds()


def test_tables_of_a_kind_that_is_given_stand_over_every_profile() -> None:
    reuse = ReuseRules(TOLD, PROFILES, given=frozenset({ReuseKind.LATENTS})).of("sha256:heavy", "sha256:clip")
    assert (reuse.latents.thresholds, reuse.images.thresholds) == (TOLD.latents, BOTH.thresholds())


def test_each_kind_has_its_own_profile_and_alpha() -> None:
    reuse = ReuseRules(NOTHING, PROFILES).of("sha256:heavy", "sha256:clip")
    assert (reuse.latents.alpha, reuse.images.alpha) == (0.9, 0.95)
    assert (reuse.latents.source, reuse.images.source) == (LATENTS.name, BOTH.name)
    light = ReuseRules(NOTHING, PROFILES).of("sha256:light", "sha256:clip")
    assert (light.latents.thresholds, light.images.thresholds) == ((), IMAGES.thresholds())


@pytest.mark.parametrize(
    ("quality", "has_latents", "has_images", "profiled"),
    [(None, True, True, 0.95), (0.9, True, True, 0.95), (0.93, False, True, 0.95), (0.99, True, True, 0.95)],
)
def test_a_request_gets_the_tables_that_promise_its_quality(
    quality: float | None, has_latents: bool, has_images: bool, profiled: float
) -> None:
    rules = ReuseRules(NOTHING, PROFILES).of("sha256:heavy", "sha256:clip").rules(quality)
    assert (bool(rules.latents), bool(rules.images), rules.quality) == (has_latents, has_images, profiled)


def test_what_is_no_table_stays_as_it_was_given() -> None:
    given = replace(NOTHING, quality=0.7)
    assert ReuseRules(given, PROFILES).of("another-digest", "sha256:clip").rules() == given


def test_another_rule_is_used_and_named() -> None:
    reuse = ReuseRules(NOTHING, PROFILES, ThresholdRule.MINIMUM).of("sha256:heavy", "sha256:clip")
    assert reuse.latents.thresholds == LATENTS.thresholds(ThresholdRule.MINIMUM)
    assert reuse.latents.source.endswith("by minimum")


def test_a_bias_moves_the_table_and_a_larger_one_promises_nothing() -> None:
    cheaper = ReuseRules(NOTHING, PROFILES, bias=1).of("sha256:heavy", "sha256:clip").latents
    closer = ReuseRules(NOTHING, PROFILES, bias=-1).of("sha256:heavy", "sha256:clip").latents
    assert (cheaper.thresholds, cheaper.alpha) == ((Threshold(0.7, 0.2),), 0.0)
    assert (closer.thresholds, closer.alpha) == ((Threshold(0.9, 0.1),), 0.9)
    assert cheaper.source.endswith("cache bias +1")


def test_a_models_latents_are_kept_at_the_steps_of_its_own_table() -> None:
    rules = ReuseRules(NOTHING, PROFILES)
    assert capture_steps(50, rules.keeping("sha256:heavy", "sha256:clip")) == (5, 10)
    assert capture_steps(50, rules.keeping("sha256:light", "sha256:clip")) == ()
    # Before the cache has an encoder its first entries are kept all the same.
    assert capture_steps(50, rules.keeping("sha256:heavy", None)) == (5, 10)


def test_images_are_kept_when_any_model_may_refine_them() -> None:
    def keeps(rules: ReuseRules) -> bool:
        return keeps_image(0, rules.keeping("another-digest", "sha256:clip"))

    assert keeps(ReuseRules(NOTHING, PROFILES))
    assert not keeps(ReuseRules(NOTHING, SelectorProfiles((LATENTS,))))
    assert not keeps(ReuseRules(NOTHING, SelectorProfiles((replace(IMAGES, steps=(ProfiledStep(5, 9),)),))))
    assert keeps(ReuseRules(TOLD))


def test_nothing_is_reused_where_no_table_allows_anything() -> None:
    assert not ReuseRules(NOTHING).reuses_anything
    assert ReuseRules(NOTHING, PROFILES).reuses_anything
    assert ReuseRules(TOLD).reuses_anything


@pytest.mark.parametrize(
    ("bias", "alpha", "named"), [(-1, 0.9, ", cache bias -1"), (0, 0.9, ""), (1, 0.0, ", cache bias +1")]
)
def test_a_table_says_by_how_much_it_is_biased_and_what_it_still_promises(bias: int, alpha: float, named: str) -> None:
    rules = ReuseRules(SelectionRules(), SelectorProfiles((LATENTS,)), bias=bias)

    table = rules.of(LATENTS.model_digest, LATENTS.encoder_digest).latents

    assert (table.alpha, table.source) == (alpha, LATENTS.name + named)
    assert (table.rule, table.reference_model_digest) == (LATENTS.rule, LATENTS.reference_model_digest)
