"""Choose replicas for streams of residuals by their reports, and open channels to peers."""

import asyncio
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from pentimento.api.controlnet.v1 import controlnet_service_pb2 as pb
from pentimento.api.controlnet.v1.controlnet_service_pb2_grpc import (
    ControlNetServiceServicer,
    add_ControlNetServiceServicer_to_server,
)
from pentimento.policies.replica_choice import Hearing
from pentimento.rpc import RpcChannelSettings, open_channel
from services.unet_worker.remote import replicas as replicas_module
from services.unet_worker.remote.replicas import ControlNetReplicas, PeerWorkers, StreamPlace
from tests.support.waiting import until

EDGES, LAYOUT = "edges", "layout"


class ScriptedReplica(ControlNetServiceServicer):
    """A replica that reports the status that the test sets."""

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
        """Change the news of the replica; `resident` are names."""
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
            self._told.clear()  # cleared first: a change during the answer is the next one
            yield self.news
            await self._told.wait()


@pytest.fixture
async def told() -> AsyncIterator[list[ScriptedReplica]]:
    with tempfile.TemporaryDirectory(prefix="pmt-") as folder:
        made = [ScriptedReplica(f"unix:{Path(folder)}/{name}") for name in "ab"]
        for replica in made:
            await replica.start()
        yield made
        for replica in made:
            await replica.stop()


@pytest.fixture
async def replicas() -> ControlNetReplicas:
    return ControlNetReplicas(lambda address: open_channel(address, RpcChannelSettings()), None)


async def heard(replicas: ControlNetReplicas, told: list[ScriptedReplica]) -> None:
    """Wait for the present reports of the replicas."""
    replicas.mention([replica.address for replica in told])
    for replica in told:
        watch = replicas.at(replica.address)
        streams, draining = replica.news.open_stream_count, replica.news.draining
        await until(
            lambda watch=watch, streams=streams, draining=draining: (  # type: ignore[misc]
                watch.hearing is Hearing.NOW
                and watch.load.open_stream_count == streams
                and watch.load.draining == draining
            )
        )


def place(told: list[ScriptedReplica], replicas: ControlNetReplicas, beside: Counter[str] | None = None) -> StreamPlace:
    addresses = [replica.address for replica in told]
    return StreamPlace(EDGES, addresses, replicas, beside if beside is not None else Counter())


async def taken(chosen: StreamPlace, told: list[ScriptedReplica], replicas: ControlNetReplicas) -> int:
    """Return the index of the chosen replica."""
    client = await chosen.take()
    return next(index for index, one in enumerate(told) if replicas.at(one.address).client is client)


@pytest.mark.parametrize("heard_count", [1, 2])
async def test_controlnets_of_one_image_go_to_several_replicas(
    told: list[ScriptedReplica], replicas: ControlNetReplicas, heard_count: int
) -> None:
    """A replica without a report is queried before the first choice."""
    for replica in told if heard_count == 2 else ():
        replica.tell(resident=[EDGES])
    await heard(replicas, told[:heard_count])
    beside: Counter[str] = Counter()
    first, second = place(told, replicas, beside), place(told, replicas, beside)

    assert {await taken(first, told, replicas), await taken(second, told, replicas)} == {0, 1}


@pytest.mark.parametrize(
    ("first", "second", "chosen"),
    [
        ({"open_stream_count": 2, "resident": [EDGES]}, {"open_stream_count": 1, "resident": [EDGES]}, 1),
        ({"open_stream_count": 2, "resident": [EDGES]}, {"open_stream_count": 4, "resident": [EDGES]}, 0),
        ({"draining": True, "credit_count": 0, "resident": [EDGES]}, {"open_stream_count": 3}, 1),
    ],
    ids=["fewer in the second", "fewer in the first", "the first drains"],
)
async def test_stream_goes_where_credits_tell_fewest(
    told: list[ScriptedReplica],
    replicas: ControlNetReplicas,
    first: dict[str, Any],
    second: dict[str, Any],
    chosen: int,
) -> None:
    told[0].tell(**first)
    told[1].tell(**second)
    await heard(replicas, told)

    assert await taken(place(told, replicas), told, replicas) == chosen


async def test_opening_stream_counts_until_replica_reports_it(
    told: list[ScriptedReplica], replicas: ControlNetReplicas
) -> None:
    for replica in told:
        replica.tell(resident=[EDGES])
    await heard(replicas, told)
    first = place(told, replicas)

    assert await taken(first, told, replicas) == 0
    assert await taken(place(told, replicas), told, replicas) == 1

    first.opened()
    first.leave()
    assert replicas.at(told[0].address).opening_count == 0
    assert replicas.at(told[0].address).open_count == 0


async def test_replica_that_lost_or_rejected_step_is_avoided(
    told: list[ScriptedReplica], replicas: ControlNetReplicas
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


async def test_lost_replica_is_tried_last_and_reports_again_when_back(
    told: list[ScriptedReplica], replicas: ControlNetReplicas
) -> None:
    told[1].tell(open_stream_count=4)
    await heard(replicas, told)
    await told[0].stop()
    await until(lambda: replicas.at(told[0].address).hearing is Hearing.LOST)
    assert await taken(place(told, replicas), told, replicas) == 1

    told[0] = ScriptedReplica(told[0].address)
    await told[0].start()
    await heard(replicas, told)
    assert await taken(place(told, replicas), told, replicas) == 0


async def test_a_replica_that_no_image_is_sent_to_is_left(
    told: list[ScriptedReplica], replicas: ControlNetReplicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    await heard(replicas, told)
    used = place(told[:1], replicas)
    await used.take()
    left = [replicas.at(replica.address) for replica in told]

    monkeypatch.setattr(replicas_module, "IDLE_S", 0.0)
    for replica in told:
        replica.tell(open_stream_count=1)

    await until(lambda: replicas.at(told[1].address) is not left[1])
    assert replicas.at(told[0].address) is left[0]


async def test_channel_of_idle_peer_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    channels: list[grpc.aio.Channel] = []

    def opened(address: str) -> grpc.aio.Channel:
        channels.append(open_channel(address, RpcChannelSettings()))
        return channels[-1]

    peers = PeerWorkers(opened, None)
    places = [StreamPlace("", [f"unix:/{name}"], peers, Counter()) for name in ("used", "left")]
    used = await places[0].take()
    await places[1].take()
    places[1].leave()
    monkeypatch.setattr(replicas_module, "IDLE_S", -1.0)

    await until(lambda: channels[1].get_state() is grpc.ChannelConnectivity.SHUTDOWN)

    assert channels[0].get_state() is not grpc.ChannelConnectivity.SHUTDOWN
    assert await places[0].take() is used
    await places[1].take()
    assert len(channels) == 3
    for channel in channels:
        await channel.close()
