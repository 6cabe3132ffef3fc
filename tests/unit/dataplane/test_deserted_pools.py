"""Who waits where the plan has no worker any more goes on to a later stage where it has some, or to where it sends
others now."""

from dataclasses import replace
from typing import Any

import pytest

from pentimento.dataplane import DataplaneSettings, effects, events
from pentimento.domain.fleet import CascadePlan, Plan, PoolPlan, StagePlan
from pentimento.domain.generation import PlanVersion
from pentimento.policies.plan.entry import EVERY_START
from tests.unit.dataplane.cascades import CASCADE, cascade_driver, paint_light, route_heavy
from tests.unit.dataplane.driver import Driver, only

THREE = ("light", "middle", "heavy")


def plan(sequence: int, *cascades: CascadePlan, **workers: tuple[str, ...]) -> events.PlanReceived:
    """The pools by name, each with its workers."""
    pools = tuple(PoolPlan(name, name, names) for name, names in workers.items())
    return events.PlanReceived(Plan(PlanVersion(1, sequence), pools=pools, cascades=cascades))


def nobody() -> Driver:
    """No worker, and a plan that says so."""
    driver = Driver()
    driver.send(plan(1))
    return driver


def wait(driver: Driver, request_id: str = "r1", cascade: tuple[str, ...] = CASCADE) -> list[effects.Effect]:
    """In the light pool, by the operator's own cascade."""
    return driver.queue(request_id, digest="dl", pool="light", cascade=cascade)


def heavy_returns(driver: Driver) -> list[effects.Effect]:
    return driver.send(plan(2, light=(), heavy=("hw",)))


def test_who_waits_for_the_light_model_is_painted_by_the_heavy_one_that_came_back() -> None:
    driver = nobody()
    wait(driver)

    sent_on = only(effects.ResolveRoute, heavy_returns(driver))
    driver.worker("hw", model="heavy", model_digest="dh")
    token = driver.start(route_heavy(driver)).fencing_token

    assert (sent_on.request_id, sent_on.cascade_stage) == ("r1", 1)
    commit = only(effects.CommitResult, driver.send(events.AttemptFinished("r1", token)))
    assert (commit.picture_token, commit.degraded) == (token, "")
    light, heavy = driver.dataplane.state.pools["light"], driver.dataplane.state.pools["heavy"]
    assert (light.waiting_count, light.stood_in_count, heavy.arrived_count) == (0, 1, 1)


def test_who_is_routed_to_a_deserted_pool_goes_on_at_once() -> None:
    driver = nobody()
    heavy_returns(driver)

    assert only(effects.ResolveRoute, wait(driver)).cascade_stage == 1


def test_a_stage_that_the_plan_has_no_worker_for_either_is_passed_over() -> None:
    driver = nobody()
    wait(driver, cascade=THREE)

    assert only(effects.ResolveRoute, driver.send(plan(2, light=(), middle=(), heavy=("hw",)))).cascade_stage == 2


@pytest.mark.parametrize(
    "pools", [{"light": ("lw",), "heavy": ("hw",)}, {"light": (), "heavy": ()}, {"heavy": ("hw",)}, {}]
)
def test_a_plan_that_says_otherwise_sends_nobody_on(pools: dict[str, tuple[str, ...]]) -> None:
    """Its pool has a worker, nobody has one, or the plan says nothing of it."""
    driver = nobody()
    wait(driver)

    assert driver.send(plan(2, **pools)) == []


def test_who_named_the_model_waits_for_it() -> None:
    driver = nobody()
    wait(driver, cascade=())

    assert heavy_returns(driver) == []


def test_a_worker_that_is_still_there_is_waited_for_until_it_is_lost() -> None:
    driver = nobody()
    driver.worker("lw", model="light", model_digest="dl")
    driver.start(wait(driver))
    wait(driver, "r2")

    assert heavy_returns(driver) == []
    lost = driver.send(events.WorkerLost("lw", 1))

    assert [one.request_id for one in lost if isinstance(one, effects.ResolveRoute)] == ["r1", "r2"]


def test_a_picture_to_fall_back_on_is_kept() -> None:
    driver = Driver(DataplaneSettings(confidence_threshold=0.5))
    for name, model, digest in (("lw", "light", "dl"), ("hw", "heavy", "dh")):
        driver.worker(name, model=model, model_digest=digest)
    driver.send(plan(1))
    token = driver.start(wait(driver, cascade=THREE)).fencing_token
    driver.send(events.AttemptFinished("r1", token))
    driver.send(events.Scored("r1", token, 0.1))
    driver.send(events.RouteResolved("r1", "middle", "dm", 1.0, cascade_stage=1))

    sent_on = only(effects.ResolveRoute, driver.send(plan(2, light=("lw",), middle=(), heavy=("hw",))))

    assert sent_on.cascade_stage == 2
    assert driver.dataplane.state.requests["r1"].fallback_token == token


def test_a_picture_of_what_stands_in_says_so() -> None:
    """The plan had the light model behind the heavy one, for those who would be too late."""
    driver = Driver()
    cascade = CascadePlan("c", (StagePlan("heavy"), StagePlan("light")))
    driver.send(plan(1, cascade, heavy=("hw",), light=("lw",)))
    driver.queue("r1", digest="dh", pool="heavy", cascade=("heavy", "light"), cascade_name="c")
    driver.send(plan(2, cascade, heavy=(), light=("lw",)))
    driver.worker("lw", model="light", model_digest="dl")
    routed = driver.send(events.RouteResolved("r1", "light", "dl", 1.0, cascade_stage=1))

    token = driver.start(routed).fencing_token

    commit = only(effects.CommitResult, driver.send(events.AttemptFinished("r1", token)))
    assert commit.degraded == "PREDICTED_LATE"


def entering(sequence: int, pool: str, **workers: tuple[str, ...]) -> events.PlanReceived:
    """A plan that sends whoever comes to that pool."""
    received = plan(sequence, **workers)
    routes = {pool: EVERY_START}
    pools = tuple(replace(one, routes=routes.get(one.pool, ())) for one in received.plan.pools)
    return events.PlanReceived(replace(received.plan, pools=pools))


def wait_for_heavy(driver: Driver, request_id: str = "r1", **arrival: Any) -> list[effects.Effect]:
    """Planned for the heavy model alone."""
    return driver.queue(request_id, digest="dh", pool="heavy", cascade=("heavy",), **{"planned": True, **arrival})


def route_light(driver: Driver, request_id: str = "r1") -> list[effects.Effect]:
    """As the front door answers who asks anew: behind the stages of before."""
    way: dict[str, Any] = {"cascade_stage": 1, "cascade": ("heavy", "light")}
    return driver.send(events.RouteResolved(request_id, "light", "dl", 1.0, **way))


def test_who_was_planned_for_one_model_goes_where_the_plan_of_now_sends_requests() -> None:
    driver = Driver()
    driver.send(entering(1, "heavy", heavy=("hw",), light=()))
    wait_for_heavy(driver)

    asked = driver.send(entering(2, "light", heavy=(), light=("lw",)))
    driver.worker("lw", model="light", model_digest="dl")
    token = driver.start(route_light(driver)).fencing_token

    assert asked == [effects.ResolveRoute("r1", 1, anew=True)]
    commit = only(effects.CommitResult, driver.send(events.AttemptFinished("r1", token)))
    assert (commit.picture_token, commit.degraded) == (token, "")
    assert driver.dataplane.state.pools["heavy"].waiting_count == 0


def test_who_was_lost_with_the_last_worker_of_its_model_is_asked_for_anew_too() -> None:
    driver = Driver()
    driver.worker("hw", model="heavy", model_digest="dh")
    driver.send(entering(1, "heavy", heavy=("hw",), light=()))
    driver.start(wait_for_heavy(driver))
    driver.send(entering(2, "light", heavy=(), light=("lw",)))

    assert only(effects.ResolveRoute, driver.send(events.WorkerLost("hw", 1))).anew


def test_a_later_stage_that_has_workers_comes_before_another_way() -> None:
    driver = Driver()
    driver.send(entering(1, "light", light=("lw",), heavy=("hw",), middle=()))
    driver.queue("r1", digest="dl", pool="light", cascade=CASCADE, planned=True)

    sent_on = driver.send(entering(2, "middle", light=(), heavy=("hw",), middle=("mw",)))

    assert sent_on == [effects.ResolveRoute("r1", 1)]


def test_it_is_asked_anew_again_where_requests_go_elsewhere_by_then_and_not_for_every_plan() -> None:
    driver = Driver()
    wait_for_heavy(driver)
    staffed = {"heavy": (), "light": ("lw",), "middle": ("mw",)}

    answers = [driver.send(entering(1, "light", **staffed))]
    # Nothing there can paint it: it waits where it was.
    driver.send(events.RouteResolved("r1", "heavy", "dh", 1.0, cascade_stage=1, cascade=("heavy", "heavy")))
    answers += [driver.send(entering(2, "light", **staffed)), driver.send(entering(3, "middle", **staffed))]

    first, second = effects.ResolveRoute("r1", 1, anew=True), effects.ResolveRoute("r1", 2, anew=True)
    assert answers == [[first], [], [second]]


@pytest.mark.parametrize(
    ("planned", "plan_of_now"),
    [
        (False, entering(2, "light", heavy=(), light=("lw",))),
        (True, entering(2, "heavy", heavy=(), light=("lw",))),
        (True, entering(2, "light", heavy=("hw",), light=("lw",))),
        (True, entering(2, "light", light=("lw",))),
    ],
    ids=["by its own wish", "nobody is where requests go", "its pool has a worker", "nothing is said of its pool"],
)
def test_else_it_waits(planned: bool, plan_of_now: events.PlanReceived) -> None:
    driver = Driver()
    driver.send(entering(1, "heavy", heavy=("hw",), light=()))
    wait_for_heavy(driver, planned=planned)

    assert driver.send(plan_of_now) == []


def test_who_has_a_picture_to_fall_back_on_waits_for_a_better_one() -> None:
    """What the plan of now has is the model that painted it."""
    driver = cascade_driver()
    driver.send(events.WorkerLost("hw", 1))
    token = paint_light(driver, planned=True)
    driver.send(events.Scored("r1", token, 0.3))
    route_heavy(driver)

    assert driver.send(entering(2, "light", heavy=(), light=("lw",))) == []
    driver.now = 1000.0
    assert only(effects.CommitResult, driver.send(events.TimePassed())).picture_token == token


def test_what_a_frontdoor_before_left_waiting_is_asked_for_anew() -> None:
    driver = Driver()
    routed = events.RecoveredRequest(
        "r1", "tenant", "heavy", 1.0, 1000.0, route_pinned=True, model_digest="dh", planned=True
    )
    driver.send(events.Recovered((routed,)))

    assert only(effects.ResolveRoute, driver.send(entering(1, "light", heavy=(), light=("lw",)))).anew
