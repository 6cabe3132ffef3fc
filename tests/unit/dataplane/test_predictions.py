"""Compare predictions for a pool with values computed by hand: ten seconds per unit of work, at time 100."""

from dataclasses import replace

import pytest

from pentimento.dataplane import DataplaneSettings
from pentimento.dataplane.events import RequestArrived, SpeedProfile
from pentimento.dataplane.pools import Backlog, Pool, Worker
from pentimento.dataplane.predictions import (
    expected_service_s,
    learn_slowness,
    learn_speed,
    predicted_end_s,
    predicted_service_s,
    predicted_wait_s,
    retry_after_ms,
    service_s,
)
from pentimento.dataplane.requests import Request
from pentimento.dataplane.speed import Speed
from pentimento.dataplane.state import State
from pentimento.policies.thinning import ThinningMode, ThinningOffer, ThinningOption

ARRIVED = RequestArrived("r", "own", "m", 1.0, 1000.0)
ADMITTED = Request("r", "own", "m", 1.0, 1000.0)


def pool(
    ends: list[float], credit_count: int = 2, profile: tuple[tuple[int, float], ...] = ((1, 10.0),), **works: float
) -> Pool:
    """Return a pool; `works` is the waiting work of each tenant, each in one request."""
    made = Pool("m", Speed(SpeedProfile("m", profile)), len(works), sum(works.values()))
    made.tenants = {tenant: Backlog(1, work) for tenant, work in works.items()}
    made.ends, made.running_count, made.credit_count = ends, len(ends), credit_count
    made.throughput = made.speed.throughput(1) * credit_count
    return made


def test_first_request_waits_for_first_end() -> None:
    assert predicted_end_s(State(1), 100.0, pool([104.0, 106.0]), ARRIVED) == 4.0 + 10.0
    assert predicted_end_s(State(1), 100.0, pool([90.0, 106.0]), ARRIVED) == 10.0


def test_with_a_free_credit_or_none_at_all_nothing_is_predicted() -> None:
    assert predicted_end_s(State(1), 100.0, pool([104.0, 106.0], credit_count=3), ARRIVED) is None
    assert predicted_end_s(State(1), 100.0, pool([], credit_count=0), ARRIVED) is None


@pytest.mark.parametrize(
    ("works", "end_s"),
    [
        ({"own": 1.0}, 6.0 + 10.0),
        ({"own": 1.0, "other": 1.0}, 4.0 + 10.0 + 10.0),
        ({"other": 6.0}, 4.0 + 10.0),
        ({"own": 1.0, "other": 3.0}, 4.0 + 20.0 + 10.0),
        ({"own": 1.0, "b": 1.0, "c": 1.0}, 6.0 + 10.0 + 10.0),
        ({"own": 1.0, "other": 4.0}, 6.0 + 10.0),
        ({"b": 1.0, "c": 1.0}, 4.0 + 10.0 + 10.0),
    ],
    ids=[
        "own",
        "both",
        "a large one of another counts as one of ours",
        "by the mean",
        "all",
        "twice our own",
        "others",
    ],
)
def test_arriving_request_waits_for_fair_share_of_each_tenant(works: dict[str, float], end_s: float) -> None:
    assert predicted_end_s(State(1), 100.0, pool([104.0, 106.0], **works), ARRIVED) == pytest.approx(end_s)


def test_waiting_request_does_not_wait_for_itself() -> None:
    assert predicted_end_s(State(1), 100.0, pool([104.0, 106.0], own=1.0), ADMITTED) == 14.0


BATCHES = ((1, 10.0), (2, 12.0), (3, 15.0), (4, 20.0))


@pytest.mark.parametrize(
    ("credit_count", "worker_count", "own_s"), [(4, 2, 12.0), (4, 1, 20.0), (1, 1, 10.0), (1, 3, 10.0), (4, 0, 20.0)]
)
def test_a_batch_is_a_worker_s_share_of_the_credits(credit_count: int, worker_count: int, own_s: float) -> None:
    found = pool([104.0] * credit_count, credit_count, BATCHES)
    found.workers = {f"w{number}": Worker(f"w{number}", "m", "d", 1, 2) for number in range(worker_count)}

    assert predicted_end_s(State(1), 100.0, found, ARRIVED) == 4.0 + own_s


def test_removed_credits_are_not_waited_for_twice() -> None:
    assert predicted_end_s(State(1), 100.0, pool([104.0, 106.0], credit_count=0), ARRIVED) == 4.0 + 10.0


def busy_worker(load: int) -> Worker:
    worker = Worker("w", "m", "d", 1, 4)
    worker.in_flight = {(f"other {number}", 1): None for number in range(load)}
    return worker


@pytest.mark.parametrize(("load", "seconds"), [(0, 10.0), (1, 12.0), (2, 15.0)])
def test_request_that_joins_batch_makes_it_one_larger(load: int, seconds: float) -> None:
    found = pool([], profile=BATCHES)

    assert predicted_service_s(State(1), found, busy_worker(load), 1.0) == seconds


@pytest.mark.parametrize(
    ("started_load", "load", "nominal_s"), [(1, 0, 10.0), (3, 2, 15.0), (4, 1, 15.0), (4, 0, 12.0)]
)
def test_batch_of_image_lies_between_its_first_and_last(started_load: int, load: int, nominal_s: float) -> None:
    """The first batch includes the request; `load` others share the last."""
    state, request = State(1), replace(ADMITTED, started_load=started_load)
    state.pools["m"], worker = pool([], profile=BATCHES), busy_worker(load)

    learn_speed(state, request, worker, 2.0 * nominal_s, 1.0)

    assert (worker.slowdown, state.pools["m"].speed.slowdown) == (pytest.approx(2.0), pytest.approx(1.2))


@pytest.mark.parametrize(("profile", "seconds"), [(((1, 0.0),), 5.0), (((1, 10.0),), -1.0)])
def test_attempt_without_duration_teaches_nothing(profile: tuple[tuple[int, float], ...], seconds: float) -> None:
    """One model is profiled at 0 s; another attempt ends before it began, by a clock that was set back."""
    state, worker = State(1), busy_worker(0)
    state.pools["m"], state.workers["w"] = pool([], profile=profile), worker

    learn_speed(state, ADMITTED, worker, seconds, 1.0)
    learn_slowness(state, replace(ADMITTED, worker_id="w"), seconds)

    assert (worker.slowdown, state.pools["m"].speed.slowdown) == (None, 1.0)


def slow_after(seconds: float, slowdown: float | None, request: Request) -> tuple[float | None, float | None, float]:
    """Return the slowdowns of worker and pool and the spread, after an attempt was abandoned; they were 2 and 0.5."""
    state, worker = State(1), busy_worker(0)
    state.pools["m"], state.workers["w"] = pool([]), worker
    state.pools["m"].speed.slowdown, state.pools["m"].speed.spread = 2.0, 0.5
    worker.slowdown = slowdown
    learn_slowness(state, request, seconds)
    return worker.slowdown, state.pools["m"].speed.slowdown, state.pools["m"].speed.spread


GIVEN_UP = Request("r", "own", "m", 1.0, 1000.0, worker_id="w")


@pytest.mark.parametrize(
    ("seconds", "before", "after"),
    [
        (30.0, 1.0, (1.4, 2.2, 0.6)),
        (30.0, None, (3.0, 2.2, 0.6)),
        (20.0, 2.0, (2.0, 2.0, 0.5)),  # as slow as was known
        (15.0, 1.0, (1.1, 2.0, 0.5)),
        (15.0, 2.0, (2.0, 2.0, 0.5)),  # abandoned early
    ],
)
def test_abandoned_attempt_only_raises_slowdowns(
    seconds: float, before: float | None, after: tuple[float, float, float]
) -> None:
    assert slow_after(seconds, before, GIVEN_UP) == pytest.approx(after)


def test_of_a_worker_that_is_gone_nothing_is_learnt() -> None:
    assert slow_after(99.0, 1.0, replace(GIVEN_UP, worker_id="gone")) == (1.0, 2.0, 0.5)


def test_where_no_speed_is_known_an_attempt_is_expected_to_end_at_once() -> None:
    assert expected_service_s(Pool("m"), busy_worker(0), 5.0) == 0.0


def test_predicted_end_adds_margin_of_spread() -> None:
    found = pool([104.0])
    found.credit_count = 1
    found.speed.spread = 0.2

    assert predicted_end_s(State(1, DataplaneSettings(prediction_margin=2.0)), 100.0, found, ARRIVED) == 4.0 + 14.0


@pytest.mark.parametrize(
    ("mode", "end_s"), [(ThinningMode.OFF, 4.0 + 10.0 + 10.0), (ThinningMode.DEADLINE, 4.0 + 2.5 + 5.0)]
)
def test_predicted_end_counts_required_steps_only(mode: ThinningMode, end_s: float) -> None:
    """A quarter of the work that waits before it, and half of the request itself."""
    found = pool([104.0], credit_count=1, own=1.0)
    found.waiting_least_work = 0.25
    arrived = replace(ARRIVED, thinning=ThinningOffer(10, 0, (ThinningOption(2, 3, 0.96),)))

    assert predicted_end_s(State(1, DataplaneSettings(thinning=mode)), 100.0, found, arrived) == pytest.approx(end_s)


@pytest.mark.parametrize("work", [1.0, 2.0])
def test_a_request_takes_its_time_alone_where_a_speed_is_known(work: float) -> None:
    state = State(1)
    state.pools["m"], state.pools["unknown"] = pool([], profile=BATCHES), Pool("unknown")

    assert service_s(state, "m", work) == pytest.approx(10.0 * work)
    assert (service_s(state, "unknown", work), service_s(state, "nobody", work)) == (None, None)


@pytest.mark.parametrize(
    ("works", "ends", "wait_s"),
    [
        ({}, [104.0], 0.0),
        ({}, [104.0, 106.0], 0.0),
        ({"own": 3.0}, [104.0], 15.0),
        ({"own": 3.0, "b": 3.0}, [104.0, 106.0], 30.0),
    ],
)
def test_a_pool_gets_its_work_through_at_the_speed_of_its_workers(
    works: dict[str, float], ends: list[float], wait_s: float
) -> None:
    state = State(1)
    state.pools["m"] = pool(ends, **works)

    assert predicted_wait_s(state, "m") == pytest.approx(wait_s)


@pytest.mark.parametrize(
    ("work", "ends", "late_s", "after_ms"),
    [
        (0.01, [100.0, 100.0], 0.0, 100),
        (6.0, [104.0, 106.0], 0.0, 15_000),
        (30.0, [104.0, 106.0], 0.0, 75_000),
        (900.0, [104.0, 106.0], 0.0, 600_000),
        # Running requests give no credit back before.
        (0.01, [104.0, 106.0], 0.0, 4_000),
        (6.0, [400.0, 500.0], 0.0, 300_000),
        # It would be late by more than that.
        (0.01, [104.0, 106.0], 90.0, 90_000),
        (6.0, [104.0, 106.0], 5.0, 15_000),
    ],
)
def test_retry_hint_waits_for_queue_credit_and_lateness(
    work: float, ends: list[float], late_s: float, after_ms: int
) -> None:
    state = State(1)
    state.pools["m"] = pool(ends, own=work)

    assert retry_after_ms(state, 100.0, "m", late_s) == after_ms
