"""What a route records of its stages."""

import pytest

from pentimento.domain.fleet import StartThreshold
from pentimento.domain.generation import CascadeStage
from pentimento.domain.tenants import TenantQuota
from pentimento.policies.serving.entry import Stage, allowed_stages
from services.frontdoor.routing.stages import cascade_stages, may_be_scored

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
