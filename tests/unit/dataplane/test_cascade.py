import math

import pytest

from pentimento.dataplane import DataplaneSettings, effects, events
from pentimento.dataplane.effects import End
from pentimento.dataplane.events import FailureKind, RouteOption
from pentimento.domain.fleet import Plan, PoolPlan, RouteShare
from pentimento.domain.generation import PlanVersion
from tests.unit.dataplane.cascades import CASCADE, cascade_driver, defer, paint_light, planned, route_heavy
from tests.unit.dataplane.driver import Driver, kinds, only

OF_SETTINGS = {"confidence_threshold": 0.5}
EVERYTHING_HEAVY = Plan(PlanVersion(1, 2), pools=(PoolPlan("heavy", "heavy", ("hw",), (RouteShare("noise", 1.0),)),))
LIGHT_ALONE = Plan(PlanVersion(1, 1), pools=(PoolPlan("light", "light", ("lw",), (RouteShare("noise", 1.0),)),))
ACCEPTED, UNSCORED, DEFERRED = "accepted", "accepted as UNSCORED", "deferred"
NO_SCORES = (None, math.nan, math.inf, -0.001, 1.001)


def outcome(effect_list: list[effects.Effect]) -> str:
    if effects.CommitResult in kinds(effect_list):
        degraded = only(effects.CommitResult, effect_list).degraded
        return f"accepted as {degraded}" if degraded else "accepted"
    assert only(effects.ResolveRoute, effect_list).cascade_stage == 1
    return "deferred"


@pytest.mark.parametrize(
    ("settings", "plan", "confidence", "expected"),
    [
        pytest.param({}, None, 0.71, ACCEPTED, id="above the plan's threshold"),
        pytest.param({}, None, 0.7, DEFERRED, id="the threshold itself"),
        *[pytest.param({"accept_unscored": True}, None, no_score, UNSCORED) for no_score in NO_SCORES],
        *[pytest.param({"accept_unscored": False}, None, no_score, DEFERRED) for no_score in NO_SCORES],
        pytest.param({}, planned(2, noise=0.2), 0.3, ACCEPTED, id="a plan that came since"),
        pytest.param({}, EVERYTHING_HEAVY, 0.1, ACCEPTED, id="a plan without the cascade"),
    ],
)
def test_score_plans_threshold_accepts_or_defers(
    settings: dict[str, object], plan: Plan | None, confidence: float | None, expected: str
) -> None:
    driver = cascade_driver(**settings)
    token = paint_light(driver)
    if plan is not None:
        driver.send(events.PlanReceived(plan))

    assert outcome(driver.send(events.Scored("r1", token, confidence))) == expected


@pytest.mark.parametrize(
    ("plan", "confidence", "expected"), [(None, 0.4, DEFERRED), (LIGHT_ALONE, 0.1, ACCEPTED)], ids=["none", "0"]
)
def test_score_settings_threshold_counts_without_plan(plan: Plan | None, confidence: float, expected: str) -> None:
    """A plan that routes requests has its own threshold, 0 where it names none."""
    driver = Driver(DataplaneSettings(**OF_SETTINGS))
    driver.worker("lw", model="light", model_digest="dl")
    token = paint_light(driver)
    if plan is not None:
        driver.send(events.PlanReceived(plan))

    assert outcome(driver.send(events.Scored("r1", token, confidence))) == expected


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
        driver.worker("lw", model="light", model_digest="dl")
    token = driver.start(driver.queue(digest="dl", pool="light", cascade=CASCADE, start=start, **way)).fencing_token

    finished = driver.send(events.AttemptFinished("r1", token))

    assert [kind for kind in kinds(finished) if kind in (effects.Score, effects.CommitResult)] == [answered]
    if planned_for and start == "latent":
        assert outcome(driver.send(events.Scored("r1", token, 0.5))) == ACCEPTED


def test_accepted_image_is_delivered_and_cached() -> None:
    driver = cascade_driver()
    token = paint_light(driver)

    commit = only(effects.CommitResult, driver.send(events.Scored("r1", token, 0.71)))

    assert commit.picture_token == token
    last = driver.send(events.ResultCommitted("r1", token, True))
    assert kinds(last) == [effects.Deliver, effects.CommitCacheEntries]


def test_a_deferred_request_is_painted_by_the_next_pool_with_its_deadline() -> None:
    driver = cascade_driver()
    token = defer(driver, deadline=500.0)

    heavy = driver.start(route_heavy(driver))

    assert (heavy.worker_id, heavy.deadline) == ("hw", 500.0)
    commit = only(effects.CommitResult, driver.send(events.AttemptFinished("r1", heavy.fencing_token)))
    assert (commit.picture_token, commit.degraded) == (heavy.fencing_token, "")
    assert heavy.fencing_token > token


def test_shares_of_deferred_requests_are_counted() -> None:
    driver = cascade_driver()
    defer(driver, "r1")
    token = paint_light(driver, "r2")
    driver.send(events.Scored("r2", token, 0.9))

    pools = driver.dataplane.state.pools
    assert (pools["light"].scored_count, pools["light"].deferred_count) == (2, 1)
    assert pools["heavy"].arrived_count == 1


def test_the_light_picture_is_delivered_shortly_before_the_deadline() -> None:
    driver = cascade_driver()
    token = defer(driver, deadline=200.0)
    heavy = driver.start(route_heavy(driver))
    assert driver.dataplane.next_wakeup() == 199.9
    driver.now = 199.9

    after = driver.send(events.TimePassed())

    assert kinds(after) == [effects.StopAttempt, effects.CommitResult]
    commit = only(effects.CommitResult, after)
    assert (commit.fencing_token, commit.picture_token) == (heavy.fencing_token, token)
    assert commit.degraded == "DEADLINE_EXCEEDED"


def test_a_deferred_request_does_not_wait_for_itself() -> None:
    """Alone before an idle worker it is tried, although a full batch there would be late: how else would the worker's
    slowdown be measured again?"""
    driver = cascade_driver()
    driver.worker("hw", model="heavy", model_digest="dh", credit_count=4)
    driver.profile("heavy", (1, 10.0), (4, 30.0))
    defer(driver, deadline=driver.now + 20.0)

    assert only(effects.PersistAttempt, route_heavy(driver)).worker_id == "hw"


def test_a_picture_that_was_passed_over_never_enters_the_cache() -> None:
    driver = cascade_driver()
    token = defer(driver, deadline=200.0)
    driver.now = 199.95
    commit = only(effects.CommitResult, driver.send(events.TimePassed()))

    last = driver.send(events.ResultCommitted("r1", commit.fencing_token, True))

    assert last == [effects.Deliver("r1", token, token)]


def test_a_light_picture_nobody_has_scored_yet_is_better_than_none_at_the_deadline() -> None:
    driver = cascade_driver()
    token = paint_light(driver, deadline=200.0)
    driver.now = 199.95

    commit = only(effects.CommitResult, driver.send(events.TimePassed()))

    assert (commit.picture_token, commit.degraded) == (token, "UNSCORED")
    assert driver.send(events.Scored("r1", token, 0.1)) == []


def test_a_fallback_waits_for_the_journal_that_writes_the_heavy_attempt() -> None:
    """The newest token is on its way into the journal: nothing can be committed under an older or unknown one."""
    driver = cascade_driver()
    token = defer(driver, deadline=200.0)
    heavy = only(effects.PersistAttempt, route_heavy(driver)).fencing_token
    driver.now = 199.95
    assert driver.send(events.TimePassed()) == []

    after = driver.send(events.AttemptPersisted("r1", heavy))

    assert kinds(after) == [effects.ReleaseGrant, effects.CommitResult]
    commit = only(effects.CommitResult, after)
    assert (commit.fencing_token, commit.picture_token) == (heavy, token)
    assert not driver.dataplane.state.workers["hw"].in_flight


def test_a_deferral_that_cannot_make_it_keeps_the_light_picture() -> None:
    driver = cascade_driver()
    driver.profile("heavy", (1, 60.0))
    for number in range(2):
        driver.queue(f"other-{number}", digest="dh", pool="heavy")
    token = defer(driver, deadline=driver.now + 90.0)

    commit = only(effects.CommitResult, route_heavy(driver))

    assert (commit.picture_token, commit.degraded) == (token, "PREDICTED_LATE")


def test_without_a_fallback_a_deferred_request_expires() -> None:
    driver = cascade_driver(fall_back=False)
    defer(driver, deadline=200.0)
    driver.now = 200.0

    assert only(effects.PersistEnd, driver.send(events.TimePassed())).end is End.EXPIRED


def test_a_cancel_while_it_is_scored_gives_the_grant_back() -> None:
    driver = cascade_driver()
    token = paint_light(driver)

    cancelled = driver.send(events.CancelRequested("r1"))

    assert kinds(cancelled) == [effects.ReleaseGrant, effects.PersistEnd]
    assert driver.send(events.Scored("r1", token, 0.9)) == []


def test_the_route_of_an_earlier_stage_does_not_come_true_twice() -> None:
    driver = cascade_driver()
    defer(driver)

    assert driver.send(events.RouteResolved("r1", "light", "dl", 1.0, cascade_stage=0)) == []


def test_the_score_of_an_earlier_stage_says_nothing_of_a_later_one() -> None:
    driver = Driver(DataplaneSettings(confidence_threshold=0.5))
    driver.worker("lw", model="light", model_digest="dl")
    driver.worker("hw", model="heavy", model_digest="dh")
    queued = driver.queue("r1", digest="dl", pool="light", cascade=("light", "heavy", "heaviest"))
    light = driver.start(queued).fencing_token
    driver.send(events.AttemptFinished("r1", light))
    driver.send(events.Scored("r1", light, 0.3))
    heavy = driver.start(route_heavy(driver)).fencing_token
    driver.send(events.AttemptFinished("r1", heavy))

    assert driver.send(events.Scored("r1", light, 0.9)) == []
    assert only(effects.CommitResult, driver.send(events.Scored("r1", heavy, 0.9))).picture_token == heavy


def test_a_start_that_is_known_only_when_routed_may_change_the_stages() -> None:
    """A hit that a small model refines for good, of a request that came in by the cascade."""
    driver = cascade_driver()
    driver.arrive("r1", 1000.0, pool="light", cascade=CASCADE)
    driver.send(events.AcceptPersisted("r1"))
    routed = events.RouteResolved("r1", "heavy", "dh", 1.0, start="image", cascade=("heavy",))
    token = driver.start(driver.send(routed)).fencing_token

    assert effects.CommitResult in kinds(driver.send(events.AttemptFinished("r1", token)))


def test_a_plan_that_names_a_cascade_it_does_not_have_is_refused() -> None:
    driver = cascade_driver()
    bad = PoolPlan("light", "light", ("lw",), (RouteShare("noise", 1.0, "other"),))
    driver.send(events.PlanReceived(Plan(PlanVersion(1, 2), pools=(bad,))))

    assert driver.dataplane.state.counters.refused_plans == 1
    assert driver.dataplane.state.plan == planned(noise=0.7)


def test_a_stage_after_one_that_a_spare_lane_painted_begins_with_its_own_first_choice() -> None:
    driver = cascade_driver()
    driver.worker("big", model="big", model_digest="db")
    driver.worker("lw", model="light", model_digest="dl", draining=True)
    spare = (RouteOption("big", "db", 3.0),)
    queued = driver.queue("r1", digest="dl", pool="light", cascade=CASCADE, cascade_name="c", spare=spare)
    assert only(effects.PersistAttempt, queued).option == 1
    token = driver.start(queued).fencing_token
    driver.send(events.AttemptFinished("r1", token))
    driver.send(events.PlanReceived(planned(2, noise=0.7)))
    driver.send(events.Scored("r1", token, 0.3))

    assert only(effects.PersistAttempt, route_heavy(driver)).option == 0


def test_a_picture_that_waits_for_its_score_until_its_deadline_makes_no_worker_slower() -> None:
    driver = cascade_driver()
    driver.profile("light", (1, 1.0))
    paint_light(driver, deadline=200.0)
    before = driver.dataplane.state.pools["light"].speed.slowdown
    driver.now = 200.0

    driver.send(events.TimePassed())

    assert driver.dataplane.state.pools["light"].speed.slowdown == before


def test_where_nothing_is_fallen_back_to_a_score_may_come_until_the_deadline() -> None:
    driver = cascade_driver(fall_back=False)
    token = paint_light(driver, deadline=200.0)

    driver.now = 199.95

    assert driver.send(events.TimePassed()) == []
    assert effects.CommitResult in kinds(driver.send(events.Scored("r1", token, 0.9)))


@pytest.mark.parametrize(("reason", "degraded"), [(("NAN_IN_LATENT",), "NAN_IN_LATENT"), ((), "FAILED")])
def test_heavy_attempt_that_fails_falls_back(reason: tuple[str, ...], degraded: str) -> None:
    driver = cascade_driver()
    token = defer(driver)
    heavy = driver.start(route_heavy(driver)).fencing_token

    commit = only(effects.CommitResult, driver.send(events.AttemptFailed("r1", heavy, FailureKind.FATAL, *reason)))

    assert (commit.fencing_token, commit.picture_token, commit.degraded) == (heavy, token, degraded)


def test_recovered_second_stage_runs_again_or_is_attached() -> None:
    values = ("r1", "t", "heavy", 1.0, 1000.0, True, "dh", 2, 9)
    driver = cascade_driver()
    heavy = driver.start(
        driver.send(events.Recovered((events.RecoveredRequest(*values, cascade=CASCADE, cascade_stage=1),)))
    )
    assert (heavy.worker_id, heavy.attempt_number) == ("hw", 3)
    assert effects.CommitResult in kinds(driver.send(events.AttemptFinished("r1", heavy.fencing_token)))

    running = events.RecoveredRequest(*values, "hw", cascade=CASCADE, cascade_stage=1)
    attached = only(effects.Attach, cascade_driver().send(events.Recovered((running,))))
    assert (attached.worker_id, attached.fencing_token, attached.cascade_stage) == ("hw", 9, 1)
