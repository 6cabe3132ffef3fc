"""Test serving policies live on emulated devices: plans that change under load, and the ends of requests."""

import asyncio
from collections import Counter
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

import pytest

from lab.fixtures.frontdoor_suite import FrontdoorSuite, settings_of
from lab.planners.registry import POLICIES
from pentimento.clients.controller import ControllerClient
from pentimento.domain.errors import PentimentoError
from pentimento.domain.fleet import Plan
from pentimento.domain.image_request import CacheMode, Completed, ImageRequest
from pentimento.policies.plan.inputs import Decision
from pentimento.rpc import RpcChannelSettings, open_channel
from pentimento.stores.ledger import open_journal
from tests.lab.emulated_fleet.planned_fleet import PlannedFleet, planned_fleet

REQUEST = ImageRequest("a red circle", cache=CacheMode.OFF)
# Slow enough that a busy machine keeps up with the requests.
SLOWNESS = 4.0
# One light device cannot carry this rate, so the cascade must give the light model more devices.
RATE = 36.0 / SLOWNESS


async def ending(suite: FrontdoorSuite, number: int, deadline_ms: int | None = None) -> str:
    """Return how a request's stream ended: its model, or the reason of its error."""
    try:
        completed = await suite.paint(replace(REQUEST, prompt=f"picture {number}", deadline_ms=deadline_ms))
    except PentimentoError as error:
        return error.reason
    assert isinstance(completed, Completed)
    return completed.provenance.spec.model


async def generated_at(suite: FrontdoorSuite, count: int, rate: float) -> list[Completed]:
    """Send `count` requests at a rate, and return the completed ones."""

    async def generate(number: int) -> Completed:
        await asyncio.sleep(number / rate)
        return await suite.paint(replace(REQUEST, prompt=f"picture {number}"))

    endings = await asyncio.gather(*map(generate, range(count)), return_exceptions=True)
    return [one for one in endings if isinstance(one, Completed)]


async def loaded(suite: FrontdoorSuite, count: int, rate: float, deadline_ms: int | None = None) -> Counter[str]:
    """Send requests at their times, and count their ends."""
    began = asyncio.get_running_loop().time()
    endings = []
    for number in range(count):
        await asyncio.sleep(max(began + number / rate - asyncio.get_running_loop().time(), 0.0))
        endings.append(asyncio.ensure_future(ending(suite, number, deadline_ms)))
    return Counter(await asyncio.gather(*endings))


async def begun(fleet: PlannedFleet, policy: str) -> None:
    await fleet.wait_until(lambda: fleet.plan.allocator == policy)
    await settled(fleet)


async def settled(fleet: PlannedFleet) -> None:
    async with asyncio.timeout(120):
        while not await fleet.is_settled():  # noqa: ASYNC110 - of several parts that do not know of each other
            await asyncio.sleep(0.02)


async def test_load_changes_assignments_and_requests_end_once(directory: Path) -> None:
    async with planned_fleet(directory, "diffserve", slowness=SLOWNESS) as fleet:
        await begun(fleet, "diffserve")
        before = Counter(fleet.held().values())

        endings = await loaded(fleet.suite, 45, RATE)

        # The heavy model has what the light one can spare; under load that is less.
        await fleet.wait_until(lambda: max(light_counts(fleet)) > 1)
        status = await fleet.suite.operator.status()
    journal = open_journal(settings_of(directory).ledger_url)
    unfinished = journal.unfinished().result()
    journal.close()

    assert before == {"heavy": 3, "light": 1}
    assert sum(endings.values()) == 45
    assert endings["light"] + endings["heavy"] == status.completed_count
    assert status.accepted_count == status.completed_count + status.failed_count
    assert unfinished == []


def light_counts(fleet: PlannedFleet) -> list[int]:
    """Return how many workers each decision gave to the light model."""
    return [sum(one.model == "light" for one in decision.plan.assignments) for _, decision in fleet.settings.asked]


async def test_controller_plans_equal_the_pure_policys(directory: Path) -> None:
    async with planned_fleet(directory, "diffserve", slowness=SLOWNESS) as fleet:
        await begun(fleet, "diffserve")
        await loaded(fleet.suite, 45, RATE)
        # A worker's change of model is checked between two rounds of the demand.
        await fleet.wait_until(lambda: max(light_counts(fleet)) > 1)
        await settled(fleet)
        # The policy decides in a thread, a moment before its plan is in force.
        await fleet.wait_until(lambda: planned(fleet.plan) == planned(fleet.settings.asked[-1][1].plan))
        asked = tuple(fleet.settings.asked)
        policy = POLICIES["diffserve"](fleet.settings.serving.serving())

    # Round after round, starting with an empty memory.
    before = decided = Decision()
    looked_s = None
    for context, in_the_controller in asked:
        if context.now_s != looked_s:
            before, looked_s = decided, context.now_s
        decided = policy.allocator(replace(context, last=before))
        assert in_the_controller == decided


def planned(plan: Plan) -> tuple[object, ...]:
    return plan.assignments, plan.pools, plan.admission_rate


async def test_joint_policy_gets_demand_sent_on(directory: Path) -> None:
    """Send more than the heavy model can run: light images replace the rest, without a score (ADR 0008).

    The rate of arrivals depends on the machine: a busy one sends them later than their times.
    """
    async with planned_fleet(directory, "joint", slowness=SLOWNESS) as fleet:
        await begun(fleet, "joint")

        began = asyncio.get_running_loop().time()
        endings = await loaded(fleet.suite, 100, 20.0, deadline_ms=4000)
        took_s = asyncio.get_running_loop().time() - began
        assert sum(endings.values()) == 100
        assert endings["light"] > 0
        # At its highest no rate is below its mean; allow half of the mean, for requests outside the rounds at either
        # end.
        await fleet.wait_until(lambda: max(sent_on for _, sent_on in heard(fleet)) > 0.5 * endings["light"] / took_s)
        await fleet.wait_until(lambda: max(came - sent_on for came, sent_on in heard(fleet)) > 0.5 * 100 / took_s)


def heard(fleet: PlannedFleet) -> list[tuple[float, float]]:
    """Return the demand of each planning round: arrivals and deferred images, per second."""
    return [
        (sum(one.arrivals_per_s for one in context.demand), sum(one.sent_on_per_s for one in context.demand))
        for context, _ in fleet.settings.asked
    ]


async def test_joint_policy_plans_with_thinned_steps(directory: Path) -> None:
    """Send half as many again as the heavy model can carry with all of its steps."""
    options = {"slowness": SLOWNESS, "policy_options": ("expected_per_s=15",)}
    async with planned_fleet(directory, "joint", thins=True, **options) as fleet:
        await begun(fleet, "joint")

        generated = await generated_at(fleet.suite, 120, 15.0)

        told = [one.thinnable for context, _ in fleet.settings.asked for one in context.demand if one.model == "heavy"]
        thins = [pool.model for _, decision in fleet.settings.asked for pool in decision.plan.pools if pool.thins]
    assert set(thins) == {"heavy"}
    assert max(one.spare_shares / one.request_count for one in told if one.request_count) == 0.5
    thinned = [one.provenance for one in generated if one.provenance.route.thinned_steps]
    assert {(one.spec.model, one.steps_run) for one in thinned} == {("heavy", 2)}


@dataclass(frozen=True)
class FirstPlan:
    """Return the first plan for 10 requests a second without cache hits: workers and their batch size by model, and the
    confidence that light images must exceed, None without a score."""

    heavy: tuple[int, int] | None
    light: tuple[int, int] | None = None
    threshold: float | None = None

    @classmethod
    def of(cls, plan: Plan) -> "FirstPlan":
        held = Counter((one.model, one.max_batch_size) for one in plan.assignments)
        found = {model: (count, batch) for (model, batch), count in held.items()}
        thresholds = {one.confidence for each in plan.cascades for stage in each.stages for one in stage.thresholds}
        assert len(found) == len(held)
        return cls(found.get("heavy"), found.get("light"), *thresholds)


@pytest.mark.parametrize(
    ("policy", "first"),
    [
        ("clipper-light", FirstPlan(None, (4, 1))),
        ("clipper-heavy", FirstPlan((4, 1))),
        ("proteus", FirstPlan((4, 1))),
        ("static-cascade", FirstPlan((2, 2), (2, 1), 1.0)),
        ("static-threshold", FirstPlan((2, 1), (2, 1), 0.4)),
        ("aimd", FirstPlan((2, 1), (2, 1), 0.95)),
        ("no-queueing-model", FirstPlan((3, 1), (1, 2), 1.0)),
        ("vanilla", FirstPlan((4, 4))),
        ("modm", FirstPlan((4, 32))),
        ("joint", FirstPlan((3, 1), (1, 4))),
    ],
)
async def test_every_kind_of_policy_is_played(directory: Path, policy: str, first: FirstPlan) -> None:
    options = ("peak_per_s=10", "expected_per_s=10", "fixed_threshold=0.4")
    # So short that three executions of two heavy images exceed it, and one does not.
    async with planned_fleet(directory, policy, slo_s=1.0, policy_options=options) as fleet:
        await begun(fleet, policy)

        endings = await loaded(fleet.suite, 10, 10.0)

        pools = [pool for _, decision in fleet.settings.asked for pool in decision.plan.pools]
    assert FirstPlan.of(fleet.settings.asked[0][1].plan) == first
    assert sum(endings.values()) == 10
    assert set(endings) <= {pool.model for pool in pools}


# These shares overstate the low scores: half as many images have a confidence up to 0.45.
MISMEASURED = {"deferral": ("0:0", "0.45:0.9", "1:1")}
# The joint policy takes the cascade at any load if its discriminator finds light images that are the better ones.
QUALITIES = ("heavy=1", "light=0.95:0.4")


@pytest.mark.parametrize("policy", ["diffserve", "aimd", "joint"])
async def test_deferral_curve_follows_scores(directory: Path, policy: str) -> None:
    options = {"policy_options": ("expected_per_s=10",), "qualities": QUALITIES, **MISMEASURED}
    async with planned_fleet(directory, policy, **options) as fleet:
        await begun(fleet, policy)
        await loaded(fleet.suite, 60, 10.0)
        # Rounds after the last request: the decision in force knows of all scores.
        reported = len(fleet.settings.asked)
        await fleet.wait_until(lambda: len(fleet.settings.asked) > reported + 4)
        async with open_channel(f"unix:{directory / 'c'}", RpcChannelSettings()) as channel:
            (followed,) = (await ControllerClient(channel).fleet()).deferrals
        scores = scores_of(fleet)

    scored = sum(scores)
    assert scored >= 20
    expected = [
        (50 * measured + below) / (50 + scored)
        for measured, below in zip(followed.measured_shares, accumulate(scores), strict=True)
    ]
    assert followed.cascade == "light>heavy"
    assert followed.measured_shares[8] == pytest.approx(0.9)
    assert followed.shares == pytest.approx(expected)
    assert followed.shares[8] < 0.85


def scores_of(fleet: PlannedFleet) -> list[int]:
    """Return the confidences that the policy got, counted by part. A round that looks at a demand again counts once."""
    looks = {context.now_s: context.demand for context, _ in fleet.settings.asked}
    told = [one.confidences for demand in looks.values() for one in demand if one.model == "light" and one.confidences]
    return [sum(parts) for parts in zip(*told, strict=True)]
