import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pentimento.domain.fleet import PoolPlan, RouteShare
from pentimento.policies.plan.inputs import ModelDemand, PlanInput
from pentimento.policies.plan.placement import place
from pentimento.policies.plan.registry import SERVING_POLICIES
from pentimento.policies.plan.settings import ServingSettings
from pentimento.policies.serving.entry import NOISE, SPARE, StartCandidate, entry_of, start_lanes
from tests.unit.policies.plan.fleets import SD15, TURBO, context, counts, profiles, repeat, worker

SETTINGS = ServingSettings(heavy="sd15", light="turbo", slo_s=5.0, peak_per_s=20.0)
HALVES = (
    PoolPlan("light", "turbo", ("w0",), routes=(RouteShare(NOISE, 0.75),)),
    PoolPlan("heavy", "sd15", ("w1",), routes=(RouteShare(NOISE, 0.25), RouteShare(SPARE, 1.0))),
)


@pytest.mark.parametrize("name", [name for name in SERVING_POLICIES if name != "resident"])
@pytest.mark.parametrize("rate", [0.0, 3.0, 3000.0])
def test_every_policy_plans_for_any_demand(name: str, rate: float) -> None:
    policy = SERVING_POLICIES[name](SETTINGS)

    decision, _ = repeat(policy.allocator, context(16, ModelDemand("turbo", rate), ModelDemand("sd15", rate)), 5, 5.0)

    assert policy.name == name
    assert sum(counts(decision).values()) == 16
    assert entry_of(decision.plan.pools, NOISE, 0.5)


@pytest.mark.parametrize("name", SERVING_POLICIES)
def test_every_policy_bears_a_fleet_of_nobody(name: str) -> None:
    policy = SERVING_POLICIES[name](SETTINGS)

    last, _ = repeat(policy.allocator, context(0, ModelDemand("turbo", 3.0)), 3, 5.0)

    assert last.plan.assignments == ()


def entered_pool(draw: float) -> str:
    entry = entry_of(HALVES, NOISE, draw)
    assert entry is not None
    return entry.pool.pool


def test_draws_fall_on_pools_by_their_shares() -> None:
    entered = [entered_pool(draw / 100) for draw in range(100)]

    assert entered.count("light") == 75


def test_the_largest_draw_finds_a_pool() -> None:
    assert entered_pool(1.0) == "heavy"


def test_a_start_that_no_pool_takes_enters_none() -> None:
    assert entry_of(HALVES, "latent", 0.5) is None


def test_only_hits_go_to_spare_pools() -> None:
    entered = StartCandidate(HALVES[0].pool, HALVES[0].model)

    assert start_lanes(HALVES, NOISE, entered) == ()
    assert start_lanes(HALVES, "image", entered) == (HALVES[1],)


def test_workers_keep_the_model_that_they_hold() -> None:
    held = (worker(0, "sd15"), worker(1, "turbo"), worker(2, "turbo"), worker(3, "sd15"))
    fleet = PlanInput(0.0, held, profiles=profiles(turbo=TURBO, sd15=SD15))

    assigned = {a.worker_id: a.model for a in place(fleet, {"turbo": 1, "sd15": 3}, {})}

    assert assigned == {"w000": "sd15", "w001": "turbo", "w002": "sd15", "w003": "sd15"}


def test_a_model_that_requests_wait_for_keeps_a_worker() -> None:
    asked = context(4, ModelDemand("sd15", 0.0, queue_length=3))

    assigned = place(asked, {"turbo": 4}, {})

    assert [assignment.model for assignment in assigned].count("sd15") == 1


def test_the_only_worker_turns_to_those_who_wait_when_nobody_asks_for_its_model() -> None:
    waiting = ModelDemand("turbo", 0.0, queue_length=3)
    idle, busy = ModelDemand("sd15", 0.0), ModelDemand("sd15", 1.0)

    assert [a.model for a in place(context(1, waiting, idle), {"turbo": 0, "sd15": 1}, {})] == ["turbo"]
    assert [a.model for a in place(context(1, waiting, busy), {"turbo": 0, "sd15": 1}, {})] == ["sd15"]


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 30), st.integers(0, 30), st.integers(1, 20))
def test_nobody_is_assigned_twice_and_nobody_idles_while_more_are_wanted(light: int, heavy: int, fleet: int) -> None:
    assigned = place(context(fleet), {"turbo": light, "sd15": heavy}, {})

    workers = [assignment.worker_id for assignment in assigned]
    assert len(set(workers)) == len(workers) == min(light + heavy, fleet)
