"""Negotiate a stream's transport: the transports of each end, and of both. Once per stream."""

from pentimento.api.tensor.v1 import tensor_pb2 as pb
from pentimento.tensors.regions import RegionDirectory

# Best first. Inline is no separate choice: with any transport, small tensors go inside the message.
_PREFERENCE = (pb.TENSOR_TRANSPORT_CUDA_IPC, pb.TENSOR_TRANSPORT_SHARED_MEMORY, pb.TENSOR_TRANSPORT_CHUNKS)


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
