"""What a route records of its stages."""

from dataclasses import replace

import pytest

from lab.fixtures.held_models import HELD
from pentimento.domain.fleet import StartThreshold
from pentimento.domain.generation import (
    CascadeStage,
    Donor,
    FromImage,
    GenerationSpec,
    NoiseForm,
    ObjectReference,
    Route,
    Scheduler,
    SigmaSpacing,
)
from pentimento.domain.image_request import CacheMode, ImageFormat, ResolvedRequest
from pentimento.domain.tenants import TenantQuota
from pentimento.policies.plan.entry import Stage, allowed_stages
from services.frontdoor.routing.stages import PoolOption, as_painted_by, as_started_by, cascade_stages, may_be_scored

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


def test_a_stage_whose_pictures_are_scored_names_who_scores_them() -> None:
    scored = (PLANNED[0], Stage("m", "middle", "c", "light>heavy", (StartThreshold("noise", 0.2),)), PLANNED[2])

    assert cascade_stages(scored, "noise", 0.5)[1] == CascadeStage("middle", "light>heavy", 0.2, "m")


def test_a_discriminator_may_be_asked_where_a_stage_has_a_threshold_or_is_the_operators() -> None:
    assert may_be_scored(PLANNED)
    assert may_be_scored((Stage("light", "light"), Stage("heavy", "heavy")))
    assert not may_be_scored(PLANNED[1:])
    assert not may_be_scored(PLANNED[:1])


@pytest.mark.parametrize(("pools", "left"), [((), "lmh"), (("l", "h"), "lh"), (("m",), "m"), (("x",), "lmh")])
def test_stages_in_pools_that_the_tenant_may_not_use_are_left_out(pools: tuple[str, ...], left: str) -> None:
    """All of them are left where it may use none: admission refuses the first."""
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


def test_as_painted_by_another_model_takes_its_own_sampler() -> None:
    spec = GenerationSpec(
        "a", "", "large", 32, 32, 20, 7.0, Scheduler.EULER, 7, 0.0, (), (), None, SigmaSpacing.BETA, 2
    )
    asked = ResolvedRequest(spec, CacheMode.READ_WRITE, ImageFormat.PNG, None, 1000, 0)

    assert as_painted_by(asked, replace(HELD, model="large")) == asked
    assert as_painted_by(asked, HELD).spec == GenerationSpec("a", "", "tiny", 32, 32, 50, 3.0, Scheduler.DDIM, 7)
