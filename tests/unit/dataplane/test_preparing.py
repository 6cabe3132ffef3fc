"""Requests that came with images: those are prepared beside what is painted, and hold no credit meanwhile."""

import math

from pentimento.dataplane import effects, events
from tests.unit.dataplane.driver import Driver, kinds, only


def dispatched(effect_list: list[effects.Effect]) -> list[str]:
    return [effect.request_id for effect in effect_list if isinstance(effect, effects.PersistAttempt)]


def test_inputs_are_prepared_while_another_picture_holds_the_credit(driver: Driver) -> None:
    driver.worker(preparing_count=1)
    driver.run("plain")

    assert dispatched(driver.queue("with image", has_inputs=True)) == ["with image"]


def test_a_picture_whose_inputs_are_not_ready_leaves_the_credit_to_others(driver: Driver) -> None:
    driver.worker(preparing_count=1)
    driver.start(driver.queue("with image", has_inputs=True))

    assert dispatched(driver.queue("plain")) == ["plain"]


def test_no_more_are_prepared_at_once_than_the_worker_takes(driver: Driver) -> None:
    driver.worker(credit_count=4, preparing_count=1)
    driver.start(driver.queue("first", has_inputs=True))

    assert dispatched(driver.queue("second", has_inputs=True)) == []


def test_who_waits_for_a_place_to_prepare_holds_up_nobody_else(driver: Driver) -> None:
    driver.worker(preparing_count=1)
    token = driver.run("plain").fencing_token
    for number in range(3):
        driver.queue(f"large {number}", tenant="mallory", has_inputs=True)
    driver.queue("small", tenant="alice")

    assert dispatched(driver.send(events.AttemptFinished("plain", token))) == ["small"]


def test_a_picture_holds_a_credit_from_its_start_on(driver: Driver) -> None:
    driver.worker(preparing_count=1)
    token = driver.start(driver.queue("with image", has_inputs=True)).fencing_token
    driver.send(events.AttemptStarted("with image", token))

    assert dispatched(driver.queue("plain")) == []
    assert dispatched(driver.send(events.AttemptFinished("with image", token))) == ["plain"]


def test_the_next_inputs_are_prepared_once_a_picture_has_started(driver: Driver) -> None:
    driver.worker(preparing_count=1)
    token = driver.start(driver.queue("first", has_inputs=True)).fencing_token
    driver.queue("second", has_inputs=True)

    assert dispatched(driver.send(events.AttemptStarted("first", token))) == ["second"]


def test_nothing_is_prepared_while_a_prepared_picture_is_beyond_the_credits(driver: Driver) -> None:
    driver.worker(preparing_count=1)
    driver.run("plain")
    token = driver.start(driver.queue("first", has_inputs=True)).fencing_token
    driver.queue("second", has_inputs=True)

    assert dispatched(driver.send(events.AttemptStarted("first", token))) == []
    assert dispatched(driver.send(events.AttemptFinished("first", token))) == ["second"]


def test_a_place_to_prepare_is_free_again_when_its_attempt_fails(driver: Driver) -> None:
    driver.worker(preparing_count=1)
    token = driver.start(driver.queue("first", has_inputs=True)).fencing_token
    driver.queue("second", has_inputs=True)

    failed = driver.send(events.AttemptFailed("first", token, events.FailureKind.FATAL))

    assert dispatched(failed) == ["second"]


def test_a_place_yielded_before_any_news_of_the_start_frees_no_second_credit(driver: Driver) -> None:
    driver.worker(preparing_count=1)
    token = driver.start(driver.queue("with image", has_inputs=True)).fencing_token
    driver.send(events.AttemptYielded("with image", token))
    driver.queue("plain")

    driver.send(events.AttemptStarted("with image", token))

    assert dispatched(driver.queue("another")) == []


def test_a_worker_that_prepares_nothing_beside_takes_a_credit_for_it(driver: Driver) -> None:
    driver.worker(credit_count=1)

    assert dispatched(driver.queue("with image", has_inputs=True)) == ["with image"]
    assert dispatched(driver.queue("plain")) == []


def test_a_draining_worker_prepares_nothing(driver: Driver) -> None:
    driver.worker(preparing_count=1, draining=True)

    assert driver.queue("with image", has_inputs=True) == []


def test_an_urgent_picture_with_inputs_takes_no_place_of_a_batch_before_they_are_ready(driver: Driver) -> None:
    driver.worker(credit_count=1, reserve_count=1, preparing_count=1)
    driver.start(driver.queue("preparing", has_inputs=True))
    driver.run("plain", deadline=driver.now + 100.0)

    urgent = driver.queue("urgent", deadline=driver.now + 5.0, has_inputs=True)

    assert effects.PersistAttempt not in kinds(urgent)


def test_an_urgent_picture_with_inputs_takes_the_place_of_one_where_nothing_is_prepared_beside(driver: Driver) -> None:
    driver.worker(credit_count=1, reserve_count=1)
    driver.run("plain", deadline=driver.now + 100.0)

    assert dispatched(driver.queue("urgent", deadline=driver.now + 5.0, has_inputs=True)) == ["urgent"]


def test_nobody_is_urgent_because_of_a_later_one_that_is_only_prepared(driver: Driver) -> None:
    driver.worker(credit_count=1, reserve_count=1, preparing_count=1)
    driver.start(driver.queue("preparing", deadline=driver.now + 900.0, has_inputs=True))
    driver.run("plain", deadline=driver.now + 100.0)

    assert dispatched(driver.queue("later than plain", deadline=driver.now + 500.0)) == []


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
