"""Test the choice of worker and model for a switch when more models than workers have requests."""

from dataclasses import replace

import pytest

from pentimento.domain.fleet import ModelCost, Replica
from pentimento.domain.weights import ModelChange, SwitchWay
from pentimento.policies.plan.inputs import AllocationProfile, Decision, ModelDemand, PlanInput, ReplicaView
from pentimento.policies.plan.many_models import ManyModels, ManyModelsMemory, ModelState, WaitingSince, still_waiting
from pentimento.policies.plan.settings import ServingSettings
from tests.unit.policies.plan.fleets import decide, worker

MODELS = ("a", "b", "c", "d")
POLICY = ManyModels(ServingSettings(""))


def fleet(*held: str, demand: tuple[ModelDemand, ...] = (), load_s: float = 2.0, now_s: float = 0.0) -> PlanInput:
    costs = tuple(AllocationProfile(model, "", 1, 1.0, 100, load_s) for model in MODELS)
    workers = tuple(worker(index, model, MODELS) for index, model in enumerate(held))
    return PlanInput(now_s, workers, demand, costs)


def waiting(model: str, count: int = 1, per_s: float = 0.0) -> ModelDemand:
    return ModelDemand(model, per_s, count)


def held(decision: Decision) -> list[str]:
    return [one.model for one in decision.plan.assignments]


@pytest.mark.parametrize(
    ("workers", "demand", "expected"),
    [
        (("a", "b"), (), ["a", "b"]),
        (("a", "b"), (waiting("c"),), ["a", "c"]),
        (("a", "b"), (waiting("c"), waiting("a", 3)), ["a", "c"]),
        (("a", "b"), (waiting("a", 9), waiting("b", 9), waiting("c", 1)), ["a", "b"]),
        (("a", "b"), (waiting("a", 9, per_s=0.9),), ["a", "a"]),
        (("a", "b"), (waiting("a", 9, per_s=0.5),), ["a", "b"]),
        (("a", "b"), (waiting("a", 2),), ["a", "b"]),
        (("a", "b"), (waiting("c", 4), ModelDemand("a", 5.0)), ["a", "c"]),
        (("a", "a"), (waiting("c", 2), ModelDemand("a", 0.5)), ["a", "c"]),
    ],
    ids=[
        "nothing waits",
        "an idle worker takes what waits",
        "a busy worker stays",
        "long queues outweigh one request",
        "a long queue of much demand gets a second worker",
        "one worker carries little demand",
        "a short one is served before a load ends",
        "the model in demand stays",
        "a spare worker leaves",
    ],
)
def test_many_models_switches_worker_that_pays(
    workers: tuple[str, ...], demand: tuple[ModelDemand, ...], expected: list[str]
) -> None:
    assert held(decide(POLICY, fleet(*workers, demand=demand))) == expected


@pytest.mark.parametrize(
    ("waited_s", "load_s", "switches"),
    # After a load of 2 s a run takes 1 s: with three times the weight of a new one, a request is served before them.
    [(5.9, 2.0, False), (6.1, 2.0, True), (71.0, 8.0, False), (73.0, 8.0, True)],
    ids=["young", "old", "young, long load", "old, long load"],
)
def test_longer_wait_outweighs_longer_queues(waited_s: float, load_s: float, switches: bool) -> None:
    memory = ManyModelsMemory({"c": ModelState(waiting=((100.0 - waited_s, 1.0),))}, 99.0)
    queues = (waiting("a", 9), waiting("b", 9), waiting("c"))
    busy = fleet("a", "b", demand=queues, load_s=load_s, now_s=100.0)

    assert ("c" in held(decide(POLICY, replace(busy, last=Decision(memory=memory))))) is switches


@pytest.mark.parametrize(
    ("known", "arrived", "waiting_count", "expected"),
    [
        ((), 2.0, 2, ((10.0, 2.0),)),
        (((1.0, 2.0), (5.0, 1.0)), 1.0, 2, ((5.0, 1.0), (10.0, 1.0))),
        (((1.0, 2.0),), 1.0, 2, ((1.0, 1.0), (10.0, 1.0))),
        (((1.0, 2.0),), 3.0, 0, ()),
        (((1.0, 2.0),), 0.0, 3, ((1.0, 3.0),)),
        ((), 0.0, 1, ((10.0, 1.0),)),
    ],
    ids=["new ones", "the oldest left", "some of a group left", "all left", "one came back", "one came back alone"],
)
def test_still_waiting_keeps_last_arrivals(
    known: WaitingSince, arrived: float, waiting_count: int, expected: WaitingSince
) -> None:
    assert still_waiting(known, 10.0, arrived, waiting_count) == expected


def test_queue_that_is_served_all_the_time_does_not_grow_old() -> None:
    last = Decision()
    for second in range(60):
        asked = fleet("a", "b", demand=(waiting("a", 2, per_s=1.0), waiting("b", 9)), now_s=float(second))
        last = decide(POLICY, replace(asked, last=last))

    assert isinstance(last.memory, ManyModelsMemory)
    assert last.memory.models["a"].mean_wait_s(59.0) == 0.5


def test_worker_that_loads_keeps_its_new_model() -> None:
    loading = fleet("a", "b", demand=(waiting("c", 2),))
    first = decide(POLICY, loading)

    again = decide(POLICY, replace(loading, now_s=1.0, demand=(waiting("d", 9),), last=first))

    assert held(first) == ["a", "c"]
    assert held(again) == ["d", "c"]
    # Decided again with the former memory, when a worker already reports the model that it is to load.
    told = (loading.replicas[0], worker(1, "c", MODELS))
    assert held(decide(POLICY, replace(loading, replicas=told))) == ["a", "c"]
    later = replace(loading, now_s=9.0, demand=(waiting("b", 9), waiting("d", 9)), last=first)
    assert sorted(held(decide(POLICY, later))) == ["b", "d"]


def test_model_too_large_for_device_is_not_assigned() -> None:
    context = fleet("a", demand=(waiting("c", 5),))
    small = tuple(ReplicaView(replace(view.replica, device_memory_bytes=50)) for view in context.replicas)

    assert held(decide(POLICY, replace(context, replicas=small))) == ["a"]


def test_worker_with_shortest_load_time_loads() -> None:
    context = fleet("a", "b", demand=(waiting("c", 2),))
    slow: Replica = replace(context.replicas[0].replica, device="slow")
    costs = (*context.profiles, AllocationProfile("c", "slow", 1, 1.0, 100, 20.0))
    uneven = replace(context, replicas=(ReplicaView(slow), context.replicas[1]), profiles=costs)

    assert held(decide(POLICY, uneven)) == ["a", "c"]


def test_own_last_load_counts_before_the_profile() -> None:
    context = fleet("a", "b", demand=(waiting("c", 2),))
    warm = replace(context.replicas[0].replica, costs=(ModelCost("c", ((1, 1.0),), load_s=0.1),))

    assert held(decide(POLICY, replace(context, replicas=(ReplicaView(warm), context.replicas[1])))) == ["c", "b"]


@pytest.mark.parametrize(
    ("way", "expected"),
    [(SwitchWay.UNLOAD_FIRST, ["a", "b"]), (SwitchWay.STAGED, ["a", "c"])],
    ids=lambda one: str(one),
)
def test_worker_that_reads_ahead_serves_its_queue_until_then(way: SwitchWay, expected: list[str]) -> None:
    # While c is read for 8 s, b's two requests are served; without that they would wait for it.
    context = fleet("a", "b", demand=(waiting("a", 99), waiting("b", 2), waiting("c", 2)), load_s=8.0)
    change = ModelChange("b", way, 0, 0, 0)
    changing = tuple(ReplicaView(replace(view.replica, change=change)) for view in context.replicas)

    assert held(decide(POLICY, replace(context, replicas=changing))) == expected


def test_every_model_has_a_pool_for_its_queue() -> None:
    plan = decide(POLICY, fleet("a")).plan

    assert [pool.pool for pool in plan.pools] == ["a", "b", "c", "d"]
    assert [pool.worker_ids for pool in plan.pools] == [("w000",), (), (), ()]
