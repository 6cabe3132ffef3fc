"""Uploads of LoRAs over a real ledger and a real object store."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lab.fixtures.lora_files import write_tensors
from pentimento.domain.adapters import Adapter, AdapterKind, LoraUpload
from pentimento.domain.errors import DeadlineExceeded, FailedPrecondition, InvalidArgument, NotFound
from pentimento.files.ed25519_keys import read_private_key
from pentimento.files.signed_entries import signed_upload
from pentimento.stores.components.remote import ObjectRemote, sums_key
from pentimento.stores.ledger.fleet_ledger import FleetLedger, open_fleet_ledger
from pentimento.stores.objects import ObjectStore, open_objects
from pentimento.stores.objects.store import digest_of
from services.controller.uploads import UploadedAdapters
from tests.unit.controller.left_callers import cancelled_once_committed
from tests.unit.files.test_signed_entries import Keys

MAX_BYTES = 10_000


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[FleetLedger]:
    opened = open_fleet_ledger(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    yield opened
    opened.close()


@pytest.fixture
def objects(tmp_path: Path) -> ObjectStore:
    return open_objects(f"file://{tmp_path / 'objects'}")


class RecordedNames:
    """Record the names of the adapters last given to plans."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __call__(self, adapters: tuple[Adapter, ...]) -> None:
        self.names = [adapter.name for adapter in adapters]


async def opened(ledger: FleetLedger, objects: ObjectStore) -> tuple[UploadedAdapters, RecordedNames]:
    told = RecordedNames()
    uploads = UploadedAdapters(ledger, objects, MAX_BYTES, told)
    await uploads.load()
    return uploads, told


def lora_bytes(folder: Path, value: float = 1.0) -> bytes:
    tensors = {"unet.proj.lora_A.weight": torch.full((2, 8), value), "unet.proj.lora_B.weight": torch.ones(6, 2)}
    return write_tensors(folder / "made.safetensors", tensors).read_bytes()


def upload_of(data: bytes, name: str = "ink") -> LoraUpload:
    return LoraUpload(name, "stable_diffusion", "MIT", len(data), digest_of(data), latest_start_fraction=0.2)


async def sent(data: bytes, size: int = 100) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


async def test_uploaded_lora_is_stored_by_digest_and_survives_restart(
    ledger: FleetLedger, objects: ObjectStore, tmp_path: Path
) -> None:
    data = lora_bytes(tmp_path)
    uploads, told = await opened(ledger, objects)

    added = await uploads.add(upload_of(data), sent(data))

    assert (added.name, added.kind, added.digest) == ("ink", AdapterKind.LORA, digest_of(data))
    assert (added.family, added.licence, added.latest_start_fraction) == ("stable_diffusion", "MIT", 0.2)
    assert added.object is not None and objects.get(added.object) == data
    sums = ObjectRemote(objects).sums(added.object)
    assert sums is not None and sums.matches(0, data)
    assert told.names == ["ink"]
    again, told_again = await opened(ledger, objects)
    assert (again.adapters, told_again.names) == ((added,), ["ink"])
    assert await again.add(upload_of(data), sent(data)) == added


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": "../ink"}, "upload.name"),
        ({"name": "Ink"}, "upload.name"),
        ({"family": ""}, "upload.family"),
        ({"family": "stable_difusion"}, "upload.family"),
        ({"licence": "a\nb"}, "upload.licence"),
        ({"digest": "sha256:0"}, "upload.digest"),
        ({"digest": "sha256:" + "0" * 64}, "upload.digest"),
        ({"base_digest": "tiny"}, "upload.base_digest"),
        ({"size_bytes": 0}, "upload.size_bytes"),
        ({"size_bytes": MAX_BYTES + 1}, "upload.size_bytes"),
        ({"size_bytes": 50}, "upload.size_bytes"),
        ({"size_bytes": 9_000}, "upload.size_bytes"),
        ({"latest_start_fraction": float("nan")}, "upload.latest_start_fraction"),
        ({"signed_entry": "{}"}, "upload.signed_entry"),
        ({"signed_entry": " " * 8193}, "upload.signed_entry"),
    ],
)
async def test_upload_with_wrong_declaration_is_rejected_and_leaves_nothing(
    ledger: FleetLedger, objects: ObjectStore, tmp_path: Path, changes: dict[str, object], field: str
) -> None:
    data = lora_bytes(tmp_path)
    uploads, _ = await opened(ledger, objects)

    with pytest.raises(InvalidArgument) as refused:
        await uploads.add(replace(upload_of(data), **changes), sent(data))  # type: ignore[arg-type]

    assert refused.value.violations[0].field == field
    assert (uploads.adapters, list(objects.keys())) == ((), [])


async def test_a_file_that_is_no_lora_is_refused(ledger: FleetLedger, objects: ObjectStore) -> None:
    data = b"\x80\x02ctorch\n"
    uploads, _ = await opened(ledger, objects)

    with pytest.raises(InvalidArgument, match="file: must be a safetensors file"):
        await uploads.add(upload_of(data), sent(data))

    assert list(objects.keys()) == []


async def test_a_name_stands_for_one_lora_until_it_is_removed(
    ledger: FleetLedger, objects: ObjectStore, tmp_path: Path
) -> None:
    first, second = lora_bytes(tmp_path, 1.0), lora_bytes(tmp_path, 2.0)
    uploads, told = await opened(ledger, objects)
    await uploads.add(upload_of(first), sent(first))

    with pytest.raises(FailedPrecondition) as taken:
        await uploads.add(upload_of(second), sent(second))
    assert taken.value.reason == "NAME_TAKEN"

    await uploads.remove("ink")
    assert (uploads.adapters, told.names) == ((), [])
    assert (await uploads.add(upload_of(second), sent(second))).digest == digest_of(second)
    with pytest.raises(NotFound, match="no LoRA 'ash' was uploaded"):
        await uploads.remove("ash")


async def test_signature_of_an_upload_is_stored_replaced_and_never_removed_alone(
    ledger: FleetLedger, objects: ObjectStore, tmp_path: Path
) -> None:
    data, keys = lora_bytes(tmp_path), Keys(tmp_path)
    first, second = (
        signed_upload(upload_of(data), read_private_key(keys.private(name), "signing_key"), 1000)
        for name in ("first", "second")
    )
    uploads, _ = await opened(ledger, objects)
    await uploads.add(upload_of(data), sent(data))

    before = await uploads.add(first, sent(data))
    after = await uploads.add(second, sent(data))
    with pytest.raises(FailedPrecondition, match="ink names another LoRA, or a signed one") as taken:
        await uploads.add(upload_of(data), sent(data))

    assert (before.signed_entry, after.signed_entry) == (first.signed_entry, second.signed_entry)
    assert taken.value.reason == "NAME_TAKEN"
    assert (await opened(ledger, objects))[0].adapters == (after,)


async def test_another_controller_took_the_name_meanwhile(
    ledger: FleetLedger, objects: ObjectStore, tmp_path: Path
) -> None:
    first, second = lora_bytes(tmp_path, 1.0), lora_bytes(tmp_path, 2.0)
    slow, _ = await opened(ledger, objects)
    fast, _ = await opened(ledger, objects)
    await fast.add(upload_of(first), sent(first))

    with pytest.raises(FailedPrecondition, match="ink names another LoRA"):
        await slow.add(upload_of(second), sent(second))


async def test_file_of_removed_lora_stays_for_a_time_and_other_files_are_kept(
    ledger: FleetLedger, objects: ObjectStore, tmp_path: Path
) -> None:
    kept, gone = lora_bytes(tmp_path, 1.0), lora_bytes(tmp_path, 2.0)
    uploads, _ = await opened(ledger, objects)
    one, two = [await uploads.add(upload_of(data, name), sent(data)) for data, name in ((kept, "kept"), (gone, "gone"))]
    foreign = objects.put("adapters/another/" + "a" * 64, b"of another ledger")
    assert await uploads.sweep(frozenset()) == frozenset()
    await uploads.remove("gone")

    unnamed = await uploads.sweep(frozenset())
    assert two.object is not None and unnamed == {two.object.key, sums_key(two.object.key)}
    assert objects.get(two.object) == gone
    assert await uploads.sweep(unnamed) == frozenset()

    assert one.object is not None
    assert set(objects.keys()) == {one.object.key, sums_key(one.object.key), foreign.key}


async def test_uploads_take_turns(ledger: FleetLedger, objects: ObjectStore, tmp_path: Path) -> None:
    data = lora_bytes(tmp_path)
    uploads, _ = await opened(ledger, objects)

    both = await asyncio.gather(*(uploads.add(upload_of(data), sent(data)) for _ in range(2)))

    assert both[0] == both[1] == uploads.adapters[0]


class Stalling:
    """Send half of a file, and the rest once it is allowed; `asked` is set at the first read."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.asked = asyncio.Event()
        self.let = asyncio.Event()

    async def chunks(self) -> AsyncIterator[bytes]:
        self.asked.set()
        yield self._data[:50]
        await self.let.wait()
        yield self._data[50:]


async def test_stalled_client_delays_no_other(ledger: FleetLedger, objects: ObjectStore, tmp_path: Path) -> None:
    slow, quick = lora_bytes(tmp_path, 1.0), lora_bytes(tmp_path, 2.0)
    uploads, told = await opened(ledger, objects)
    client = Stalling(slow)
    stalled = asyncio.ensure_future(uploads.add(upload_of(slow, "slow"), client.chunks()))
    await client.asked.wait()

    await uploads.add(upload_of(quick, "quick"), sent(quick))
    await uploads.remove("quick")
    unnamed = await uploads.sweep(frozenset())

    assert len(unnamed) == 2, "the file and the hashes of its blocks"
    assert not stalled.done()
    client.let.set()
    await stalled
    assert told.names == ["slow"]


def stopped(data: bytes) -> AsyncIterator[bytes]:
    return Stalling(data).chunks()


async def empty_messages(data: bytes) -> AsyncIterator[bytes]:
    for _ in range(30):
        yield b""
        await asyncio.sleep(0.01)
    yield data


async def trickling(data: bytes) -> AsyncIterator[bytes]:
    """Yield a byte at a time, within the allowed silence, far below the required rate of 4 µs per byte."""
    for number in range(len(data)):
        yield data[number : number + 1]
        await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("send", "silence_s", "refused"),
    [
        pytest.param(stopped, 0.05, "no bytes of the file for 0.05 s, .* after 50 of", id="stopped"),
        pytest.param(empty_messages, 0.05, "no bytes of the file for 0.05 s, .* after 0 of", id="empty-messages"),
        pytest.param(trickling, 0.2, "less than 256 KiB a second, after", id="trickling"),
    ],
)
async def test_upload_that_stalls_is_refused_and_leaves_nothing(
    ledger: FleetLedger,
    objects: ObjectStore,
    tmp_path: Path,
    send: Callable[[bytes], AsyncIterator[bytes]],
    silence_s: float,
    refused: str,
) -> None:
    data = lora_bytes(tmp_path)
    uploads = UploadedAdapters(ledger, objects, MAX_BYTES, RecordedNames(), silence_s=silence_s)
    await uploads.load()

    with pytest.raises(DeadlineExceeded, match=refused) as gone:
        await uploads.add(upload_of(data), send(data))

    assert gone.value.reason == "UPLOAD_STALLED"
    assert (uploads.adapters, list(objects.keys())) == ((), [])
    assert (await uploads.add(upload_of(data), sent(data))).name == "ink"


async def test_a_file_may_be_as_large_as_the_bound_says(
    ledger: FleetLedger, objects: ObjectStore, tmp_path: Path
) -> None:
    data = lora_bytes(tmp_path)
    uploads = UploadedAdapters(ledger, objects, len(data), RecordedNames())
    await uploads.load()

    async with asyncio.timeout(60):
        added = await uploads.add(upload_of(data), sent(data))

    assert added.name == "ink"


@pytest.mark.parametrize(("callers", "waits"), [(("acme", "acme"), True), (("acme", "other"), False)])
async def test_uploads_of_a_caller_take_no_more_memory_than_one_may(
    ledger: FleetLedger, objects: ObjectStore, tmp_path: Path, callers: tuple[str, str], waits: bool
) -> None:
    first, second = lora_bytes(tmp_path, 1.0), lora_bytes(tmp_path, 2.0)
    uploads = UploadedAdapters(ledger, objects, len(first) + len(second) - 1, RecordedNames())
    await uploads.load()
    clients = [Stalling(first), Stalling(second)]
    taken = asyncio.ensure_future(uploads.add(upload_of(first, "first"), clients[0].chunks(), callers[0]))
    await clients[0].asked.wait()
    later = asyncio.ensure_future(uploads.add(upload_of(second, "second"), clients[1].chunks(), callers[1]))
    # A thread asks the client.
    with suppress(TimeoutError):
        async with asyncio.timeout(0.1 if waits else 60):
            await clients[1].asked.wait()

    assert clients[1].asked.is_set() is not waits
    for client in clients:
        client.let.set()
    assert [(await one).name for one in (taken, later)] == ["first", "second"]


async def test_first_complete_of_two_uploads_gets_name(
    ledger: FleetLedger, objects: ObjectStore, tmp_path: Path
) -> None:
    slow, quick = lora_bytes(tmp_path, 1.0), lora_bytes(tmp_path, 2.0)
    uploads, _ = await opened(ledger, objects)
    client = Stalling(slow)
    late = asyncio.ensure_future(uploads.add(upload_of(slow), client.chunks()))
    await client.asked.wait()
    added = await uploads.add(upload_of(quick), sent(quick))
    client.let.set()

    with pytest.raises(FailedPrecondition, match="ink names another LoRA"):
        await late
    assert uploads.adapters == (added,)
    assert added.object is not None and set(objects.keys()) == {added.object.key, sums_key(added.object.key)}


async def test_change_of_cancelled_call_is_kept(
    ledger: FleetLedger, objects: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = lora_bytes(tmp_path)
    uploads, told = await opened(ledger, objects)

    await cancelled_once_committed(ledger, "register", lambda: uploads.add(upload_of(data), sent(data)), monkeypatch)
    await uploads.sweep(await uploads.sweep(frozenset()))

    assert told.names == ["ink"]
    assert uploads.adapters[0].object is not None and objects.get(uploads.adapters[0].object) == data
    await cancelled_once_committed(ledger, "unregister", lambda: uploads.remove("ink"), monkeypatch)
    assert (uploads.adapters, told.names) == ((), [])
