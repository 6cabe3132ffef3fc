"""pentimento.api.image.v1 beside pentimento.domain.image_request."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any, TypeVar

from pentimento.api.image.v1 import image_service_pb2 as pb
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.image_request import (
    Accepted,
    AskedControlNet,
    AskedLora,
    Completed,
    Explanation,
    GenerateEvent,
    ImageRequest,
    ModelInfo,
    PictureFailed,
    PinnedPicture,
    Progress,
    ReplayRequest,
    RequestStatus,
    Routed,
)
from pentimento.wire.carried import carried, carried_by
from pentimento.wire.enumerations import CACHE_MODES, IMAGE_FORMATS, REQUEST_STATES
from pentimento.wire.error_codes import code_number_of, error_class_of
from pentimento.wire.generation import (
    init_image_from_proto,
    init_image_to_proto,
    neighbour_from_proto,
    neighbour_to_proto,
    plan_version_from_proto,
    plan_version_to_proto,
    route_from_proto,
    route_to_proto,
)
from pentimento.wire.jobs import delivery_from_proto, delivery_to_proto, summary_from_proto, summary_to_proto
from pentimento.wire.online_quality import reuse_quality_from_proto, reuse_quality_to_proto
from pentimento.wire.provenance import provenance_from_proto, provenance_to_proto

Part = TypeVar("Part")
# LoRAs, ControlNets or inputs of a request; deployments have limits of their own, of a few.
MOST_PARTS = 1024
# Present or absent in the contract, so that 0 can be told from "not said".
_OPTIONAL = (
    "width_px",
    "height_px",
    "num_inference_steps",
    "guidance_scale",
    "eta",
    "seed",
    "quality",
    "deadline_ms",
    "max_cost",
    "pin_ms",
    "binding_steps",
    "image_count",
    "encoding_quality",
)


def request_to_proto(request: ImageRequest) -> pb.ImageRequest:
    """Return what is asked for. InvalidArgument names a value that no message carries."""
    with carried_by(pb.ImageRequest, vars(request)):
        return pb.ImageRequest(
            prompt=request.prompt,
            negative_prompt=request.negative_prompt,
            model=request.model,
            scheduler=request.scheduler,
            loras=[asked_lora_to_proto(lora, index) for index, lora in _each("loras", request.loras, AskedLora)],
            controlnets=[
                asked_controlnet_to_proto(one, index)
                for index, one in _each("controlnets", request.controlnets, AskedControlNet)
            ],
            init_image=init_image_to_proto(request.init_image) if request.init_image else None,
            cache=CACHE_MODES.to_proto(request.cache),
            format=IMAGE_FORMATS.to_proto(request.format),
            **{name: getattr(request, name) for name in _OPTIONAL},
        )


def asked_lora_to_proto(lora: AskedLora, index: int) -> pb.AskedLora:
    return carried(pb.AskedLora, f"loras[{index}].", **asdict(lora))


def asked_controlnet_to_proto(controlnet: AskedControlNet, index: int) -> pb.AskedControlNet:
    return carried(pb.AskedControlNet, f"controlnets[{index}].", **asdict(controlnet))


def request_from_proto(message: pb.ImageRequest) -> ImageRequest:
    """Return what is asked for. InvalidArgument for what no request has so many of."""
    numbers = {name: getattr(message, name) for name in _OPTIONAL if message.HasField(name)}  # type: ignore[arg-type]
    return ImageRequest(
        prompt=message.prompt,
        negative_prompt=message.negative_prompt,
        model=message.model,
        scheduler=message.scheduler,
        loras=tuple(asked_lora_from_proto(lora) for lora in _few("loras", message.loras)),
        controlnets=tuple(asked_controlnet_from_proto(one) for one in _few("controlnets", message.controlnets)),
        init_image=init_image_from_proto(message.init_image) if message.HasField("init_image") else None,
        cache=CACHE_MODES.from_proto(message.cache) if message.cache else None,
        format=IMAGE_FORMATS.from_proto(message.format) if message.format else None,
        **numbers,
    )


def _each(field: str, parts: Iterable[Part], kind: type[Part]) -> Iterator[tuple[int, Part]]:
    """Yield the parts with their places. InvalidArgument for what is none: a caller may have written its name alone."""
    if not isinstance(parts, Iterable):
        raise InvalidArgument.of(field, f"must be a tuple of {kind.__name__}, got {type(parts).__name__}")
    for index, part in enumerate(parts):
        if not isinstance(part, kind):
            raise InvalidArgument.of(f"{field}[{index}]", f"must be of {kind.__name__}, got {type(part).__name__}")
        yield index, part


def _few(field: str, parts: Sequence[Part]) -> Sequence[Part]:
    """Return the parts. InvalidArgument for more than any deployment allows: each costs its sender two bytes, and to
    read it microseconds in which nobody else is served."""
    if len(parts) > MOST_PARTS:
        raise InvalidArgument.of(field, f"must be at most {MOST_PARTS}, got {len(parts)}")
    return parts


def asked_lora_from_proto(message: pb.AskedLora) -> AskedLora:
    return AskedLora(message.name, message.scale if message.HasField("scale") else None)


def asked_controlnet_from_proto(message: pb.AskedControlNet) -> AskedControlNet:
    return AskedControlNet(
        message.name,
        message.conditioning_image,
        message.conditioning_scale if message.HasField("conditioning_scale") else None,
        message.start_fraction if message.HasField("start_fraction") else None,
        message.end_fraction if message.HasField("end_fraction") else None,
    )


def request_to_bytes(request: ImageRequest) -> bytes:
    """Return the form in which the frontdoor hashes a request: equal requests give equal bytes."""
    return request_to_proto(request).SerializeToString(deterministic=True)


def replay_to_proto(request: ReplayRequest) -> pb.ReplayRequest:
    """Return what is asked for. InvalidArgument names a value that no message carries."""
    with carried_by(pb.ReplayRequest, vars(request)):
        return pb.ReplayRequest(
            request_id=request.request_id,
            inputs=[carried(pb.ReplayInput, "inputs.", field=place, data=data) for place, data in request.inputs],
            deadline_ms=request.deadline_ms,
        )


def replay_from_proto(message: pb.ReplayRequest) -> ReplayRequest:
    """Return what is asked for. InvalidArgument for what no replay has so many of."""
    return ReplayRequest(
        message.request_id,
        tuple((part.field, part.data) for part in _few("inputs", message.inputs)),
        message.deadline_ms if message.HasField("deadline_ms") else None,
    )


def replay_to_bytes(request: ReplayRequest) -> bytes:
    """Return the form in which the frontdoor hashes a replay; never that of an image request."""
    return b"replay\0" + replay_to_proto(request).SerializeToString(deterministic=True)


def job_to_bytes(request: ImageRequest, webhook_url: str) -> bytes:
    """Return the form in which the frontdoor hashes a job; never that of a request whose client stays."""
    return b"job\0" + webhook_url.encode() + b"\0" + request_to_bytes(request)


def pinned_to_proto(pinned: PinnedPicture) -> pb.PinResponse:
    return pb.PinResponse(**asdict(pinned))


def pinned_from_proto(message: pb.PinResponse) -> PinnedPicture:
    return PinnedPicture(message.request_id, message.expires_at_ms, message.size_bytes, message.inputs_kept)


def completed_to_proto(completed: Completed) -> pb.Completed:
    return pb.Completed(
        request_id=completed.request_id,
        image=completed.image,
        format=IMAGE_FORMATS.to_proto(completed.format),
        width_px=completed.width_px,
        height_px=completed.height_px,
        provenance=provenance_to_proto(completed.provenance),
        image_index=completed.image_index,
    )


def completed_from_proto(message: pb.Completed) -> Completed:
    return Completed(
        message.request_id,
        message.image,
        IMAGE_FORMATS.from_proto(message.format),
        message.width_px,
        message.height_px,
        provenance_from_proto(message.provenance),
        message.image_index,
    )


def failed_to_proto(failed: PictureFailed) -> pb.PictureFailed:
    error = failed.error
    return pb.PictureFailed(
        request_id=failed.request_id,
        image_index=failed.image_index,
        code=code_number_of(error),
        reason=error.reason,
        message=error.message,
        retry_after_ms=error.retry_after_ms or 0,
    )


def failed_from_proto(message: pb.PictureFailed) -> PictureFailed:
    kind = error_class_of(message.code)
    error = kind(message.reason, message.message, retry_after_ms=message.retry_after_ms or None)
    return PictureFailed(message.request_id, message.image_index, error)


def event_to_proto(event: GenerateEvent) -> pb.GenerateResponse:
    match event:
        case Accepted():
            return pb.GenerateResponse(accepted=_accepted_to_proto(event))
        case Routed():
            return pb.GenerateResponse(routed=_routed_to_proto(event))
        case Progress():
            return pb.GenerateResponse(progress=_progress_to_proto(event))
        case Completed():
            return pb.GenerateResponse(completed=completed_to_proto(event))
        case PictureFailed():
            return pb.GenerateResponse(failed=failed_to_proto(event))


def replay_event_to_proto(event: GenerateEvent) -> pb.ReplayResponse:
    match event:
        case Accepted():
            return pb.ReplayResponse(accepted=_accepted_to_proto(event))
        case Routed():
            return pb.ReplayResponse(routed=_routed_to_proto(event))
        case Progress():
            return pb.ReplayResponse(progress=_progress_to_proto(event))
        case Completed():
            return pb.ReplayResponse(completed=completed_to_proto(event))
        case PictureFailed():
            raise InvalidArgument.of("event", "must not be of one of several pictures: a replay has one")


def _accepted_to_proto(event: Accepted) -> pb.Accepted:
    ids = event.image_request_ids
    return pb.Accepted(request_id=event.request_id, replayed=event.replayed, image_request_ids=ids)


def _progress_to_proto(event: Progress) -> pb.Progress:
    return pb.Progress(
        step=event.step,
        step_count=event.step_count,
        preview=event.preview,
        attempt_number=event.attempt_number,
        image_index=event.image_index,
        width_px=event.width_px,
        height_px=event.height_px,
        saved_steps=event.saved_steps,
    )


def _routed_to_proto(event: Routed) -> pb.Routed:
    return pb.Routed(route=route_to_proto(event.route), image_index=event.image_index)


def attach_event_to_proto(event: GenerateEvent) -> pb.AttachResponse:
    told = event_to_proto(event)
    kind = told.WhichOneof("event")
    assert kind is not None
    return pb.AttachResponse(**{kind: getattr(told, kind)})


def event_from_proto(message: pb.GenerateResponse | pb.ReplayResponse | pb.AttachResponse) -> GenerateEvent:
    kind = message.WhichOneof("event")
    if kind == "accepted":
        return _accepted_from_proto(message.accepted)
    if kind == "routed":
        return Routed(route_from_proto(message.routed.route), message.routed.image_index)
    if kind == "progress":
        return _progress_from_proto(message.progress)
    if kind == "completed":
        return completed_from_proto(message.completed)
    if isinstance(message, pb.GenerateResponse | pb.AttachResponse) and kind == "failed":
        return failed_from_proto(message.failed)
    raise InvalidArgument.of("event", "must be accepted, routed, progress, completed or failed, got nothing")


def _accepted_from_proto(message: pb.Accepted) -> Accepted:
    return Accepted(message.request_id, message.replayed, tuple(message.image_request_ids))


def _progress_from_proto(message: pb.Progress) -> Progress:
    return Progress(
        message.step,
        message.step_count,
        message.preview,
        message.attempt_number,
        message.image_index,
        message.width_px,
        message.height_px,
        message.saved_steps,
    )


def status_to_proto(status: RequestStatus) -> pb.GetRequestResponse:
    return pb.GetRequestResponse(
        **_status_fields(status),
        pictures=[picture_status_to_proto(picture) for picture in status.pictures],
        summary=summary_to_proto(status.summary) if status.summary is not None else None,
        webhook=delivery_to_proto(status.webhook) if status.webhook is not None else None,
    )


def picture_status_to_proto(status: RequestStatus) -> pb.PictureStatus:
    return pb.PictureStatus(**_status_fields(status))


def _status_fields(status: RequestStatus) -> dict[str, Any]:
    """What is told of a request and of each of its pictures alike."""
    return {
        "request_id": status.request_id,
        "state": REQUEST_STATES.to_proto(status.state),
        "completed": completed_to_proto(status.completed) if status.completed else None,
        "error_reason": status.error_reason,
        "error_message": status.error_message,
        "progress": _progress_to_proto(status.progress) if status.progress is not None else None,
    }


def status_from_proto(message: pb.GetRequestResponse) -> RequestStatus:
    return replace(
        _status_from_proto(message),
        pictures=tuple(map(_status_from_proto, message.pictures)),
        summary=summary_from_proto(message.summary) if message.HasField("summary") else None,
        webhook=delivery_from_proto(message.webhook) if message.HasField("webhook") else None,
    )


def _status_from_proto(message: pb.GetRequestResponse | pb.PictureStatus) -> RequestStatus:
    return RequestStatus(
        message.request_id,
        REQUEST_STATES.from_proto(message.state),
        completed_from_proto(message.completed) if message.HasField("completed") else None,
        message.error_reason,
        message.error_message,
        progress=_progress_from_proto(message.progress) if message.HasField("progress") else None,
    )


def explanation_to_proto(explanation: Explanation) -> pb.ExplainResponse:
    return pb.ExplainResponse(
        route=route_to_proto(explanation.route),
        plan_version=plan_version_to_proto(explanation.plan_version),
        pool=explanation.pool,
        predicted_wait_ms=explanation.predicted_wait_ms,
        reuse_quality=[reuse_quality_to_proto(quality) for quality in explanation.reuse_quality],
        allocator=explanation.allocator,
        admission_rate=explanation.admission_rate,
        waiting_count=explanation.waiting_count,
        reasons=explanation.reasons,
        neighbours=[neighbour_to_proto(neighbour) for neighbour in explanation.neighbours],
    )


def explanation_from_proto(message: pb.ExplainResponse) -> Explanation:
    return Explanation(
        route_from_proto(message.route),
        plan_version_from_proto(message.plan_version),
        message.pool,
        message.predicted_wait_ms,
        tuple(reuse_quality_from_proto(quality) for quality in message.reuse_quality),
        message.allocator,
        message.admission_rate,
        message.waiting_count,
        tuple(message.reasons),
        tuple(neighbour_from_proto(neighbour) for neighbour in message.neighbours),
    )


def model_to_proto(model: ModelInfo) -> pb.Model:
    return pb.Model(**asdict(model))


def model_from_proto(message: pb.Model) -> ModelInfo:
    fields = {name: getattr(message, name) for name in ModelInfo.__dataclass_fields__}
    return ModelInfo(**{**fields, "schedulers": tuple(message.schedulers)})
