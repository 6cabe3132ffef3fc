"""Send a stream's tensors, by the best transport that both ends have."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pentimento.api.tensor.v1 import tensor_pb2 as pb
from pentimento.domain.errors import InvalidArgument, ResourceExhausted
from pentimento.tensors.chunks import Chunk, chunks_of
from pentimento.tensors.outgoing import (
    FALLBACKS,
    HEADER_BYTES,
    REGIONS,
    SENT_BYTES,
    Layout,
    OutgoingTensor,
    SlotUse,
    SlotWriter,
    fill_all,
    layout_of,
)
from pentimento.tensors.regions import KeptRegions, Region, RegionDirectory, RegionSize, release
from pentimento.wire.tensors import described

# Up to this size bytes inside the message cost less than a slot and its acknowledgement.
INLINE_BYTES = 16 * 1024
# One is written while the other is read.
SLOT_COUNT = 2
# Best first. Inline is no separate choice: with any transport, small tensors go inside the message.
_PREFERENCE = (pb.TENSOR_TRANSPORT_CUDA_IPC, pb.TENSOR_TRANSPORT_SHARED_MEMORY, pb.TENSOR_TRANSPORT_CHUNKS)


@dataclass(frozen=True)
class PackedTensors:
    """Hold a packed bundle: `tensors` go into the message, `chunks` after it on the same stream. Read `chunks` once;
    each chunk is valid until the next one is requested."""

    tensors: tuple[pb.Tensor, ...]
    chunks: Iterator[Chunk]


class SlotInParts:
    """Write a bundle to a slot in parts, its tensors in order."""

    def __init__(self, writer: SlotWriter, use: SlotUse, layout: Layout) -> None:
        self._writer = writer
        self._use = use
        self._layout = layout
        # The number of tensors written.
        self.count = 0

    def add(self, tensors: Sequence[OutgoingTensor]) -> pb.SharedMemorySlot:
        """Write the next tensors and return their position."""
        offsets = self._layout.offsets[self.count : self.count + len(tensors)]
        self.count += len(tensors)
        begin = offsets[0] if offsets else 0
        size = offsets[-1] + tensors[-1].size_bytes - begin if offsets else 0
        fill_all(tensors, Layout(offsets, size), self._use.memory)
        self._writer.publish(self._use)
        SENT_BYTES.labels(self._writer.region.transport).inc(size)
        return pb.SharedMemorySlot(
            region_id=self._writer.region.region_id,
            slot=self._use.slot,
            generation=self._use.generation,
            offset_bytes=begin,
            size_bytes=size,
        )


class TensorSender:
    """Send bundles of tensors: small ones inside the message, others in a slot if one is free and large enough, else in
    chunks. One thread at a time."""

    def __init__(self, writer: SlotWriter | None = None) -> None:
        self._writer = writer
        self._opened = False
        self._bundle_id = 0
        # Memory of bundles that were sent in chunks, for reuse.
        self._spare: list[bytearray] = []

    @property
    def has_region(self) -> bool:
        """Return whether the stream has a region to write to."""
        return self._writer is not None

    def pack(self, tensors: Sequence[OutgoingTensor]) -> PackedTensors:
        """Return the messages for a bundle. The tensors' bytes are copied now, once; they may change afterwards."""
        layout = layout_of([tensor.size_bytes for tensor in tensors])
        if layout.size_bytes <= INLINE_BYTES:
            return self._inline(tensors, layout)
        return self._in_slot(tensors, layout) or self._in_chunks(tensors, layout)

    def acknowledged(self, ack: pb.SharedMemoryAck) -> None:
        """Free a slot. Raises InvalidArgument if it is not in use."""
        if self._writer is None:
            raise InvalidArgument.of("ack", "must name a slot in use: this stream has no region")
        self._writer.acknowledged(ack.region_id, ack.slot, ack.generation)

    def region_opened(self, opened: pb.SharedMemoryOpened) -> None:
        """Release the region if the other end could not map it. Raises InvalidArgument for another stream's region."""
        if self._writer is None or opened.region_id != self._writer.region.region_id:
            raise InvalidArgument.of("region_opened.region_id", "must be that of this stream's region")
        self._opened = opened.opened
        if not opened.opened:
            FALLBACKS.labels("not_opened").inc()
            self.close()

    def close(self, kept: KeptRegions | None = None) -> None:
        """Release the region; later bundles go in chunks. A region that the other end had opened is given to `kept` if
        that is set."""
        writer, self._writer = self._writer, None
        if writer is not None:
            release(writer.region, kept if self._opened else None)

    def _inline(self, tensors: Sequence[OutgoingTensor], layout: Layout) -> PackedTensors:
        messages = []
        for tensor in tensors:
            message = described(tensor.dtype, tensor.dims, tensor.binding)
            data = bytearray(tensor.size_bytes)
            tensor.fill(memoryview(data))
            message.inline = bytes(data)
            messages.append(message)
        SENT_BYTES.labels("inline").inc(layout.size_bytes)
        return PackedTensors(tuple(messages), iter(()))

    def in_one_slot(self, tensors: Sequence[OutgoingTensor]) -> pb.SharedMemorySlot | None:
        """Write a bundle to a slot and return its position, without a description of each tensor: the other end knows
        the expected tensors. None if no slot is free and large enough."""
        parts = self.in_parts(layout_of([tensor.size_bytes for tensor in tensors]))
        return None if parts is None else parts.add(tensors)

    def in_parts(self, layout: Layout) -> SlotInParts | None:
        """Return a slot for a bundle of that layout, to be written in parts. None if no slot is free and large
        enough."""
        writer = self._writer
        if writer is None:
            return None
        use = writer.begin() if layout.size_bytes <= writer.capacity_bytes else None
        if use is None:
            FALLBACKS.labels("no_free_slot").inc()
            return None
        return SlotInParts(writer, use, layout)

    def _in_slot(self, tensors: Sequence[OutgoingTensor], layout: Layout) -> PackedTensors | None:
        slot = self.in_one_slot(tensors)
        if slot is None:
            return None
        messages = []
        for tensor, offset in zip(tensors, layout.offsets, strict=True):
            message = described(tensor.dtype, tensor.dims, tensor.binding)
            message.shared_memory.CopyFrom(slot)
            message.shared_memory.offset_bytes = offset
            message.shared_memory.size_bytes = tensor.size_bytes
            messages.append(message)
        return PackedTensors(tuple(messages), iter(()))

    def _in_chunks(self, tensors: Sequence[OutgoingTensor], layout: Layout) -> PackedTensors:
        self._bundle_id += 1
        memory = self._spare.pop() if self._spare else bytearray()
        if len(memory) != layout.size_bytes:
            memory = bytearray(layout.size_bytes)
        fill_all(tensors, layout, memoryview(memory))
        messages = []
        for tensor, offset in zip(tensors, layout.offsets, strict=True):
            message = described(tensor.dtype, tensor.dims, tensor.binding)
            message.chunks.bundle_id, message.chunks.offset_bytes = self._bundle_id, offset
            message.chunks.size_bytes = tensor.size_bytes
            messages.append(message)
        SENT_BYTES.labels("chunks").inc(layout.size_bytes)
        return PackedTensors(tuple(messages), self._chunks(self._bundle_id, memory))

    def _chunks(self, bundle_id: int, memory: bytearray) -> Iterator[Chunk]:
        """Yield the chunks of a bundle in `memory`, which later bundles reuse once all are sent: allocating that size
        takes as long as a copy."""
        yield from chunks_of(bundle_id, memoryview(memory).toreadonly())
        self._spare.append(memory)


def transport_offer(directory: RegionDirectory | None) -> pb.TensorTransportOffer:
    """Return the transports of this end. `directory` is None if it shares no memory."""
    domain = directory.domain() if directory is not None else ""
    device = directory.device_memory.domain() if directory is not None and directory.device_memory is not None else ""
    transports = [pb.TENSOR_TRANSPORT_INLINE, pb.TENSOR_TRANSPORT_CHUNKS]
    transports += [pb.TENSOR_TRANSPORT_SHARED_MEMORY] if domain else []
    transports += [pb.TENSOR_TRANSPORT_CUDA_IPC] if device else []
    kept = directory.kept.region_ids if directory is not None and domain else []
    return pb.TensorTransportOffer(
        transports=transports, shared_memory_domain=domain, device_memory_domain=device, kept_region_ids=kept
    )


def common_transports(
    theirs: pb.TensorTransportOffer, ours: pb.TensorTransportOffer
) -> tuple[pb.TensorTransport.ValueType, ...]:
    """Return the transports of both ends, best first; the last is chunks, which every end has."""
    common = {*theirs.transports, pb.TENSOR_TRANSPORT_CHUNKS} & {*ours.transports, pb.TENSOR_TRANSPORT_CHUNKS}
    domains = {
        pb.TENSOR_TRANSPORT_SHARED_MEMORY: (theirs.shared_memory_domain, ours.shared_memory_domain),
        pb.TENSOR_TRANSPORT_CUDA_IPC: (theirs.device_memory_domain, ours.device_memory_domain),
    }
    common -= {transport for transport, (there, here) in domains.items() if not here or there != here}
    return tuple(transport for transport in _PREFERENCE if transport in common)


def open_sender(
    offer: pb.TensorTransportOffer,
    directory: RegionDirectory | None,
    sizes_bytes: Sequence[int],
    *,
    little: bool = False,
) -> tuple[TensorSender, pb.SharedMemoryRegion | None]:
    """Return the sender of a stream with messages of tensors of `sizes_bytes`, and the region for the other end to map,
    of the best transport that both ends have and that has room. The region is None for chunks, and for tensors small
    enough to go inside their messages, unless `little` is set."""
    common = common_transports(offer, transport_offer(directory))
    if pb.TENSOR_TRANSPORT_SHARED_MEMORY in offer.transports and pb.TENSOR_TRANSPORT_SHARED_MEMORY not in common:
        FALLBACKS.labels("not_shared").inc()
    bundle_bytes = layout_of(sizes_bytes).size_bytes
    if directory is None or (bundle_bytes <= INLINE_BYTES and not little):
        return TensorSender(), None
    size = RegionSize(HEADER_BYTES + bundle_bytes, SLOT_COUNT)
    for transport in common:
        try:
            region, handle = _create(directory, transport, size, offer.kept_region_ids)
        except ResourceExhausted:
            FALLBACKS.labels("no_space").inc()
            continue
        if region is not None:
            return TensorSender(SlotWriter(region)), _described(region, handle)
    return TensorSender(), None


def transport_of(region: pb.SharedMemoryRegion | None) -> pb.TensorTransport.ValueType:
    """Return the transport of a stream's tensors, given the region from `open_sender`."""
    if region is None:
        return pb.TENSOR_TRANSPORT_CHUNKS
    return pb.TENSOR_TRANSPORT_CUDA_IPC if region.HasField("cuda_ipc") else pb.TENSOR_TRANSPORT_SHARED_MEMORY


def _create(
    directory: RegionDirectory, transport: pb.TensorTransport.ValueType, size: RegionSize, kept_ids: Sequence[str]
) -> tuple[Region | None, pb.CudaIpcHandle | None]:
    match transport:
        case pb.TENSOR_TRANSPORT_CUDA_IPC:
            assert directory.device_memory is not None
            return directory.device_memory.create(size)
        case pb.TENSOR_TRANSPORT_SHARED_MEMORY:
            kept = directory.kept.take(kept_ids, size)
            REGIONS.labels("made" if kept is None else "kept").inc()
            return kept or directory.create(size), None
    return None, None


def _described(region: Region, handle: pb.CudaIpcHandle | None) -> pb.SharedMemoryRegion:
    size = region.size
    return pb.SharedMemoryRegion(
        region_id=region.region_id, slot_size_bytes=size.slot_size_bytes, slot_count=size.slot_count, cuda_ipc=handle
    )
