"""Why a request takes the route that it takes."""

from dataclasses import replace
from typing import Any

import pytest

from pentimento.dataplane.pools import Pool
from pentimento.domain.fleet import Plan, PoolPlan
from pentimento.domain.generation import (
    CascadeStage,
    Donor,
    FromImage,
    FromNoise,
    NoiseForm,
    ObjectReference,
    PlanVersion,
    Route,
)
from pentimento.domain.online_quality import ReuseQuality
from pentimento.policies.plan.entry import Stage
from pentimento.policies.thinning import (
    WHOLE,
    Pressure,
    ThinningMode,
    ThinningOffer,
    ThinningOption,
    ThinningRefusal,
    WholeReason,
)
from services.frontdoor.routing.explaining import of_earned, reasons, steps_taken

THREE = (CascadeStage("light", "l>m", 0.4), CascadeStage("middle", "m>h", 0.7), CascadeStage("heavy"))
ROUTE = Route("r", FromNoise(), "light", "sha256:l", THREE, cascade="light>middle>heavy")
POOL = Pool("light", credit_count=2, running_count=2, waiting_count=3)
PLAN = Plan(PlanVersion(7, 2), allocator="diffserve", admission_rate=0.25)
BINDING = ThinningRefusal(WholeReason.BINDING_STEPS, "its number of steps is binding")
MILD, HARD = ThinningOption(10, 20, 0.99), ThinningOption(10, 5, 0.96)
OFFER = ThinningOffer(50, 0, (MILD, HARD))
CASE: dict[str, Any] = {
    "route": ROUTE,
    "plan": PLAN,
    "names_model": False,
    "entered": Stage("light", "light", planned=True),
    "notes": (),
    "pool": POOL,
    "steps": "all run",
}


def told(of: dict[str, Any], word: str) -> list[str]:
    return [reason.removeprefix(f"{word}: ") for reason in reasons(**of) if reason.startswith(f"{word}: ")]


def test_residuals_are_explained_with_controlnets_alone() -> None:
    assert told(CASE, "residuals") == []
    assert told(CASE | {"residuals": "each step waits for its own"}, "residuals") == ["each step waits for its own"]


def test_plan_is_named_with_admission_and_notes() -> None:
    plan = replace(PLAN, notes=("light on gpu: PROFILE_MISSING",))

    assert told(CASE | {"plan": plan}, "plan") == [
        "7.2 by diffserve",
        "it admits 25% of the demand",
        "light on gpu: PROFILE_MISSING",
    ]


def test_a_plan_that_counts_on_fewer_steps_says_of_which_pools() -> None:
    pools = (PoolPlan("light", "light", ()), PoolPlan("heavy", "heavy", (), thins=True))

    assert "it assumes skipped steps in heavy" in told(CASE | {"plan": replace(PLAN, pools=pools)}, "plan")
    assert not any("skipped steps" in reason for reason in told(CASE, "plan"))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"names_model": True}, "light, which the request names"),
        ({}, "light, by the plan's shares"),
        ({"entered": Stage("light", "light")}, "light, by the settings"),
        ({"entered": Stage("heavy", "heavy")}, "light, as its pool takes requests with this start"),
    ],
)
def test_the_model_is_the_requests_the_plans_or_the_settings(change: dict[str, Any], why: str) -> None:
    assert told(CASE | change, "model") == [why]


def test_every_hand_over_says_its_threshold() -> None:
    assert told(CASE, "stages") == [
        "middle runs unless the confidence is above 0.4",
        "heavy runs unless the confidence is above 0.7",
    ]


def test_substitute_stage_is_explained() -> None:
    two = replace(ROUTE, stages=(CascadeStage("light"), CascadeStage("heavy")))

    assert told(CASE | {"route": two}, "stages") == ["heavy runs if light would be late"]


def test_a_stage_that_is_left_out_hands_nothing_over() -> None:
    entered = CASE | {"entered": Stage("middle", "middle"), "foresight": ("light left out: why",)}

    assert told(entered, "stages") == [
        "light left out: why",
        "heavy runs unless the confidence is above 0.7",
    ]


def test_skipped_cache_is_explained() -> None:
    image = ObjectReference("k", "sha256:i", 1)
    hit = replace(ROUTE, start=FromImage(image, 5, NoiseForm.FLOW_MATCHING, Donor("e", "sha256:e", 0.9)))
    skipped = "cache skipped: gateway timed out"

    assert told(CASE | {"notes": (skipped,)}, "start") == [skipped]
    assert told(CASE | {"route": hit}, "start") == ["image, from the cache"]


@pytest.mark.parametrize(
    ("mode", "pressure", "why"),
    [
        (ThinningMode.DEADLINE, Pressure(0.1, 5.0, True), "all run, ENOUGH_TIME: the deadline allows all"),
        (ThinningMode.DEADLINE, Pressure(None), "all run, ENOUGH_TIME: their time is not known yet"),
        (ThinningMode.DEADLINE, Pressure(0.1, 3.0, True), "30 of 50 run, DEADLINE: not enough time for all"),
        (ThinningMode.LOAD, Pressure(0.1, 5.0, True), "15 of 50 run, OVERLOADED: demand exceeds capacity"),
    ],
)
def test_it_says_which_steps_are_taken_and_why(mode: ThinningMode, pressure: Pressure, why: str) -> None:
    assert steps_taken(mode, OFFER, None, pressure) == f"{why}; 15 of 50 would be allowed"


def test_refused_thinning_says_its_reason() -> None:
    refused = steps_taken(ThinningMode.LOAD, WHOLE, BINDING, Pressure(None))

    assert refused == "all run, BINDING_STEPS: its number of steps is binding"
    assert told(CASE, "steps") == ["all run"]


def test_the_wait_is_that_of_the_pool() -> None:
    assert told(CASE, "wait") == [
        "3 requests wait for 2 places, 2 of them taken",
        "how fast they are done is not known yet",
    ]
    assert told(CASE | {"pool": Pool("light", credit_count=2, running_count=1)}, "wait") == [
        "none, 1 of 2 places are free"
    ]


def test_earned_reuse_has_sentence_per_kind() -> None:
    closed = ReuseQuality(False, 0.5, 1.0, 1.0, 0.9, "earned", earned=True, trial_count=40)
    opened = replace(closed, saved_share=0.4, similarity=0.95, trial_count=2)

    assert list(of_earned([replace(closed, earned=False)])) == []
    assert list(of_earned([closed])) == [
        "reuse of latents: earned by trials, 0 of 1 thresholds: nothing is allowed yet; 40 trials since"
    ]
    image = replace(closed, from_image=True, similarity=0.3, saved_share=0.6, trial_count=7)
    assert list(of_earned([closed, opened, image])) == [
        "reuse of latents: earned by trials, 1 of 2 thresholds: up to 40% of the steps from similarity 0.950 on; "
        "42 trials since",
        "reuse of images: earned by trials, 1 of 1 thresholds: up to 60% of the steps from similarity 0.300 on; "
        "7 trials since",
    ]
