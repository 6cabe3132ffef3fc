import pytest

from pentimento.dataplane import DataplaneSettings, effects, events
from pentimento.dataplane.predictions import predicted_wait_s
from pentimento.domain.fleet import Plan, WorkerAssignment
from pentimento.domain.generation import PlanVersion
from tests.unit.dataplane.driver import Driver, kinds, only


def test_an_arrival_is_journalled_before_it_is_announced(driver: Driver) -> None:
    assert kinds(driver.arrive()) == [effects.PersistAccepted, effects.PrepareRoute]

    assert kinds(driver.send(events.AcceptPersisted("r1"))) == [effects.Announce, effects.ResolveRoute]


def test_a_repeated_arrival_does_nothing(driver: Driver) -> None:
    driver.arrive()

    assert driver.arrive() == []


@pytest.mark.parametrize(
    ("queue_limit", "pools", "rejected"), [(0, "m", ["r0"]), (2, "mmm", ["r2"]), (1, ("m", "other", "m"), ["r2"])]
)
def test_full_queue_of_pool_rejects_without_a_trace(queue_limit: int, pools: list[str], rejected: list[str]) -> None:
    driver = Driver(DataplaneSettings(queue_limit=queue_limit))

    told = [one for number, pool in enumerate(pools) for one in driver.arrive(f"r{number}", pool=pool)]

    rejects = [effect for effect in told if isinstance(effect, effects.Reject)]
    assert [(one.request_id, one.reason, one.retry_after_ms > 0) for one in rejects] == [
        (name, "QUEUE_FULL", True) for name in rejected
    ]
    assert f"{queue_limit} of {queue_limit} requests wait" in rejects[0].message
    assert not driver.dataplane.state.requests.keys() & set(rejected)
    assert (driver.dataplane.next_wakeup() is None) is (queue_limit == 0)


def test_the_time_to_come_back_is_predicted_from_the_load() -> None:
    """One attempt took 4 s and 6 wait for one worker: 24 s of work, and half of it must be gone."""
    driver = Driver(DataplaneSettings(queue_limit=6))
    driver.worker()
    run = driver.run("first")
    driver.now += 4.0
    driver.send(events.AttemptFinished("first", run.fencing_token))
    driver.run("second")
    for number in range(6):
        driver.queue(f"r{number}")

    reject = only(effects.Reject, driver.arrive("one more"))

    assert reject.retry_after_ms == pytest.approx(12_000)
    assert predicted_wait_s(driver.dataplane.state, "m") == pytest.approx(24.0)


def test_the_route_may_move_a_request_to_another_pool(driver: Driver) -> None:
    driver.arrive(pool="m")
    driver.send(events.AcceptPersisted("r1"))

    driver.send(events.RouteResolved("r1", "m-hit", "d", 0.5))

    pools = driver.dataplane.state.pools
    assert (pools["m"].waiting_count, pools["m-hit"].waiting_count) == (0, 1)


def test_draining_takes_nothing_new_and_ends_when_the_last_request_has(driver: Driver) -> None:
    driver.worker()
    run = driver.run()
    assert driver.send(events.DrainRequested()) == []
    assert only(effects.Reject, driver.arrive("r2")).reason == "DRAINING"

    driver.send(events.AttemptFinished("r1", run.fencing_token))
    last = driver.send(events.ResultCommitted("r1", run.fencing_token, True))

    assert kinds(last) == [effects.Deliver, effects.CommitCacheEntries, effects.Drained]


def test_draining_an_idle_dataplane_ends_at_once(driver: Driver) -> None:
    assert driver.send(events.DrainRequested()) == [effects.Drained()]


def test_the_plan_admits_its_share_evenly() -> None:
    driver = Driver(DataplaneSettings(queue_limit=100))
    plan = Plan(PlanVersion(1, 1), (WorkerAssignment("w1", "", "m", 1),), admission_rate=0.75)
    driver.send(events.PlanReceived(plan))

    verdicts = [kinds(driver.arrive(f"r{number}"))[0] for number in range(8)]

    assert verdicts.count(effects.Reject) == 2


def test_request_that_was_never_journalled_is_forgotten() -> None:
    driver = Driver(DataplaneSettings(queue_limit=2))
    driver.arrive("unwritten")
    driver.queue("written")

    told = [driver.send(events.AcceptDropped(name)) for name in ("unwritten", "written", "unknown")]

    assert told == [[], [], []]
    assert driver.dataplane.state.requests.keys() == {"written"}
    # Its place is free.
    assert kinds(driver.arrive("r3"))[0] is effects.PersistAccepted


def test_rejection_by_plan_says_when_to_retry(driver: Driver) -> None:
    driver.send(events.PlanReceived(Plan(PlanVersion(1, 1), admission_rate=0.0)))

    rejects = [only(effects.Reject, driver.arrive()) for _ in range(2)]

    assert [(reject.reason, reject.retry_after_ms) for reject in rejects] == [("OVER_CAPACITY", 2_500)] * 2
    assert driver.dataplane.state.counters.rejected == driver.dataplane.state.pools["m"].dropped_count == 2


def test_each_tenant_has_place_in_queue_of_one_up_to_twice_limit() -> None:
    driver = Driver(DataplaneSettings(queue_limit=1))

    told = [driver.arrive(f"r{number}", tenant=tenant) for number, tenant in enumerate("aabc")]

    assert [kinds(effect_list)[0] for effect_list in told] == [
        effects.PersistAccepted,
        effects.Reject,
        effects.PersistAccepted,
        effects.Reject,
    ]


@pytest.mark.parametrize(
    ("deadline_s", "left", "retry_after_ms"), [(20.0, "", 0), (19.9, "19.9", 10_000), (-5.0, "0", 20_000)]
)
def test_request_that_would_be_late_is_rejected(
    driver: Driver, deadline_s: float, left: str, retry_after_ms: int
) -> None:
    """Ten seconds for the running request, ten for its own."""
    driver.profile("m", (1, 10.0))
    driver.worker()
    driver.run("running")

    told = driver.arrive("r1", deadline=driver.now + deadline_s)

    if not left:
        assert kinds(told)[0] is effects.PersistAccepted
    else:
        reject = only(effects.Reject, told)
        assert (reject.reason, reject.retry_after_ms) == ("PREDICTED_LATE", retry_after_ms)
        assert reject.message == f"predicted to take 20 s, the deadline is in {left} s"
