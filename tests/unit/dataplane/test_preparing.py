"""Requests with input images are prepared while others denoise, and hold no credit meanwhile."""

import math

import pytest

from pentimento.dataplane import effects, events
from tests.unit.dataplane.driver import Driver, only, play


@pytest.mark.parametrize(
    ("worker", "script", "said"),
    [
        ("preparing_count=1", "run plain, queue r1 with=image", "r1 to w1"),
        ("preparing_count=1", "run r1 with=image, queue plain", "plain to w1"),
        ("preparing_count=1 credit_count=4", "run r1 with=image, queue r2 with=image", ""),
        # Requests that wait to be prepared delay no other.
        (
            "preparing_count=1",
            "run plain, queue b1 tenant=b with=image, queue b2 tenant=b with=image, queue b3 tenant=b with=image,"
            " queue small, finish plain",
            "CommitResult plain, small to w1",
        ),
        # Its credit counts from its start to its end, also if it has yielded.
        ("preparing_count=1", "run r1 with=image, begin r1, queue plain", ""),
        ("preparing_count=1", "run r1 with=image, begin r1, queue plain, finish r1", "CommitResult r1, plain to w1"),
        ("preparing_count=1", "run r1 with=image, yield r1, queue plain, begin r1, queue r2", ""),
        # The next one is prepared after the start, as long as prepared ones do not exceed the credits.
        ("preparing_count=1", "run r1 with=image, queue r2 with=image, begin r1", "r2 to w1"),
        ("preparing_count=1", "run r0, run r1 with=image, queue r2 with=image, begin r1", ""),
        (
            "preparing_count=1",
            "run r0, run r1 with=image, queue r2 with=image, begin r1, finish r1",
            "CommitResult r1, r2 to w1",
        ),
        (
            "preparing_count=1",
            "run r1 with=image, queue r2 with=image, fail r1 FATAL",
            "ReleaseGrant r1, PersistEnd r1, r2 to w1",
        ),
        # A worker that does not prepare uses a credit.
        ("credit_count=1", "queue r1 with=image", "r1 to w1"),
        ("credit_count=1", "queue r1 with=image, queue plain", ""),
        ("preparing_count=1 draining", "queue r1 with=image", ""),
        # An urgent request is not prepared in the reserve.
        (
            "preparing_count=1 reserve_count=1",
            "run r1 with=image, run plain within=100, queue urgent with=image within=5",
            "",
        ),
        ("reserve_count=1", "run plain within=100, queue urgent with=image within=5", "urgent to w1"),
        (
            "preparing_count=1 reserve_count=1",
            "run r1 with=image within=900, run plain within=100, queue later within=500",
            "",
        ),
    ],
)
def test_inputs_are_prepared_without_a_credit(driver: Driver, worker: str, script: str, said: str) -> None:
    assert play(driver, f"worker w1 {worker}, {script}") == said


@pytest.mark.parametrize(
    "script",
    [
        "worker w1 preparing_count=1, run r1 with=image, wait 50, begin r1, wait 1, finish r1",
        # In a batch of two it takes two seconds.
        "worker w1 preparing_count=1 credit_count=2, run r1 with=image, run plain, begin r1, wait 2, finish r1",
        # Its deadline passes while its inputs are prepared.
        "worker w1 preparing_count=1, run r1 with=image within=50, wait 50",
    ],
)
def test_speed_is_measured_from_start_of_prepared_image(driver: Driver, script: str) -> None:
    driver.profile("m", (1, 1.0), (2, 2.0))

    play(driver, script)

    assert driver.dataplane.state.pools["m"].speed.slowdown == 1.0


def test_preparing_request_gives_no_credit_back(driver: Driver) -> None:
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
        "with image", "tenant", "m", 1.0, math.inf, route_pinned=True, model_digest="d", has_inputs=True
    )

    assert only(effects.PersistAttempt, driver.send(events.Recovered((recovered,)))).request_id == "with image"


def test_of_several_workers_the_one_with_the_least_to_do_prepares(driver: Driver) -> None:
    for name in ("w1", "w2"):
        driver.worker(name, credit_count=2, preparing_count=2)
    first = only(effects.PersistAttempt, driver.queue("first", has_inputs=True)).worker_id

    assert only(effects.PersistAttempt, driver.queue("second", has_inputs=True)).worker_id != first
