"""Receive a stream's tensors. Only tensors that match the expected ones are accepted."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from pentimento.api.tensor.v1 import tensor_pb2 as pb
from pentimento.domain.errors import Aborted, InvalidArgument, PentimentoError
from pentimento.tensors.chunks import AnyChunk, ChunkAssembly
from pentimento.tensors.outgoing import Layout, SlotReader, SlotUse, layout_of
from pentimento.tensors.regions import KeptRegions, Region, RegionDirectory, RegionSize, release
from pentimento.wire.tensors import (
    Binding,
    DeviceBytes,
    Dtype,
    WireTensor,
    checked_description,
    size_of,
    tensor_from_proto,
)


@dataclass(frozen=True)
class ExpectedTensor:
    """Describe an expected tensor; its binding holds request, attempt, step, layer, digest and epoch."""

    dtype: Dtype
    dims: tuple[int, ...]
    binding: Binding


@dataclass(frozen=True)
class ReceivedTensors:
    """Hold the tensors of one message; `awaited_count` further ones are still in flight. Tensors in shared memory are
    valid until `ack`, if there is one, has been sent."""

    tensors: tuple[WireTensor, ...]
    ack: pb.SharedMemoryAck | None = None
    awaited_count: int = 0


class BundleInParts:
    """Receive a bundle in parts, all in one slot, as `SlotInParts` writes it."""

    def __init__(self, reader: SlotReader, expected: Sequence[ExpectedTensor]) -> None:
        self._reader = reader
        self._expected = expected
        self._layout = _layout(expected)
        self._use: SlotUse | None = None
        self._count = 0

    def add(self, slot: pb.SharedMemorySlot, more_to_come: bool) -> ReceivedTensors:
        """Return all tensors that have arrived so far. Raises Aborted (STALE_FRAME) for a part that does not follow the
        one before, is in another slot, or has the wrong `more_to_come`."""
        use = self._use
        if use is None:
            use = self._reader.read(slot.region_id, slot.slot, slot.generation)
        else:
            self._reader.check_same(use, slot.region_id, slot.slot, slot.generation)
        end = slot.offset_bytes + slot.size_bytes
        there = next((count for count in range(self._count + 1, len(self._expected) + 1) if self._end(count) == end), 0)
        follows = there and slot.offset_bytes == self._layout.offsets[self._count]
        if not follows or more_to_come is (there == len(self._expected)) or end > len(use.memory):
            raise Aborted("STALE_FRAME", f"bytes {slot.offset_bytes} to {end} are not the next part of their answer")
        self._use, self._count = use, there
        ack = None if more_to_come else _ack(slot.region_id, use)
        return ReceivedTensors(_cut(use.memory, self._expected[:there]), ack, len(self._expected) - there)

    def _end(self, count: int) -> int:
        """Return the end offset of the first `count` tensors."""
        last = self._expected[count - 1]
        return self._layout.offsets[count - 1] + size_of(last.dtype, last.dims)


class TensorReceiver:
    """Receive bundles one after the other. One thread at a time."""

    def __init__(self, reader: SlotReader | None = None) -> None:
        self._reader = reader
        self._assembly: ChunkAssembly | None = None
        self._awaited: Sequence[ExpectedTensor] = ()

    def begin(self, messages: Sequence[pb.Tensor], expected: Sequence[ExpectedTensor]) -> ReceivedTensors | None:
        """Return a message's tensors; None if their chunks follow, for `add`.

        Raises InvalidArgument if they are not exactly the expected ones, and Aborted (STALE_FRAME) if they belong to
        another request, attempt, step, layer, model or epoch, or their slot was overwritten. Allocates nothing for
        rejected tensors.
        """
        if self._assembly is not None:
            raise InvalidArgument.of("tensor", "must wait for the chunks of the tensors before it")
        _check(messages, expected)
        kinds = {message.WhichOneof("payload") for message in messages} or {"inline"}
        if len(kinds) != 1:
            raise InvalidArgument.of("tensor.payload", "must be of one kind in a message")
        match kinds.pop():
            case "inline":
                return ReceivedTensors(tuple(tensor_from_proto(message) for message in messages))
            case "shared_memory":
                return self._from_slot(messages, expected)
            case "chunks":
                self._await_chunks(messages, expected)
                return None
            case other:
                raise InvalidArgument.of("tensor.payload", f"must be inline, chunks or a slot, got {other or 'none'}")

    def add(self, chunk: AnyChunk) -> ReceivedTensors | None:
        """Return the tensors announced in `begin` with their last chunk, None before. Raises InvalidArgument for an
        unexpected chunk."""
        if self._assembly is None:
            raise InvalidArgument.of("chunk", "must follow the message with its tensors")
        memory = self._assembly.add(chunk)
        if memory is None:
            return None
        self._assembly = None
        return ReceivedTensors(_cut(memory, self._awaited))

    def from_one_slot(self, slot: pb.SharedMemorySlot, expected: Sequence[ExpectedTensor]) -> ReceivedTensors:
        """Return the tensors in a slot one after the other, as `TensorSender.in_one_slot` wrote them. The caller has
        compared their binding.

        Raises InvalidArgument if they do not fit the slot, and Aborted (STALE_FRAME) if the slot was read already or
        overwritten.
        """
        layout = _layout(expected)
        if slot.offset_bytes or slot.size_bytes != layout.size_bytes:
            limit = f"must be {layout.size_bytes} bytes at 0"
            raise InvalidArgument.of("slot.size_bytes", f"{limit}, got {slot.size_bytes} at {slot.offset_bytes}")
        return self._read(slot, layout, expected)

    def in_parts(self, expected: Sequence[ExpectedTensor]) -> BundleInParts:
        """Return a receiver of a bundle in parts in one slot. Raises InvalidArgument without a region."""
        return BundleInParts(self._open_reader(), expected)

    def close(self, kept: KeptRegions | None = None) -> None:
        """Release the region; it is given to `kept` if that is set, when its memory is no longer read."""
        reader, self._reader = self._reader, None
        if reader is not None:
            release(reader.region, kept)

    def _from_slot(self, messages: Sequence[pb.Tensor], expected: Sequence[ExpectedTensor]) -> ReceivedTensors:
        layout = _layout(expected)
        first = messages[0].shared_memory
        for message, offset in zip(messages, layout.offsets, strict=True):
            slot = message.shared_memory
            one = (slot.region_id, slot.slot, slot.generation) == (first.region_id, first.slot, first.generation)
            if not one or slot.offset_bytes != offset:
                raise InvalidArgument.of("tensor.shared_memory", "must lie in one slot, in order")
        return self._read(first, layout, expected)

    def _read(self, slot: pb.SharedMemorySlot, layout: Layout, expected: Sequence[ExpectedTensor]) -> ReceivedTensors:
        use = self._open_reader().read(slot.region_id, slot.slot, slot.generation)
        if layout.size_bytes > len(use.memory):
            raise InvalidArgument.of("tensor.shared_memory", "must lie within its slot")
        return ReceivedTensors(_cut(use.memory, expected), _ack(slot.region_id, use))

    def _open_reader(self) -> SlotReader:
        if self._reader is None:
            raise InvalidArgument.of("tensor.shared_memory", "must not be used: this stream has no region")
        return self._reader

    def _await_chunks(self, messages: Sequence[pb.Tensor], expected: Sequence[ExpectedTensor]) -> None:
        layout, bundle_id = _layout(expected), messages[0].chunks.bundle_id
        for message, offset in zip(messages, layout.offsets, strict=True):
            if message.chunks.bundle_id != bundle_id or message.chunks.offset_bytes != offset:
                raise InvalidArgument.of("tensor.chunks", "must lie in one bundle, in order")
        self._assembly, self._awaited = ChunkAssembly(bundle_id, layout.size_bytes), expected


def open_receiver(
    region: pb.SharedMemoryRegion | None, directory: RegionDirectory | None
) -> tuple[TensorReceiver, pb.SharedMemoryOpened | None]:
    """Return the receiver of a stream with the `region` made by the other end, and the reply on whether it was mapped;
    no reply (None) without a region."""
    if region is None:
        return TensorReceiver(), None
    told = pb.SharedMemoryOpened(region_id=region.region_id)
    try:
        mapped = _mapped(region, directory)
    except PentimentoError:
        return TensorReceiver(), told
    if mapped is None:
        return TensorReceiver(), told
    told.opened = True
    return TensorReceiver(SlotReader(mapped)), told


def _mapped(region: pb.SharedMemoryRegion, directory: RegionDirectory | None) -> Region | None:
    if directory is None:
        return None
    size = RegionSize(region.slot_size_bytes, region.slot_count)
    if not region.HasField("cuda_ipc"):
        return directory.kept.take([region.region_id], size) or directory.open(region.region_id, size)
    memory = directory.device_memory
    return None if memory is None else memory.open(region.region_id, size, region.cuda_ipc)


def _check(messages: Sequence[pb.Tensor], expected: Sequence[ExpectedTensor]) -> None:
    if len(messages) != len(expected):
        raise InvalidArgument.of("tensors", f"must be {len(expected)}, got {len(messages)}")
    for message, wanted in zip(messages, expected, strict=True):
        _, binding = checked_description(message, (wanted.dtype,), wanted.dims, None)
        if binding != wanted.binding:
            raise Aborted("STALE_FRAME", f"a tensor came that is not {wanted.binding.layer} of this stream's step")
        size = _payload_bytes(message)
        if size != size_of(wanted.dtype, wanted.dims):
            limit = f"must be {size_of(wanted.dtype, wanted.dims)} for its dims"
            raise InvalidArgument.of("tensor.size_bytes", f"{limit}, got {size}")


def _payload_bytes(message: pb.Tensor) -> int:
    match message.WhichOneof("payload"):
        case "shared_memory":
            return message.shared_memory.size_bytes
        case "chunks":
            return message.chunks.size_bytes
        case _:
            return len(message.inline)


def _layout(expected: Sequence[ExpectedTensor]) -> Layout:
    return layout_of([size_of(wanted.dtype, wanted.dims) for wanted in expected])


def _cut(memory: memoryview | DeviceBytes, expected: Sequence[ExpectedTensor]) -> tuple[WireTensor, ...]:
    """Return each tensor over its part of the memory, without a copy."""
    layout = _layout(expected)
    return tuple(
        WireTensor(
            wanted.dtype, wanted.dims, memory[offset : offset + size_of(wanted.dtype, wanted.dims)], wanted.binding
        )
        for wanted, offset in zip(expected, layout.offsets, strict=True)
    )


def _ack(region_id: str, use: SlotUse) -> pb.SharedMemoryAck:
    return pb.SharedMemoryAck(region_id=region_id, slot=use.slot, generation=use.generation)


class _ChunkedMessage(Protocol):
    @property
    def chunk(self) -> AnyChunk: ...

    def WhichOneof(self, oneof_group: Literal["message"], /) -> str | None: ...


async def receive_all(
    receiver: TensorReceiver,
    parts: Sequence[pb.Tensor],
    expected: Sequence[ExpectedTensor],
    messages: AsyncIterator[_ChunkedMessage],
) -> ReceivedTensors:
    """Return a message's tensors, read from the chunks after it if they are sent in chunks. Raises InvalidArgument if
    another message follows."""
    found = receiver.begin(parts, expected)
    while found is None:
        message = await anext(aiter(messages), None)
        if message is None or message.WhichOneof("message") != "chunk":
            raise InvalidArgument.of("message", "must be a chunk of the tensors before it")
        found = receiver.add(message.chunk)
    return found
