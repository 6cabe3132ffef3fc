"""Fields that `pentimento.wire.codec` does not convert by their names."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from google.protobuf.message import Message

from pentimento.api.image.v1 import image_service_pb2 as image_pb
from pentimento.api.worker.v1 import unet_worker_service_pb2 as worker_pb
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.fleet import Capability
from pentimento.domain.generation import FromLatent, ObjectReference
from pentimento.domain.image_request import RequestStatus
from pentimento.domain.tenants import Tenant, TenantKey


@dataclass(frozen=True)
class FieldRule:
    """Convert one field of a class. `write` returns the value of the message's `field`; `read` takes the message."""

    field: str
    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


def _stored(message: Any) -> ObjectReference:
    """Return the reference of a latent. Routes in journals have it in a Tensor, which could also be inline."""
    if message.latent.WhichOneof("payload") != "object":
        raise InvalidArgument.of("latent", "must be an object of the object store")
    found = message.latent.object
    return ObjectReference(found.key, found.digest, found.size_bytes)


def _millis(field: str, *, may_be_absent: bool = False) -> FieldRule:
    """Times are seconds in the class and milliseconds in the message."""

    def read(message: Any) -> float | None:
        if may_be_absent and not message.HasField(field):
            return None
        return float(getattr(message, field) / 1000)

    return FieldRule(field, lambda seconds: round(seconds * 1000) if seconds is not None else None, read)


EXCEPTIONS: Mapping[tuple[type, str], FieldRule] = {
    (FromLatent, "latent"): FieldRule("latent", lambda latent: {"object": vars(latent)}, _stored),
    (Tenant, "created_at"): _millis("created_at_ms"),
    (TenantKey, "created_at"): _millis("created_at_ms"),
    (TenantKey, "expires_at"): _millis("expires_at_ms", may_be_absent=True),
    (TenantKey, "revoked_at"): _millis("revoked_at_ms", may_be_absent=True),
}
"""Fields with a rule of their own."""

MESSAGE_ONLY: Mapping[type[Message], frozenset[str]] = {
    worker_pb.AttemptResult: frozenset({"final_latents"}),
    image_pb.Completed: frozenset({"image_size_bytes"}),
    image_pb.ReplayRequest: frozenset({"idempotency_key", "preview_interval_steps", "max_message_bytes"}),
}
"""Fields of messages that no class has: their callers read and write them."""

CLASS_ONLY: Mapping[tuple[type, type[Message]], frozenset[str]] = {
    (RequestStatus, image_pb.PictureStatus): frozenset({"pictures", "summary", "webhook"}),
}
"""Fields of classes that one of their messages lacks. They are read as their defaults."""

LENIENT: frozenset[type[Enum]] = frozenset({Capability})
"""Enumerations whose unknown numbers are left out of sets, since only a newer peer could use them."""
