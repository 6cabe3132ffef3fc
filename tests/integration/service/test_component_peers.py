"""Components that come from other processes: real peers that hold them, a real controller that knows who does."""

import asyncio
import random
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from pentimento.clients.controller import ControllerClient
from pentimento.domain.generation import ObjectReference
from pentimento.domain.tenants import Role
from pentimento.files.file_sums import BLOCK_BYTES, CorruptComponent, FileSum, SumInProgress
from pentimento.policies.components import Utility
from pentimento.rpc import RpcChannelSettings, RpcServerSettings, new_token, open_channel, token_entry
from pentimento.rpc.channel import channel_opener
from pentimento.service import components
from pentimento.service.components import ComponentPeers
from pentimento.stores.components import ComponentStore, ObjectRemote
from pentimento.stores.components.remote import put_sums
from pentimento.stores.objects import ObjectStore, open_objects
from services.controller.settings import ControllerSettings
from services.controller.wiring import wire
from tests.support.processes import Process, StartedProcesses

SIZE = 2 * BLOCK_BYTES + 1000
OFFSETS = [0, BLOCK_BYTES, 2 * BLOCK_BYTES]


class CountingRemote:
    """Count the blocks read from an object store, and flip a byte of each with `is_wrong`."""

    name = "the object store"

    def __init__(self, objects: ObjectStore) -> None:
        self._remote = ObjectRemote(objects)
        self.offsets: list[int] = []
        self.is_wrong = False

    def sums(self, reference: ObjectReference) -> FileSum | None:
        return self._remote.sums(reference)

    def read_into(self, reference: ObjectReference, offset: int, buffer: memoryview) -> None:
        self.offsets.append(offset)
        self._remote.read_into(reference, offset, buffer)
        buffer[0] ^= self.is_wrong


@dataclass
class Fleet:
    """Hold a component that peers have, and a process without it."""

    folder: Path
    controller_address: str
    controller: ControllerClient
    processes: StartedProcesses
    remote: CountingRemote
    reference: ObjectReference
    data: bytes
    names: set[str] = field(default_factory=set)
    peers: ComponentPeers = field(init=False)

    def __post_init__(self) -> None:
        self.peers = ComponentPeers("new", self.controller, channel_opener(RpcChannelSettings()))

    async def start(self, *names: str, flags: Sequence[str] = ()) -> list[Process]:
        """Start peers that hold the component, and wait until the controller knows it."""
        started = []
        for name in names:
            store = ComponentStore(self.folder / name, 2**40, 0, Utility)
            await asyncio.to_thread(store.read, self.reference, self.remote)
            place = ("--directory", str(self.folder / name), "--listen", f"unix:{self.folder / name}.sock")
            where = ("--controller", self.controller_address)
            started.append(self.processes.start("tests.support.component_peer", *place, *where, *flags))
            self.names.add(name)
        await self.until_holders_are(*self.names)
        self.remote.offsets.clear()
        return started

    def address(self, name: str) -> str:
        return f"unix:{self.folder / name}.sock"

    async def until_holders_are(self, *names: str) -> None:
        """Wait until the controller knows exactly these peers as holders of the component."""
        wanted = {self.address(name) for name in names}
        async with asyncio.timeout(120):
            while await self._holders() != wanted:  # noqa: ASYNC110 - reports of other processes change it
                await asyncio.sleep(0.02)

    async def _holders(self) -> set[str]:
        found = await self.controller.find_components("new", digests=(self.reference.digest,))
        return {address for one in found for address in one.addresses}

    async def fetch(self) -> bytes:
        """Return the component as a process reads it that has nothing on its disk."""
        store = ComponentStore(self.folder / "new", 2**40, 0, Utility, self.peers.holding)
        data, _ = await asyncio.to_thread(store.read, self.reference, self.remote)
        return bytes(data)

    def spoil(self, name: str) -> None:
        """Change a byte in a peer's second block."""
        with (self.folder / name / "blobs" / self.reference.digest.removeprefix("sha256:")).open("r+b") as file:
            file.seek(BLOCK_BYTES + 5)
            file.write(bytes([self.data[BLOCK_BYTES + 5] ^ 1]))


@pytest.fixture
def processes() -> Iterator[StartedProcesses]:
    started = StartedProcesses()
    yield started
    started.end()


@pytest.fixture
async def fleet(folder: Path, processes: StartedProcesses) -> AsyncIterator[Fleet]:
    address = f"unix:{folder / 'controller'}"
    controller = wire(ControllerSettings(RpcServerSettings(listen=(address,)), lease_s=60.0))
    await controller.server.start()
    await controller.warm()
    objects, data = open_objects(f"file://{folder / 'objects'}"), random.Random(1).randbytes(SIZE)
    hashing = SumInProgress()
    hashing.add(data)
    blocks_digest = put_sums(objects, "adapters/one", hashing.result().blocks)
    reference = replace(objects.put("adapters/one", data), blocks_digest=blocks_digest)
    async with open_channel(address, RpcChannelSettings()) as channel:
        client = ControllerClient(channel)
        yield Fleet(folder, address, client, processes, CountingRemote(objects), reference, data)
    await controller.drain()
    await controller.server.stop()


async def test_component_that_a_peer_holds_is_not_read_from_the_store(fleet: Fleet) -> None:
    await fleet.start("a", "b")

    assert await fleet.fetch() == fleet.data
    assert fleet.remote.offsets == []


async def test_component_that_no_peer_holds_is_read_from_the_store(fleet: Fleet) -> None:
    await fleet.start("a")
    other = b"other" * 1000
    hashing = SumInProgress()
    hashing.add(other)
    objects = open_objects(f"file://{fleet.folder / 'objects'}")
    blocks_digest = put_sums(objects, "adapters/two", hashing.result().blocks)
    fleet.reference = replace(objects.put("adapters/two", other), blocks_digest=blocks_digest)

    assert await fleet.fetch() == other
    assert fleet.remote.offsets == [0]


@pytest.mark.parametrize(("others", "reads"), [((), "2"), (("b",), "1")])
async def test_peer_that_dies_is_replaced_by_another_one_or_the_store(
    fleet: Fleet, others: tuple[str, ...], reads: str
) -> None:
    (dying,) = await fleet.start("a", flags=("--busy", "--ends-after", reads))
    await fleet.start(*others)

    assert await fleet.fetch() == fleet.data
    assert dying.wait(60) == -signal.SIGKILL
    assert (fleet.remote.offsets == []) == bool(others)
    assert {peer.name for peer in await asyncio.to_thread(fleet.peers.holding, fleet.reference.digest)} == {
        fleet.address(name) for name in others
    }


@pytest.mark.parametrize("others", [(), ("b",)])
async def test_block_that_a_peer_has_wrong_is_rejected_and_the_peer_skipped(
    fleet: Fleet, others: tuple[str, ...]
) -> None:
    await fleet.start("a", *others)
    fleet.spoil("a")
    for name in others:
        fleet.spoil(name)

    assert await fleet.fetch() == fleet.data
    assert BLOCK_BYTES in fleet.remote.offsets
    quarantined = {path.name.split(".")[-1] for path in (fleet.folder / "new" / "quarantine").iterdir()}
    assert quarantined == {"1"}
    assert await asyncio.to_thread(fleet.peers.holding, fleet.reference.digest) == []


async def test_error_names_the_store_if_no_source_has_the_bytes(fleet: Fleet) -> None:
    await fleet.start("a")
    fleet.spoil("a")
    fleet.remote.is_wrong = True

    with pytest.raises(CorruptComponent, match="the object store has other bytes") as raised:
        await fleet.fetch()

    assert fleet.reference.digest in raised.value.message
    assert list((fleet.folder / "new" / "blobs").iterdir()) == []


async def test_slow_peer_is_left_for_the_store(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(components, "BLOCK_S", 0.2)
    (stopped,) = await fleet.start("a")
    stopped.send_signal(signal.SIGSTOP)

    assert await fleet.fetch() == fleet.data
    assert sorted(fleet.remote.offsets) == OFFSETS


async def test_peer_that_rejects_the_caller_is_left_for_the_store(fleet: Fleet) -> None:
    tokens = fleet.folder / "tokens.toml"
    tokens.write_text(token_entry(new_token(), "suite", frozenset({Role.SERVICE})))
    await fleet.start("a", flags=("--token-file", str(tokens)))

    assert await fleet.fetch() == fleet.data
    assert sorted(fleet.remote.offsets) == OFFSETS


async def test_holders_are_forgotten_once_they_hold_the_component_no_longer(fleet: Fleet) -> None:
    await fleet.start("a", "b")

    ComponentStore(fleet.folder / "a", 2**40, 0, Utility).drop(fleet.reference.digest)

    await fleet.until_holders_are("b")
