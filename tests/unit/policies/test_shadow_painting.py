"""When hits are painted again: who is drawn, when it is off-peak, and how much of the time it may take."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pentimento.policies.shadow_painting import GivesWay, IdleWorker, ShadowBudget, SuiteLoad, is_sampled, shadow_worker

IDLE = IdleWorker("w-1", used_count=0, credit_count=4, eligible=True)
QUIET = SuiteLoad(waiting_count=0, running_count=0, quiet_s=5.0, workers=(IDLE,))


def test_the_share_of_hits_that_is_asked_for_is_drawn() -> None:
    drawn = sum(is_sampled(f"r-{number}", 0.1) for number in range(5000))
    assert drawn == pytest.approx(500, abs=75)


@given(st.text(max_size=40))
def test_a_hit_is_drawn_or_not_once_and_for_all(request_id: str) -> None:
    assert is_sampled(request_id, 1.0)
    assert not is_sampled(request_id, 0.0)
    assert is_sampled(request_id, 0.5) == is_sampled(request_id, 0.5)
    assert is_sampled(request_id, 0.9) or not is_sampled(request_id, 0.3)


def test_an_idle_worker_paints_while_nobody_waits() -> None:
    assert shadow_worker(QUIET, 2.0, GivesWay.SUITE) == "w-1"


@pytest.mark.parametrize(
    "load",
    [
        replace(QUIET, waiting_count=1),
        replace(QUIET, quiet_s=1.9),
        replace(QUIET, workers=()),
        replace(QUIET, workers=(replace(IDLE, used_count=1),)),
        replace(QUIET, workers=(replace(IDLE, credit_count=0),)),
        replace(QUIET, workers=(replace(IDLE, eligible=False),)),
    ],
    ids=["somebody waits", "somebody waited", "no worker", "at work", "no credit", "not to be used"],
)
def test_it_is_not_off_peak(load: SuiteLoad) -> None:
    assert shadow_worker(load, 2.0, GivesWay.SUITE) is None
    assert shadow_worker(load, 2.0, GivesWay.WORKER) is None


def test_while_others_work_a_shadow_is_painted_only_where_devices_are_apart() -> None:
    at_work = replace(QUIET, running_count=1)
    assert shadow_worker(at_work, 2.0, GivesWay.SUITE) is None
    assert shadow_worker(at_work, 2.0, GivesWay.WORKER) == "w-1"


def test_of_several_workers_an_idle_one_is_taken() -> None:
    busy = replace(IDLE, worker_id="a", used_count=2)
    assert shadow_worker(replace(QUIET, workers=(busy, IDLE)), 2.0, GivesWay.WORKER) == "w-1"


def test_shadows_take_their_share_of_the_time_and_save_up_only_so_much() -> None:
    budget = ShadowBudget(work_share=0.1, most_saved_s=20.0, now=100.0)

    assert budget.left_s(100.0) == 0.0
    assert budget.left_s(130.0) == pytest.approx(3.0)
    assert budget.left_s(10_000.0) == pytest.approx(20.0)


def test_what_was_overspent_is_saved_up_first() -> None:
    budget = ShadowBudget(work_share=0.1, most_saved_s=20.0, now=0.0)
    budget.left_s(50.0)
    budget.spend(7.0)

    assert budget.left_s(60.0) == 0.0
    assert budget.left_s(80.0) == pytest.approx(1.0)


@given(st.lists(st.tuples(st.floats(0, 50), st.floats(0, 1)), max_size=60), st.floats(0.001, 1), st.floats(0, 30))
def test_shadows_never_take_more_than_their_share(
    turns: list[tuple[float, float]], work_share: float, most_saved_s: float
) -> None:
    """Each takes some part of what it may."""
    budget, now, spent = ShadowBudget(work_share, most_saved_s, 0.0), 0.0, 0.0
    for passed_s, part in turns:
        now += passed_s
        seconds = budget.left_s(now) * part
        budget.spend(seconds)
        spent += seconds
    assert spent <= now * work_share + 1e-6


def test_a_clock_that_goes_back_gives_nothing() -> None:
    budget = ShadowBudget(work_share=0.5, most_saved_s=20.0, now=10.0)
    assert budget.left_s(20.0) == pytest.approx(5.0)
    assert budget.left_s(0.0) == pytest.approx(5.0)
    assert budget.left_s(20.0) == pytest.approx(5.0)


def test_for_whom_a_shadow_gives_way_is_set_by_name() -> None:
    assert [one.value for one in GivesWay] == ["suite", "worker"]
