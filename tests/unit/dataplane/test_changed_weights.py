"""Requests that wait for weights without a holder, and were never tried, are routed to the weights held now."""

import pytest

from pentimento.dataplane import effects, events
from tests.unit.dataplane.driver import Driver, only


@pytest.fixture
def driver() -> Driver:
    """Return a driver with one worker; its only credit is taken."""
    driver = Driver()
    driver.worker("old", model_digest="d1")
    driver.start(driver.queue("running", digest="d1"))
    return driver


def resolved(effect_list: list[effects.Effect]) -> list[str]:
    return [effect.request_id for effect in effect_list if isinstance(effect, effects.ResolveRoute)]


@pytest.mark.parametrize("first", ["the new ones come", "the old ones go"])
def test_untried_request_uses_weights_held_now(driver: Driver, first: str) -> None:
    driver.queue("waiting", digest="d1")
    if first == "the new ones come":
        assert resolved(driver.worker("new", model_digest="d2")) == []
        after = driver.send(events.WorkerLost("old", 1))
    else:
        assert resolved(driver.send(events.WorkerLost("old", 1))) == []
        after = driver.worker("new", model_digest="d2")

    # The other one's route is pinned by its attempt.
    assert resolved(after) == ["waiting"]
    started = driver.send(events.RouteResolved("waiting", "m", "d2", 1.0))
    assert only(effects.PersistAttempt, started).worker_id == "new"


def test_request_routed_to_old_weights_again_waits_until_new_ones_are_held(driver: Driver) -> None:
    """As a replay does: it needs the weights of its image."""
    driver.queue("waiting", digest="d1")
    driver.worker("new", model_digest="d2")
    driver.send(events.WorkerLost("old", 1))

    assert driver.send(events.RouteResolved("waiting", "m", "d1", 1.0)) == []
    assert resolved(driver.worker("new", model_digest="d2")) == []
    assert resolved(driver.worker("newest", model_digest="d3")) == ["waiting"]


def test_request_routed_before_restart_keeps_its_weights(driver: Driver) -> None:
    routed = events.RecoveredRequest("r1", "tenant", "m", 1.0, 1000.0, route_pinned=True, model_digest="d1")
    driver.send(events.Recovered((routed,)))
    driver.worker("new", model_digest="d2")

    assert resolved(driver.send(events.WorkerLost("old", 1))) == []
