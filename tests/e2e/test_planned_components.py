"""Run a real suite under the joint policy: its plan places a used ControlNet and LoRA, and a restarted process holds
them before a request needs them."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest

from pentimento.clients.controller import ControllerClient
from pentimento.domain.components import Tier
from pentimento.domain.fleet import Fleet, Replica, ReplicaKind
from pentimento.domain.image_request import AskedControlNet, AskedLora
from pentimento.rpc import RpcChannelSettings, open_channel
from pentimento.sdk import AsyncClient
from pentimento.supervisor.local import LocalSuite, local_suite
from tests.e2e.test_adapters import EDGES, NEON, outline, request
from tests.e2e.test_faults import process_of
from tests.support.waiting import LIMIT_S

pytestmark = pytest.mark.faults

WORKER, SERVICE = "tiny-heavy-0", "controlnet-0"


@pytest.fixture(scope="module")
def planned_suite() -> Iterator[LocalSuite]:
    flags = ["--policy", "joint", "--slo-s", "60", "--controlnets", "tiny", "--adapters", "tiny"]
    with local_suite(["--model", "tiny-heavy", "--model", "tiny-light", *flags]) as running:
        yield running


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Ask other processes until it holds. TimeoutError after LIMIT_S."""
    async with asyncio.timeout(LIMIT_S):
        while not await holds():  # noqa: ASYNC110 - other processes change it
            await asyncio.sleep(0.1)


async def fleet_of(suite: LocalSuite) -> Fleet:
    async with open_channel(f"unix:{suite.state.sockets / 'controller.sock'}", RpcChannelSettings()) as channel:
        return await ControllerClient(channel).fleet(5.0)


def replica(fleet: Fleet, name: str) -> Replica:
    return next(one.replica for one in fleet.replicas if one.replica.instance_id == name)


async def test_restarted_processes_hold_components_of_joint_plan(planned_suite: LocalSuite) -> None:
    asked = request(AskedControlNet(EDGES, outline()), model="tiny-heavy", loras=(AskedLora(NEON, 0.5),))
    async with AsyncClient(planned_suite.endpoint.public) as client:
        for _ in range(4):
            await client.generate(asked)

    async def is_planned() -> bool:
        plan = (await fleet_of(planned_suite)).plan
        placed = plan.placed_on(ReplicaKind.CONTROLNET, SERVICE)
        assigned = plan.assignment_of(WORKER)
        return plan.allocator == "joint" and EDGES in placed and assigned is not None and NEON in assigned.prefetch

    await until(is_planned)
    before = await fleet_of(planned_suite)
    (weights,) = (one for one in replica(before, WORKER).stored if one.component == "tiny-heavy")
    assert (weights.tier, weights.size_bytes > 1_000_000) == (Tier.DISK, True)
    assert replica(before, WORKER).adapter_memory_bytes > 0
    for module in ("services.controlnet_svc", "services.unet_worker"):
        process_of(planned_suite, module).kill()

    async def is_held() -> bool:
        fleet = await fleet_of(planned_suite)
        new = [replica(fleet, name) for name in (WORKER, SERVICE)]
        is_restarted = all(one.generation > replica(before, one.instance_id).generation for one in new)
        return is_restarted and NEON in new[0].resident_models and EDGES in new[1].resident_models

    await until(is_held)
