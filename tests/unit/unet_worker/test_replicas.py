"""Where a worker opens streams of residuals, by what replicas of the ControlNet service tell it over real streams."""

import asyncio
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from pentimento.api.controlnet.v1 import controlnet_service_pb2 as pb
from pentimento.api.controlnet.v1.controlnet_service_pb2_grpc import (
    ControlNetServiceServicer,
    add_ControlNetServiceServicer_to_server,
)
from pentimento.policies.replica_choice import Hearing
from pentimento.rpc import RpcChannelSettings, open_channel
from services.unet_worker.control import replica_watch
from services.unet_worker.control.replicas import ControlNetReplicas, StreamPlace
from tests.support.waiting import until

EDGES, LAYOUT = "edges", "layout"


class ToldReplica(ControlNetServiceServicer):
    """A replica that tells what the test says."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.news = pb.WatchCreditsResponse(credit_count=4)
        self._told = asyncio.Event()
        self._server = grpc.aio.server()
        add_ControlNetServiceServicer_to_server(self, self._server)
        self._server.add_insecure_port(address)

    async def start(self) -> None:
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(None)

    def tell(self, **news: Any) -> None:
        """Change what is told; `resident` are names."""
        infos = [pb.ControlNetInfo(name=name, resident=True) for name in news.pop("resident", ())]
        self.news = pb.WatchCreditsResponse(**{"credit_count": 4, **news}, controlnets=infos)
        self._told.set()

    async def StreamResiduals(self, request: Any, context: Any) -> AsyncIterator[pb.StreamResidualsResponse]:
        raise NotImplementedError
        yield

    async def Prefetch(self, request: Any, context: Any) -> pb.PrefetchResponse:
        raise NotImplementedError

    async def GetStatus(self, request: Any, context: Any) -> pb.GetStatusResponse:
        raise NotImplementedError

    async def WatchCredits(self, request: Any, context: Any) -> AsyncIterator[pb.WatchCreditsResponse]:
        while True:
            self._told.clear()  # before it is told: what changes while it is on its way is told after it
            yield self.news
            await self._told.wait()


@pytest.fixture
async def told() -> AsyncIterator[list[ToldReplica]]:
    with tempfile.TemporaryDirectory(prefix="pmt-") as folder:
        made = [ToldReplica(f"unix:{Path(folder)}/{name}") for name in "ab"]
        for replica in made:
            await replica.start()
        yield made
        for replica in made:
            await replica.stop()


@pytest.fixture
async def replicas() -> ControlNetReplicas:
    return ControlNetReplicas(lambda address: open_channel(address, RpcChannelSettings()), None)


async def heard(replicas: ControlNetReplicas, told: list[ToldReplica]) -> None:
    """Until what they tell now has come."""
    replicas.mention([replica.address for replica in told])
    for replica in told:
        watch = replicas.watch(replica.address)
        streams, draining = replica.news.open_stream_count, replica.news.draining
        await until(
            lambda watch=watch, streams=streams, draining=draining: (  # type: ignore[misc]
                watch.hearing is Hearing.NOW
                and watch.load.open_stream_count == streams
                and watch.load.draining == draining
            )
        )


def place(told: list[ToldReplica], replicas: ControlNetReplicas, beside: Counter[str] | None = None) -> StreamPlace:
    addresses = [replica.address for replica in told]
    return StreamPlace(EDGES, addresses, replicas, beside if beside is not None else Counter())


async def taken(chosen: StreamPlace, told: list[ToldReplica], replicas: ControlNetReplicas) -> int:
    """Which replica it takes."""
    client = await chosen.take()
    return next(index for index, one in enumerate(told) if replicas.watch(one.address).client is client)


async def test_a_replica_that_was_never_heard_of_is_heard_before_the_first_choice(
    told: list[ToldReplica], replicas: ControlNetReplicas
) -> None:
    await heard(replicas, told[:1])
    beside: Counter[str] = Counter()
    first, second = place(told, replicas, beside), place(told, replicas, beside)

    assert {await taken(first, told, replicas), await taken(second, told, replicas)} == {0, 1}


async def test_streams_go_where_the_credits_say_that_least_is_open(
    told: list[ToldReplica], replicas: ControlNetReplicas
) -> None:
    told[0].tell(open_stream_count=2, resident=[EDGES])
    told[1].tell(open_stream_count=1, resident=[EDGES])
    await heard(replicas, told)
    assert await taken(place(told, replicas), told, replicas) == 1

    told[1].tell(open_stream_count=4, resident=[EDGES])
    await heard(replicas, told)
    assert await taken(place(told, replicas), told, replicas) == 0


async def test_a_draining_replica_gets_no_new_stream(told: list[ToldReplica], replicas: ControlNetReplicas) -> None:
    told[0].tell(draining=True, credit_count=0, resident=[EDGES])
    told[1].tell(open_stream_count=3)
    await heard(replicas, told)

    assert await taken(place(told, replicas), told, replicas) == 1


async def test_the_controlnets_of_one_picture_go_to_several_replicas(
    told: list[ToldReplica], replicas: ControlNetReplicas
) -> None:
    for replica in told:
        replica.tell(resident=[EDGES])
    await heard(replicas, told)
    beside: Counter[str] = Counter()
    first, second = place(told, replicas, beside), place(told, replicas, beside)

    assert {await taken(first, told, replicas), await taken(second, told, replicas)} == {0, 1}


async def test_what_is_being_opened_counts_until_the_replica_tells_of_it(
    told: list[ToldReplica], replicas: ControlNetReplicas
) -> None:
    for replica in told:
        replica.tell(resident=[EDGES])
    await heard(replicas, told)
    first = place(told, replicas)

    assert await taken(first, told, replicas) == 0
    assert await taken(place(told, replicas), told, replicas) == 1

    first.opened()
    first.leave()
    assert replicas.watch(told[0].address).opening_count == 0
    assert replicas.watch(told[0].address).open_count == 0


async def test_who_lost_a_step_or_refused_is_not_taken_again_while_there_is_another(
    told: list[ToldReplica], replicas: ControlNetReplicas
) -> None:
    await heard(replicas, told)
    failing, refusing = place(told, replicas), place(told, replicas)

    failed = await taken(failing, told, replicas)
    failing.failed()
    assert await taken(failing, told, replicas) == 1 - failed
    failing.leave()

    refused = await taken(refusing, told, replicas)
    refusing.refused()
    assert await taken(refusing, told, replicas) == 1 - refused


async def test_a_replica_that_is_gone_is_the_last_to_be_tried_and_heard_again_when_it_is_back(
    told: list[ToldReplica], replicas: ControlNetReplicas
) -> None:
    told[1].tell(open_stream_count=4)
    await heard(replicas, told)
    await told[0].stop()
    await until(lambda: replicas.watch(told[0].address).hearing is Hearing.LOST)
    assert await taken(place(told, replicas), told, replicas) == 1

    told[0] = ToldReplica(told[0].address)
    await told[0].start()
    await heard(replicas, told)
    assert await taken(place(told, replicas), told, replicas) == 0


async def test_a_replica_that_no_picture_is_sent_to_is_left(
    told: list[ToldReplica], replicas: ControlNetReplicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    await heard(replicas, told)
    used = place(told[:1], replicas)
    await used.take()
    left = [replicas.watch(replica.address) for replica in told]

    monkeypatch.setattr(replica_watch, "IDLE_S", 0.0)
    for replica in told:
        replica.tell(open_stream_count=1)

    await until(lambda: replicas.watch(told[1].address) is not left[1])
    assert replicas.watch(told[0].address) is left[0]
