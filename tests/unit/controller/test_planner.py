"""Plans are numbered when they change, and stay in force when an allocator fails."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest
from prometheus_client import REGISTRY

from pentimento.domain.adapters import Adapter, AdapterKind
from pentimento.domain.demand import AdapterDemand
from pentimento.domain.errors import FailedPrecondition
from pentimento.domain.fleet import (
    AdapterPlacement,
    CachePlan,
    ComponentPlacement,
    Plan,
    RegisteredDigest,
    Replica,
    ReplicaKind,
    ServiceEndpoint,
    UnplannedModel,
)
from pentimento.domain.generation import PlanVersion
from pentimento.policies.plan.inputs import (
    UNNUMBERED,
    Decision,
    ModelDemand,
    PlanInput,
    Policy,
    ReplicaView,
    hold_resident,
)
from pentimento.policies.plan.registry import SERVING_POLICIES, CacheUse, ServingPolicy
from pentimento.policies.plan.settings import ServingSettings
from services.controller.planner import Planner
from tests.support.values import a_worker

WORKER = ReplicaView(a_worker("w1", "heavy"))
EMBEDDER = ReplicaView(Replica("e1", ReplicaKind.EMBEDDER, "unix:/e1", 1))
OTHER = ReplicaView(replace(WORKER.replica, instance_id="w2", address="unix:/w2"))
EMPTY, ONE, TWO = (PlanInput(0.0, replicas) for replicas in ((), (WORKER,), (WORKER, OTHER)))


def planner_of(allocator: Policy, name: str = "resident", moves_models: bool = True) -> Planner:
    policy = ServingPolicy(name, allocator, moves_models=moves_models)
    planner = Planner(policy, leader_epoch=5, allocator_limit_s=60.0)
    planner.begin()
    return planner


def failures(allocator: str) -> float:
    name = "pentimento_controller_allocation_failures_total"
    return REGISTRY.get_sample_value(name, {"allocator": allocator}) or 0.0


@pytest.fixture
def planner() -> Planner:
    return planner_of(hold_resident, moves_models=False)


async def test_the_first_plan_is_issued_even_for_an_empty_fleet(planner):
    plan = await planner.look(EMPTY)

    assert plan is not None
    assert plan.version == PlanVersion(5, 1)


async def test_the_plan_lists_where_the_other_services_are(planner):
    plan = await planner.look(PlanInput(0.0, (WORKER, EMBEDDER)))

    assert plan.endpoints == (ServiceEndpoint(ReplicaKind.EMBEDDER, "e1", "unix:/e1"),)


async def test_newer_epoch_issues_plan_again(planner):
    await planner.look(ONE)

    planner.rise_to(9)

    assert (await planner.look(ONE)).version == PlanVersion(9, 1)


def raising(context: PlanInput) -> Decision:
    raise ZeroDivisionError


def nonsensical(context: PlanInput) -> Decision:
    return Decision(replace(hold_resident(context).plan, admission_rate=float("nan")))


@pytest.mark.parametrize("bad", [raising, nonsensical])
async def test_last_plan_stays_in_force_with_metric_when_allocator_fails(bad):
    turns: list[Callable[[PlanInput], Decision]] = [hold_resident, bad, bad, hold_resident]
    planner = planner_of(lambda context: turns.pop(0)(context), bad.__name__)
    good = await planner.look(ONE)

    assert await planner.look(TWO) is None
    assert await planner.look(TWO) is None
    assert planner.plan == good
    assert failures(bad.__name__) == 2
    assert (await planner.look(TWO)).version == PlanVersion(5, 2)


async def test_last_plan_stays_in_force_with_metric_while_allocator_hangs():
    may_end = threading.Event()

    def hanging(context: PlanInput) -> Decision:
        may_end.wait(60)
        return Decision()

    turns = [hold_resident, hanging]
    planner = Planner(ServingPolicy("hanging", lambda context: turns.pop(0)(context)), 5, allocator_limit_s=60.0)
    planner.begin()
    good = await planner.look(ONE)
    planner._threads.limit_s = 0.05

    assert await planner.look(TWO) is None
    may_end.set()
    assert planner.plan == good
    assert failures("hanging") == 1


def counting(context: PlanInput) -> Decision:
    """Count the calls in the memory of the decision."""
    count = context.last.memory or 0
    return Decision(Plan(UNNUMBERED, admission_rate=count / 10), count + 1)


async def test_new_policy_ignores_decision_of_previous_one():
    deciding, may_end = threading.Event(), threading.Event()

    def slow(context: PlanInput) -> Decision:
        deciding.set()
        may_end.wait(60)
        return Decision(memory=7)

    planner = planner_of(slow, "before")
    looking = asyncio.create_task(planner.look(ONE))
    await asyncio.to_thread(deciding.wait, 60)

    planner.follow(ServingPolicy("after", counting))
    may_end.set()

    assert await looking is None
    assert (await planner.look(ONE)).admission_rate == 0.0


async def test_looking_again_at_another_fleet_remembers_nothing_twice():
    planner = planner_of(counting)
    await planner.look(ONE)
    await planner.look(ONE)

    assert [await planner.look_again(context) for context in (ONE, TWO, ONE)] == [None, None, None]
    assert (await planner.look(ONE)).admission_rate == 0.2


async def test_workers_keep_resident_models_until_planner_begins():
    planner = Planner(ServingPolicy("counting", counting, drops_late=False), leader_epoch=5, allocator_limit_s=60.0)
    settling = await planner.look(ONE)

    planner.begin()

    assert (settling.allocator, settling.drops_late, settling.assignments[0].model) == ("resident", True, "heavy")
    plan = await planner.look(ONE)
    assert (plan.allocator, plan.drops_late, plan.assignments) == ("counting", False, ())


async def test_policy_is_not_called_for_fleet_without_workers():
    planner = planner_of(counting)
    await planner.look(ONE)

    await planner.look(EMPTY)

    assert (await planner.look(ONE)).admission_rate == 0.1


async def test_plan_places_adapters_and_follows_resident_ones(planner):
    neon = Adapter("neon", AdapterKind.LORA, "sha256:n", "sd")
    edges = Adapter("edges", AdapterKind.CONTROLNET, "sha256:e", "sd")
    other = replace(edges, digest="sha256:other")

    def with_nets(*resident: str) -> PlanInput:
        worker = ReplicaView(replace(WORKER.replica, adapters=(neon,)))
        nets = [
            ReplicaView(Replica(name, ReplicaKind.CONTROLNET, f"unix:/{name}", 1, adapters=(held,), **held_now))
            for name, held, held_now in (
                ("c2", edges, {"resident_models": resident}),
                ("c1", edges, {}),
                ("c3", other, {}),
            )
        ]
        return PlanInput(0.0, (*nets, worker))

    plan = await planner.look(with_nets())
    assert plan is not None and plan.placements == (
        AdapterPlacement(edges, ("c1", "c2")),
        AdapterPlacement(other, ("c3",)),
        AdapterPlacement(neon, ("w1",)),
    )
    assert (await planner.look_again(with_nets())) is None
    again = await planner.look_again(with_nets("edges"))
    assert again is not None and again.placements[0] == AdapterPlacement(edges, ("c1", "c2"), ("c2",))


async def test_metric_names_models_without_profile_unless_policy_needs_none():
    idle = PlanInput(0.0, (ReplicaView(replace(WORKER.replica, device="gpu")),))
    name = "pentimento_controller_unplanned_models_count"

    profiled = planner_of(hold_resident, "diffserve")
    await profiled.look(idle)
    assert profiled.unplanned == (UnplannedModel("heavy", "gpu", "PROFILE_MISSING"),)
    assert REGISTRY.get_sample_value(name) == 1

    unplanned = Planner(
        ServingPolicy("resident", hold_resident, plans_batches=False), leader_epoch=5, allocator_limit_s=60.0
    )
    unplanned.begin()
    await unplanned.look(idle)
    assert (unplanned.unplanned, REGISTRY.get_sample_value(name)) == ((), 0)


ASKED = (ModelDemand("heavy", 1.0, adapters=(AdapterDemand(AdapterKind.CONTROLNET, "canny", 10),)),)
CANNY = Adapter("canny", AdapterKind.CONTROLNET, "sha256:canny", "stable_diffusion")
NETS = ReplicaView(Replica("c1", ReplicaKind.CONTROLNET, "unix:/c1", 1, adapters=(CANNY,)))


@pytest.mark.parametrize("moves_models", [True, False])
async def test_planner_places_popular_adapters_whatever_moves(moves_models: bool):
    planner = planner_of(hold_resident, "deciding", moves_models)

    plan = await planner.look(PlanInput(0.0, (WORKER, NETS), ASKED))

    assert plan.components == (ComponentPlacement(ReplicaKind.CONTROLNET, "canny", ("c1",)),)
    assert plan.moves_models is moves_models
    assert await planner.look(PlanInput(1.0, (WORKER, NETS))) is None, "without requests the placement stays"


async def test_placement_of_allocator_is_kept():
    own = (ComponentPlacement(ReplicaKind.CONTROLNET, "canny", ()),)
    planner = planner_of(lambda context: Decision(replace(hold_resident(context).plan, components=own)), "placing")

    plan = await planner.look(PlanInput(0.0, (WORKER, NETS), ASKED))

    assert plan.components == own


async def test_cache_plan_follows_policy_unless_allocator_sets_it():
    policy = ServingPolicy("nirvana-only", hold_resident, CacheUse.LATENTS, "lcbfu", cache_hits=False)
    decided = CachePlan(("image",), alpha=0.8)
    found = []
    for allocator in (hold_resident, lambda context: Decision(replace(hold_resident(context).plan, cache=decided))):
        planner = Planner(replace(policy, allocator=allocator), 5, allocator_limit_s=60.0)
        found.append((await planner.look(ONE)).cache)
        planner.begin()
        found.append((await planner.look(TWO)).cache)

    # The first plans, while the fleet gathers, say so too: otherwise every restart would rank the cache again.
    own = CachePlan(("noise",), eviction="lcbfu")
    assert found == [own, own, own, decided]


async def test_worker_with_other_digest_is_left_out_of_plan_with_reason(planner):
    wrong = ReplicaView(replace(OTHER.replica, held_model_digest="sha256:wrong"))
    right = ReplicaView(replace(WORKER.replica, held_model_digest="sha256:right"))
    planner.registered = {"heavy": "sha256:right"}

    plan = await planner.look(PlanInput(0.0, (right, wrong)))

    assert [one.worker_id for one in plan.assignments] == ["w1"]
    assert plan.registered == (RegisteredDigest("heavy", "sha256:right"),)
    assert plan.notes == ("w2 is not planned: it holds heavy as sha256:wrong, which is not the registered one",)
    assert planner.unplanned[0] == UnplannedModel("heavy", "", "MODEL_DIGEST_MISMATCH", "w2")
    assert REGISTRY.get_sample_value("pentimento_controller_mismatched_workers_count") == 1
    planner.registered = {}
    assert len((await planner.look(PlanInput(0.0, (right, wrong)))).assignments) == 2


SERVING = ServingSettings("heavy", "light", ("light",), slo_s=5.0, peak_per_s=1.0)
PAIR = tuple(ReplicaView(a_worker(f"{model}-0", model)) for model in ("heavy", "light"))


@pytest.mark.parametrize("name", sorted(SERVING_POLICIES))
async def test_planner_policy_without_profiles_serves_resident_plan(name: str):
    policy = SERVING_POLICIES[name](SERVING)
    planner = Planner(policy, 5, allocator_limit_s=60.0)
    await planner.look(EMPTY)
    planner.begin()

    await planner.look(PlanInput(0.0, PAIR))

    assert [(one.worker_id, one.model) for one in planner.plan.assignments] == [
        ("heavy-0", "heavy"),
        ("light-0", "light"),
    ]
    needs_none = ("resident", "resident-mixture", "many-models")
    assert planner.plan.allocator == (name if name in needs_none else "resident")
    assert all("no profile" in note and "keep the models" in note for note in planner.plan.notes)
    assert bool(planner.plan.notes) == (name not in needs_none)


@pytest.mark.parametrize("reason", ["PROFILE_MISSING", "DISCRIMINATOR_UNINFORMATIVE"])
async def test_planner_resident_plan_yields_once_lack_is_mended(reason: str):
    lacking = FailedPrecondition(reason, "heavy lacks something")
    found: list[Exception | None] = [lacking, lacking, None]

    def policy(context: PlanInput) -> Decision:
        if (error := found.pop(0)) is not None:
            raise error
        return hold_resident(context)

    planner = planner_of(policy, "joint")

    plans = [await planner.look(context) for context in (ONE, TWO, TWO)]

    assert [(plan.allocator, len(plan.assignments)) for plan in plans] == [
        ("resident", 1),
        ("resident", 2),
        ("joint", 2),
    ]
    note = "joint cannot plan (heavy lacks something): the workers keep the models that they hold"
    assert [plan.notes for plan in plans] == [(note,), (note,), ()]


@pytest.mark.parametrize("bad", [raising, nonsensical])
async def test_planner_plan_without_live_worker_yields_to_resident(bad):
    restarted = replace(WORKER.replica, generation=2)
    turns: list[Callable[[PlanInput], Decision]] = [hold_resident, bad]
    planner = planner_of(lambda context: turns.pop(0)(context), "joint")
    await planner.look(ONE)

    plan = await planner.look(PlanInput(0.0, (ReplicaView(restarted),)))

    assert (plan.allocator, [one.generation for one in plan.assignments]) == ("resident", [2])
    assert plan.notes == ("joint cannot plan (its allocator failed): the workers keep the models that they hold",)


async def test_planner_names_unprofiled_models_before_policy_begins():
    planner = Planner(SERVING_POLICIES["joint"](SERVING), 5, allocator_limit_s=60.0)

    await planner.look(PlanInput(0.0, PAIR))

    assert [one.model for one in planner.unplanned] == ["heavy", "light"]
