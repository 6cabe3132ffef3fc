"""pentimento.api.generation.v1.Adapter and pentimento.api.adapters.v1 beside pentimento.domain.adapters."""

from pentimento.api.adapters.v1 import adapter_registry_service_pb2 as registry_pb
from pentimento.api.generation.v1 import generation_pb2 as pb
from pentimento.domain.adapters import Adapter, LoraUpload, PipeliningBound, RejectedAdapter
from pentimento.wire.enumerations import ADAPTER_KINDS
from pentimento.wire.generation import object_from_proto, optional_object_to_proto


def adapter_to_proto(adapter: Adapter) -> pb.Adapter:
    """Return the message of an adapter."""
    return pb.Adapter(
        name=adapter.name,
        kind=ADAPTER_KINDS.to_proto(adapter.kind),
        digest=adapter.digest,
        family=adapter.family,
        base_digest=adapter.base_digest,
        licence=adapter.licence,
        object=optional_object_to_proto(adapter.object),
        latest_start_fraction=adapter.latest_start_fraction,
        pipelining_bounds=[
            pb.PipeliningBound(step_count=bound.step_count, first_step=bound.first_step)
            for bound in adapter.pipelining_bounds
        ],
    )


def adapter_from_proto(message: pb.Adapter) -> Adapter:
    """Return the adapter of a message. Raises InvalidArgument for a kind that is none."""
    return Adapter(
        message.name,
        ADAPTER_KINDS.from_proto(message.kind),
        message.digest,
        message.family,
        message.base_digest,
        message.licence,
        object_from_proto(message.object) if message.HasField("object") else None,
        message.latest_start_fraction,
        tuple(PipeliningBound(bound.step_count, bound.first_step) for bound in message.pipelining_bounds),
    )


def rejected_to_proto(rejected: RejectedAdapter) -> pb.RejectedAdapter:
    """Return the message of an adapter that cannot be used."""
    return pb.RejectedAdapter(
        name=rejected.name,
        kind=ADAPTER_KINDS.to_proto(rejected.kind),
        reason=rejected.reason,
        message=rejected.message,
    )


def rejected_from_proto(message: pb.RejectedAdapter) -> RejectedAdapter:
    """Return the adapter that cannot be used. Raises InvalidArgument for a kind that is none."""
    return RejectedAdapter(message.name, ADAPTER_KINDS.from_proto(message.kind), message.reason, message.message)


def upload_to_proto(upload: LoraUpload) -> registry_pb.LoraUpload:
    """Return the message of an upload."""
    return registry_pb.LoraUpload(**vars(upload))


def upload_from_proto(message: registry_pb.LoraUpload) -> LoraUpload:
    """Return the upload of a message."""
    return LoraUpload(
        name=message.name,
        family=message.family,
        licence=message.licence,
        size_bytes=message.size_bytes,
        digest=message.digest,
        base_digest=message.base_digest,
        latest_start_fraction=message.latest_start_fraction,
    )
