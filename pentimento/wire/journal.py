"""pentimento.api.frontdoor.v1.JournalledRequest beside a resolved request: what the frontdoor writes to its journal."""

from google.protobuf.message import DecodeError

from pentimento.api.frontdoor.v1 import journal_pb2 as pb
from pentimento.api.generation.v1 import generation_pb2
from pentimento.api.image.v1 import image_service_pb2 as image_pb
from pentimento.domain.errors import Internal, InvalidArgument
from pentimento.domain.generation import Scheduler
from pentimento.domain.image_request import AdmittedStages, HandedPicture, Replay, ResolvedRequest
from pentimento.domain.reasons import Reason
from pentimento.wire.enumerations import CACHE_MODES, IMAGE_FORMATS, SCHEDULERS
from pentimento.wire.generation import (
    input_from_proto,
    input_to_proto,
    object_from_proto,
    object_to_proto,
    route_from_proto,
    route_to_proto,
    spec_from_proto,
    spec_to_proto,
    stage_from_proto,
    stage_to_proto,
)

# Formats of a journalled body. 0, before there were formats: the public request with every field filled in.
PUBLIC_REQUEST, JOURNALLED_REQUEST = 0, 1


def journalled_to_proto(resolved: ResolvedRequest) -> pb.JournalledRequest:
    return pb.JournalledRequest(
        spec=spec_to_proto(resolved.spec),
        inputs=[input_to_proto(part) for part in resolved.inputs],
        cache=CACHE_MODES.to_proto(resolved.cache),
        format=IMAGE_FORMATS.to_proto(resolved.format),
        quality=resolved.quality,
        deadline_ms=resolved.deadline_ms,
        preview_interval_steps=resolved.preview_interval_steps,
        replay=_replay_to_proto(resolved.replay) if resolved.replay is not None else None,
        pin_ms=resolved.pin_ms,
        may_thin=resolved.may_thin,
        image_index=resolved.image_index,
        encoding_quality=resolved.encoding_quality,
        admitted=_admitted_to_proto(resolved.admitted) if resolved.admitted is not None else None,
    )


def journalled_from_proto(message: pb.JournalledRequest) -> ResolvedRequest:
    return ResolvedRequest(
        spec=spec_from_proto(message.spec),
        cache=CACHE_MODES.from_proto(message.cache),
        format=IMAGE_FORMATS.from_proto(message.format),
        quality=message.quality if message.HasField("quality") else None,
        deadline_ms=message.deadline_ms,
        preview_interval_steps=message.preview_interval_steps,
        inputs=tuple(input_from_proto(part) for part in message.inputs),
        replay=_replay_from_proto(message.replay) if message.HasField("replay") else None,
        pin_ms=message.pin_ms,
        may_thin=message.may_thin,
        image_index=message.image_index,
        encoding_quality=message.encoding_quality if message.HasField("encoding_quality") else None,
        admitted=_admitted_from_proto(message.admitted) if message.HasField("admitted") else None,
    )


def _replay_to_proto(replay: Replay) -> pb.Replay:
    return pb.Replay(route=route_to_proto(replay.route), image_digest=replay.image_digest)


def _replay_from_proto(message: pb.Replay) -> Replay:
    return Replay(route_from_proto(message.route), message.image_digest)


def _admitted_to_proto(admitted: AdmittedStages) -> pb.AdmittedStages:
    stages = [stage_to_proto(stage) for stage in admitted.stages]
    return pb.AdmittedStages(stages=stages, cascade=admitted.cascade, planned=admitted.planned)


def _admitted_from_proto(message: pb.AdmittedStages) -> AdmittedStages:
    return AdmittedStages(tuple(map(stage_from_proto, message.stages)), message.cascade, message.planned)


def handed_to_bytes(handed: HandedPicture) -> bytes:
    message = pb.HandedPicture(picture=object_to_proto(handed.picture), strength=handed.strength)
    return message.SerializeToString(deterministic=True)


def handed_from_bytes(data: bytes) -> HandedPicture:
    """Return what `handed_to_bytes` was given. Raises Internal `UNREADABLE_REQUEST` for anything else."""
    try:
        message = pb.HandedPicture.FromString(data)
    except DecodeError as error:
        raise unreadable() from error
    return HandedPicture(object_from_proto(message.picture), message.strength)


def resolved_to_bytes(resolved: ResolvedRequest) -> bytes:
    return journalled_to_proto(resolved).SerializeToString(deterministic=True)


def resolved_from_bytes(data: bytes, body_format: int) -> ResolvedRequest:
    """Return what `resolved_to_bytes` was given. Raises Internal `UNREADABLE_REQUEST` unless all of it is understood:
    no request lacks what it asked for."""
    try:
        message = _message(data, body_format)
        resolved = journalled_from_proto(message)
    except (DecodeError, InvalidArgument, LookupError, ValueError) as error:
        raise unreadable() from error
    # A field that this build does not know, or does not carry, is missing from what it would write itself.
    if journalled_to_proto(resolved) != message:
        raise unreadable()
    return resolved


def _message(data: bytes, body_format: int) -> pb.JournalledRequest:
    if body_format == JOURNALLED_REQUEST:
        return pb.JournalledRequest.FromString(data)
    if body_format == PUBLIC_REQUEST:
        return _of_public_request(image_pb.ImageRequest.FromString(data))
    raise unreadable()


def _of_public_request(request: image_pb.ImageRequest) -> pb.JournalledRequest:
    """Fields have the same names in both, but for the scheduler, which is a word there."""
    spec = generation_pb2.GenerationSpec()
    message = pb.JournalledRequest()
    for field, value in request.ListFields():
        if field.name == "scheduler":
            spec.scheduler = SCHEDULERS.to_proto(Scheduler(value))
            continue
        target = spec if field.name in spec.DESCRIPTOR.fields_by_name else message
        _copy(target, field.name, value)
    message.spec.CopyFrom(spec)
    return message


def _copy(target: generation_pb2.GenerationSpec | pb.JournalledRequest, name: str, value: object) -> None:
    kept = target.DESCRIPTOR.fields_by_name[name]
    if kept.message_type is not None and name in ("loras", "controlnets"):
        # Nothing took any before there were formats.
        raise ValueError(name)
    if kept.message_type is None:
        setattr(target, name, value)
    elif kept.is_repeated:
        getattr(target, name).MergeFrom(value)
    else:
        getattr(target, name).CopyFrom(value)


def unreadable() -> Internal:
    """Make the error that ends a request which another version accepted and this one cannot paint as it was asked."""
    message = "what was journalled of this request is not understood by this version; it was not painted"
    return Internal(Reason.UNREADABLE_REQUEST, message)
