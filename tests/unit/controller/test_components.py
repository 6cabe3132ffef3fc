"""Test components in the controller's plans: the tier that has a model, and the ControlNets and LoRAs that fit into
memory, as replicas report them."""

from dataclasses import replace

import pytest

from lab.fixtures.clocks import SetClock
from pentimento.domain.adapters import Adapter, AdapterKind
from pentimento.domain.components import GB, HeldComponent, StoredBytes, Tier, TierSpeed
from pentimento.domain.demand import AdapterDemand, PoolDemand
from pentimento.domain.fleet import Capability, ComponentPlacement, ModelCost, Replica, ReplicaKind, ReplicaReport
from pentimento.domain.generation import ObjectReference
from pentimento.policies.plan.registry import SERVING_POLICIES
from pentimento.policies.plan.settings import ServingSettings
from services.controller.controller import Controller
from services.controller.leadership import LeaderEpoch
from services.controller.planner import Planner
from services.controller.registry import Registry
from tests.support.values import a_worker

NOW_MS = 1_800_000_000_000
DOOR = Replica("f1", ReplicaKind.FRONTDOOR, "unix:/f1", 1)
COSTS = (ModelCost("heavy", ((1, 1.0),), load_s=5.0), ModelCost("light", ((1, 0.1),), load_s=5.0))
UPLOADS = frozenset({Capability.UPLOADED_LORA})


def worker(name: str, tier: Tier, **changes: object) -> Replica:
    """Return a worker that holds the light model, with ten gigabytes of the heavy one in a tier."""
    stored = (StoredBytes("heavy", tier, 10 * GB), StoredBytes("light", Tier.DISK, GB))
    models = ("heavy", "light")
    return replace(a_worker(name, "light", available_models=models, costs=COSTS), stored=stored, **changes)


def controller_of(policy: str, clock: SetClock) -> Controller:
    built = SERVING_POLICIES[policy](ServingSettings("heavy", light="light", small=("light",), slo_s=10.0))
    epoch = LeaderEpoch(lambda: NOW_MS)
    planner = Planner(built, epoch.value, allocator_limit_s=60.0)
    return Controller(Registry(5.0), planner, epoch, 5.0, clock)


@pytest.fixture
def clock() -> SetClock:
    return SetClock(wall_s=NOW_MS / 1000, monotonic_s=100.0)


def report(name: str, *resident: str, speeds: dict[Tier, float] | None = None, **more: object) -> ReplicaReport:
    measured = tuple(TierSpeed(tier, seconds) for tier, seconds in (speeds or {}).items())
    return replace(ReplicaReport(name, 1, resident), load_speeds=measured, lora_speeds=measured, **more)


@pytest.mark.parametrize("policy", ["joint", "many-models", "diffserve"])
@pytest.mark.parametrize("quick", ["w1", "w2", "w3"])
async def test_worker_with_the_model_on_its_disk_loads_it(policy: str, quick: str, clock: SetClock) -> None:
    """All workers have the same profile. One reads the heavy model from its disk, in 5 s, and the others from the
    store, in 50: only reported tiers and speeds differ."""
    controller = controller_of(policy, clock)
    for name in ("w1", "w2", "w3"):
        controller.register(worker(name, Tier.DISK if name == quick else Tier.STORE))
    controller.register(DOOR)
    clock.monotonic_s = 110.0
    for name in ("w1", "w2", "w3"):
        controller.report(report(name, "light", speeds={Tier.DISK: 0.5, Tier.STORE: 5.0}))
    demand = (PoolDemand("heavy", 6, queue_length=6), PoolDemand("light", 2))
    controller.report(report("f1", demand=demand))

    await controller.step(110.0)

    assert [one.worker_id for one in controller.fleet().plan.assignments if one.model == "heavy"] == [quick]


async def test_plan_states_residents_within_reported_memory(clock: SetClock) -> None:
    """The ControlNet service has memory for one of two ControlNets. The worker has memory for one of two LoRAs, and
    loads ten times as fast from disk as from the store. Once the uploaded LoRA is on disk, the other one saves more."""
    controller = controller_of("joint", clock)
    nets = tuple(Adapter(name, AdapterKind.CONTROLNET, f"sha256:{name[0] * 64}", "sd") for name in ("canny", "depth"))
    own = Adapter("ink", AdapterKind.LORA, f"sha256:{'a' * 64}", "sd")
    reference = ObjectReference("adapters/x", f"sha256:{'b' * 64}", GB)
    uploaded = Adapter("neon", AdapterKind.LORA, reference.digest, "sd", object=reference)
    controller.name_uploaded((uploaded,))
    held = worker("w1", Tier.DISK, adapters=(own,), capabilities=UPLOADS, adapter_memory_bytes=2 * GB)
    controller.register(replace(held, stored=(*held.stored, StoredBytes("ink", Tier.DISK, GB))))
    sizes = tuple(StoredBytes(net.name, Tier.DISK, GB) for net in nets)
    service = Replica("c1", ReplicaKind.CONTROLNET, "unix:/c1", 1, adapters=nets, stored=sizes)
    controller.register(replace(service, adapter_memory_bytes=2 * GB))
    controller.register(DOOR)
    speeds = {Tier.DISK: 1.0, Tier.STORE: 10.0}
    asked = tuple(
        AdapterDemand(kind, name, count)
        for kind, name, count in (
            (AdapterKind.CONTROLNET, "canny", 5),
            (AdapterKind.CONTROLNET, "depth", 9),
            (AdapterKind.LORA, "ink", 9),
            (AdapterKind.LORA, "neon", 4),
        )
    )
    plans = []
    for now_s, changes in ((110.0, ()), (120.0, (HeldComponent(reference.digest, Tier.DISK, GB),))):
        clock.monotonic_s = now_s
        controller.report(report("w1", "light", speeds=speeds, component_changes=changes))
        controller.report(report("c1"))
        controller.report(report("f1", demand=(PoolDemand("light", 30, adapters=asked),)))
        await controller.step(now_s)
        plans.append(controller.fleet().plan)

    assert [plan.components for plan in plans] == [(ComponentPlacement(ReplicaKind.CONTROLNET, "depth", ("c1",)),)] * 2
    assert [plan.assignments[0].prefetch for plan in plans] == [("neon",), ("ink",)]
