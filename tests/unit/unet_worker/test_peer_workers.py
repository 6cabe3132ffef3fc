"""Channels to the workers that pictures were painted with: kept while they are used, closed some time after."""

import asyncio
from collections.abc import Iterator

import grpc
import grpc.aio
import pytest

from pentimento.rpc import RpcChannelSettings, open_channel
from services.unet_worker.pairing import remote_peer
from services.unet_worker.pairing.remote_peer import PeerWorkers


@pytest.fixture(autouse=True)
def idle_at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(remote_peer, "IDLE_S", -1.0)
    yield


class Opened:
    """Peers, and the channels that were opened to them, in that order."""

    def __init__(self) -> None:
        self.channels: list[grpc.aio.Channel] = []
        self.workers = PeerWorkers(self._open, None)

    def _open(self, address: str) -> grpc.aio.Channel:
        self.channels.append(open_channel(address, RpcChannelSettings()))
        return self.channels[-1]

    def is_closed(self, number: int) -> bool:
        return self.channels[number].get_state() is grpc.ChannelConnectivity.SHUTDOWN

    async def close(self) -> None:
        for channel in self.channels:
            await channel.close()


async def test_the_channel_of_a_peer_that_no_picture_uses_is_closed_when_another_is_taken() -> None:
    opened = Opened()
    opened.workers.take("unix:/gone")
    opened.workers.leave("unix:/gone")

    opened.workers.take("unix:/new")
    while not opened.is_closed(0):  # noqa: ASYNC110 - nobody is told
        await asyncio.sleep(0)

    assert not opened.is_closed(1)
    opened.workers.take("unix:/gone")
    assert len(opened.channels) == 3
    await opened.close()


async def test_a_peer_that_a_picture_is_painted_with_is_kept_however_long_that_takes() -> None:
    opened = Opened()
    first = opened.workers.take("unix:/used")
    opened.workers.take("unix:/used")
    opened.workers.leave("unix:/used")

    opened.workers.take("unix:/new")
    await asyncio.sleep(0)

    assert opened.workers.take("unix:/used") is first
    assert (len(opened.channels), opened.is_closed(0)) == (2, False)
    await opened.close()
