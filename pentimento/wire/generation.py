"""pentimento.api.generation.v1 beside pentimento.domain.generation."""

from dataclasses import asdict

from google.protobuf.message import DecodeError

from pentimento.api.generation.v1 import generation_pb2 as pb
from pentimento.api.tensor.v1 import tensor_pb2 as tensor_pb
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import (
    Attempt,
    CacheGrant,
    CapturedEntries,
    CapturedLatent,
    CascadeStage,
    ControlNetSelection,
    Donor,
    FromImage,
    FromLatent,
    FromNoise,
    GenerationSpec,
    InitImage,
    LatentSlot,
    LoraSelection,
    ObjectReference,
    PlanVersion,
    Route,
    SpecInput,
    Start,
)
from pentimento.domain.retrieval import Neighbour
from pentimento.domain.spec_inputs import take_inputs
from pentimento.wire.carried import carried
from pentimento.wire.enumerations import CONTROLNET_MODES, NOISE_FORMS, SCHEDULERS


def spec_to_proto(spec: GenerationSpec) -> pb.GenerationSpec:
    return pb.GenerationSpec(
        prompt=spec.prompt,
        negative_prompt=spec.negative_prompt,
        model=spec.model,
        width_px=spec.width_px,
        height_px=spec.height_px,
        num_inference_steps=spec.num_inference_steps,
        guidance_scale=spec.guidance_scale,
        scheduler=SCHEDULERS.to_proto(spec.scheduler),
        eta=spec.eta,
        seed=spec.seed,
        loras=[lora_to_proto(lora) for lora in spec.loras],
        controlnets=[controlnet_to_proto(controlnet) for controlnet in spec.controlnets],
        init_image=init_image_to_proto(spec.init_image) if spec.init_image else None,
    )


def write_spec(spec: GenerationSpec, message: pb.GenerationSpec) -> None:
    """Write a spec into an empty message of its own or another's, its images once. A message that is handed to the
    constructor of another is copied twice for it: of 8 MiB that takes 8 ms more of an event loop."""
    bare, _ = take_inputs(spec)
    message.CopyFrom(spec_to_proto(bare))
    if spec.init_image is not None:
        message.init_image.image, message.init_image.mask = spec.init_image.image, spec.init_image.mask
    for part, controlnet in zip(message.controlnets, spec.controlnets, strict=True):
        part.conditioning_image = controlnet.conditioning_image


def spec_from_proto(message: pb.GenerationSpec) -> GenerationSpec:
    return GenerationSpec(
        prompt=message.prompt,
        negative_prompt=message.negative_prompt,
        model=message.model,
        width_px=message.width_px,
        height_px=message.height_px,
        num_inference_steps=message.num_inference_steps,
        guidance_scale=message.guidance_scale,
        scheduler=SCHEDULERS.from_proto(message.scheduler),
        seed=message.seed,
        eta=message.eta,
        loras=tuple(lora_from_proto(lora) for lora in message.loras),
        controlnets=tuple(controlnet_from_proto(controlnet) for controlnet in message.controlnets),
        init_image=init_image_from_proto(message.init_image) if message.HasField("init_image") else None,
    )


def lora_to_proto(lora: LoraSelection) -> pb.LoraSelection:
    return pb.LoraSelection(
        name=lora.name, scale=lora.scale, digest=lora.digest, object=optional_object_to_proto(lora.object)
    )


def lora_from_proto(message: pb.LoraSelection) -> LoraSelection:
    where = object_from_proto(message.object) if message.HasField("object") else None
    return LoraSelection(message.name, message.scale, message.digest, where)


def controlnet_to_proto(controlnet: ControlNetSelection) -> pb.ControlNetSelection:
    return pb.ControlNetSelection(
        name=controlnet.name,
        conditioning_scale=controlnet.conditioning_scale,
        start_fraction=controlnet.start_fraction,
        end_fraction=controlnet.end_fraction,
        conditioning_image=controlnet.conditioning_image,
        digest=controlnet.digest,
        object=optional_object_to_proto(controlnet.object),
    )


def controlnet_from_proto(message: pb.ControlNetSelection) -> ControlNetSelection:
    return ControlNetSelection(
        message.name,
        message.conditioning_image,
        message.conditioning_scale,
        message.start_fraction,
        message.end_fraction,
        message.digest,
        object_from_proto(message.object) if message.HasField("object") else None,
    )


def init_image_to_proto(init_image: InitImage) -> pb.InitImage:
    """Return it as a message. InvalidArgument names a value that no message carries."""
    if not isinstance(init_image, InitImage):
        raise InvalidArgument.of("init_image", f"must be an InitImage, got {type(init_image).__name__}")
    return carried(pb.InitImage, "init_image.", **vars(init_image))


def init_image_from_proto(message: pb.InitImage) -> InitImage:
    return InitImage(message.image, message.strength, message.mask)


def object_to_proto(reference: ObjectReference) -> tensor_pb.ObjectReference:
    return tensor_pb.ObjectReference(key=reference.key, digest=reference.digest, size_bytes=reference.size_bytes)


def optional_object_to_proto(reference: ObjectReference | None) -> tensor_pb.ObjectReference | None:
    """Return the reference as a message's optional field takes it."""
    return object_to_proto(reference) if reference is not None else None


def object_from_proto(message: tensor_pb.ObjectReference) -> ObjectReference:
    return ObjectReference(message.key, message.digest, message.size_bytes)


def input_to_proto(part: SpecInput) -> pb.SpecInput:
    return pb.SpecInput(field=part.field, object=object_to_proto(part.object))


def input_from_proto(message: pb.SpecInput) -> SpecInput:
    return SpecInput(message.field, object_from_proto(message.object))


def donor_to_proto(donor: Donor) -> pb.Donor:
    return pb.Donor(
        entry_id=donor.entry_id,
        digest=donor.digest,
        similarity=donor.similarity,
        ancestor_depth=donor.ancestor_depth,
        request_id=donor.request_id,
    )


def donor_from_proto(message: pb.Donor) -> Donor:
    return Donor(message.entry_id, message.digest, message.similarity, message.ancestor_depth, message.request_id)


def neighbour_to_proto(neighbour: Neighbour) -> pb.Neighbour:
    return pb.Neighbour(**asdict(neighbour))


def neighbour_from_proto(message: pb.Neighbour) -> Neighbour:
    fields = {name: getattr(message, name) for name in Neighbour.__dataclass_fields__}
    return Neighbour(**{**fields, "resume_steps": tuple(message.resume_steps)})


def start_to_proto(start: Start) -> pb.Start:
    match start:
        case FromNoise():
            return pb.Start(noise=pb.FromNoise())
        case FromLatent():
            latent = pb.FromLatent(
                latent=tensor_pb.Tensor(object=object_to_proto(start.latent)),
                resume_step=start.resume_step,
                donor_steps=start.donor_steps,
                sigma=start.sigma,
                donor=donor_to_proto(start.donor),
                renoised_steps=start.renoised_steps,
                retaken_steps=start.retaken_steps,
            )
            return pb.Start(latent=latent)
        case FromImage():
            image = pb.FromImage(
                image=object_to_proto(start.image),
                start_step=start.start_step,
                noise_form=NOISE_FORMS.to_proto(start.noise_form),
                donor=donor_to_proto(start.donor),
                renoised_steps=start.renoised_steps,
                retaken_steps=start.retaken_steps,
            )
            return pb.Start(image=image)


def start_from_proto(message: pb.Start) -> Start:
    kind = message.WhichOneof("kind")
    if kind == "noise":
        return FromNoise()
    if kind == "latent":
        return _from_latent(message.latent)
    if kind == "image":
        return FromImage(
            object_from_proto(message.image.image),
            message.image.start_step,
            NOISE_FORMS.from_proto(message.image.noise_form),
            donor_from_proto(message.image.donor),
            message.image.renoised_steps,
            message.image.retaken_steps,
        )
    raise InvalidArgument.of("start", "must be noise, latent or image, got nothing")


def _from_latent(message: pb.FromLatent) -> FromLatent:
    if message.latent.WhichOneof("payload") != "object":
        raise InvalidArgument.of("start.latent.latent", "must be an object of the object store")
    return FromLatent(
        object_from_proto(message.latent.object),
        message.resume_step,
        message.donor_steps,
        message.sigma,
        donor_from_proto(message.donor),
        message.renoised_steps,
        message.retaken_steps,
    )


def plan_version_to_proto(version: PlanVersion) -> pb.PlanVersion:
    return pb.PlanVersion(leader_epoch=version.leader_epoch, sequence=version.sequence)


def plan_version_from_proto(message: pb.PlanVersion) -> PlanVersion:
    return PlanVersion(message.leader_epoch, message.sequence)


def stage_to_proto(stage: CascadeStage) -> pb.CascadeStage:
    return pb.CascadeStage(
        model=stage.model,
        discriminator=stage.discriminator,
        confidence_threshold=stage.confidence_threshold,
        pool=stage.pool,
    )


def stage_from_proto(message: pb.CascadeStage) -> CascadeStage:
    return CascadeStage(message.model, message.discriminator, message.confidence_threshold, message.pool)


def route_to_proto(route: Route) -> pb.Route:
    return pb.Route(
        route_id=route.route_id,
        start=start_to_proto(route.start),
        model=route.model,
        model_digest=route.model_digest,
        stages=[stage_to_proto(stage) for stage in route.stages],
        lora_patch_step=route.lora_patch_step,
        controlnet_mode=CONTROLNET_MODES.to_proto(route.controlnet_mode),
        plan_version=plan_version_to_proto(route.plan_version),
        reason=route.reason,
        replay_of=route.replay_of,
        pipelined_from_step=route.pipelined_from_step,
        thinned_steps=route.thinned_steps,
        cascade=route.cascade,
    )


def route_from_proto(message: pb.Route) -> Route:
    mode = message.controlnet_mode
    return Route(
        message.route_id,
        start_from_proto(message.start),
        message.model,
        message.model_digest,
        tuple(stage_from_proto(stage) for stage in message.stages),
        message.lora_patch_step,
        CONTROLNET_MODES.from_proto(mode) if mode else None,
        plan_version_from_proto(message.plan_version),
        message.reason,
        message.replay_of,
        message.pipelined_from_step,
        cascade=message.cascade,
        thinned_steps=tuple(message.thinned_steps),
    )


def route_to_bytes(route: Route) -> bytes:
    """Return the form in which the frontdoor journals a route."""
    return route_to_proto(route).SerializeToString(deterministic=True)


def route_from_bytes(data: bytes) -> Route:
    """Return what `route_to_bytes` was given. Raises InvalidArgument for what is no known route."""
    try:
        return route_from_proto(pb.Route.FromString(data))
    except DecodeError as error:
        raise InvalidArgument.of("route", "must be a journalled route") from error


def attempt_to_proto(attempt: Attempt) -> pb.Attempt:
    return pb.Attempt(
        request_id=attempt.request_id,
        attempt_number=attempt.attempt_number,
        fencing_token=attempt.fencing_token,
        frontdoor_id=attempt.frontdoor_id,
        frontdoor_epoch=attempt.frontdoor_epoch,
        tenant=attempt.tenant,
    )


def attempt_from_proto(message: pb.Attempt) -> Attempt:
    if not message.request_id:
        raise InvalidArgument.of("attempt.request_id", "must not be empty")
    return Attempt(
        message.request_id,
        message.attempt_number,
        message.fencing_token,
        message.frontdoor_id,
        message.frontdoor_epoch,
        message.tenant,
    )


def grant_to_proto(grant: CacheGrant) -> pb.CacheGrant:
    return pb.CacheGrant(
        grant_id=grant.grant_id,
        latents=[pb.LatentSlot(resume_step=slot.resume_step, key=slot.key) for slot in grant.latents],
        image_key=grant.image_key,
        expires_in_ms=grant.expires_in_ms,
        expires_at_ms=grant.expires_at_ms,
        signature=grant.signature,
    )


def grant_from_proto(message: pb.CacheGrant) -> CacheGrant:
    slots = tuple(LatentSlot(slot.resume_step, slot.key) for slot in message.latents)
    return CacheGrant(
        message.grant_id, slots, message.image_key, message.expires_in_ms, message.expires_at_ms, message.signature
    )


def captured_latent_to_proto(latent: CapturedLatent) -> pb.CapturedLatent:
    return pb.CapturedLatent(
        resume_step=latent.resume_step,
        sigma=latent.sigma,
        object=object_to_proto(latent.object),
        adapter_free=latent.adapter_free,
    )


def captured_latent_from_proto(message: pb.CapturedLatent) -> CapturedLatent:
    return CapturedLatent(message.resume_step, message.sigma, object_from_proto(message.object), message.adapter_free)


def captured_to_proto(captured: CapturedEntries) -> pb.CapturedEntries:
    return pb.CapturedEntries(
        grant_id=captured.grant_id,
        latents=[captured_latent_to_proto(latent) for latent in captured.latents],
        image=object_to_proto(captured.image) if captured.image else None,
    )


def captured_from_proto(message: pb.CapturedEntries) -> CapturedEntries:
    return CapturedEntries(
        message.grant_id,
        tuple(captured_latent_from_proto(latent) for latent in message.latents),
        object_from_proto(message.image) if message.HasField("image") else None,
    )
