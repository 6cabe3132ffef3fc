"""Requests wait for credits of workers that hold their model and are planned."""

import pytest

from pentimento.dataplane import effects, events
from pentimento.domain.fleet import Plan, PoolPlan, WorkerAssignment
from pentimento.domain.generation import PlanVersion
from tests.unit.dataplane.driver import Driver, kinds, only, play

URGENT = "worker w1 reserve_count=1, run aged within=100"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("queue r1, worker w1", "r1 to w1"),
        ("worker w1, queue r1, journal r1", "Execute r1"),
        ("queue r1, queue r2, queue r3, worker w1 credit_count=2", "r1 to w1, r2 to w1"),
        ("worker w1 credit_count=2, worker w2 credit_count=2, queue r1, queue r2", "r2 to w2"),
        ("worker w1 credit_count=2, worker w2 credit_count=2, queue r1, queue r2, queue r3, queue r4", "r4 to w2"),
        ("worker old model_digest=old, queue r1 digest=new", ""),
        ("worker old model_digest=old, queue r1 digest=new, worker new model_digest=new", "r1 to new"),
        ("worker w1 model_digest=old, queue r1 digest=new, worker w1 model_digest=new", "r1 to w1"),
        ("worker w1 model_digest=old, worker w1 model_digest=new, queue r1 digest=old", ""),
        ("worker w1 draining, queue r1", ""),
        ("worker w1 credit_count=2, run r1, run r2, worker w1 credit_count=1", ""),
        ("worker w1 credit_count=2, run r1, run r2, worker w1 credit_count=1, queue r3", ""),
        ("worker w1, run r1, fail r1 NO_CREDIT", "ReleaseGrant r1"),
        ("worker w1, run r1, fail r1 NO_CREDIT, worker w1", "r1 to w1"),
        ("worker w1, run r1, queue r2, yield r1", "r2 to w1"),
        ("worker w1, run r1, queue r2, yield r1, yield r1", ""),
        ("worker w1, run r1, queue r2, queue r3, yield r1, finish r1", "CommitResult r1"),
        (f"{URGENT}, queue later within=200", ""),
        (f"{URGENT}, queue later within=200, queue urgent within=5", "urgent to w1"),
        (f"{URGENT}, queue urgent within=5, queue third within=4", ""),
        (f"{URGENT}, worker w2 reserve_count=1, run newest within=200, queue urgent within=5", "urgent to w2"),
        (f"{URGENT}, worker w1 reserve_count=1 model=n model_digest=e, queue urgent within=5", ""),
    ],
)
def test_request_goes_to_free_credit_of_its_model(driver: Driver, script: str, said: str) -> None:
    assert play(driver, script) == said


def plan_of(*worker_ids: str, sequence: int = 1, pools: tuple[PoolPlan, ...] = ()) -> events.PlanReceived:
    assignments = tuple(WorkerAssignment(worker_id, f"unix:/{worker_id}", "m", 1) for worker_id in worker_ids)
    return events.PlanReceived(Plan(PlanVersion(1, sequence), assignments, pools))


def test_worker_outside_plan_waits_until_newer_plan_names_it(driver: Driver) -> None:
    driver.worker(pinned=False)
    assert driver.queue() == []

    assert only(effects.PersistAttempt, driver.send(plan_of("w1", sequence=2))).worker_id == "w1"
    assert kinds(driver.send(plan_of(sequence=1))) == []
    driver.worker(pinned=False, credit_count=2)
    assert only(effects.PersistAttempt, driver.queue("r2")).worker_id == "w1"


def test_worker_serves_every_pool_of_its_plan(driver: Driver) -> None:
    driver.send(plan_of("w1", pools=(PoolPlan("miss", "m", ("w1",)), PoolPlan("hit", "m", ("w1",)))))
    driver.worker("w1", pinned=False, credit_count=2)

    chosen = [only(effects.PersistAttempt, driver.queue(pool, pool=pool)).worker_id for pool in ("hit", "miss")]

    assert chosen == ["w1", "w1"]
