"""Where popular ControlNets and LoRAs are loaded ahead of need."""

from dataclasses import replace

import pytest

from pentimento.domain.adapters import Adapter, AdapterKind
from pentimento.domain.demand import AdapterDemand
from pentimento.domain.fleet import Capability, ComponentPlacement, Replica, ReplicaKind, WorkerAssignment
from pentimento.policies.component_placement import AskedShares, place_components, placed_on
from pentimento.policies.plan.inputs import ModelDemand, ReplicaView

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


def test_place_controlnets_by_share_of_calls() -> None:
    """Of four replicas: 60 % of the calls make three, 35 % two, and 4 % are not worth one."""
    shares = AskedShares().seen(demand(canny=61, depth=35, pose=4))

    assert placed(shares, controlnets((), (), (), ())) == {"canny": ("c0", "c1", "c2"), "depth": ("c0", "c3")}


def test_place_controlnets_on_holders_first() -> None:
    shares = AskedShares().seen(demand(canny=50, depth=50))

    assert placed(shares, controlnets(("depth",), ("canny",))) == {"canny": ("c1",), "depth": ("c0",)}


def test_place_controlnets_only_where_served() -> None:
    shares = AskedShares().seen(demand(tile=10))

    assert placed(shares, controlnets((), ())) == {}


def test_place_components_of_few_calls_is_empty() -> None:
    assert placed(AskedShares().seen(demand(canny=2)), controlnets(())) == {}


def test_shares_without_calls_stay() -> None:
    shares = AskedShares().seen(demand(canny=10))

    assert shares.seen((ModelDemand("m", 1.0),)) == shares


def test_placed_component_stays_until_clearly_less_used() -> None:
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


def test_replica_count_does_not_follow_every_draw() -> None:
    replicas = controlnets((), (), (), ())
    shares = place_components(AskedShares().seen(demand(canny=52, depth=48)), replicas, ()).shares
    counts = []
    for canny in (48, 53, 47, 54):
        found = place_components(shares.seen(demand(canny=canny, depth=100 - canny)), replicas, ())
        shares = found.shares
        counts.append([len(one.instance_ids) for one in found.components])

    assert counts == [[3, 2]] * 4


def test_prefetch_popular_loras_on_workers_that_have_them() -> None:
    workers = (
        replica("w1", ReplicaKind.UNET_WORKER, "lora-a", "lora-b", "lora-rare"),
        replica("w2", ReplicaKind.UNET_WORKER, "lora-b"),
    )
    assignments = tuple(WorkerAssignment(name, "", "m", 1) for name in ("w1", "w2", "w3"))
    shares = AskedShares().seen(demand(**{"lora-b": 60, "lora-a": 38, "lora-rare": 2}))

    found = place_components(shares, workers, assignments)

    assert [one.prefetch for one in found.assignments] == [("lora-a", "lora-b"), ("lora-b",), ()]


def test_prefetch_loras_used_with_the_workers_model() -> None:
    def with_model(model: str, **uses: int) -> ModelDemand:
        adapters = tuple(AdapterDemand(LORA, name, count) for name, count in uses.items())
        return ModelDemand(model, 1.0, adapters=adapters)

    workers = tuple(replica(name, ReplicaKind.UNET_WORKER, "ink", "neon", "oil") for name in ("w1", "w2"))
    assignments = (WorkerAssignment("w1", "", "a", 1), WorkerAssignment("w2", "", "b", 1))
    shares = AskedShares().seen((with_model("a", ink=100, neon=15, oil=14), with_model("b", oil=9)))
    first = place_components(shares, workers, assignments)
    # Of a, neon falls below the threshold and stays; ink falls far below oil and leaves.
    later = place_components(first.shares.seen((with_model("a", ink=20),)), workers, assignments)
    gone = place_components(later.shares.seen((with_model("a", oil=3_000),)), workers, assignments)

    assert [one.prefetch for one in first.assignments] == [("ink", "neon"), ("oil",)]
    assert [one.prefetch for one in later.assignments] == [("ink", "neon"), ("oil",)]
    assert gone.assignments[0].prefetch == ("oil",)


def test_most_used_loras_of_a_model_come_first() -> None:
    shares = AskedShares().seen(demand(**{"lora-oil": 2, "lora-ink": 100, "lora-neon": 15}))

    assert shares.most_used("m") == ("lora-ink", "lora-neon", "lora-oil")
    assert shares.most_used("other") == ()


def test_prefetch_uploaded_loras_on_workers_that_fetch() -> None:
    own = replica("w1", ReplicaKind.UNET_WORKER, "lora-a")
    fetching = replace(own.replica, instance_id="w2", capabilities=frozenset({Capability.UPLOADED_LORA}))
    assignments = tuple(WorkerAssignment(name, "", "m", 1) for name in ("w1", "w2"))
    shares = AskedShares().seen(demand(**{"lora-a": 50, "lora-ink": 48, "lora-rare": 2}))

    found = place_components(shares, (own, ReplicaView(fetching)), assignments, ["lora-ink", "lora-rare"])

    assert [one.prefetch for one in found.assignments] == [("lora-a",), ("lora-a", "lora-ink")]


def test_placed_on_names_components_of_replica() -> None:
    components = (
        ComponentPlacement(ReplicaKind.CONTROLNET, "canny", ("c0", "c1")),
        ComponentPlacement(ReplicaKind.CONTROLNET, "depth", ("c1",)),
        ComponentPlacement(ReplicaKind.DISCRIMINATOR, "l>h", ("c1",)),
    )

    assert placed_on(components, ReplicaKind.CONTROLNET, "c1") == ("canny", "depth")
    assert placed_on(components, ReplicaKind.CONTROLNET, "c2") == ()


WANTED: list[tuple[float, int, int, int]] = [
    (0.05, 0, 4, 1),
    (0.049, 0, 4, 0),
    (0.025, 1, 4, 1),
    (0.0249, 1, 4, 0),
    (0.6, 0, 4, 3),
    (1.0, 0, 4, 4),
    # Within one of what would be exact, and a quarter.
    (0.45, 3, 4, 3),
    (0.43, 3, 4, 2),
    (0.81, 3, 4, 3),
    (0.82, 3, 4, 4),
    (0.9, 5, 4, 4),
    (1.0, 4, 4, 4),
    (0.7, 4, 4, 4),
    (0.68, 4, 4, 3),
    (0.25, 1, 5, 2),
    (0.25, 2, 3, 1),
]


def test_wanted_replicas_are_share_of_calls_rounded_up() -> None:
    for share, before, replica_count, count in WANTED:
        calls = {(NET, "canny"): 1000 * share, (NET, "depth"): 1000 * (1.0 - share), (LORA, "lora"): 1e6}
        shares = AskedShares(calls, {(NET, "canny"): before} if before else {})

        assert shares.wanted((NET, "canny"), replica_count) == count


def test_shares_average_calls_and_forget_faint_ones() -> None:
    asked = (NET, "canny")
    once = AskedShares().seen(demand(canny=10))
    twice = once.seen(demand(depth=10))
    models = (*demand(canny=1, lora=2), *demand(canny=2))

    assert once.calls == {asked: pytest.approx(3.0)}
    assert twice.calls == {asked: pytest.approx(2.1), (NET, "depth"): pytest.approx(3.0)}
    assert AskedShares().seen(models).calls == {asked: pytest.approx(0.9), (LORA, "lora"): pytest.approx(0.6)}
    faint = AskedShares({asked: 0.0014, (NET, "pose"): 0.0015}).seen(demand(depth=10))
    assert set(faint.calls) == {(NET, "pose"), (NET, "depth")}


def test_share_needs_three_calls_of_the_kind() -> None:
    assert AskedShares({(NET, "canny"): 0.89}).share((NET, "canny")) == 0.0
    shares = AskedShares({(NET, "canny"): 0.9, (LORA, "lora"): 5.0})

    assert shares.share((NET, "canny")) == 1.0
    assert (shares.share((LORA, "lora")), shares.share((LORA, "other"))) == (1.0, 0.0)


def test_prefetch_eight_most_popular_loras() -> None:
    names = [f"lora{number}" for number in range(10)]
    worker = replica("w1", ReplicaKind.UNET_WORKER, *names)
    shares = AskedShares().seen(demand(**{name: 100 + number for number, name in enumerate(names)}))

    found = place_components(shares, (worker,), (WorkerAssignment("w1", "", "m", 1),))

    assert found.assignments[0].prefetch == tuple(names[2:])
    assert found.shares.ahead == {("m", name) for name in names[2:]}
    assert found.components == ()


def test_placed_counts_are_remembered() -> None:
    shares = AskedShares().seen(demand(canny=75, depth=25))

    found = place_components(shares, controlnets((), (), (), ()), ())

    assert found.shares.placed == {(NET, "canny"): 3, (NET, "depth"): 1}
    assert {one.component: one.instance_ids for one in found.components} == {
        "canny": ("c0", "c1", "c2"),
        "depth": ("c3",),
    }
    assert {one.kind for one in found.components} == {ReplicaKind.CONTROLNET}
