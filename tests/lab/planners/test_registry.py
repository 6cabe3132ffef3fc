"""Test policies of the lab: their names, inputs and rules, and properties of every policy."""

import math
from dataclasses import replace
from importlib.metadata import entry_points

import pytest

from lab.planners.ablations import StaticCascade, ablated
from lab.planners.baselines import ClipperModel, Proteus
from lab.planners.cascade_milp import solve_by_milp
from lab.planners.registry import LAB_POLICIES, POLICIES
from pentimento import plugins
from pentimento.domain.errors import FailedPrecondition, InvalidArgument
from pentimento.policies.plan.entry import LATENT, NOISE, entry_of
from pentimento.policies.plan.inputs import ModelDemand, PlanInput, Policy
from pentimento.policies.plan.placement import OneModel
from pentimento.policies.plan.registry import SERVING_POLICIES, CacheUse
from pentimento.policies.plan.settings import ServingSettings
from pentimento.settings import SettingsError, load_settings
from services.controller.settings import ControllerSettings
from tests.unit.policies.plan.fleets import SD15, TURBO, context, counts, decide, profiles, repeat, worker

SETTINGS = ServingSettings(heavy="sd15", light="turbo", slo_s=5.0, peak_per_s=20.0)
SIZES = (1, 2, 4, 8, 16, 32)
CASCADE = {"heavy", "light", "slo_s"}
CASCADES = {
    "static-cascade": StaticCascade(SETTINGS),
    "static-threshold": ablated(SETTINGS, fixed_threshold=0.5),
    "aimd": ablated(SETTINGS, aimd=True),
    "no-queueing-model": ablated(SETTINGS, queueing_model=False),
    "diffserve-relaxed": ablated(SETTINGS, relaxed=True),
    "diffserve-milp": ablated(SETTINGS, solver=solve_by_milp),
}
ALLOCATORS = {
    **CASCADES,
    "vanilla": OneModel("sd15", 5.0, SIZES),
    "clipper-light": ClipperModel("turbo", 5.0, SIZES),
    "clipper-heavy": ClipperModel("sd15", 5.0, SIZES),
    "proteus": Proteus(SETTINGS),
    "nirvana-only": OneModel("sd15", 5.0, SIZES),
    "retrieval-only": OneModel("sd15", 5.0, SIZES),
}
NEEDS = {
    **dict.fromkeys((*CASCADES, "proteus"), CASCADE),
    "static-cascade": {*CASCADE, "peak_per_s"},
    "clipper-light": {"light", "slo_s"},
    "clipper-heavy": {"heavy", "slo_s"},
    **{name: {"heavy"} for name in ("vanilla", "nirvana-only", "retrieval-only")},
}
# Cache, its rule, whether hits are cached, late ones dropped.
KINDS = {
    **dict.fromkeys(ALLOCATORS, (CacheUse.NONE, "fifo", True, True)),
    "vanilla": (CacheUse.NONE, "fifo", True, False),
    "nirvana-only": (CacheUse.LATENTS, "lcbfu", False, False),
    "retrieval-only": (CacheUse.RETRIEVAL, "fifo", False, False),
}


def test_lab_policies_are_named_by_product() -> None:
    installed = {found.name: found.load() for found in entry_points(group=plugins.POLICIES)}

    assert installed == LAB_POLICIES
    assert set(plugins.LAB_POLICIES) == LAB_POLICIES.keys() == ALLOCATORS.keys()
    assert not LAB_POLICIES.keys() & SERVING_POLICIES.keys()


def test_policies_are_systems_of_their_names() -> None:
    policies = {name: builder(SETTINGS) for name, builder in LAB_POLICIES.items()}

    assert {name: policy.allocator for name, policy in policies.items()} == ALLOCATORS
    assert {
        policy.name: (policy.cache, policy.eviction, policy.cache_hits, policy.drops_late)
        for policy in policies.values()
    } == KINDS
    assert all(policy.plans_batches for policy in policies.values())


def test_policies_without_a_needed_field_name_it() -> None:
    """Each field is removed separately."""
    named: dict[str, set[str]] = {}
    for name, builder in LAB_POLICIES.items():
        builder.check(SETTINGS)
        named[name] = set()
        for field, absent in (("heavy", ""), ("light", ""), ("slo_s", math.inf), ("peak_per_s", 0.0)):
            try:
                builder.check(replace(SETTINGS, **{field: absent}))  # type: ignore[arg-type]
            except InvalidArgument as error:
                named[name].add(error.message.partition(":")[0])

    assert named == NEEDS


@pytest.mark.parametrize("name", LAB_POLICIES)
def test_policy_of_any_demand_plans_every_device(name: str) -> None:
    for devices, rate in ((16, 0.0), (16, 3.0), (16, 3000.0), (0, 3.0)):
        asked = context(devices, ModelDemand("turbo", rate), ModelDemand("sd15", rate))

        decision, _ = repeat(LAB_POLICIES[name](SETTINGS).allocator, asked, 5, 5.0)

        assert sum(counts(decision).values()) == devices, rate
        assert not devices or entry_of(decision.plan.pools, NOISE, 0.5), rate


# The ablations share one implementation.
@pytest.mark.parametrize("name", ["static-cascade", "diffserve-milp", "proteus"])
@pytest.mark.parametrize("model", ["turbo", "sd15"])
def test_policy_with_one_model_uses_all_workers(name: str, model: str) -> None:
    known = profiles(turbo=TURBO) if model == "turbo" else profiles(sd15=SD15)
    views = tuple(worker(number, model, (model,)) for number in range(4))
    asked = PlanInput(0.0, views, (ModelDemand("turbo", 4.0), ModelDemand("sd15", 1.0)), known)

    decision = decide(LAB_POLICIES[name](SETTINGS).allocator, asked)

    assert (counts(decision), decision.plan.cascades) == ({model: 4}, ())
    for start in (NOISE, LATENT):
        entry = entry_of(decision.plan.pools, start, 0.5)
        assert entry is not None and (entry.pool.model, entry.cascade) == (model, "")


@pytest.mark.parametrize("name", ["diffserve-milp", "static-cascade", "proteus"])
def test_workers_of_other_models_are_no_devices(name: str) -> None:
    allocator: Policy = LAB_POLICIES[name](SETTINGS).allocator
    own = tuple(worker(number) for number in range(8))
    strangers = tuple(worker(20 + number, "other", ("other",)) for number in range(8))
    costs = profiles(turbo=TURBO, sd15=SD15)

    alone, beside = (
        decide(allocator, PlanInput(0.0, fleet, (ModelDemand("turbo", 8.0),), costs))
        for fleet in (own, own + strangers)
    )

    assert (counts(beside), beside.plan.pools, beside.plan.cascades) == (
        counts(alone),
        alone.plan.pools,
        alone.plan.cascades,
    )
    assert beside.memory == alone.memory


@pytest.mark.parametrize("name", ["vanilla", "clipper-heavy", "proteus", "static-cascade"])
def test_policy_without_profile_names_model(name: str) -> None:
    asked = replace(context(4, ModelDemand("turbo", 3.0)), profiles=profiles(turbo=TURBO))

    with pytest.raises(FailedPrecondition, match="model sd15 has no profile"):
        LAB_POLICIES[name](SETTINGS).allocator(asked)


def test_controller_plans_by_any_policy_of_the_lab() -> None:
    flags = ["--heavy", "h", "--light", "l", "--slo-s", "5", "--policy-options", "peak_per_s=9"]

    for name in POLICIES:
        settings = load_settings(ControllerSettings, "controller", ["--allocator", name, *flags], {})

        assert settings.policy().name == name


def test_controller_static_cascade_without_peak_names_flag() -> None:
    flags = ["--allocator", "static-cascade", "--heavy", "h", "--light", "l", "--slo-s", "1"]

    with pytest.raises(SettingsError, match="--policy-options peak_per_s must be above 0"):
        load_settings(ControllerSettings, "controller", flags, {})
