"""Where popular ControlNets and LoRAs are loaded ahead of need."""

from pentimento.domain.adapters import Adapter, AdapterKind
from pentimento.domain.fleet import AdapterDemand, ComponentPlacement, Replica, ReplicaKind, WorkerAssignment
from pentimento.policies.allocation import ModelDemand, ReplicaView
from pentimento.policies.component_placement import AskedShares, place_components, placed_on

NET, LORA = AdapterKind.CONTROLNET, AdapterKind.LORA


def demand(**calls: int) -> tuple[ModelDemand, ...]:
    """LoRAs begin with `lora`."""
    adapters = (AdapterDemand(LORA if name.startswith("lora") else NET, name, count) for name, count in calls.items())
    return (ModelDemand("m", 1.0, adapters=tuple(adapters)),)


def replica(name: str, kind: ReplicaKind, *adapters: str, resident: tuple[str, ...] = ()) -> ReplicaView:
    of = LORA if kind is ReplicaKind.UNET_WORKER else NET
    known = tuple(Adapter(one, of, f"sha256:{one}", "stable_diffusion") for one in adapters)
    return ReplicaView(Replica(name, kind, f"unix:{name}", 1, adapters=known, resident_models=resident))


def controlnets(*residents: tuple[str, ...]) -> tuple[ReplicaView, ...]:
    return tuple(
        replica(f"c{number}", ReplicaKind.CONTROLNET, "canny", "depth", "pose", resident=resident)
        for number, resident in enumerate(residents)
    )


def placed(shares: AskedShares, replicas: tuple[ReplicaView, ...]) -> dict[str, tuple[str, ...]]:
    return {one.component: one.instance_ids for one in place_components(shares, replicas, ()).components}


def test_controlnets_are_on_replicas_by_their_share_of_calls() -> None:
    """Of four replicas: 60 % of the calls make three, 35 % two, and 4 % are not worth one."""
    shares = AskedShares().seen(demand(canny=61, depth=35, pose=4))

    assert placed(shares, controlnets((), (), (), ())) == {"canny": ("c0", "c1", "c2"), "depth": ("c0", "c3")}


def test_who_holds_it_already_comes_first() -> None:
    shares = AskedShares().seen(demand(canny=50, depth=50))

    assert placed(shares, controlnets(("depth",), ("canny",))) == {"canny": ("c1",), "depth": ("c0",)}


def test_nobody_is_asked_to_hold_what_it_does_not_serve() -> None:
    shares = AskedShares().seen(demand(tile=10))

    assert placed(shares, controlnets((), ())) == {}


def test_a_handful_of_calls_places_nothing() -> None:
    assert placed(AskedShares().seen(demand(canny=2)), controlnets(())) == {}


def test_a_look_without_any_call_changes_nothing() -> None:
    shares = AskedShares().seen(demand(canny=10))

    assert shares.seen((ModelDemand("m", 1.0),)) == shares


def test_what_is_placed_stays_until_it_is_clearly_less_asked_for() -> None:
    """A draw of 4 % leaves an average of 4.7 %: nothing new would be placed by it, and nothing leaves. 0.5 % do."""
    replicas = controlnets(())
    first = place_components(AskedShares().seen(demand(canny=95, depth=5)), replicas, ())
    weaker = place_components(first.shares.seen(demand(canny=96, depth=4)), replicas, ())
    gone = weaker.shares
    for _ in range(10):
        gone = place_components(gone.seen(demand(canny=995, depth=5)), replicas, ()).shares

    assert [one.component for one in first.components] == ["canny", "depth"]
    assert [one.component for one in weaker.components] == ["canny", "depth"]
    assert placed(gone, replicas).keys() == {"canny"}


def test_a_count_of_replicas_does_not_follow_every_draw() -> None:
    replicas = controlnets((), (), (), ())
    shares = place_components(AskedShares().seen(demand(canny=52, depth=48)), replicas, ()).shares
    counts = []
    for canny in (48, 53, 47, 54):
        found = place_components(shares.seen(demand(canny=canny, depth=100 - canny)), replicas, ())
        shares = found.shares
        counts.append([len(one.instance_ids) for one in found.components])

    assert counts == [[3, 2]] * 4


def test_popular_loras_are_loaded_ahead_by_the_workers_that_have_them() -> None:
    workers = (
        replica("w1", ReplicaKind.UNET_WORKER, "lora-a", "lora-b", "lora-rare"),
        replica("w2", ReplicaKind.UNET_WORKER, "lora-b"),
    )
    assignments = tuple(WorkerAssignment(name, "", "m", 1) for name in ("w1", "w2", "w3"))
    shares = AskedShares().seen(demand(**{"lora-b": 60, "lora-a": 38, "lora-rare": 2}))

    found = place_components(shares, workers, assignments)

    assert [one.prefetch for one in found.assignments] == [("lora-a", "lora-b"), ("lora-b",), ()]


def test_a_replica_is_told_what_is_placed_on_it() -> None:
    components = (
        ComponentPlacement(ReplicaKind.CONTROLNET, "canny", ("c0", "c1")),
        ComponentPlacement(ReplicaKind.CONTROLNET, "depth", ("c1",)),
        ComponentPlacement(ReplicaKind.DISCRIMINATOR, "l>h", ("c1",)),
    )

    assert placed_on(components, ReplicaKind.CONTROLNET, "c1") == ("canny", "depth")
    assert placed_on(components, ReplicaKind.CONTROLNET, "c2") == ()
