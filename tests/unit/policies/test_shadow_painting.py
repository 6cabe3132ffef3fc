"""Test when hits are generated again: their draw, off-peak hours, and the share of time."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pentimento.policies.shadow_painting import IdleWorker, ShadowBudget, SuiteLoad, is_sampled, shadow_worker

IDLE = IdleWorker("w-1", used_count=0, credit_count=4, eligible=True)
QUIET = SuiteLoad(waiting_count=0, running_count=0, quiet_s=5.0, workers=(IDLE,))


def test_is_sampled_draws_asked_share() -> None:
    drawn = sum(is_sampled(f"r-{number}", 0.1) for number in range(5000))
    assert drawn == pytest.approx(500, abs=75)


@given(st.text(max_size=40))
def test_is_sampled_is_stable_for_a_request(request_id: str) -> None:
    assert is_sampled(request_id, 1.0)
    assert not is_sampled(request_id, 0.0)
    assert is_sampled(request_id, 0.5) == is_sampled(request_id, 0.5)
    assert is_sampled(request_id, 0.9) or not is_sampled(request_id, 0.3)


def test_shadow_worker_is_idle_one() -> None:
    assert shadow_worker(QUIET, 2.0) == "w-1"


def test_shadow_worker_is_none_while_not_off_peak() -> None:
    loads = {
        "a request waits": replace(QUIET, waiting_count=1),
        "a request runs": replace(QUIET, running_count=1),
        "a request waited": replace(QUIET, quiet_s=1.9),
        "no worker": replace(QUIET, workers=()),
        "at work": replace(QUIET, workers=(replace(IDLE, used_count=1),)),
        "no credit": replace(QUIET, workers=(replace(IDLE, credit_count=0),)),
        "not eligible": replace(QUIET, workers=(replace(IDLE, eligible=False),)),
    }

    found = {name: shadow_worker(load, 2.0) for name, load in loads.items()}
    assert {case for case, worker in found.items() if worker is not None} == set()


def test_shadow_worker_of_several_is_idle_one() -> None:
    busy = replace(IDLE, worker_id="a", used_count=2)
    assert shadow_worker(replace(QUIET, workers=(busy, IDLE)), 2.0) == "w-1"


def test_shadow_budget_saves_up_to_limit() -> None:
    budget = ShadowBudget(work_share=0.1, most_saved_s=20.0, now=100.0)

    assert budget.left_s(100.0) == 0.0
    assert budget.left_s(130.0) == pytest.approx(3.0)
    assert budget.left_s(10_000.0) == pytest.approx(20.0)


def test_shadow_budget_repays_overspent_time() -> None:
    budget = ShadowBudget(work_share=0.1, most_saved_s=20.0, now=0.0)
    budget.left_s(50.0)
    budget.spend(7.0)

    assert budget.left_s(60.0) == 0.0
    assert budget.left_s(80.0) == pytest.approx(1.0)


@given(st.lists(st.tuples(st.floats(0, 50), st.floats(0, 1)), max_size=60), st.floats(0.001, 1), st.floats(0, 30))
def test_shadow_budget_never_exceeds_share(
    turns: list[tuple[float, float]], work_share: float, most_saved_s: float
) -> None:
    """Each spends a part of its budget."""
    budget, now, spent = ShadowBudget(work_share, most_saved_s, 0.0), 0.0, 0.0
    for passed_s, part in turns:
        now += passed_s
        seconds = budget.left_s(now) * part
        budget.spend(seconds)
        spent += seconds
    assert spent <= now * work_share + 1e-6


def test_shadow_budget_of_clock_set_back_gains_nothing() -> None:
    budget = ShadowBudget(work_share=0.5, most_saved_s=20.0, now=10.0)
    assert budget.left_s(20.0) == pytest.approx(5.0)
    assert budget.left_s(0.0) == pytest.approx(5.0)
    assert budget.left_s(20.0) == pytest.approx(5.0)
