"""Who waits where the plan has no worker any more goes on to a later stage where it has some."""

import pytest

from pentimento.dataplane import DataplaneSettings, effects, events
from pentimento.domain.fleet import CascadePlan, Plan, PoolPlan, StagePlan
from pentimento.domain.generation import PlanVersion
from tests.unit.dataplane.cascades import CASCADE, route_heavy
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
