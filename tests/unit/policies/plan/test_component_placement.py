"""Place popular ControlNets and LoRAs on replicas by their uses."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from pentimento.domain.adapters import Adapter, AdapterKind
from pentimento.domain.components import StoredBytes, Tier, TierSpeed
from pentimento.domain.demand import AdapterDemand, StartShare
from pentimento.domain.fleet import (
    Capability,
    ComponentPlacement,
    Plan,
    Replica,
    ReplicaKind,
    ReplicaReport,
    WorkerAssignment,
)
from pentimento.domain.generation import ObjectReference, PlanVersion
from pentimento.policies.plan.component_placement import ComponentUses, place_components
from pentimento.policies.plan.inputs import ModelDemand, ReplicaView

NET, LORA = AdapterKind.CONTROLNET, AdapterKind.LORA
MB = 1_000_000


def demand(model: str = "m", requests: int = 0, **calls: int) -> ModelDemand:
    """Return uses of ControlNets, and of LoRAs if the name begins with `l`. `l1_l2` are used together. `requests`: all
    requests of the model."""
    found = []
    for names, count in calls.items():
        name, *beside = names.split("_")
        found.append(AdapterDemand(LORA if name[0] == "l" else NET, name, count, tuple(beside)))
    return ModelDemand(model, 1.0, starts=(StartShare(0, requests),) if requests else (), adapters=tuple(found))


def replica(
    name: str, kind: ReplicaKind, sizes_mb: Mapping[str, int], resident: tuple[str, ...] = (), memory_mb: int = 0
) -> ReplicaView:
    of = LORA if kind is ReplicaKind.UNET_WORKER else NET
    known = tuple(Adapter(one, of, f"sha256:{one}", "stable_diffusion") for one in sizes_mb)
    stored = tuple(StoredBytes(one, Tier.DISK, size * MB) for one, size in sizes_mb.items())
    described = Replica(name, kind, f"unix:{name}", 1, adapters=known, resident_models=resident, stored=stored)
    return ReplicaView(replace(described, adapter_memory_bytes=memory_mb * MB))


def controlnets(*residents: tuple[str, ...], memory_mb: int = 0) -> tuple[ReplicaView, ...]:
    sizes = {"canny": 100, "depth": 100, "pose": 100}
    return tuple(
        replica(f"c{number}", ReplicaKind.CONTROLNET, sizes, resident, memory_mb)
        for number, resident in enumerate(residents)
    )


def workers(*residents: tuple[str, ...], memory_mb: int = 0, size_mb: int = 100) -> tuple[ReplicaView, ...]:
    sizes = {f"l{number}": size_mb for number in range(1, 5)}
    return tuple(
        replica(f"w{number}", ReplicaKind.UNET_WORKER, sizes, ("m", *resident), memory_mb)
        for number, resident in enumerate(residents)
    )


def assigned(views: tuple[ReplicaView, ...], model: str = "m") -> tuple[WorkerAssignment, ...]:
    return tuple(WorkerAssignment(view.replica.instance_id, "", model, 1) for view in views)


def placed(uses: ComponentUses, replicas: tuple[ReplicaView, ...]) -> dict[str, tuple[str, ...]]:
    return {one.component: one.instance_ids for one in place_components(uses, replicas, ()).components}


def prefetched(uses: ComponentUses, views: tuple[ReplicaView, ...], *uploaded: Adapter) -> list[tuple[str, ...]]:
    return [one.prefetch for one in place_components(uses, views, assigned(views), uploaded).assignments]


def test_place_controlnets_by_their_calls() -> None:
    """A replica serves at most 5/16 of the calls: 61 % need two replicas, 35 % two more; 4 % use a free place."""
    uses = ComponentUses().seen([demand(canny=61, depth=35, pose=4)])

    assert placed(uses, controlnets((), (), (), ())) == {
        "canny": ("c0", "c2"),
        "depth": ("c1", "c3"),
        "pose": ("c3",),
    }


def test_place_controlnets_on_holders_first() -> None:
    uses = ComponentUses().seen([demand(canny=50, depth=50)])

    assert placed(uses, controlnets(("depth",), ("canny",))) == {"canny": ("c1",), "depth": ("c0",)}


def test_place_controlnets_within_half_of_memory() -> None:
    uses = ComponentUses().seen([demand(canny=60, depth=30, pose=10)])

    assert placed(uses, controlnets((), memory_mb=400)) == {"canny": ("c0",), "depth": ("c0",)}
    assert placed(uses, controlnets((), memory_mb=199)) == {}


@pytest.mark.parametrize("calls", [{"tile": 10}, {"canny": 2}, {"l1": 10}])
def test_place_controlnets_without_use_is_empty(calls: dict[str, int]) -> None:
    assert placed(ComponentUses().seen([demand(**calls)]), controlnets((), ())) == {}


def test_uses_without_adapters_stay() -> None:
    uses = ComponentUses().seen([demand(canny=10)])

    assert uses.seen([demand(requests=5)]) == uses


def test_placed_controlnet_stays_until_another_is_used_twice_as_much() -> None:
    """The replica has memory for one ControlNet."""
    replicas = controlnets((), memory_mb=200)
    first = place_components(ComponentUses().seen([demand(canny=60, depth=40)]), replicas, ()).uses
    held = controlnets(("canny",), memory_mb=200)
    more = place_components(first.seen([demand(depth=70)]), held, ())
    most = place_components(more.uses.seen([demand(depth=30)]), held, ())

    assert [one.component for one in more.components] == ["canny"]
    assert [one.component for one in most.components] == ["depth"]


def test_prefetch_parts_loras_among_workers() -> None:
    """Memory for two of four on each worker; each worker serves 5/8 of the requests at most."""
    uses = ComponentUses().seen([demand(requests=100, l1=10, l2=9, l3=8, l4=7)])

    assert prefetched(uses, workers((), (), memory_mb=400)) == [("l1", "l3"), ("l2", "l4")]


def test_prefetch_loras_of_one_request_on_one_worker() -> None:
    uses = ComponentUses().seen([demand(requests=100, l1_l4=20, l2_l3=19)])

    assert prefetched(uses, workers((), (), memory_mb=400)) == [("l1", "l4"), ("l2", "l3")]


def test_prefetch_lora_of_many_requests_on_several_workers() -> None:
    """Each of four workers serves 31 of the 100 requests at most."""
    few, many = (ComponentUses().seen([demand(requests=100, l1=count)]) for count in (30, 70))

    assert prefetched(few, workers((), (), (), ())) == [("l1",), (), (), ()]
    assert prefetched(many, workers((), (), (), ())) == [("l1",), ("l1",), ("l1",), ()]


def test_prefetch_where_lora_is_resident_unless_model_changes() -> None:
    uses = ComponentUses().seen([demand(requests=100, l1=30)])
    views = workers((), ("l1",))
    changing = (views[0], replace(views[1], replica=replace(views[1].replica, resident_models=("other", "l1"))))

    assert prefetched(uses, views) == [(), ("l1",)]
    assert prefetched(uses, changing) == [("l1",), ()]


def test_prefetch_loras_used_with_the_workers_model() -> None:
    views = workers((), ())
    uses = ComponentUses().seen([demand("a", l1=10), demand("b", l2=10)])
    assignments = (assigned(views, "a")[0], assigned(views, "b")[1])

    assert [one.prefetch for one in place_components(uses, views, assignments).assignments] == [("l1",), ("l2",)]


def test_prefetch_without_known_memory_is_of_eight_loras() -> None:
    names = [f"l{number}" for number in range(10)]
    view = replica("w0", ReplicaKind.UNET_WORKER, dict.fromkeys(names, 0), ("m",))
    uses = ComponentUses().seen([demand(**{name: 100 + number for number, name in enumerate(names)})])

    assert prefetched(uses, (view,)) == [tuple(names[2:])]


def test_prefetch_uploaded_loras_on_workers_that_fetch() -> None:
    own, other = workers((), ())
    fetching = replace(other.replica, adapters=(), capabilities=frozenset({Capability.UPLOADED_LORA}))
    uses = ComponentUses().seen([demand(l1=50, linked=50)])
    there = ObjectReference("loras/x", "sha256:linked", 100 * MB)
    linked = Adapter("linked", LORA, "sha256:linked", "stable_diffusion", object=there)

    assert prefetched(uses, (own, ReplicaView(fetching)), linked) == [("l1",), ("linked",)]


def test_prefetch_prefers_lora_of_slow_tier() -> None:
    """Memory holds one: a load from the store takes three times as long as one from the disk. A LoRA on the disk with
    twice the uses is worth less; if both are on the disk, it is worth more."""
    (own,) = workers((), memory_mb=200)
    there = ObjectReference("loras/x", "sha256:linked", 100 * MB)
    linked = Adapter("linked", LORA, "sha256:linked", "stable_diffusion", object=there)
    speeds = (TierSpeed(Tier.DISK, 1.0), TierSpeed(Tier.STORE, 3.0))
    view = ReplicaView(
        replace(own.replica, capabilities=frozenset({Capability.UPLOADED_LORA})),
        ReplicaReport("w0", 1, lora_speeds=speeds),
    )
    uses = ComponentUses().seen([demand(l1=20, linked=10)])

    assert prefetched(uses, (view,), linked) == [("linked",)]
    assert prefetched(uses, (replace(view, on_disk=frozenset({"sha256:linked"})),), linked) == [("l1",)]


def test_most_used_loras_of_a_model_come_first() -> None:
    uses = ComponentUses().seen([demand(l1=2, l2=100, l3_l1=99)])

    assert uses.most_used("m") == ("l1", "l2", "l3")
    assert uses.most_used("other") == ()


def test_uses_fade_by_half_after_five_hundred() -> None:
    once = ComponentUses().seen([demand(requests=12, canny=10, l1=10)])
    later = once.seen([demand(requests=500, l2=500)])

    assert once.controlnets == {"canny": 10.0}
    assert once.loras == {("m", ("l1",)): 10.0, ("m", ()): 2.0}
    assert later.controlnets == {"canny": 10.0}
    assert later.loras == {("m", ("l1",)): 5.0, ("m", ("l2",)): 500.0, ("m", ()): 1.0}
    assert once.seen([demand(l2=10_000)]).loras.keys() == {("m", ("l2",))}


def test_plan_names_the_components_of_a_replica() -> None:
    components = (
        ComponentPlacement(ReplicaKind.CONTROLNET, "canny", ("c0", "c1")),
        ComponentPlacement(ReplicaKind.CONTROLNET, "depth", ("c1",)),
        ComponentPlacement(ReplicaKind.DISCRIMINATOR, "l>h", ("c1",)),
    )
    plan = Plan(PlanVersion(), components=components)

    assert plan.placed_on(ReplicaKind.CONTROLNET, "c1") == ("canny", "depth")
    assert plan.placed_on(ReplicaKind.CONTROLNET, "c2") == ()
