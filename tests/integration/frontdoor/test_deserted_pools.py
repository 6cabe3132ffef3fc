"""Requests that wait where a later plan has nobody, live."""

from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from lab.fixtures.cascade import CascadeParts
from lab.fixtures.frontdoor_suite import FrontdoorSuite, running_suite, until
from pentimento.dataplane.events import PlanReceived
from pentimento.domain.fleet import Plan, PoolPlan, WorkerAssignment
from pentimento.domain.generation import FromNoise, PlanVersion
from pentimento.domain.image_request import Completed
from pentimento.policies.plan.entry import EVERY_START
from tests.integration.frontdoor.test_plan import UNNAMED, planned_parts


def entering(pool: str, sequence: int, **workers: tuple[str, ...]) -> Plan:
    """Requests go to that pool."""
    routes = {pool: EVERY_START}
    pools = tuple(PoolPlan(name, name, workers[name], routes.get(name, ())) for name in workers)
    return Plan(PlanVersion(1, sequence), (WorkerAssignment("w1", "unix:/w1", "", 1),), pools)


async def waiting_for_heavy(suite: FrontdoorSuite, parts: CascadeParts) -> str:
    """The id of a job that a plan sent to the heavy model, whose only worker holds another one by then."""
    parts.heavy.held = replace(parts.heavy.held, model="other", model_digest="sha256:other")
    parts.heavy.change()
    await until(lambda: not suite.frontdoor.parts.dataplane.state.pools["heavy"].workers)
    return (await suite.client.submit(UNNAMED)).request_id


@pytest.mark.parametrize("restarts", [False, True])
async def test_who_waits_for_a_model_that_lost_its_workers_goes_where_requests_go_now(
    folder: Path, restarts: bool
) -> None:
    pools = (PoolPlan("light", "light", ("w1",)), PoolPlan("heavy", "heavy", ("w2",), EVERY_START))
    async with planned_parts(folder, pools, FromNoise()) as (parts, settings), AsyncExitStack() as later:
        async with AsyncExitStack() as running:
            suite = await running.enter_async_context(running_suite(folder, **settings))
            await suite.wait_for_workers(2)
            request_id = await waiting_for_heavy(suite, parts)
            if not restarts:
                later.push_async_exit(running.pop_all())
        if restarts:
            suite = await later.enter_async_context(running_suite(folder, **settings))
        suite.frontdoor.parts.submit(PlanReceived(entering("light", 2, light=("w1",), heavy=())))
        (ended,) = [event async for event in suite.client.attach(request_id) if isinstance(event, Completed)]

    provenance = ended.provenance
    assert (provenance.spec.model, provenance.spec.num_inference_steps) == ("light", 2)
    assert [(stage.pool, stage.discriminator) for stage in provenance.route.stages] == [("heavy", ""), ("light", "")]
    assert not any("degraded" in note for note in provenance.notes)
