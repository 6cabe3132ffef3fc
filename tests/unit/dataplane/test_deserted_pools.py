"""Requests leave a pool without planned workers: to a later stage that has some, or where the plan sends others now."""

from typing import Any

import pytest

from pentimento.dataplane import DataplaneSettings, effects, events
from pentimento.domain.fleet import CascadePlan, Plan, PoolPlan, StagePlan
from pentimento.domain.generation import PlanVersion
from tests.unit.dataplane.cascades import cascade_driver, generate_light, route_heavy
from tests.unit.dataplane.driver import Driver, only, play

QUEUED = "plan 1, queue r1 pool=light cascade=light+heavy"
MOVED = f"{QUEUED}, plan 2 light= heavy=hw"
# Planned for the heavy model only, not named by the client.
HEAVY = "plan 1 entry=heavy heavy=hw light=, queue r1 pool=heavy cascade=heavy planned=1"
LIGHT_NOW = "plan 2 entry=light heavy= light=lw"
SAME = "heavy= light=lw middle=mw"
ANEW = f"queue r1 pool=heavy cascade=heavy planned=1, plan 1 entry=light {SAME}"
REPEATED = f"{ANEW}, route r1 heavy 1 cascade=heavy+heavy, plan 2 entry=light {SAME}"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (MOVED, "r1 at 1"),
        (f"{MOVED}, worker hw model=heavy, route r1 heavy 1", "r1 to hw"),
        (f"{MOVED}, worker hw model=heavy, route r1 heavy 1, journal r1, finish r1", "CommitResult r1"),
        ("plan 1, plan 2 light= heavy=hw, queue r1 pool=light cascade=light+heavy", "r1 at 1"),
        # The next stage is deserted, too.
        (
            "plan 1, queue r1 pool=light cascade=light+middle+heavy, plan 2 light= middle= heavy=hw",
            "r1 at 2",
        ),
        # Its pool has a worker, no pool has one, or the plan does not name its pool.
        (f"{QUEUED}, plan 2 light=lw heavy=hw", ""),
        (f"{QUEUED}, plan 2 light= heavy=", ""),
        (f"{QUEUED}, plan 2 heavy=hw", ""),
        (f"{QUEUED}, plan 2", ""),
        # The client named the model.
        ("plan 1, queue r1 pool=light, plan 2 light= heavy=hw", ""),
        # A worker is still there until it is lost.
        (
            "plan 1, worker lw model=light, run r1 pool=light cascade=light+heavy,"
            " queue r2 pool=light cascade=light+heavy, plan 2 light= heavy=hw",
            "",
        ),
        (
            "plan 1, worker lw model=light, run r1 pool=light cascade=light+heavy,"
            " queue r2 pool=light cascade=light+heavy, plan 2 light= heavy=hw, lose lw",
            "StopAttempt r1, ReleaseGrant r1, r1 at 1, r2 at 1",
        ),
        # A request that the plan sent to its pool asks where the present plan sends requests.
        (f"{HEAVY}, {LIGHT_NOW}", "r1 at 1 anew"),
        (f"{HEAVY}, {LIGHT_NOW}, worker lw model=light, route r1 light 1 cascade=heavy+light", "r1 to lw"),
        (
            f"{HEAVY}, {LIGHT_NOW}, worker lw model=light, route r1 light 1 cascade=heavy+light, journal r1, finish r1",
            "CommitResult r1",
        ),
        (
            "worker hw model=heavy, plan 1 entry=heavy heavy=hw light=, run r1 pool=heavy cascade=heavy planned=1,"
            f" {LIGHT_NOW}, lose hw",
            "StopAttempt r1, ReleaseGrant r1, r1 at 1 anew",
        ),
        # A later stage with workers comes first.
        (
            "plan 1 entry=light light=lw heavy=hw middle=, queue r1 pool=light cascade=light+heavy planned=1,"
            " plan 2 entry=middle light= heavy=hw middle=mw",
            "r1 at 1",
        ),
        # It asks again only once requests go elsewhere.
        (ANEW, "r1 at 1 anew"),
        (REPEATED, ""),
        (f"{REPEATED}, plan 3 entry=middle {SAME}", "r1 at 2 anew"),
        # Else it waits: named by the client, no worker there, a worker here, or its pool not named.
        (f"{HEAVY.replace(' planned=1', '')}, {LIGHT_NOW}", ""),
        (f"{HEAVY}, plan 2 entry=heavy heavy= light=lw", ""),
        (f"{HEAVY}, plan 2 entry=light heavy=hw light=lw", ""),
        (f"{HEAVY}, plan 2 entry=light light=lw", ""),
    ],
)
def test_request_leaves_pool_without_planned_workers(driver: Driver, script: str, said: str) -> None:
    assert play(driver, script) == said


def test_left_pool_counts_it_as_stood_in(driver: Driver) -> None:
    play(driver, MOVED)

    light, heavy = driver.dataplane.state.pools["light"], driver.dataplane.state.pools["heavy"]
    assert (light.waiting_count, light.stood_in_count, heavy.arrived_count) == (0, 1, 1)


def test_fallback_image_stays_when_stage_is_passed_over() -> None:
    driver = Driver(DataplaneSettings(confidence_threshold=0.5))
    play(driver, "worker lw model=light, worker hw model=heavy, plan 1")
    play(driver, "run r1 pool=light cascade=light+middle+heavy, finish r1, score r1 0.1, route r1 middle 1")
    token = driver.dataplane.state.requests["r1"].fallback_token

    assert play(driver, "plan 2 light=lw middle= heavy=hw") == "r1 at 2"
    assert token == driver.dataplane.state.requests["r1"].fallback_token > 0


def test_image_of_stage_that_stands_in_is_labelled(driver: Driver) -> None:
    """The plan had the light model after the heavy one, for late requests."""
    cascade = CascadePlan("c", (StagePlan("heavy"), StagePlan("light")))
    for sequence, heavy in ((1, ("hw",)), (2, ())):
        pools = (PoolPlan("heavy", "heavy", heavy), PoolPlan("light", "light", ("lw",)))
        driver.send(events.PlanReceived(Plan(PlanVersion(1, sequence), pools=pools, cascades=(cascade,))))
        if sequence == 1:
            play(driver, "queue r1 pool=heavy cascade=heavy+light cascade_name=c")

    said = play(driver, "worker lw model=light, route r1 light 1, journal r1, finish r1")

    assert said == "CommitResult r1 PREDICTED_LATE"


def test_request_with_fallback_image_keeps_its_route() -> None:
    """The present plan only has the model that made the fallback image."""
    driver = cascade_driver()
    driver.send(events.WorkerLost("hw", 1))
    token = generate_light(driver, planned=True)
    driver.send(events.Scored("r1", token, 0.3))
    route_heavy(driver)

    assert play(driver, LIGHT_NOW) == ""
    driver.now = 1000.0
    assert only(effects.CommitResult, driver.send(events.TimePassed())).picture_token == token


def test_recovered_request_is_routed_again(driver: Driver) -> None:
    route: dict[str, Any] = {"route_pinned": True, "model_digest": "d", "planned": True}
    driver.send(events.Recovered((events.RecoveredRequest("r1", "t", "heavy", 1.0, 1000.0, **route),)))

    assert play(driver, LIGHT_NOW) == "r1 at 1 anew"
