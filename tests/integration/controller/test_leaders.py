"""Test two controllers over one ledger, in this process: the standby takes over, and clients find it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path

import pytest

from pentimento.api.controller.v1 import controller_service_pb2 as controller_pb
from pentimento.clients.controller import ControllerClient
from pentimento.domain.errors import PentimentoError, Unavailable
from pentimento.domain.fleet import Plan
from pentimento.domain.generation import PlanVersion
from pentimento.rpc import RpcChannelSettings, RpcServerSettings, open_channel
from pentimento.stores.ledger.fleet_ledger import open_fleet_ledger
from pentimento.wire.codec import from_bytes, to_bytes
from services.controller.settings import ControllerSettings
from services.controller.wiring import ControllerProcess, wire
from tests.support.lease_looks import LooksBetweenBeats
from tests.support.values import a_worker

LEASE_S = 1.0
WORKER = a_worker("w1", "heavy")


class Member:
    """Hold a controller, and the task that waits until it leads."""

    def __init__(self, process: ControllerProcess, address: str) -> None:
        self.process = process
        self.address = address
        self.leading = asyncio.get_running_loop().create_task(process.warm())


@asynccontextmanager
async def running(
    folder: Path, name: str, objects_url: str = "", looks: LooksBetweenBeats | None = None
) -> AsyncIterator[Member]:
    """Left as a killed process would leave it: without a drain, and without another beat."""
    ledger = open_fleet_ledger(f"sqlite:///{folder / 'fleet.sqlite'}")
    if looks is not None:
        looks.replace_those_of(ledger)
    settings = ControllerSettings(
        RpcServerSettings(listen=(f"unix:{folder / name}",), instance_id=name),
        ledger_url=f"sqlite:///{folder / 'fleet.sqlite'}",
        objects_url=objects_url,
        standby=True,
        lease_s=LEASE_S,
    )
    process = wire(settings, ledger)
    await process.server.start()
    member = Member(process, settings.rpc.listen[0])
    try:
        yield member
    finally:
        member.leading.cancel()
        await process.drain()
        await process.server.stop()
        ledger.close()


async def answered(call: Callable[[], object]) -> object:
    """Return the answer once there is a leader."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await call()  # type: ignore[misc]
            except PentimentoError:
                await asyncio.sleep(0.01)


@pytest.mark.slow
async def test_a_client_of_both_finds_the_leader_and_then_the_one_that_took_over(folder: Path) -> None:
    looks = LooksBetweenBeats()
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(running(folder, "c0"))
        await first.leading
        second = await stack.enter_async_context(running(folder, "c1", looks=looks))
        channels = [
            await stack.enter_async_context(open_channel(member.address, RpcChannelSettings()))
            for member in (second, first)
        ]
        client = ControllerClient(*channels)
        with pytest.raises(Unavailable):
            await client.fleet()
        await client.register(WORKER)
        async with aclosing(client.watch_plan("f1")) as plans:
            before = await anext(plans)
            assert not second.leading.done()

            await first.process.drain()
            await first.process.server.stop()
            looks.end()
            await second.leading

            # Its last plan may still arrive.
            with pytest.raises(PentimentoError):
                async for plan in plans:
                    assert plan.version.leader_epoch == before.version.leader_epoch
        lease = await answered(lambda: client.register(WORKER))

    assert lease.leader_epoch > before.version.leader_epoch  # type: ignore[attr-defined]


@pytest.mark.slow
async def test_next_leader_serves_last_plan_of_previous_leader(folder: Path) -> None:
    async with running(folder, "c0") as first:
        await first.leading
        first.process.controller.register(WORKER)
        ledger = open_fleet_ledger(f"sqlite:///{folder / 'fleet.sqlite'}")
        saved: Plan | None = None
        async with asyncio.timeout(60):
            while saved is None or not saved.assignments:
                data = await asyncio.wrap_future(ledger.load_plan())
                saved = from_bytes(data, Plan, controller_pb.Plan) if data else None
                await asyncio.sleep(0.01)
    async with running(folder, "c1") as second:
        await second.leading
        served = second.process.controller.fleet()
        fenced = ledger.save_plan(
            PlanVersion(saved.version.leader_epoch, 99), to_bytes(saved, controller_pb.Plan)
        ).result()
    ledger.close()

    assert (served.plan, served.replicas) == (saved, ())
    assert served.leader_epoch > saved.version.leader_epoch
    assert not fenced


async def test_who_does_not_know_the_uploaded_loras_yet_does_not_lead(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(folder, "c0", objects_url=f"file://{folder / 'objects'}") as member:
        uploads = member.process.uploads
        assert uploads is not None
        load, refusals = uploads.load, []

        async def load_watched() -> None:
            with pytest.raises(Unavailable) as refused:
                member.process.controller.check_leading()
            refusals.append(refused.value.reason)
            await load()

        monkeypatch.setattr(uploads, "load", load_watched)
        await member.leading
        member.process.controller.check_leading()

    assert refusals == ["STANDBY"]
