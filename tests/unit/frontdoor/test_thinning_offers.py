"""Test the thinning that the dataplane is offered for a request, and the effect of the options of a client."""

from dataclasses import replace
from pathlib import Path

import pytest

from lab.fixtures.held_models import HELD
from pentimento.domain.generation import (
    ControlNetSelection,
    Donor,
    FromImage,
    FromLatent,
    FromNoise,
    GenerationSpec,
    NoiseForm,
    ObjectReference,
    Route,
    Scheduler,
)
from pentimento.domain.image_request import CacheMode, ImageFormat, ImageRequest, Replay, ResolvedRequest
from pentimento.policies.residual_pipelining import PipeliningMode
from pentimento.policies.thinning import WHOLE, ThinningMode, ThinningOffer, ThinningOption, WholeReason
from pentimento.profiles.catalogue import ProfileSet, StepProfiles, read_profiles
from pentimento.profiles.document import ProfileRow, profiles_to_json
from pentimento.profiles.rules import RuleChoice, ThresholdRule
from services.frontdoor.requests.resolution import resolve
from services.frontdoor.routing.step_rules import ControlPipelining, ThinningOffers
from services.frontdoor.settings import RequestLimits
from services.frontdoor.workers.catalogue import AdapterCatalogue
from tests.support.profiles import EDGES, PIPELINING_PROFILE, STEPS_PROFILE, changed, thinned_row

PROFILE = changed(
    STEPS_PROFILE, model_digest="sha256:h", rows=(thinned_row(10, 10, ThresholdRule.LOWER_BOUND, share=0.99),)
)


def profiled(*rows: ProfileRow) -> StepProfiles:
    return StepProfiles(ProfileSet((replace(PROFILE, rows=rows),)))


OFFERS = ThinningOffers(ThinningMode.LOAD, profiled(*PROFILE.rows))
SPEC = GenerationSpec("a circle", "", "heavy", 64, 64, 50, 1.5, Scheduler.DDIM, seed=1)
RESOLVED = ResolvedRequest(SPEC, CacheMode.OFF, ImageFormat.PNG, None, 1000, may_thin=True)
ROUTE = Route("", FromNoise(), "heavy", "sha256:h")
IMAGE = FromImage(ObjectReference("k", "sha256:x", 1), 20, NoiseForm.VARIANCE_PRESERVING, Donor("e", "sha256:x", 0.9))


def test_plain_request_gets_options_of_profile() -> None:
    assert OFFERS.offer(RESOLVED, ROUTE) == ThinningOffer(50, 0, (ThinningOption(10, 10, 0.99),))


@pytest.mark.parametrize(
    ("resolved", "why"),
    [
        (replace(RESOLVED, may_thin=False), WholeReason.BINDING_STEPS),
        (replace(RESOLVED, quality=0.97), WholeReason.QUALITY_ASKED),
        (replace(RESOLVED, replay=Replay(Route("", FromNoise(), "heavy", "sha256:h"), "")), WholeReason.REPLAY),
        (replace(RESOLVED, spec=replace(SPEC, num_inference_steps=20)), WholeReason.STEPS_UNMEASURED),
    ],
)
def test_of_others_nothing_is_left_out(resolved: ResolvedRequest, why: WholeReason) -> None:
    refusal = OFFERS.refusal(resolved, ROUTE)

    assert refusal is not None and refusal.reason is why
    assert OFFERS.offer(resolved, ROUTE) == WHOLE


def test_offered_request_has_no_refusal() -> None:
    assert OFFERS.refusal(RESOLVED, ROUTE) is None


def test_pipelined_or_unprofiled_request_is_not_thinned() -> None:
    nothing = replace(OFFERS, profiles=profiled())
    for offers, route, why in (
        (OFFERS, replace(ROUTE, pipelined_from_step=5), WholeReason.RESIDUALS_PIPELINED),
        (nothing, ROUTE, WholeReason.NOTHING_ALLOWED),
    ):
        refusal = offers.refusal(RESOLVED, route)

        assert refusal is not None and refusal.reason is why
        assert offers.offer(RESOLVED, route) == WHOLE


def test_hit_gets_options_measured_at_its_step() -> None:
    hits = thinned_row(25, 5, ThresholdRule.LOWER_BOUND, share=0.99, resume_step=20, least_similarity=0.9)
    offers = replace(OFFERS, profiles=profiled(*PROFILE.rows, hits))
    latent = FromLatent(ObjectReference("k", "sha256:x", 1), 20, 50, 1.0, Donor("e", "sha256:x", 0.93))

    offer = offers.offer(RESOLVED, replace(ROUTE, start=latent))

    assert offer == ThinningOffer(50, 20, (ThinningOption(25, 5, 0.99),))
    # Thirty steps remain, and five precede the first thinned one.
    assert (offer.remaining_count, offer.least_count, offer.least_share) == (30, 10, 1 / 3)
    assert offers.offer(RESOLVED, ROUTE).options == (ThinningOption(10, 10, 0.99),)


@pytest.mark.parametrize(("rule", "least_count"), [(RuleChoice.PROFILE, 30), (RuleChoice.LOWER_BOUND, 20)])
def test_profiles_are_read_by_the_rule_that_is_set(tmp_path: Path, rule: RuleChoice, least_count: int) -> None:
    bounded, every = ThresholdRule.LOWER_BOUND, ThresholdRule.MINIMUM
    rows = (thinned_row(20, 10, every, bounded), thinned_row(10, 10, bounded))
    path = tmp_path / "heavy.json"
    path.write_text(profiles_to_json(changed(PROFILE, rule=every, rows=rows)))
    profiles = StepProfiles(read_profiles([path]), rule=rule.rule)

    assert ThinningOffers(ThinningMode.ALWAYS, profiles).offer(RESOLVED, ROUTE).least_count == least_count


def test_nor_of_hits_of_other_weights_or_where_it_is_off() -> None:
    assert OFFERS.offer(RESOLVED, replace(ROUTE, start=IMAGE)) == WHOLE
    assert OFFERS.offer(RESOLVED, replace(ROUTE, model_digest="sha256:other")) == WHOLE
    assert replace(OFFERS, mode=ThinningMode.OFF).offer(RESOLVED, ROUTE) == WHOLE
    assert ThinningOffers().offer(RESOLVED, ROUTE) == WHOLE


@pytest.mark.parametrize(
    ("shares", "next_step", "cached"),
    [
        ((0.995, 0.99), 0, True),
        ((0.995, 0.989), 0, False),
        # The second one can no longer be taken.
        ((0.995, 0.989), 15, True),
        ((), 0, True),
    ],
)
def test_thinned_image_is_cached_if_all_its_options_keep_enough(
    shares: tuple[float, ...], next_step: int, cached: bool
) -> None:
    options = tuple(ThinningOption(20 - 10 * number, 5, share) for number, share in enumerate(shares))

    assert OFFERS.thinned_is_cached(ThinningOffer(50, next_step, options)) is cached


def test_a_number_of_steps_that_is_named_is_meant() -> None:
    meant = {(None, None): True, (20, None): False, (20, False): True, (None, True): False, (20, True): False}
    requests = {
        (steps, binding): ImageRequest("a circle", num_inference_steps=steps, binding_steps=binding)
        for steps, binding in meant
    }
    resolved = {
        key: resolve(request, HELD, AdapterCatalogue(), RequestLimits(), drawn_seed=1)
        for key, request in requests.items()
    }

    assert {key: one.may_thin for key, one in resolved.items()} == meant


LAYOUT = replace(EDGES, digest="sha256:layout", name="layout")
PROFILES = ProfileSet(
    (PIPELINING_PROFILE, changed(PIPELINING_PROFILE, adapters=(LAYOUT,), rows=PIPELINING_PROFILE.rows[:1]))
)
NETS = {name: ControlNetSelection(name, b"", digest=f"sha256:{name}") for name in ("edges", "layout", "pose")}
CONTROLLED_SPEC = GenerationSpec("a circle", "", "heavy", 64, 64, 50, 1.5, Scheduler.DDIM, seed=1)


def controlled(*names: str, steps: int = 50) -> GenerationSpec:
    return replace(CONTROLLED_SPEC, num_inference_steps=steps, controlnets=tuple(NETS[name] for name in names))


@pytest.mark.parametrize(
    ("spec", "model", "mode", "waited", "from_step", "why"),
    [
        (controlled("edges"), "heavy", "auto", 0.3, 4, "one step old from step 4, images waited for 30% of a step"),
        (controlled("edges", "layout"), "heavy", "on", None, 4, "one step old from step 4, by the settings"),
        (controlled("edges"), "heavy", "auto", None, 0, "SHORT_WAITS: no image has waited yet, 10% is too long"),
        (controlled("edges"), "heavy", "auto", 0.05, 0, "SHORT_WAITS: images waited for 5% of a step, 10% is too"),
        (controlled("edges"), "heavy", "off", 0.3, 0, "OFF: pipelining is off"),
        (controlled("edges"), "light", "on", 0.3, 0, "PROFILE_MISSING: no pipelining profile of heavy with edges"),
        (controlled("edges", "pose"), "heavy", "on", 0.3, 0, "PROFILE_MISSING: no pipelining profile of heavy with po"),
        (controlled("edges", steps=20), "heavy", "on", 0.3, 0, "NOTHING_ALLOWED: the profile of edges allows none at"),
        (CONTROLLED_SPEC, "heavy", "on", 0.3, 0, ""),
    ],
)
def test_pipelining_mode_has_step_and_reason(
    spec: GenerationSpec, model: str, mode: str, waited: float | None, from_step: int, why: str
) -> None:
    pipelining = ControlPipelining(PipeliningMode(mode), PROFILES)
    pipelining.learn(spec, waited)

    found = pipelining.from_step(spec, f"sha256:{model}")
    route = Route("", FromNoise(), model, f"sha256:{model}", pipelined_from_step=found)

    assert found == from_step
    assert why in pipelining.why(spec, route)
    assert bool(pipelining.why(spec, route)) is bool(spec.controlnets)
