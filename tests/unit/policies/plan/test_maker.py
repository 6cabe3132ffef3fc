"""What a plan says beside its policy's decision, and when it is a new one."""

from dataclasses import replace

import pytest

from pentimento.domain.adapters import Adapter, AdapterKind
from pentimento.domain.fleet import AdapterPlacement, Capability, Plan
from pentimento.domain.generation import PlanVersion
from pentimento.policies.plan.inputs import Decision, PlanInput, ReplicaView, hold_resident
from pentimento.policies.plan.maker import FleetFacts, keeps_models, make_plan, numbered
from pentimento.policies.plan.registry import CacheUse, ServingPolicy
from tests.support.values import a_worker

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
    """Its policy finds again what it decided, not what was added to it."""
    made = make_plan(OWN, PlanInput(0.0, (WORKER,)))

    assert made.decision == hold_resident(PlanInput(0.0, (WORKER,)))
    assert (made.plan.allocator, made.plan.drops_late, made.plan.cache.eviction) == ("own", False, "lcbfu")


def test_policy_that_keeps_models_has_the_cache_of_the_other() -> None:
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
