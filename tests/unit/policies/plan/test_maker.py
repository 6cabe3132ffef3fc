"""Test plan numbers and the parts of a plan that the policy does not decide."""

from dataclasses import replace

import pytest

from pentimento.domain.adapters import Adapter, AdapterKind
from pentimento.domain.errors import FailedPrecondition
from pentimento.domain.fleet import AdapterPlacement, Capability, Plan, UnplannedModel
from pentimento.domain.generation import PlanVersion
from pentimento.policies.plan.inputs import (
    AllocationProfile,
    Decision,
    ModelDemand,
    PlanInput,
    ReplicaView,
    hold_resident,
)
from pentimento.policies.plan.maker import FleetFacts, keeps_models, make_plan, numbered, unprofiled_models
from pentimento.policies.plan.mixture import MixturePolicy
from pentimento.policies.plan.placement import place
from pentimento.policies.plan.registry import SERVING_POLICIES, CacheUse, ServingPolicy
from pentimento.policies.plan.settings import ServingSettings
from tests.support.values import a_worker
from tests.unit.policies.plan.fleets import SD15, TURBO, context, counts, decide, hits, profiles, repeat, worker

WORKER = ReplicaView(a_worker("w1", "heavy"))
OWN = ServingPolicy("own", hold_resident, CacheUse.LATENTS, "lcbfu", cache_hits=False, drops_late=False)


def test_uploaded_lora_is_placed_on_workers_that_load_such() -> None:
    ink = Adapter("ink", AdapterKind.LORA, "sha256:i", "sd")
    loading = frozenset({Capability.UPLOADED_LORA})
    views = tuple(
        ReplicaView(a_worker(name, *held, capabilities=can))
        for name, can, held in (
            ("w2", loading, ("tiny", "ink")),
            ("w1", loading, ("tiny",)),
            ("w3", frozenset({Capability.LORA}), ("tiny", "ink")),
        )
    )

    made = make_plan(OWN, PlanInput(0.0, views), FleetFacts(uploaded=(ink,)))

    assert made.plan.placements == (AdapterPlacement(ink, ("w1", "w2"), ("w2",)),)


def test_made_plan_leaves_the_decision_to_its_policy() -> None:
    """The policy sees its own last decision, without additions."""
    made = make_plan(OWN, PlanInput(0.0, (WORKER,)))

    assert made.decision == hold_resident(PlanInput(0.0, (WORKER,)))
    assert (made.plan.allocator, made.plan.drops_late, made.plan.cache.eviction) == ("own", False, "lcbfu")


def test_scaled_model_has_a_pool_also_without_a_worker() -> None:
    facts = FleetFacts(scaled=("heavy", "light"))

    held = make_plan(OWN, PlanInput(0.0, (WORKER,)), facts).plan.pools
    empty = make_plan(OWN, PlanInput(0.0, ()), facts).plan.pools

    assert [(pool.pool, pool.model, pool.worker_ids) for pool in held] == [
        ("heavy", "heavy", ("w1",)),
        ("light", "light", ()),
    ]
    assert [(pool.pool, pool.worker_ids) for pool in empty] == [("heavy", ()), ("light", ())]


def test_policy_without_model_changes_has_the_other_policys_cache() -> None:
    given = PlanInput(0.0, (WORKER,), last=Decision(memory=7))

    made = make_plan(keeps_models(OWN, "because"), given)

    assert (made.plan.allocator, made.plan.moves_models, made.plan.drops_late) == ("resident", False, True)
    assert (made.plan.cache.eviction, made.plan.notes, made.decision.memory) == ("lcbfu", ("because",), 7)
    assert [one.model for one in made.plan.assignments] == ["heavy"]
    assert make_plan(keeps_models(OWN), given).plan.notes == ()


PLAN = Plan(PlanVersion(), admission_rate=0.5)


@pytest.mark.parametrize(
    ("plan", "last", "version"),
    [
        pytest.param(PLAN, None, PlanVersion(0, 1), id="first"),
        pytest.param(PLAN, Plan(PlanVersion(9, 0)), PlanVersion(9, 1), id="first-of-epoch"),
        pytest.param(PLAN, replace(PLAN, version=PlanVersion(9, 0)), PlanVersion(9, 1), id="first-even-if-equal"),
        pytest.param(PLAN, replace(PLAN, version=PlanVersion(9, 3)), None, id="equal"),
        pytest.param(PLAN, Plan(PlanVersion(9, 3)), PlanVersion(9, 4), id="another"),
    ],
)
def test_numbered_plan_follows_the_last(plan: Plan, last: Plan | None, version: PlanVersion | None) -> None:
    assert numbered(plan, last) == (replace(plan, version=version) if version is not None else None)


SETTINGS = ServingSettings(heavy="sd15", light="turbo", slo_s=5.0, peak_per_s=20.0)


def on(device: str, view: ReplicaView) -> ReplicaView:
    return ReplicaView(replace(view.replica, device=device))


def test_model_without_a_profile_on_a_device_is_named_with_it() -> None:
    fleet = (on("a", worker(0)), on("b", worker(1)))
    measured = (AllocationProfile("turbo", "a", 1, 0.1, 0), AllocationProfile("sd15", "", 1, 1.0, 0))

    assert unprofiled_models(PlanInput(0.0, fleet, (), measured)) == (UnplannedModel("turbo", "b", "PROFILE_MISSING"),)


def test_resident_loras_lack_no_profile() -> None:
    view = worker(0, "turbo", ("turbo",))
    styled = ReplicaView(replace(view.replica, resident_models=("turbo", "neon")))

    assert unprofiled_models(PlanInput(0.0, (styled,), (), profiles(turbo=TURBO))) == ()


def test_worker_without_profile_of_model_is_not_assigned_it() -> None:
    fleet = (on("a", worker(0, "turbo")), on("b", worker(1, "turbo")), on("b", worker(2, "sd15")))
    measured = (AllocationProfile("turbo", "a", 1, 0.1, 0), AllocationProfile("sd15", "b", 1, 1.0, 0))

    placed = place(PlanInput(0.0, fleet, (), measured), {"turbo": 2, "sd15": 1}, {})

    assert {each.worker_id: each.model for each in placed} == {"w000": "turbo", "w002": "sd15"}


def test_small_model_without_profile_gives_way_to_the_next() -> None:
    settings = ServingSettings(heavy="sd15", small=("unmeasured", "turbo"), batch_sizes=(1,))
    models = ("sd15", "unmeasured", "turbo")
    fleet = tuple(worker(index, "sd15", models) for index in range(8))
    asked = PlanInput(
        0.0, fleet, (ModelDemand("sd15", 8.0, starts=hits((0, 20), (25, 80))),), profiles(sd15=SD15, turbo=TURBO)
    )

    last, _ = repeat(MixturePolicy(settings), asked, 3, 5.0)

    assert set(counts(last)) == {"sd15", "turbo"}


def test_small_model_without_profile_is_unassigned_at_once() -> None:
    settings = ServingSettings(heavy="sd15", small=("better", "turbo"), batch_sizes=(1,))
    fleet = tuple(worker(index, "sd15", ("sd15", "better", "turbo")) for index in range(8))
    demand = (ModelDemand("sd15", 8.0, starts=hits((0, 20), (25, 80))),)
    tables = {"sd15": SD15, "turbo": TURBO}
    asked = PlanInput(0.0, fleet, demand, profiles(**tables, better=TURBO))
    before = decide(MixturePolicy(settings), asked)

    after = decide(MixturePolicy(settings), replace(asked, now_s=1.0, profiles=profiles(**tables), last=before))

    assert (set(counts(before)), set(counts(after))) == ({"sd15", "better"}, {"sd15", "turbo"})


@pytest.mark.parametrize("name", ["diffserve", "modm"])
def test_policy_names_missing_profile_of_required_model(name: str) -> None:
    asked = replace(context(4, ModelDemand("turbo", 3.0)), profiles=profiles(turbo=TURBO))

    with pytest.raises(FailedPrecondition, match="model sd15 has no profile"):
        SERVING_POLICIES[name](SETTINGS).allocator(asked)
