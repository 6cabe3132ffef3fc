"""Reports that are late, wrong or nonsense, and clocks that jump: the controller continues, and its plans are valid."""

import math
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from lab.fixtures.clocks import SetClock
from pentimento.domain.demand import PoolDemand, StartShare
from pentimento.domain.errors import PentimentoError
from pentimento.domain.fleet import ModelCost, Replica, ReplicaKind, ReplicaReport
from pentimento.domain.thinned_steps import ThinnableSteps
from pentimento.policies.plan.inputs import Decision, PlanInput
from pentimento.policies.plan.maker import check_decision
from pentimento.policies.plan.registry import SERVING_POLICIES, ServingPolicy
from pentimento.policies.plan.settings import ServingSettings
from services.controller.checks import MAX_REQUESTS
from services.controller.controller import Controller
from services.controller.leadership import LeaderEpoch
from services.controller.planner import Planner
from services.controller.registry import Registry
from tests.support.values import a_worker

SETTINGS = ServingSettings("heavy", light="light", small=("light",), slo_s=5.0, peak_per_s=4.0)
COSTS = (ModelCost("heavy", ((1, 1.0),)), ModelCost("light", ((1, 0.1),)))
WORKER = a_worker("w1", available_models=("heavy", "light"), costs=COSTS)
DOOR = Replica("f1", ReplicaKind.FRONTDOOR, "unix:/f1", 1)
# The policy begins once no replica has joined for a lease.
HEARD = (ReplicaReport("w1", 1, ("heavy",)), ReplicaReport("f1", 1))
EXTREMES = (0.0, 1e-6, 1e-300, 0.5, 1.0, 1e6, 1e300, -1.0, math.inf, -math.inf, math.nan)
COUNTS = st.sampled_from((-1, 0, 1, 7, MAX_REQUESTS, 2**32 - 1, 2**63 - 1, 2**64 - 1))
DEMANDS = st.builds(
    PoolDemand,
    model=st.sampled_from(("heavy", "light", "stranger", "")),
    arrived_count=COUNTS,
    late_count=COUNTS,
    queue_length=COUNTS,
    starts=st.lists(st.builds(StartShare, COUNTS, COUNTS), max_size=2).map(tuple),
    scored_count=COUNTS,
    deferred_count=COUNTS,
    stood_in_count=COUNTS,
    thinnable=st.builds(ThinnableSteps, COUNTS, *[st.sampled_from(EXTREMES)] * 2),
)
REPORTS = st.builds(
    ReplicaReport,
    instance_id=st.sampled_from(("f1", "w1", "nobody")),
    generation=st.sampled_from((0, 1, 2)),
    resident_models=st.sampled_from(((), ("heavy",), ("light",), ("stranger",))),
    queue_length=COUNTS,
    busy_share=st.sampled_from(EXTREMES),
    demand=st.lists(DEMANDS, max_size=2).map(tuple),
)
COST_LIES = st.builds(
    ModelCost,
    model=st.sampled_from(("heavy", "light")),
    run_s=st.tuples(st.tuples(st.sampled_from((0, 1, 8, 2**31)), st.sampled_from(EXTREMES))),
    load_s=st.sampled_from(EXTREMES),
)
# Seconds that pass while the wall clock jumps by twenty times as much, backwards.
JUMPS = st.sampled_from((0.0, 0.2, 1.0, 6.0, 1e6))
EVENTS = st.lists(st.one_of(REPORTS, COST_LIES, JUMPS), max_size=12)


def controller_of(played: ServingPolicy, clock: SetClock, asked: list[tuple[PlanInput, Decision]]) -> Controller:
    def noting(context: PlanInput) -> Decision:
        decision = played.allocator(context)
        asked.append((context, decision))
        return decision

    epoch = LeaderEpoch(lambda: int(clock.wall() * 1000))
    planner = Planner(replace(played, allocator=noting), epoch.value, allocator_limit_s=60.0)
    return Controller(Registry(3.0), planner, epoch, 5.0, clock)


async def played(policy: ServingPolicy, told: list[ReplicaReport | ModelCost | float]) -> None:
    clock = SetClock(wall_s=1.8e9, monotonic_s=100.0)
    asked: list[tuple[PlanInput, Decision]] = []
    controller = controller_of(policy, clock, asked)
    for event in (7.0, WORKER, DOOR, 2.0, *HEARD, 2.0, *told, 6.0, WORKER, DOOR):
        try:
            if isinstance(event, float):
                clock.monotonic_s += event
                clock.wall_s -= 20 * event
            elif isinstance(event, ModelCost):
                controller.register(replace(WORKER, costs=(event,)))
            elif isinstance(event, Replica):
                controller.register(event)
            else:
                controller.report(event)
        except PentimentoError:
            continue
        await controller.step(clock.monotonic())
    assert [assignment.worker_id for assignment in controller.fleet().plan.assignments] == ["w1"]
    for context, decision in asked:
        check_decision(context, decision)
        assert all(0 <= demand.arrivals_per_s < math.inf for demand in context.demand)


@settings(deadline=None, max_examples=15)
@given(policy=st.sampled_from(("diffserve", "modm")), told=EVENTS)
async def test_plan_is_valid_for_any_reports_and_clocks(
    policy: str, told: list[ReplicaReport | ModelCost | float]
) -> None:
    await played(SERVING_POLICIES[policy](SETTINGS), told)


async def test_reports_after_pause_of_controller_are_no_burst() -> None:
    """One report brings a minute's arrivals after a pause of a minute."""
    clock = SetClock(wall_s=1.8e9, monotonic_s=100.0)
    asked: list[tuple[PlanInput, Decision]] = []
    controller = controller_of(SERVING_POLICIES["diffserve"](SETTINGS), clock, asked)
    controller.register(WORKER)
    controller.register(DOOR)
    planned_s = clock.monotonic_s
    clock.monotonic_s += 60.0
    controller.forgive_pause(clock.monotonic_s, planned_s)

    controller.report(ReplicaReport("f1", 1, demand=(PoolDemand("light", arrived_count=120),)))
    await controller.step(clock.monotonic_s)

    assert [demand.arrivals_per_s for context, _ in asked for demand in context.demand] == [2.0]
