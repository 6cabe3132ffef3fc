"""Validate an ExecuteRequest before anything is allocated for it; errors name field and limit."""

import math
from collections.abc import Callable, Collection
from dataclasses import replace

from pentimento.domain.adapters import is_digest
from pentimento.domain.errors import FailedPrecondition, InvalidArgument, NotFound
from pentimento.domain.fleet import Capability, HeldModel
from pentimento.domain.generation import (
    MAX_CLIP_SKIP,
    WITH_ETA,
    WITH_SPACINGS,
    ControlNetMode,
    FromImage,
    FromLatent,
    FromNoise,
    GenerationSpec,
    ImagePromptSelection,
    LoraSelection,
    NoiseForm,
    Route,
    Start,
)
from pentimento.domain.prompt_syntax import WEIGHTED_FAMILIES, parse_prompt
from pentimento.domain.thinned_steps import check_thinned_steps
from pentimento.images.container import IMAGE_FORMATS
from services.unet_worker.attempts.order import ExecuteOrder

MAX_PROMPT_CHARS = 10_000
MAX_GUIDANCE_SCALE = 100.0
MAX_LORA_SCALE = 100.0
MAX_INIT_IMAGE_BYTES = 16 * 1024 * 1024
MAX_DONOR_BYTES = 64 * 1024 * 1024
MAX_LORA_BYTES = 4 * 1024**3


def check_order(
    order: ExecuteOrder,
    held: HeldModel,
    noise_form: NoiseForm,
    capabilities: Collection[Capability] = (),
    has_lora: Callable[[str, str], bool] = lambda name, digest: False,
) -> None:
    """Check an order before any work on it. Raises FailedPrecondition if the dispatcher expects another model or start
    of this worker, NotFound for adapters that it does not have, InvalidArgument for anything outside its limits."""
    _check_fencing(order, held)
    _check_prompts(order.spec, held)
    check_size_and_steps(order.spec, held)
    _check_sampling(order.spec, held)
    _check_adapters(order, capabilities, has_lora)
    _check_start(order.spec, order.route.start, noise_form)
    _check_thinning(order.route, order.spec.num_inference_steps)
    _check_feature_reuse(order)
    if order.image_format not in IMAGE_FORMATS:
        raise InvalidArgument.of("image_format", f"must be one of {', '.join(IMAGE_FORMATS)}")
    if order.encoding_quality is not None and order.encoding_quality > 100:
        raise InvalidArgument.of("encoding_quality", f"must be between 0 and 100, got {order.encoding_quality}")
    if order.deadline_remaining_ms < 0:
        raise InvalidArgument.of("deadline_remaining_ms", f"must be at least 0, got {order.deadline_remaining_ms}")


def _check_fencing(order: ExecuteOrder, held: HeldModel) -> None:
    if order.worker_generation != held.worker_generation:
        message = f"this worker is generation {held.worker_generation}, not {order.worker_generation}"
        raise FailedPrecondition("WORKER_GENERATION_MISMATCH", message)
    for model in (order.spec.model, order.route.model):
        if model != held.model:
            raise FailedPrecondition("MODEL_MISMATCH", f"this worker holds {held.model!r}, not {model[:100]!r}")
    if order.route.model_digest != held.model_digest:
        message = f"this worker holds {held.model_digest}, not {order.route.model_digest[:100]!r}"
        raise FailedPrecondition("MODEL_DIGEST_MISMATCH", message)


def _check_prompts(spec: GenerationSpec, held: HeldModel) -> None:
    for name, prompt in (("prompt", spec.prompt), ("negative_prompt", spec.negative_prompt)):
        if len(prompt) > MAX_PROMPT_CHARS:
            raise InvalidArgument.of(
                f"spec.{name}", f"must have at most {MAX_PROMPT_CHARS} characters, got {len(prompt)}"
            )
        if "\0" in prompt:
            raise InvalidArgument.of(f"spec.{name}", "must not hold NUL characters")
        if spec.prompt_syntax is not None:
            parse_prompt(prompt, spec.prompt_syntax, f"spec.{name}")
    if spec.prompt_syntax is not None and held.family not in WEIGHTED_FAMILIES:
        raise InvalidArgument.of("spec.prompt_syntax", f"must be unset with the family {held.family}")


def check_size_and_steps(spec: GenerationSpec, held: HeldModel) -> None:
    multiple, longest = held.size_multiple_px, held.max_size_px
    for name, size in (("width_px", spec.width_px), ("height_px", spec.height_px)):
        if not multiple <= size <= longest or size % multiple:
            wanted = f"a multiple of {multiple} between {multiple} and {longest}"
            raise InvalidArgument.of(f"spec.{name}", f"must be {wanted}, got {size}")
    _check_range("spec.num_inference_steps", spec.num_inference_steps, 1, held.max_steps)


def _check_sampling(spec: GenerationSpec, held: HeldModel) -> None:
    _check_range("spec.guidance_scale", spec.guidance_scale, 0.0, MAX_GUIDANCE_SCALE)
    _check_range("spec.eta", spec.eta, 0.0, 1.0)
    _check_range("spec.clip_skip", spec.clip_skip, 0, MAX_CLIP_SKIP)
    _check_range("spec.seed", spec.seed, 0, 2**64 - 1)
    if spec.scheduler.value not in held.schedulers:
        known = ", ".join(held.schedulers)
        raise InvalidArgument.of("spec.scheduler", f"must be one of {known}, got {spec.scheduler.value}")
    if spec.eta != 0.0 and spec.scheduler not in WITH_ETA:
        raise InvalidArgument.of("spec.eta", f"must be 0 with scheduler {spec.scheduler.value}, got {spec.eta}")
    if spec.sigma_spacing is not None and spec.scheduler not in WITH_SPACINGS:
        raise InvalidArgument.of("spec.sigma_spacing", f"must be unset with scheduler {spec.scheduler.value}")


def _check_range(name: str, value: float, least: float, most: float) -> None:
    # Written so that NaN, which fails every comparison, is rejected.
    if not least <= value <= most:
        raise InvalidArgument.of(name, f"must be between {least:g} and {most:g}, got {value}")


def _check_adapters(
    order: ExecuteOrder, capabilities: Collection[Capability], has_lora: Callable[[str, str], bool]
) -> None:
    for lora in order.spec.loras:
        check_lora(lora, has_lora, Capability.UPLOADED_LORA in capabilities, "spec.loras")
    if order.spec.loras:
        _check_range("route.lora_patch_step", order.route.lora_patch_step, 0, order.spec.num_inference_steps)
    for place, prompt in enumerate(order.spec.image_prompts):
        _check_image_prompt(prompt, f"spec.image_prompts[{place}]", has_lora)
    _check_pipelining(order.route, order.spec.num_inference_steps)
    for controlnet in order.spec.controlnets if Capability.CONTROLNET not in capabilities else ():
        message = f"spec.controlnets: this worker cannot use the ControlNet {controlnet.name[:100]!r}"
        raise NotFound("UNKNOWN_CONTROLNET", message)
    if order.peer is not None and not order.peer.address:
        raise InvalidArgument.of("latent_parallel_peer.address", "is required: it computes half of each step")


def _check_image_prompt(prompt: ImagePromptSelection, field: str, has_adapter: Callable[[str, str], bool]) -> None:
    if not has_adapter(prompt.name, prompt.digest):
        message = f"{field}: this worker has no IP-Adapter {prompt.name[:100]!r} of digest {prompt.digest[:80]!r}"
        raise NotFound("UNKNOWN_IP_ADAPTER", message)
    _check_range(f"{field}.scale", prompt.scale, -MAX_LORA_SCALE, MAX_LORA_SCALE)
    _check_range(f"{field}.image", len(prompt.image), 1, MAX_INIT_IMAGE_BYTES)


def check_lora(lora: LoraSelection, has_lora: Callable[[str, str], bool], takes_uploaded: bool, field: str) -> None:
    """Check a LoRA from a request's `field`. Raises NotFound (UNKNOWN_LORA) for one that the worker does not have and
    cannot fetch, InvalidArgument for anything outside its limits."""
    is_uploaded = lora.object is not None and takes_uploaded
    if not (is_uploaded or has_lora(lora.name, lora.digest)):
        message = f"{field}: this worker has no LoRA {lora.name[:100]!r} of digest {lora.digest[:80]!r}"
        raise NotFound("UNKNOWN_LORA", message)
    _check_uploaded(lora, field)
    _check_range(f"{field}.scale", lora.scale, -MAX_LORA_SCALE, MAX_LORA_SCALE)


def _check_uploaded(lora: LoraSelection, field: str) -> None:
    """Check that an uploaded LoRA's digest is that of its object, so that the fetched file is the requested one."""
    if lora.object is None:
        return
    if not is_digest(lora.digest) or lora.object.digest != lora.digest:
        raise InvalidArgument.of(f"{field}.object.digest", f"must be {lora.digest[:80]!r}, as the LoRA's is")
    _check_range(f"{field}.object.size_bytes", lora.object.size_bytes, 1, MAX_LORA_BYTES)


def _check_pipelining(route: Route, step_count: int) -> None:
    """Check that only a pipelined request uses residuals one step old, from some step after its first on."""
    least = 1 if route.controlnet_mode is ControlNetMode.PIPELINED else 0
    most = step_count - 1 if least else 0
    _check_range("route.pipelined_from_step", route.pipelined_from_step, least, most)


def check_asked_steps(order: ExecuteOrder, steps: tuple[int, ...]) -> None:
    """Check the steps that an attempt is to be limited to. Raises InvalidArgument for steps outside its schedule, and
    for an attempt with residuals one step old or a replay, which must reproduce an image's bits."""
    if not steps:
        raise InvalidArgument.of("thinned_steps", "must not be empty")
    if order.route.replay_of:
        raise InvalidArgument.of("thinned_steps", "must be empty for a replay")
    route = replace(order.route, thinned_steps=steps)
    _check_thinning(route, order.spec.num_inference_steps, "thinned_steps")


def _check_thinning(route: Route, step_count: int, field: str = "route.thinned_steps") -> None:
    """Check the steps to run. A pipelined request skips none: residuals one step old need the step before."""
    if not route.thinned_steps:
        return
    try:
        check_thinned_steps(route.thinned_steps, step_count)
    except ValueError as error:
        raise InvalidArgument.of(field, str(error)) from None
    if route.pipelined_from_step:
        raise InvalidArgument.of(field, "must be empty where residuals are a step old")


def _check_feature_reuse(order: ExecuteOrder) -> None:
    """Check the steps that run the whole network. Deep features are those of the step before in the same schedule, of
    both halves of the guidance, and without ControlNets."""
    route, field = order.route, "route.full_steps"
    if not route.full_steps:
        return
    try:
        check_thinned_steps(route.full_steps, order.spec.num_inference_steps)
    except ValueError as error:
        raise InvalidArgument.of(field, str(error)) from None
    if route.thinned_steps:
        raise InvalidArgument.of(field, "must be empty where steps are left out")
    if order.spec.controlnets:
        raise InvalidArgument.of(field, "must be empty with ControlNets")


def _check_start(spec: GenerationSpec, start: Start, noise_form: NoiseForm) -> None:
    if spec.init_image is not None:
        _check_init_image(spec, start)
    match start:
        case FromLatent():
            _check_range("route.start.latent.resume_step", start.resume_step, 1, start.donor_steps)
            _check_bridge("route.start.latent", start, start.resume_step)
            _check_range("route.start.latent.latent.size_bytes", start.latent.size_bytes, 1, MAX_DONOR_BYTES)
            if not (math.isfinite(start.sigma) and start.sigma > 0.0):
                raise InvalidArgument.of("route.start.latent.sigma", f"must be above 0 and finite, got {start.sigma}")
        case FromImage():
            # All steps are allowed: the image is the answer.
            _check_range("route.start.image.start_step", start.start_step, 0, spec.num_inference_steps)
            _check_bridge("route.start.image", start, start.start_step)
            _check_range("route.start.image.image.size_bytes", start.image.size_bytes, 1, MAX_DONOR_BYTES)
            if start.noise_form is not noise_form:
                wanted = f"must be {noise_form.value} for this model, got {start.noise_form.value}"
                raise InvalidArgument.of("route.start.image.noise_form", wanted)
        case FromNoise():
            pass


def _check_bridge(field: str, start: FromLatent | FromImage, step: int) -> None:
    if start.renoised_steps:
        _check_range(f"{field}.renoised_steps", start.renoised_steps, 0, step if start.retaken_steps else step - 1)
    if start.retaken_steps:
        _check_range(f"{field}.retaken_steps", start.retaken_steps, 0, min(start.renoised_steps, step - 1))


def _check_init_image(spec: GenerationSpec, start: Start) -> None:
    assert spec.init_image is not None
    _check_range("spec.init_image.image", len(spec.init_image.image), 1, MAX_INIT_IMAGE_BYTES)
    _check_range("spec.init_image.mask", len(spec.init_image.mask), 0, MAX_INIT_IMAGE_BYTES)
    _check_range("spec.init_image.strength", spec.init_image.strength, 0.0, 1.0)
    if int(spec.num_inference_steps * spec.init_image.strength) < 1:
        least = f"must leave at least one of {spec.num_inference_steps} steps, got {spec.init_image.strength}"
        raise InvalidArgument.of("spec.init_image.strength", least)
    if not isinstance(start, FromNoise):
        raise InvalidArgument.of("route.start", "must be noise when the request brings an image of its own")
