"""Test the stages in a route."""

from dataclasses import replace

import pytest

from lab.fixtures.held_models import HELD
from pentimento.domain.cache import image_key, latent_key
from pentimento.domain.fleet import StartThreshold
from pentimento.domain.generation import (
    CascadeStage,
    ControlKind,
    ControlNetSelection,
    Donor,
    FromImage,
    FromNoise,
    GenerationSpec,
    ImagePromptSelection,
    NoiseForm,
    ObjectReference,
    Preprocessor,
    Route,
    Scheduler,
    SigmaSpacing,
)
from pentimento.domain.image_request import CacheMode, ImageFormat, ResolvedRequest
from pentimento.domain.prompt_syntax import PromptSyntax
from pentimento.domain.tenants import TenantQuota
from pentimento.policies.plan.entry import Stage, allowed_stages
from services.frontdoor.routing.starts import (
    PoolOption,
    as_painted_by,
    as_started_by,
    cascade_stages,
    may_be_scored,
    repeat_key_of,
    scope_of,
)

PLANNED = (
    Stage("l", "light", "c", thresholds=(StartThreshold("noise", 0.7),)),
    Stage("m", "middle", "c", "light>heavy"),
    Stage("h", "heavy", "c"),
)


def test_stages_of_a_plan_have_the_plans_thresholds() -> None:
    assert cascade_stages(PLANNED, "noise", 0.5) == (
        CascadeStage("light", "light>middle", 0.7, "l"),
        CascadeStage("middle", "", 0.0, "m"),
        CascadeStage("heavy", pool="h"),
    )


def test_stages_of_the_operators_own_cascade_have_the_operators_threshold() -> None:
    own = (Stage("light", "light"), Stage("heavy", "heavy"))

    assert [stage.confidence_threshold for stage in cascade_stages(own, "noise", 0.5)] == [0.5, 0.0]


def test_one_stage_is_no_cascade() -> None:
    assert cascade_stages(PLANNED[:1], "noise", 0.5) == ()


def test_stage_with_scored_images_names_its_discriminator() -> None:
    scored = (PLANNED[0], Stage("m", "middle", "c", "light>heavy", (StartThreshold("noise", 0.2),)), PLANNED[2])

    assert cascade_stages(scored, "noise", 0.5)[1] == CascadeStage("middle", "light>heavy", 0.2, "m")


def test_route_may_be_scored_with_threshold_or_operator_cascade() -> None:
    assert may_be_scored(PLANNED)
    assert may_be_scored((Stage("light", "light"), Stage("heavy", "heavy")))
    assert not may_be_scored(PLANNED[1:])
    assert not may_be_scored(PLANNED[:1])


@pytest.mark.parametrize(("pools", "left"), [((), "lmh"), (("l", "h"), "lh"), (("m",), "m"), (("x",), "lmh")])
def test_stages_in_pools_that_the_tenant_may_not_use_are_left_out(pools: tuple[str, ...], left: str) -> None:
    """All stages stay if the tenant may use none: admission rejects the first."""
    assert "".join(stage.pool for stage in allowed_stages(PLANNED, TenantQuota(pools=pools))) == left


@pytest.mark.parametrize(
    ("start", "scaled"),
    [((25, 22, 5), (6, 5, 1)), ((25, 0, 0), (6, 0, 0)), ((25, 10, 0), (6, 2, 2)), ((2, 1, 1), None)],
)
def test_image_start_is_scaled_to_another_model_s_steps(
    start: tuple[int, int, int], scaled: tuple[int, int, int] | None
) -> None:
    step, again, back = start
    reference, donor = ObjectReference("images/x", "sha256:0", 1), Donor("entry", "sha256:0", 0.9)
    image = FromImage(reference, step, NoiseForm.VARIANCE_PRESERVING, donor, again, back)
    spec = GenerationSpec("a red circle", "", "large", 32, 32, 50, 3.0, Scheduler.DDIM, 7)
    resolved = ResolvedRequest(spec, CacheMode.READ_WRITE, ImageFormat.PNG, None, 1000, 0)
    large = PoolOption("large", replace(HELD, model="large"), resolved, Route("route", image, "large", "sha256:large"))
    own = replace(resolved, spec=replace(spec, num_inference_steps=12))

    option = as_started_by(large, "small", own, HELD)

    found = option.route.start if option is not None else None
    told = (found.start_step, found.renoised_steps, found.retaken_steps) if isinstance(found, FromImage) else None
    assert told == scaled


def test_request_for_another_model_takes_its_sampler() -> None:
    spec = GenerationSpec(
        "a", "", "large", 32, 32, 20, 7.0, Scheduler.EULER, 7, 0.0, (), (), None, SigmaSpacing.BETA, 2
    )
    asked = ResolvedRequest(spec, CacheMode.READ_WRITE, ImageFormat.PNG, None, 1000, 0)

    assert as_painted_by(asked, replace(HELD, model="large")) == asked
    assert as_painted_by(asked, HELD).spec == GenerationSpec("a", "", "tiny", 32, 32, 50, 3.0, Scheduler.DDIM, 7)


SPEC = GenerationSpec("a red circle", "", HELD.model, 32, 32, 50, 3.0, Scheduler.DDIM, 7)
CONTROLLED = replace(SPEC, controlnets=(ControlNetSelection("edges", b"png", digest="sha256:edges"),))
RESOLVED = ResolvedRequest(CONTROLLED, CacheMode.READ_WRITE, ImageFormat.PNG, None, 1000, 0)
ROUTE = Route("route", FromNoise(), HELD.model, HELD.model_digest)


def test_latent_scope_depends_on_pipelining_and_image_scope_does_not() -> None:
    synchronous, early, late = (
        scope_of("tenant", RESOLVED, HELD, replace(ROUTE, pipelined_from_step=first)) for first in (0, 4, 8)
    )

    assert len({latent_key(scope, 10) for scope in (synchronous, early, late)}) == 3
    assert len({image_key(scope) for scope in (synchronous, early, late)}) == 1


def test_scope_of_other_weights_or_syntax_differs() -> None:
    prompts = ("a (red) circle", "a (red:1.1) circle", "a ((red)) circle", "a red (circle)", "a red circle")
    plain = [replace(SPEC, prompt=prompt) for prompt in prompts]
    weighted = [replace(spec, prompt_syntax=PromptSyntax.A1111) for spec in plain]

    scopes = [
        scope_of("tenant", ResolvedRequest(spec, CacheMode.READ_WRITE, ImageFormat.PNG, None, 1000), HELD, ROUTE)
        for spec in (*plain, *weighted)
    ]

    keys = [latent_key(scope, 10) for scope in scopes]
    assert [keys.index(key) for key in keys] == [0, 0, 0, 0, 0, 5, 5, 7, 8, 9]
    assert len({image_key(scope) for scope in scopes}) == 1
    assert {spec.plain_prompt for spec in weighted} == {"a red circle"}
    assert len({repeat_key_of(spec) for spec in weighted}) == 5


def test_keys_differ_by_kind_preprocessor_and_depth_model() -> None:
    net = CONTROLLED.controlnets[0]
    nets = [
        net,
        *(replace(net, kind=kind) for kind in (ControlKind.LINES, ControlKind.TILE)),
        replace(net, preprocessor=Preprocessor.EDGES),
        *(replace(net, preprocessor=Preprocessor.DEPTH, preprocessor_digest=digest) for digest in ("one", "other")),
    ]

    scopes = [
        scope_of("tenant", replace(RESOLVED, spec=replace(SPEC, controlnets=(one,))), HELD, ROUTE) for one in nets
    ]

    assert len({latent_key(scope, 10) for scope in scopes}) == len({image_key(scope) for scope in scopes}) == 6


def test_keys_differ_by_image_prompt_and_latents_also_by_its_scale() -> None:
    prompt = ImagePromptSelection("style", b"png", digest="sha256:style")
    specs = [
        replace(SPEC, image_prompts=prompts)
        for prompts in ((), (prompt,), (replace(prompt, image=b"other"),), (replace(prompt, digest="sha256:other"),))
    ]
    weaker = replace(SPEC, image_prompts=(replace(prompt, scale=0.5),))

    *scopes, scaled = [scope_of("tenant", replace(RESOLVED, spec=one), HELD, ROUTE) for one in (*specs, weaker)]

    assert len({latent_key(scope, 10) for scope in (*scopes, scaled)}) == 5
    assert len({image_key(scope) for scope in scopes}) == 4
    assert image_key(scaled) == image_key(scopes[1])
