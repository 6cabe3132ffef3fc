"""Once a stream: what an end can do, and the best that both can."""

from pentimento.api.tensor.v1 import tensor_pb2 as pb
from pentimento.tensors.regions import RegionDirectory

# Best first. Inline is no choice of its own: whatever was agreed, little tensors go inside the message.
_PREFERENCE = (pb.TENSOR_TRANSPORT_SHARED_MEMORY, pb.TENSOR_TRANSPORT_CHUNKS)


def transport_offer(directory: RegionDirectory | None) -> pb.TensorTransportOffer:
    """Return what this end can do. `directory` is None where it shares no memory with anybody."""
    domain = directory.domain() if directory is not None else ""
    transports = [pb.TENSOR_TRANSPORT_INLINE, pb.TENSOR_TRANSPORT_CHUNKS]
    if domain:
        transports.append(pb.TENSOR_TRANSPORT_SHARED_MEMORY)
    return pb.TensorTransportOffer(transports=transports, shared_memory_domain=domain)


def best_transport(theirs: pb.TensorTransportOffer, ours: pb.TensorTransportOffer) -> pb.TensorTransport.ValueType:
    """Return the best transport that both ends have; chunks, which every end has, where there is none better."""
    common = set(theirs.transports) & set(ours.transports)
    if not ours.shared_memory_domain or theirs.shared_memory_domain != ours.shared_memory_domain:
        common.discard(pb.TENSOR_TRANSPORT_SHARED_MEMORY)
    return next((transport for transport in _PREFERENCE if transport in common), pb.TENSOR_TRANSPORT_CHUNKS)
