"""Requests that came with images: those are prepared beside what is painted, and hold no credit meanwhile."""

import math

import pytest

from pentimento.dataplane import effects, events
from tests.unit.dataplane.driver import Driver, only


def dispatched(effect_list: list[effects.Effect]) -> list[str]:
    return [effect.request_id for effect in effect_list if isinstance(effect, effects.PersistAttempt)]


def say(driver: Driver, verb: str, name: str, deadline_s: str = "900") -> list[effects.Effect]:
    """Send what a script's words say; a name that ends with + has an image, one of b another tenant."""
    request_id = name.rstrip("+")
    if verb in ("queue", "start"):
        tenant = "b" if name.startswith("b") else "a"
        deadline = driver.now + float(deadline_s)
        queued = driver.queue(request_id, deadline, tenant=tenant, has_inputs=name.endswith("+"))
        if verb == "start":
            driver.start(queued)
        return queued
    kinds_of: dict[str, type[events.Event]] = {
        "begin": events.AttemptStarted,
        "yield": events.AttemptYielded,
        "finish": events.AttemptFinished,
    }
    token = driver.dataplane.state.requests[request_id].fencing_token
    if verb == "fail":
        return driver.send(events.AttemptFailed(request_id, token, events.FailureKind.FATAL))
    return driver.send(kinds_of[verb](request_id, token))  # type: ignore[call-arg]


BESIDE, ALONE, URGENT = {"preparing_count": 1}, {}, {"reserve_count": 1}


@pytest.mark.parametrize(
    ("worker", "script", "started"),
    [
        pytest.param(BESIDE, "start plain, queue image+", ["image"], id="beside the image that has the credit"),
        pytest.param(BESIDE, "start image+, queue plain", ["plain"], id="the credit is left to others"),
        pytest.param({**BESIDE, "credit_count": 4}, "start first+, queue second+", [], id="one place to prepare"),
        pytest.param(
            BESIDE,
            "start plain, queue b1+, queue b2+, queue b3+, queue small, finish plain",
            ["small"],
            id="requests that wait to be prepared hold up no other",
        ),
        pytest.param(BESIDE, "start image+, begin image+, queue plain", [], id="a credit from the start on"),
        pytest.param(
            BESIDE, "start image+, begin image+, queue plain, finish image+", ["plain"], id="until it has finished"
        ),
        pytest.param(BESIDE, "start first+, queue second+, begin first+", ["second"], id="the next after the start"),
        pytest.param(
            BESIDE, "start plain, start first+, queue second+, begin first+", [], id="beyond the credits none"
        ),
        pytest.param(
            BESIDE,
            "start plain, start first+, queue second+, begin first+, finish first+",
            ["second"],
            id="within them again",
        ),
        pytest.param(BESIDE, "start first+, queue second+, fail first+", ["second"], id="a failure frees the place"),
        pytest.param(
            BESIDE,
            "start image+, yield image+, queue plain, begin image+, queue another",
            [],
            id="yielded before the start: one credit",
        ),
        pytest.param(ALONE, "queue image+", ["image"], id="a credit where none is beside"),
        pytest.param(ALONE, "queue image+, queue plain", [], id="which is taken then"),
        pytest.param({**BESIDE, "draining": True}, "queue image+", [], id="draining"),
        pytest.param(
            {**BESIDE, **URGENT}, "start image+, start plain 100, queue urgent+ 5", [], id="urgent, not ready"
        ),
        pytest.param(URGENT, "start plain 100, queue urgent+ 5", ["urgent"], id="urgent, prepared in the batch"),
        pytest.param(
            {**BESIDE, **URGENT},
            "start image+ 900, start plain 100, queue later 500",
            [],
            id="not urgent because of one that is only prepared",
        ),
    ],
)
def test_inputs_are_prepared_without_a_credit(
    driver: Driver, worker: dict[str, int], script: str, started: list[str]
) -> None:
    driver.worker(**worker)  # type: ignore[arg-type]

    said = [say(driver, *words.split(" ")) for words in script.split(", ")]

    assert dispatched(said[-1]) == started


def test_speed_is_learned_from_the_start_on(driver: Driver) -> None:
    driver.profile("m", (1, 1.0))
    driver.worker(preparing_count=1)
    token = driver.start(driver.queue("with image", has_inputs=True)).fencing_token
    driver.now += 50.0
    driver.send(events.AttemptStarted("with image", token))
    driver.now += 1.0

    driver.send(events.AttemptFinished("with image", token))

    assert driver.dataplane.state.pools["m"].speed.slowdown == 1.0


def test_speed_is_learned_by_the_batch_that_a_prepared_picture_came_to(driver: Driver) -> None:
    driver.profile("m", (1, 1.0), (2, 2.0))
    driver.worker(credit_count=2, preparing_count=1)
    token = driver.start(driver.queue("with image", has_inputs=True)).fencing_token
    driver.run("plain")
    driver.send(events.AttemptStarted("with image", token))
    driver.now += 2.0

    driver.send(events.AttemptFinished("with image", token))

    assert driver.dataplane.state.pools["m"].speed.slowdown == 1.0


def test_a_deadline_that_passes_while_inputs_are_prepared_says_nothing_of_the_speed(driver: Driver) -> None:
    driver.profile("m", (1, 1.0))
    driver.worker(preparing_count=1)
    driver.start(driver.queue("with image", deadline=driver.now + 50.0, has_inputs=True))
    driver.now += 50.0

    driver.send(events.TimePassed())

    assert driver.dataplane.state.pools["m"].speed.slowdown == 1.0


def test_no_credit_is_expected_back_from_a_picture_that_holds_none(driver: Driver) -> None:
    driver.profile("m", (1, 1.0))
    driver.worker(preparing_count=1)
    token = driver.start(driver.queue("with image", has_inputs=True)).fencing_token
    pool = driver.dataplane.state.pools["m"]
    before = list(pool.ends)

    driver.send(events.AttemptStarted("with image", token))

    assert (before, pool.ends) == ([], [driver.now + 1.0])


def test_a_recovered_request_with_inputs_is_prepared_too(driver: Driver) -> None:
    driver.worker(preparing_count=1)
    driver.run("plain")
    recovered = events.RecoveredRequest(
        "with image", "tenant", "m", 1.0, math.inf, routed=True, model_digest="d", has_inputs=True
    )

    assert dispatched(driver.send(events.Recovered((recovered,)))) == ["with image"]


def test_of_several_workers_the_one_with_the_least_to_do_prepares(driver: Driver) -> None:
    for name in ("w1", "w2"):
        driver.worker(name, credit_count=2, preparing_count=2)
    first = only(effects.PersistAttempt, driver.queue("first", has_inputs=True)).worker_id

    assert only(effects.PersistAttempt, driver.queue("second", has_inputs=True)).worker_id != first
