"""Workers that can hold none of a policy's models, as those of a second suite over one controller."""

import pytest

from pentimento.domain.models import CascadeVariant, Handover
from pentimento.policies.plan.inputs import ModelDemand, PlanInput, Policy
from pentimento.policies.plan.registry import SERVING_POLICIES, registered_cascade
from pentimento.policies.plan.settings import ServingSettings
from tests.unit.policies.plan.fleets import SD15, TURBO, counts, decide, profiles, worker

SETTINGS = ServingSettings(heavy="sd15", light="turbo", small=("turbo",), slo_s=5.0, peak_per_s=8.0)
CASCADE = CascadeVariant(("turbo", "sd15"), (Handover("turbo>sd15", "sha256:d", (0.0, 1.0), (0.0, 1.0)),))
POLICIES = ("diffserve", "modm", "cascade")


def allocator_of(policy: str) -> Policy:
    named = SERVING_POLICIES.get(policy)
    return named(SETTINGS).allocator if named is not None else registered_cascade(SETTINGS, CASCADE).allocator


def fleet(stranger_count: int) -> PlanInput:
    own = tuple(worker(number) for number in range(8))
    strangers = tuple(worker(20 + number, "other", ("other",)) for number in range(stranger_count))
    return PlanInput(0.0, own + strangers, (ModelDemand("turbo", 8.0),), profiles(turbo=TURBO, sd15=SD15))


@pytest.mark.parametrize("policy", POLICIES)
def test_workers_that_can_hold_none_of_the_models_are_no_devices(policy: str) -> None:
    allocator = allocator_of(policy)

    alone, beside = decide(allocator, fleet(0)), decide(allocator, fleet(8))

    assert (counts(beside), beside.plan.pools, beside.plan.cascades) == (
        counts(alone),
        alone.plan.pools,
        alone.plan.cascades,
    )
    assert beside.memory == alone.memory
