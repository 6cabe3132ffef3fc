"""Place models on workers: few switches, and no queue without a worker."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pentimento.domain.fleet import ModelCost, WorkerAssignment
from pentimento.policies.plan.inputs import ModelDemand, PlanInput, ReplicaView
from pentimento.policies.plan.placement import place
from tests.unit.policies.plan.fleets import SD15, TURBO, context, profiles, worker

TURBO_WAITS = ModelDemand("turbo", 0.0, queue_length=3)
TURBO_BUSY = ModelDemand("turbo", 9.0)


def heavy(rate: float = 0.0, queue_length: int = 0) -> ModelDemand:
    return ModelDemand("sd15", rate, queue_length=queue_length)


PLACED = {
    "one waits": ([heavy(queue_length=1), TURBO_BUSY], {"turbo": 2}, ["sd15", "turbo"]),
    "three wait": ([heavy(queue_length=3), TURBO_BUSY], {"turbo": 2}, ["sd15", "turbo"]),
    "one of four": ([heavy(queue_length=3), TURBO_BUSY], {"turbo": 4}, ["sd15", *["turbo"] * 3]),
    "no other demand": ([heavy(queue_length=3)], {"turbo": 4}, ["sd15", *["turbo"] * 3]),
    "last one waited for": ([TURBO_WAITS, heavy(queue_length=1)], {"turbo": 0, "sd15": 1}, ["sd15"]),
    "last worker of an idle model": ([TURBO_WAITS, heavy()], {"turbo": 0, "sd15": 1}, ["turbo"]),
    "last worker of a busy model": ([TURBO_WAITS, heavy(1.0)], {"turbo": 0, "sd15": 1}, ["sd15"]),
}


def test_place_queue_of_unplanned_model_keeps_a_worker() -> None:
    """All workers hold the heavy model."""
    for name, (demand, counts, models) in PLACED.items():
        placed = place(context(sum(counts.values()), *demand), counts, {})

        assert placed == tuple(
            WorkerAssignment(f"w{number:03d}", f"sim:{number}", model, 1, 1) for number, model in enumerate(models)
        ), name


def test_place_workers_keep_their_model() -> None:
    held = (worker(0, "sd15"), worker(1, "turbo"), worker(2, "turbo"), worker(3, "sd15"))
    fleet = PlanInput(0.0, held, profiles=profiles(turbo=TURBO, sd15=SD15))

    assigned = {a.worker_id: a.model for a in place(fleet, {"turbo": 1, "sd15": 3}, {})}

    assert assigned == {"w000": "sd15", "w001": "turbo", "w002": "sd15", "w003": "sd15"}


def test_place_prefers_workers_that_load_the_model_soonest() -> None:
    def loads_in(view: ReplicaView, load_s: float) -> ReplicaView:
        cost = ModelCost("turbo", ((1, 0.1),), load_s=load_s)
        return ReplicaView(replace(view.replica, costs=(cost,)))

    held = (loads_in(worker(0), 9.0), loads_in(worker(1), 2.0), loads_in(worker(2), 2.5))
    fleet = PlanInput(0.0, held, profiles=profiles(turbo=TURBO, sd15=SD15))

    assert [one.worker_id for one in place(fleet, {"turbo": 1}, {})] == ["w001"]
    assert [one.worker_id for one in place(fleet, {"turbo": 2}, {})] == ["w001", "w002"]


def test_place_unable_workers_are_left_out() -> None:
    able, unable = worker(0, "sd15"), worker(1, "sdxl", ("sdxl",))
    fleet = PlanInput(0.0, (able, unable), (), profiles(turbo=TURBO))

    assert place(fleet, {"turbo": 5, "sd15": 5}, {"turbo": 8}) == (WorkerAssignment("w000", "sim:0", "turbo", 1, 8),)


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 30), st.integers(0, 30), st.integers(1, 20))
def test_place_assigns_each_worker_once(light: int, heavy_count: int, fleet: int) -> None:
    assigned = place(context(fleet), {"turbo": light, "sd15": heavy_count}, {})

    workers = [assignment.worker_id for assignment in assigned]
    assert len(set(workers)) == len(workers) == min(light + heavy_count, fleet)


@pytest.mark.parametrize("quick", [0, 1, 2])
def test_worker_that_loads_soonest_gives_up_its_model(quick: int) -> None:
    """All hold the light model. The worker with the heavy one on its disk changes, at any position in the fleet."""
    workers = tuple(
        replace(view, replica=replace(view.replica, costs=(ModelCost("sd15", ((1, 1.0),), load_s=load_s),)))
        for number in range(3)
        for view, load_s in ((worker(number, "turbo"), 1.0 if number == quick else 9.0),)
    )
    asked = PlanInput(0.0, workers, (), profiles(turbo=TURBO, sd15=SD15))

    placed = place(asked, {"sd15": 1, "turbo": 2}, {})

    assert [number for number, one in enumerate(placed) if one.model == "sd15"] == [quick]
