"""Test the requests that the joint policy rejects, and the use of spare time of devices."""

from dataclasses import replace

import pytest

from pentimento.domain.demand import StartShare
from pentimento.policies.plan.entry import IMAGE, SPARE
from pentimento.policies.plan.inputs import ModelDemand, PlanInput
from pentimento.policies.plan.joint.policy import JointPolicy
from pentimento.policies.plan.settings import ModelQuality, ServingSettings
from tests.unit.policies.plan.fleets import context, decide

QUALITIES = (ModelQuality("sd15", 1.0), ModelQuality("turbo", 0.8, 0.2, 1.25))
SETTINGS = ServingSettings(heavy="sd15", light="turbo", slo_s=5.0, qualities=QUALITIES)
HITS = (StartShare(0, 40, "noise", 50), StartShare(20, 60, IMAGE, 50, "turbo"))


def asked(rate: float, *starts: StartShare) -> PlanInput:
    return context(16, ModelDemand("sd15", rate, starts=starts))


def test_nothing_is_refused_before_first_request() -> None:
    allocator = JointPolicy(replace(SETTINGS, expected_per_s=2_000.0))

    unseen, seen = (decide(allocator, asked(rate)) for rate in (0.0, 2_000.0))

    assert unseen.plan.admission_rate == 1.0
    assert decide(JointPolicy(SETTINGS), asked(2_000.0)).plan.admission_rate < 0.5
    assert seen.plan.admission_rate < 0.5


@pytest.mark.parametrize(
    ("price", "heavy_reuse", "spares"), [(0.0, 1.0, True), (0.002, 1.0, False), (0.002, 1.1, True)]
)
def test_heavy_model_takes_spare_hits_worth_its_seconds(price: float, heavy_reuse: float, spares: bool) -> None:
    """A light hit is as good as a heavy one, or a tenth worse."""
    qualities = (replace(QUALITIES[0], reuse=heavy_reuse), QUALITIES[1])
    decision = decide(JointPolicy(replace(SETTINGS, qualities=qualities, run_price=price)), asked(14.0, *HITS))

    routes = {share.route for pool in decision.plan.pools if pool.model == "sd15" for share in pool.routes}

    assert (SPARE in routes) is spares
