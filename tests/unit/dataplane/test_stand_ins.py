"""A stage that stands in for one that would be too late: the heavy model alone, and the light one behind it."""

import pytest

from pentimento.dataplane import DataplaneSettings, effects, events
from pentimento.dataplane.effects import End
from pentimento.domain.fleet import CascadePlan, Plan, PoolPlan, RouteShare, StagePlan, StartThreshold
from pentimento.domain.generation import PlanVersion
from tests.unit.dataplane.driver import Driver, kinds, only

STAGES = ("heavy", "light")
HEAVY_S, LIGHT_S = 10.0, 1.0


def standing_in(*thresholds: StartThreshold, **settings: object) -> Driver:
    """One worker of each model. A heavy picture takes ten seconds, a light one a second."""
    driver = Driver(DataplaneSettings(prediction_margin=0.0, **settings))  # type: ignore[arg-type]
    driver.worker("hw", model="heavy", model_digest="dh")
    driver.worker("lw", model="light", model_digest="dl")
    driver.profile("heavy", (1, HEAVY_S))
    driver.profile("light", (1, LIGHT_S))
    pools = (
        PoolPlan("heavy", "heavy", ("hw",), (RouteShare("noise", 1.0, "c"),)),
        PoolPlan("light", "light", ("lw",)),
    )
    cascade = CascadePlan("c", (StagePlan("heavy", thresholds), StagePlan("light")))
    driver.send(events.PlanReceived(Plan(PlanVersion(1, 1), pools=pools, cascades=(cascade,))))
    return driver


def ask(driver: Driver, request_id: str, within_s: float) -> list[effects.Effect]:
    """Arrived, and accepted unless it was refused; in the queue of the heavy model unless that would be too late."""
    arrived = driver.arrive(request_id, driver.now + within_s, pool="heavy", cascade=STAGES, cascade_name="c")
    if effects.Reject in kinds(arrived):
        return arrived
    driver.send(events.AcceptPersisted(request_id))
    return driver.send(events.RouteResolved(request_id, "heavy", "dh", 1.0, cascade=STAGES, cascade_name="c"))


def busy(driver: Driver) -> None:
    """The heavy worker paints for the next ten seconds, and another request waits for it."""
    driver.start(ask(driver, "first", 100.0))
    ask(driver, "second", 100.0)


def light_of(driver: Driver, request_id: str) -> list[effects.Effect]:
    return driver.send(events.RouteResolved(request_id, "light", "dl", 1.0, cascade_stage=1))


def test_who_would_be_too_late_is_painted_by_the_model_that_stands_in() -> None:
    driver = standing_in()
    busy(driver)

    sent_on = only(effects.ResolveRoute, ask(driver, "late", 12.0))
    light = driver.start(light_of(driver, "late"))

    assert (sent_on.request_id, sent_on.cascade_stage) == ("late", 1)
    assert (light.worker_id, light.deadline) == ("lw", driver.now + 12.0)
    commit = only(effects.CommitResult, driver.send(events.AttemptFinished("late", light.fencing_token)))
    assert (commit.picture_token, commit.degraded) == (light.fencing_token, "PREDICTED_LATE")


def test_who_has_the_time_waits_for_the_model_that_was_planned() -> None:
    driver = standing_in()
    busy(driver)

    assert ask(driver, "patient", 31.0) == []
    assert driver.dataplane.state.pools["heavy"].waiting_count == 2


def test_nobody_s_picture_is_scored_where_the_next_stage_stands_in() -> None:
    driver = standing_in()
    token = driver.start(ask(driver, "r1", 100.0)).fencing_token

    commit = only(effects.CommitResult, driver.send(events.AttemptFinished("r1", token)))

    assert (commit.picture_token, commit.degraded) == (token, "")


def test_where_pictures_are_scored_the_next_stage_does_not_stand_in() -> None:
    driver = standing_in(StartThreshold("noise", 0.5))
    busy(driver)

    assert only(effects.Reject, ask(driver, "late", 12.0)).reason == "PREDICTED_LATE"


def test_nobody_stands_in_without_a_worker() -> None:
    driver = standing_in()
    driver.worker("lw", model="light", model_digest="dl", credit_count=0)
    busy(driver)

    assert only(effects.Reject, ask(driver, "late", 12.0)).reason == "PREDICTED_LATE"


def test_who_would_wait_too_long_there_as_well_is_refused() -> None:
    driver = standing_in()
    busy(driver)
    driver.start(driver.queue("light-1", digest="dl", pool="light"))
    for number in range(2, 5):
        driver.queue(f"light-{number}", digest="dl", pool="light")

    assert only(effects.Reject, ask(driver, "late", 2.5)).reason == "PREDICTED_LATE"
    assert effects.ResolveRoute in kinds(ask(driver, "later", 9.0))


def test_who_turns_out_to_be_late_there_as_well_is_dropped() -> None:
    driver = standing_in()
    busy(driver)
    ask(driver, "late", 4.0)
    for number in range(5):
        driver.queue(f"light-{number}", digest="dl", pool="light")

    dropped = only(effects.PersistEnd, light_of(driver, "late"))

    assert dropped.reason == "PREDICTED_LATE"


def test_when_its_turn_comes_too_late_the_light_model_stands_in() -> None:
    driver = standing_in()
    first = driver.start(ask(driver, "first", 100.0))
    ask(driver, "waiting", 25.0)
    driver.now += 16.0

    after = driver.send(events.AttemptFinished("first", first.fencing_token))
    after += driver.worker("hw", model="heavy", model_digest="dh")

    assert only(effects.ResolveRoute, after).request_id == "waiting"


def test_the_light_model_stands_in_for_those_who_were_accepted_so_under_later_plans_too() -> None:
    driver = standing_in()
    first = driver.start(ask(driver, "first", 100.0))
    ask(driver, "waiting", 25.0)
    pools = (PoolPlan("heavy", "heavy", ("hw",)), PoolPlan("light", "light", ("lw",), (RouteShare("noise", 1.0),)))
    driver.send(events.PlanReceived(Plan(PlanVersion(1, 2), pools=pools)))
    driver.now += 16.0

    after = driver.send(events.AttemptFinished("first", first.fencing_token))
    after += driver.worker("hw", model="heavy", model_digest="dh")

    assert only(effects.ResolveRoute, after).request_id == "waiting"


@pytest.mark.parametrize("drop_late", [True, False])
def test_where_nobody_is_dropped_nobody_stands_in(drop_late: bool) -> None:
    driver = standing_in(drop_late=drop_late)
    busy(driver)

    assert (effects.ResolveRoute in kinds(ask(driver, "late", 12.0))) is drop_late


def test_the_next_pool_is_not_taken_to_have_the_work_of_the_one_before() -> None:
    driver = standing_in()
    busy(driver)

    ask(driver, "late", 12.0)

    pools = driver.dataplane.state.pools
    assert (pools["light"].waiting_count, pools["light"].waiting_work) == (1, 0.0)
    assert (pools["heavy"].stood_in_count, pools["light"].arrived_count) == (1, 1)
    assert (pools["heavy"].scored_count, pools["heavy"].deferred_count) == (0, 0)


def test_a_request_ends_once_where_its_deadline_passes_while_it_is_sent_on() -> None:
    driver = standing_in()
    busy(driver)
    ask(driver, "late", 12.0)
    driver.now += 12.0

    ends = [one for one in driver.send(events.TimePassed()) if isinstance(one, effects.PersistEnd)]

    assert [(one.request_id, one.end) for one in ends] == [("late", End.EXPIRED)]
