"""Images of a light stage are scored, and accepted or deferred to the next stage."""

import math
from typing import Any

import pytest

from pentimento.dataplane import DataplaneSettings, effects, events
from pentimento.dataplane.events import FailureKind
from pentimento.domain.fleet import Plan, PoolPlan, RouteShare
from pentimento.domain.generation import PlanVersion
from tests.unit.dataplane.cascades import CASCADE, cascade_driver, defer, generate_light, planned, route_heavy
from tests.unit.dataplane.driver import Driver, kinds, only, play

OF_SETTINGS = {"confidence_threshold": 0.5}
EVERYTHING_HEAVY = Plan(PlanVersion(1, 2), pools=(PoolPlan("heavy", "heavy", ("hw",), (RouteShare("noise", 1.0),)),))
LIGHT_ONLY = Plan(PlanVersion(1, 1), pools=(PoolPlan("light", "light", ("lw",), (RouteShare("noise", 1.0),)),))
NO_SCORES = (None, math.nan, math.inf, -0.001, 1.001)
ACCEPTED, UNSCORED, DEFERRED = "CommitResult r1", "CommitResult r1 UNSCORED", "ReleaseGrant r1, r1 at 1"
RUN = "run r1 pool=light cascade=light+heavy cascade_name=c within=100"
SCORED = f"{RUN}, finish r1"
DEFER = f"{SCORED}, score r1 0.3"
HEAVY = f"{DEFER}, route r1 heavy 1, journal r1"


def said(effect_list: list[effects.Effect]) -> str:
    if effects.CommitResult in kinds(effect_list):
        return f"CommitResult r1 {only(effects.CommitResult, effect_list).degraded}".strip()
    assert only(effects.ResolveRoute, effect_list).cascade_stage == 1
    return DEFERRED


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (SCORED, "Score r1"),
        # The threshold itself defers.
        (f"{SCORED}, score r1 0.71", ACCEPTED),
        (f"{SCORED}, score r1 0.7", DEFERRED),
        (f"{SCORED}, score r1 0.71, commit r1", "Deliver r1, CommitCacheEntries r1"),
        (f"{HEAVY}, finish r1", ACCEPTED),
        # The light image is the fallback, and then enters no cache.
        (f"{HEAVY}, wait 99.8", ""),
        (f"{HEAVY}, wait 99.9", "StopAttempt r1, CommitResult r1 DEADLINE_EXCEEDED"),
        (f"{DEFER}, wait 99.9, commit r1", "Deliver r1"),
        (f"{HEAVY}, fail r1 FATAL", "ReleaseGrant r1, CommitResult r1 FAILED"),
        (f"{SCORED}, wait 99.9", UNSCORED),
        (f"{SCORED}, wait 99.9, score r1 0.1", ""),
        # It waits for the journal, which writes the heavy attempt under a newer token.
        (f"{DEFER}, route r1 heavy 1, wait 99.9", ""),
        (f"{DEFER}, route r1 heavy 1, wait 99.9, journal r1", "ReleaseGrant r1, CommitResult r1 DEADLINE_EXCEEDED"),
        (f"{SCORED}, cancel r1", "ReleaseGrant r1, PersistEnd r1"),
        (f"{SCORED}, cancel r1, score r1 0.9", ""),
        # An earlier stage's route counts once.
        (f"{DEFER}, route r1 light 0", ""),
    ],
)
def test_light_image_is_scored_and_accepted_or_deferred(script: str, expected: str) -> None:
    assert play(cascade_driver(), script) == expected


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (f"{DEFER}, wait 100", "PersistEnd r1"),
        (f"{SCORED}, wait 99.95", ""),
        (f"{SCORED}, wait 99.95, score r1 0.9", ACCEPTED),
    ],
)
def test_without_fall_back_deferred_request_expires(script: str, expected: str) -> None:
    assert play(cascade_driver(fall_back=False), script) == expected


@pytest.mark.parametrize(
    ("settings", "plan", "confidence", "expected"),
    [
        *[({"accept_unscored": True}, None, no_score, UNSCORED) for no_score in NO_SCORES],
        *[({"accept_unscored": False}, None, no_score, DEFERRED) for no_score in NO_SCORES],
        ({}, planned(2, noise=0.2), 0.3, ACCEPTED),
        ({}, EVERYTHING_HEAVY, 0.1, ACCEPTED),
    ],
)
def test_missing_score_and_newer_plan_decide(
    settings: dict[str, object], plan: Plan | None, confidence: float | None, expected: str
) -> None:
    driver = cascade_driver(**settings)
    token = generate_light(driver)
    if plan is not None:
        driver.send(events.PlanReceived(plan))

    assert said(driver.send(events.Scored("r1", token, confidence))) == expected


@pytest.mark.parametrize(("plan", "confidence", "expected"), [(None, 0.4, DEFERRED), (LIGHT_ONLY, 0.1, ACCEPTED)])
def test_settings_threshold_counts_without_plan(plan: Plan | None, confidence: float, expected: str) -> None:
    """A plan that routes requests has its own threshold, 0 where it names none."""
    driver = Driver(DataplaneSettings(**OF_SETTINGS))
    driver.worker("lw", model="light")
    token = generate_light(driver)
    if plan is not None:
        driver.send(events.PlanReceived(plan))

    assert said(driver.send(events.Scored("r1", token, confidence))) == expected


@pytest.mark.parametrize(
    ("planned_for", "start", "answered"),
    [
        ({}, "latent", effects.Score),
        ({}, "image", effects.CommitResult),
        ({"noise": 0.7, "latent": 0.4}, "noise", effects.Score),
        ({"noise": 0.7, "latent": 0.4}, "latent", effects.Score),
        ({"noise": 0.7, "latent": 0.4}, "image", effects.CommitResult),
    ],
)
def test_finished_image_is_scored_by_its_starts_threshold(
    planned_for: dict[str, float], start: str, answered: type[effects.Effect]
) -> None:
    driver = cascade_driver() if planned_for else Driver(DataplaneSettings(**OF_SETTINGS))
    way: dict[str, str] = {}
    if planned_for:
        driver.send(events.PlanReceived(planned(2, **planned_for)))
        way["cascade_name"] = "c"
    else:
        driver.worker("lw", model="light")
    token = driver.start(driver.queue(pool="light", cascade=CASCADE, start=start, **way)).fencing_token

    finished = driver.send(events.AttemptFinished("r1", token))

    assert [kind for kind in kinds(finished) if kind in (effects.Score, effects.CommitResult)] == [answered]
    if planned_for and start == "latent":
        assert said(driver.send(events.Scored("r1", token, 0.5))) == ACCEPTED


def test_deferred_request_keeps_deadline_and_commits_heavy_image() -> None:
    driver = cascade_driver()
    token = defer(driver, deadline=500.0)

    heavy = driver.start(route_heavy(driver))

    assert (heavy.worker_id, heavy.deadline, heavy.fencing_token > token) == ("hw", 500.0, True)
    commit = only(effects.CommitResult, driver.send(events.AttemptFinished("r1", heavy.fencing_token)))
    assert (commit.picture_token, commit.degraded) == (heavy.fencing_token, "")


@pytest.mark.parametrize(("reason", "degraded"), [(("NAN_IN_LATENT",), "NAN_IN_LATENT"), ((), "FAILED")])
def test_failed_heavy_attempt_falls_back_to_light_image(reason: tuple[str, ...], degraded: str) -> None:
    driver = cascade_driver()
    token = defer(driver)
    heavy = driver.start(route_heavy(driver)).fencing_token

    commit = only(effects.CommitResult, driver.send(events.AttemptFailed("r1", heavy, FailureKind.FATAL, *reason)))
    last = driver.send(events.ResultCommitted("r1", commit.fencing_token, True))

    assert (commit.fencing_token, commit.picture_token, commit.degraded) == (heavy, token, degraded)
    assert last == [effects.Deliver("r1", heavy, token)]


def test_scores_and_deferrals_are_counted() -> None:
    driver = cascade_driver()
    defer(driver, "r1")
    token = generate_light(driver, "r2")
    driver.send(events.Scored("r2", token, 0.9))

    pools = driver.dataplane.state.pools
    assert (pools["light"].scored_count, pools["light"].deferred_count) == (2, 1)
    assert pools["heavy"].arrived_count == 1


def test_deferred_request_alone_before_idle_worker_is_tried() -> None:
    """A full batch would be late, but the worker's slowdown would never be measured again."""
    driver = cascade_driver()
    driver.worker("hw", model="heavy", credit_count=4)
    driver.profile("heavy", (1, 10.0), (4, 30.0))
    defer(driver, deadline=driver.now + 20.0)

    assert only(effects.PersistAttempt, route_heavy(driver)).worker_id == "hw"


def test_deferral_that_would_be_late_keeps_light_image() -> None:
    driver = cascade_driver()
    driver.profile("heavy", (1, 60.0))
    play(driver, "queue r2 pool=heavy, queue r3 pool=heavy")
    token = defer(driver, deadline=driver.now + 90.0)

    commit = only(effects.CommitResult, route_heavy(driver))

    assert (commit.picture_token, commit.degraded) == (token, "PREDICTED_LATE")


def test_score_of_earlier_stage_is_ignored_in_a_later_one() -> None:
    driver = Driver(DataplaneSettings(**OF_SETTINGS))
    play(driver, "worker lw model=light, worker hw model=heavy, run r1 pool=light cascade=light+heavy+heaviest")
    light = driver.dataplane.state.requests["r1"].fencing_token
    play(driver, "finish r1, score r1 0.3, route r1 heavy 1, journal r1, finish r1")

    assert driver.send(events.Scored("r1", light, 0.9)) == []
    assert play(driver, "score r1 0.9") == ACCEPTED


def test_route_may_change_the_stages() -> None:
    """A hit that a small model refines, of a request that arrived for the cascade."""
    driver = cascade_driver()
    driver.arrive("r1", 1000.0, pool="light", cascade=CASCADE)
    driver.send(events.AcceptPersisted("r1"))
    routed = events.RouteResolved("r1", "heavy", "d", 1.0, start="image", cascade=("heavy",))
    token = driver.start(driver.send(routed)).fencing_token

    assert effects.CommitResult in kinds(driver.send(events.AttemptFinished("r1", token)))


def test_plan_with_unknown_cascade_is_rejected() -> None:
    driver = cascade_driver()
    bad = PoolPlan("light", "light", ("lw",), (RouteShare("noise", 1.0, "other"),))
    driver.send(events.PlanReceived(Plan(PlanVersion(1, 2), pools=(bad,))))

    assert driver.dataplane.state.counters.refused_plans == 1
    assert driver.dataplane.state.plan == planned(noise=0.7)


def test_stage_after_a_spare_lane_begins_with_its_own_lane() -> None:
    driver = cascade_driver()
    play(driver, "worker big model=big, worker lw model=light draining")
    queued = "queue r1 pool=light cascade=light+heavy cascade_name=c spare=big"
    assert (play(driver, queued), driver.dataplane.state.requests["r1"].option) == ("r1 to big", 1)
    play(driver, "journal r1, finish r1")
    driver.send(events.PlanReceived(planned(2, noise=0.7)))
    play(driver, "score r1 0.3")

    assert only(effects.PersistAttempt, route_heavy(driver)).option == 0


def test_time_waiting_for_a_score_is_not_the_workers() -> None:
    driver = cascade_driver()
    driver.profile("light", (1, 1.0))
    play(driver, SCORED)
    before = driver.dataplane.state.pools["light"].speed.slowdown

    play(driver, "wait 100")

    assert driver.dataplane.state.pools["light"].speed.slowdown == before


def test_recovered_second_stage_runs_again_or_is_attached() -> None:
    values: dict[str, Any] = {"route_pinned": True, "model_digest": "d", "attempt_number": 2, "fencing_token": 9}
    stage: dict[str, Any] = {**values, "cascade": CASCADE, "cascade_stage": 1}
    driver = cascade_driver()
    waiting = events.RecoveredRequest("r1", "t", "heavy", 1.0, 1000.0, **stage)
    heavy = driver.start(driver.send(events.Recovered((waiting,))))
    assert (heavy.worker_id, heavy.attempt_number) == ("hw", 3)
    assert effects.CommitResult in kinds(driver.send(events.AttemptFinished("r1", heavy.fencing_token)))

    running = events.RecoveredRequest("r1", "t", "heavy", 1.0, 1000.0, worker_id="hw", **stage)
    attached = only(effects.Attach, cascade_driver().send(events.Recovered((running,))))
    assert (attached.worker_id, attached.fencing_token, attached.cascade_stage) == ("hw", 9, 1)
