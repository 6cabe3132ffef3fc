"""Choose the steps of a request that reuse deep features, and give a reason for none."""

from dataclasses import replace

import pytest

from lab.fixtures.held_models import HELD
from pentimento.domain.generation import (
    CascadeStage,
    ControlNetSelection,
    Donor,
    FromLatent,
    FromNoise,
    ObjectReference,
    Route,
)
from pentimento.domain.image_request import Replay, ResolvedRequest
from pentimento.policies.latent_pairing import PairingMode
from pentimento.profiles.catalogue import FeatureReuseMode, ProfileSet, StepProfiles
from pentimento.profiles.document import ProfileKind
from pentimento.profiles.rules import ThresholdRule
from services.frontdoor.routing.routes import as_route_option
from services.frontdoor.routing.starts import PoolOption, reused_share, work_left
from services.frontdoor.routing.step_rules import FeatureReuse, StepRules
from tests.support.profiles import changed, thinned_row
from tests.unit.frontdoor.test_thinning_offers import OFFERS, PROFILE, RESOLVED, ROUTE, SPEC

RULE = ThresholdRule.LOWER_BOUND
ROWS = (
    thinned_row(10, 10, RULE, share=0.995),
    thinned_row(10, 4, RULE, share=0.98),
    thinned_row(20, 10, RULE, share=0.99, resume_step=20, least_similarity=0.8),
)
STEPS = tuple(range(10, 50, 4))
HIT = FromLatent(ObjectReference("k", "sha256:x", 1), 20, 50, 1.0, Donor("e", "sha256:x", 0.9))


def reuse(mode: FeatureReuseMode = FeatureReuseMode.AUTO, kind: ProfileKind = ProfileKind.FEATURES) -> FeatureReuse:
    profiles = ProfileSet((changed(PROFILE, kind=kind, rows=ROWS),))
    return FeatureReuse(mode, StepProfiles(profiles, kind=ProfileKind.FEATURES))


def test_fewest_whole_steps_that_keep_the_quality_are_scheduled() -> None:
    assert reuse().scheduled(RESOLVED, ROUTE) == replace(ROUTE, full_steps=STEPS)
    assert reuse().scheduled(RESOLVED, replace(ROUTE, start=HIT)).full_steps == tuple(range(20, 50, 3))
    assert reuse().why(RESOLVED, ROUTE) == "reused from step 10 on, where 10 of 40 steps run the whole network"


@pytest.mark.parametrize(
    ("mode", "wish", "reuses", "word"),
    [
        (FeatureReuseMode.ASKED, None, False, ""),
        (FeatureReuseMode.ASKED, True, True, "reused"),
        (FeatureReuseMode.ASKED, False, False, "none reused, NOT_ASKED"),
        (FeatureReuseMode.AUTO, None, True, "reused"),
        (FeatureReuseMode.AUTO, False, False, "none reused, NOT_ASKED"),
    ],
)
def test_request_and_mode_decide_together(mode: FeatureReuseMode, wish: bool | None, reuses: bool, word: str) -> None:
    asked, found = replace(RESOLVED, feature_reuse=wish), reuse(mode)

    assert bool(found.scheduled(asked, ROUTE).full_steps) is reuses
    assert found.why(asked, ROUTE).startswith(word) and bool(found.why(asked, ROUTE)) is bool(word)


@pytest.mark.parametrize(
    ("rule", "wish", "whole"),
    [
        (None, True, 4),
        # Without a wish only the row that satisfies LOWER_BOUND counts.
        (None, None, 10),
        (ThresholdRule.MEAN, None, 4),
    ],
)
def test_unasked_requests_use_the_strict_rule_or_the_deployments(
    rule: ThresholdRule | None, wish: bool | None, whole: int
) -> None:
    mean = ThresholdRule.MEAN
    rows = (thinned_row(10, 10, RULE, mean, share=0.99), thinned_row(10, 4, mean, share=0.99))
    profiles = ProfileSet((changed(PROFILE, kind=ProfileKind.FEATURES, rule=mean, rows=rows),))
    found = FeatureReuse(profiles=StepProfiles(profiles, rule=rule, kind=ProfileKind.FEATURES))
    asked = replace(RESOLVED, feature_reuse=wish)

    assert len(found.scheduled(asked, ROUTE).full_steps) == whole
    assert f"where {whole} of 40 steps" in found.why(asked, ROUTE)


def test_binding_steps_run_whole_unless_the_request_asks() -> None:
    binding = replace(RESOLVED, may_thin=False)

    assert reuse().why(binding, ROUTE) == "none reused, BINDING_STEPS: its number of steps is binding"
    assert reuse().scheduled(binding, ROUTE) == ROUTE
    assert reuse().scheduled(replace(binding, feature_reuse=True), ROUTE).full_steps == STEPS


def test_images_that_may_be_compared_run_whole_unless_the_request_asks() -> None:
    staged = replace(ROUTE, stages=(CascadeStage("light"), CascadeStage("heavy")))
    asked = replace(RESOLVED, feature_reuse=True)

    assert reuse().why(RESOLVED, ROUTE, compared=True).startswith("none reused, COMPARED")
    assert reuse().scheduled(RESOLVED, ROUTE, compared=True) == ROUTE
    assert reuse().scheduled(RESOLVED, staged) == staged
    assert reuse().scheduled(asked, staged).full_steps == STEPS
    assert reuse().scheduled(asked, ROUTE, compared=True).full_steps == STEPS


EDGES = ControlNetSelection("edges", b"png", digest="sha256:e")


@pytest.mark.parametrize(
    ("found", "resolved", "route", "why"),
    [
        (reuse(kind=ProfileKind.STEPS), RESOLVED, ROUTE, "PROFILE_MISSING: heavy has no feature reuse profile"),
        (reuse(), replace(RESOLVED, quality=0.99), ROUTE, "QUALITY_ASKED"),
        (reuse(), replace(RESOLVED, spec=replace(SPEC, num_inference_steps=20)), ROUTE, "STEPS_UNMEASURED"),
        (reuse(), replace(RESOLVED, spec=replace(SPEC, controlnets=(EDGES,))), ROUTE, "CONTROLNETS_UNMEASURED"),
        (reuse(), RESOLVED, replace(ROUTE, start=replace(HIT, resume_step=30)), "HIT_UNMEASURED"),
        (replace(reuse(), least_share=1.0), RESOLVED, ROUTE, "NOTHING_ALLOWED"),
    ],
)
def test_unmeasured_requests_run_all_steps_whole(
    found: FeatureReuse, resolved: ResolvedRequest, route: Route, why: str
) -> None:
    assert found.scheduled(resolved, route) == route
    assert found.why(resolved, route).startswith(f"none reused, {why}")


def test_a_replay_keeps_the_steps_of_its_image() -> None:
    route = replace(ROUTE, full_steps=(3, 7))

    assert reuse().scheduled(replace(RESOLVED, replay=Replay(route, "")), route) == route


@pytest.mark.parametrize(
    ("start", "full", "known", "share"),
    [
        # 30 of 50 steps reuse features, at a quarter of the cost.
        (FromNoise(), STEPS, 0.25, 1 - 30 * 0.75 / 50),
        (HIT, tuple(range(20, 50, 3)), 0.25, 1 - 20 * 0.75 / 30),
        # The first step of a hit runs whole, listed or not.
        (HIT, (5, 20, 49), 0.25, 1 - 28 * 0.75 / 30),
        (HIT, (5, 49), 0.25, 1 - 28 * 0.75 / 30),
        (FromNoise(), (), 0.25, 1.0),
        (FromNoise(), STEPS, 0.0, 1.0),
    ],
)
def test_work_counts_reusing_steps_at_their_cost(
    start: FromLatent | FromNoise, full: tuple[int, ...], known: float, share: float
) -> None:
    route, held = replace(ROUTE, start=start, full_steps=full), replace(HELD, reused_step_share=known)
    rules = StepRules(None, None, PairingMode.OFF, OFFERS, None, None)  # type: ignore[arg-type]
    option = as_route_option(rules, PoolOption("heavy", held, RESOLVED, route))

    assert reused_share(route, 50, held) == pytest.approx(share)
    assert option.work == pytest.approx(share * work_left(RESOLVED, start))
    assert option.thinning.reused_share == pytest.approx(share)
