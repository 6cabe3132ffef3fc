"""Fields that `pentimento.wire.codec` does not convert by their names."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from google.protobuf.message import Message

from pentimento.api.discriminator.v1 import discriminator_service_pb2 as discriminator_pb
from pentimento.api.image.v1 import image_service_pb2 as image_pb
from pentimento.api.tenants.v1 import tenant_service_pb2 as tenants_pb
from pentimento.api.vectordb.v1 import vectordb_gateway_service_pb2 as gateway_pb
from pentimento.api.worker.v1 import unet_worker_service_pb2 as worker_pb
from pentimento.domain.errors import InvalidArgument, PentimentoError, UnsafeContent, class_of_code
from pentimento.domain.fleet import Capability
from pentimento.domain.generation import ObjectReference
from pentimento.domain.safety import SafetyVerdict


@dataclass(frozen=True)
class FieldRule:
    """Convert one field of a class. `write` returns the values of the message's fields by their names, `read` takes
    the message."""

    fields: tuple[str, ...]
    write: Callable[[Any], Mapping[str, Any]]
    read: Callable[[Any], Any]


def _stored(message: Any) -> ObjectReference:
    """Return the reference of a latent. Routes in journals have it in a Tensor, which could also be inline."""
    if message.latent.WhichOneof("payload") != "object":
        raise InvalidArgument.of("latent", "must be an object of the object store")
    found = message.latent.object
    return ObjectReference(found.key, found.digest, found.size_bytes, found.blocks_digest)


def _runs(message: Any) -> tuple[tuple[int, float], ...]:
    return tuple((batch.batch_size, batch.run_s) for batch in message.batches)


def _write_runs(runs: tuple[tuple[int, float], ...]) -> Mapping[str, Any]:
    return {"batches": [{"batch_size": size, "run_s": seconds} for size, seconds in runs]}


def _error(message: Any) -> PentimentoError:
    if message.HasField("verdict"):
        verdict = message.verdict
        found = SafetyVerdict(verdict.probability, verdict.limit, verdict.label, verdict.classifier_digest)
        return UnsafeContent(message.reason, message.message, found)
    kind = class_of_code(message.code)
    return kind(message.reason, message.message, retry_after_ms=message.retry_after_ms or None)


def _write_error(error: PentimentoError) -> Mapping[str, Any]:
    retry_after_ms = error.retry_after_ms or 0
    fields = {"reason": error.reason, "message": error.message, "retry_after_ms": retry_after_ms}
    verdict = vars(error.verdict) if isinstance(error, UnsafeContent) else None
    return {"code": error.code, "verdict": verdict, **fields}


def _millis(field: str, *, may_be_absent: bool = False) -> FieldRule:
    """Times are seconds in the class and milliseconds in the message."""

    def write(seconds: float | None) -> Mapping[str, Any]:
        return {field: round(seconds * 1000) if seconds is not None else None}

    def read(message: Any) -> float | None:
        return None if may_be_absent and not message.HasField(field) else getattr(message, field) / 1000

    return FieldRule((field,), write, read)


ERROR_FIELDS = ("code", "reason", "message", "retry_after_ms", "verdict")
EXCEPTIONS: Mapping[str, FieldRule] = {
    "FromLatent.latent": FieldRule(("latent",), lambda latent: {"latent": {"object": vars(latent)}}, _stored),
    "ModelCost.run_s": FieldRule(("batches",), _write_runs, _runs),
    "ImageFailed.error": FieldRule(ERROR_FIELDS, _write_error, _error),
    "Tenant.created_at": _millis("created_at_ms"),
    "TenantKey.created_at": _millis("created_at_ms"),
    "TenantKey.expires_at": _millis("expires_at_ms", may_be_absent=True),
    "TenantKey.revoked_at": _millis("revoked_at_ms", may_be_absent=True),
    "Erasure.deleted_at": _millis("deleted_at_ms"),
    "Erasure.began_at": _millis("began_at_ms", may_be_absent=True),
    "Erasure.finished_at": _millis("finished_at_ms", may_be_absent=True),
    "UsagePeriod.start_at": FieldRule(
        ("start_at_ms",), lambda hour_at: {"start_at_ms": hour_at * 1000}, lambda message: message.start_at_ms // 1000
    ),
}
"""Fields with a rule of their own, by class and field: names, so that a process imports the classes that it sends."""

MESSAGE_ONLY: Mapping[type[Message], frozenset[str]] = {
    gateway_pb.ReserveRequest: frozenset({"scope", "attempt"}),
    worker_pb.AttemptResult: frozenset({"final_latents"}),
    discriminator_pb.PromptForesight: frozenset({"request_id"}),
    image_pb.Completed: frozenset({"image_size_bytes"}),
    image_pb.ReplayRequest: frozenset({"idempotency_key", "preview_interval_steps", "max_message_bytes"}),
}
"""Fields of messages that no class has: their callers read and write them."""

CLASS_ONLY: Mapping[tuple[str, type[Message]], frozenset[str]] = {
    ("Tenant", tenants_pb.Tenant): frozenset({"tenant_id"}),
    ("RequestStatus", image_pb.ImageStatus): frozenset({"images", "summary", "webhook"}),
}
"""Fields of classes that one of their messages lacks. They are read as their defaults."""

LENIENT: frozenset[type[Enum]] = frozenset({Capability})
"""Enumerations whose unknown numbers are left out of sets, since only a newer peer could use them."""
