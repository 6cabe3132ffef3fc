"""Several images of one call arrive together: one decision admits all or none."""

import pytest

from pentimento.dataplane import DataplaneSettings, effects, events
from pentimento.domain.fleet import Plan
from pentimento.domain.generation import PlanVersion
from tests.unit.dataplane.driver import Driver, kinds

OTHERS = ("r2", "r3")
IDS = ("r1", *OTHERS)


def test_each_is_journalled_and_routed_by_itself(driver: Driver) -> None:
    told = driver.arrive("r1", others=OTHERS)

    expected = [effect for name in IDS for effect in (effects.PersistAccepted(name), effects.PrepareRoute(name))]
    assert told == expected
    assert driver.dataplane.state.requests.keys() == set(IDS)


@pytest.mark.parametrize(("queue_limit", "kind"), [(4, effects.PersistAccepted), (3, effects.Reject)])
def test_where_one_has_no_room_none_is_admitted(queue_limit: int, kind: type) -> None:
    driver = Driver(DataplaneSettings(queue_limit=queue_limit))
    driver.arrive("before")

    told = driver.arrive("r1", others=OTHERS)

    assert {type(effect) for effect in told} - {effects.PrepareRoute} == {kind}
    if kind is effects.Reject:
        assert [effect.request_id for effect in told if isinstance(effect, effects.Reject)] == list(IDS)
        assert {effect.message for effect in told if isinstance(effect, effects.Reject)} == {
            "the queue of pool m is full: 1 of 3 requests wait, 3 more have no room"
        }
        assert driver.dataplane.state.requests.keys() == {"before"}
        assert driver.dataplane.state.counters.rejected == driver.dataplane.state.pools["m"].dropped_count == 3


def test_all_tenants_together_have_twice_the_limit_waiting_and_no_more() -> None:
    driver = Driver(DataplaneSettings(queue_limit=10))
    for tenant, count in (("a", 10), ("b", 5), ("c", 3), ("d", 1)):
        driver.arrive(tenant, tenant=tenant, others=tuple(f"{tenant}{number}" for number in range(1, count)))

    rejects = [
        effect for effect in driver.arrive("e", tenant="e", others=("e1",)) if isinstance(effect, effects.Reject)
    ]

    assert [reject.message for reject in rejects] == [
        "the queue of pool m is full: 19 requests wait, 2 more have no room"
    ] * 2
    assert kinds(driver.arrive("f", tenant="f"))[0] is effects.PersistAccepted


@pytest.mark.parametrize(("deadline_s", "kind"), [(40.0, effects.PersistAccepted), (39.9, effects.Reject)])
def test_last_image_has_to_be_in_time(driver: Driver, deadline_s: float, kind: type) -> None:
    """Ten seconds for the running request, ten for each of three."""
    driver.profile("m", (1, 10.0))
    driver.worker()
    driver.run("running")

    told = driver.arrive("r1", deadline=driver.now + deadline_s, others=OTHERS)

    assert kinds(told)[0] is kind


def test_plan_admits_same_share_of_single_and_grouped_images() -> None:
    """Half of the arrivals: twenty images of twenty singles and ten pairs."""
    driver = Driver(DataplaneSettings(queue_limit=100))
    driver.send(events.PlanReceived(Plan(PlanVersion(1, 1), admission_rate=0.5)))

    for number in range(10):
        driver.arrive(f"a{number}")
        driver.arrive(f"b{number}", others=(f"c{number}",))
        driver.arrive(f"d{number}")

    assert len(driver.dataplane.state.requests) == 20


def test_known_request_does_not_arrive_again_with_others(driver: Driver) -> None:
    driver.arrive("r2")

    assert driver.arrive("r1", others=OTHERS) == []
    assert driver.dataplane.state.requests.keys() == {"r2"}


def test_each_ends_by_itself(driver: Driver) -> None:
    driver.arrive("r1", others=OTHERS)
    for name in IDS:
        driver.send(events.AcceptPersisted(name))

    driver.send(events.CancelRequested("r2"))
    driver.send(events.EndPersisted("r2", True))

    assert driver.dataplane.state.requests.keys() == {"r1", "r3"}
