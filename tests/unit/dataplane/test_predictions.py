"""What is predicted of a pool, worked out by hand: ten seconds for each unit of work, at the time 100."""

import pytest

from pentimento.dataplane import DataplaneSettings
from pentimento.dataplane.events import RequestArrived, SpeedProfile
from pentimento.dataplane.pools import Backlog, Pool, Worker
from pentimento.dataplane.predictions import predicted_end_s, predicted_wait_s, retry_after_ms
from pentimento.dataplane.requests import Request
from pentimento.dataplane.speed import Speed
from pentimento.dataplane.state import State

ARRIVED = RequestArrived("r", "own", "m", 1.0, 1000.0)
ADMITTED = Request("r", "own", "m", 1.0, 1000.0)


def pool(
    ends: list[float], credit_count: int = 2, profile: tuple[tuple[int, float], ...] = ((1, 10.0),), **works: float
) -> Pool:
    """`works`: what each tenant has waiting, each in one request."""
    made = Pool("m", Speed(SpeedProfile("m", profile)), len(works), sum(works.values()))
    made.tenants = {tenant: Backlog(1, work) for tenant, work in works.items()}
    made.ends, made.running_count, made.credit_count = ends, len(ends), credit_count
    made.throughput = credit_count / profile[0][1]
    return made


def test_who_comes_first_waits_for_the_first_end_and_no_longer() -> None:
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
    ],
    ids=["own", "both", "a large one of another counts as one of ours", "by the mean", "all"],
)
def test_who_comes_waits_for_its_own_and_as_much_of_every_other_tenant(works: dict[str, float], end_s: float) -> None:
    assert predicted_end_s(State(1), 100.0, pool([104.0, 106.0], **works), ARRIVED) == pytest.approx(end_s)


def test_who_waits_already_does_not_wait_for_itself() -> None:
    assert predicted_end_s(State(1), 100.0, pool([104.0, 106.0], own=1.0), ADMITTED) == 14.0


def test_a_batch_is_a_worker_s_share_of_the_credits() -> None:
    found = pool([104.0] * 4, 4, ((1, 10.0), (2, 12.0), (4, 20.0)))
    found.workers = {name: Worker(name, "m", "d", 1, 2) for name in ("w1", "w2")}

    assert predicted_end_s(State(1), 100.0, found, ARRIVED) == 4.0 + 12.0


def test_what_scatters_is_later_by_the_margin() -> None:
    found = pool([104.0])
    found.credit_count = 1
    found.speed.spread = 0.2

    assert predicted_end_s(State(1, DataplaneSettings(prediction_margin=2.0)), 100.0, found, ARRIVED) == 4.0 + 14.0


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


@pytest.mark.parametrize(("work", "after_ms"), [(0.01, 100), (6.0, 15_000), (30.0, 60_000)])
def test_to_come_back_is_worth_it_once_half_is_gone_within_bounds(work: float, after_ms: int) -> None:
    state = State(1)
    state.pools["m"] = pool([104.0, 106.0], own=work)

    assert retry_after_ms(state, "m") == after_ms
