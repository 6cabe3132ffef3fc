"""Resolve a client's request: validate every field and fill in every default. Pure; allocates nothing.

A failed check raises InvalidArgument (or NotFound for names) with the field and the limit.
"""

import math
from dataclasses import replace

from pentimento.domain.errors import InvalidArgument
from pentimento.domain.fleet import HeldModel
from pentimento.domain.generation import (
    MAX_CLIP_SKIP,
    WITH_ETA,
    WITH_SPACINGS,
    GenerationSpec,
    InitImage,
    Scheduler,
    SigmaSpacing,
)
from pentimento.domain.image_request import CacheMode, ImageFormat, ImageRequest, ResolvedRequest
from pentimento.domain.prompt_syntax import WEIGHTED_FAMILIES, PromptSyntax, parse_prompt
from pentimento.images import ImageHeader, read_header
from services.frontdoor.requests.selections import (
    EXACT,
    in_range,
    read_image,
    resolve_controlnets,
    resolve_image_prompts,
    resolve_loras,
)
from services.frontdoor.settings import RequestLimits
from services.frontdoor.workers.catalogue import AdapterCatalogue

MAX_SEED = 2**64 - 1
MAX_GUIDANCE_SCALE = 100.0
# Bytes of UTF-8.
MAX_PROMPT_BYTES = 8192
# Images of one call.
MAX_IMAGES = 10
MAX_IDEMPOTENCY_KEY_CHARS = 128
MAX_PREVIEW_INTERVAL_STEPS = 1000
# Default deadlines are at least this many times the steps' measured time.
DEADLINE_FACTOR = 3.0
_SPACINGS = tuple(spacing.value for spacing in SigmaSpacing)
_SHOWN_LENGTH = 80
INIT_IMAGE = "init_image.image"


def resolve(
    request: ImageRequest,
    held: HeldModel,
    known: AdapterCatalogue,
    limits: RequestLimits,
    drawn_seed: int,
    preview_interval_steps: int = 0,
) -> ResolvedRequest:
    """Return the validated request. `drawn_seed` is used and recorded if the client names none; `known` holds the
    adapters that may be named. Raises InvalidArgument, and as `resolve_loras` and `resolve_controlnets`."""
    _check_prompt("prompt", request.prompt, may_be_empty=False)
    _check_prompt("negative_prompt", request.negative_prompt, may_be_empty=True)
    count = check_image_count(request.image_count)
    spec = _resolve_adapters(request, _resolve_spec(request, held, drawn_seed), held, known)
    own_ms = default_deadline_ms(spec, held, limits, count)
    deadline_ms, interval = resolve_limits(_default(request.deadline_ms, own_ms), preview_interval_steps, limits)
    resolved = ResolvedRequest(
        spec=spec,
        cache=request.cache or CacheMode.READ_WRITE,
        format=request.format or ImageFormat.PNG,
        quality=None if request.quality is None else in_range("quality", request.quality, 0.0, 1.0),
        deadline_ms=deadline_ms,
        preview_interval_steps=interval,
        pin_ms=request.pin_ms or 0,
        may_thin=not _binds_steps(request),
        encoding_quality=_resolve_encoding_quality(request),
        feature_reuse=request.feature_reuse,
    )
    check_cost(resolved.cost * count, request.max_cost, limits, count)
    return resolved


def check_image_count(count: int | None) -> int:
    """Return the number of images. Raises InvalidArgument for less than one, and for more than `MAX_IMAGES`."""
    return int(in_range("image_count", _default(count, 1), 1, MAX_IMAGES))


def _binds_steps(request: ImageRequest) -> bool:
    """Return whether the number of steps is binding: by default if the client named it."""
    stated = request.num_inference_steps is not None
    return stated if request.binding_steps is None else request.binding_steps


def _resolve_encoding_quality(request: ImageRequest) -> int | None:
    if request.encoding_quality is None:
        return None
    quality = int(in_range("encoding_quality", request.encoding_quality, 0, 100))
    if request.format in (ImageFormat.JPEG, ImageFormat.WEBP):
        return quality
    if quality != 100:
        raise InvalidArgument.of("encoding_quality", f"must be 100 for a PNG, which is lossless, got {quality}")
    return None


def check_idempotency_key(key: str) -> None:
    if len(key) > MAX_IDEMPOTENCY_KEY_CHARS:
        limit = f"must have at most {MAX_IDEMPOTENCY_KEY_CHARS} characters, got {len(key)}"
        raise InvalidArgument.of("idempotency_key", limit)
    if not key.isprintable():
        raise InvalidArgument.of("idempotency_key", "must hold printable characters only")


def _resolve_spec(request: ImageRequest, held: HeldModel, drawn_seed: int) -> GenerationSpec:
    asked_steps = _default(request.num_inference_steps, held.default_steps)
    steps = int(in_range("num_inference_steps", asked_steps, 1, held.max_steps))
    scheduler, spacing = _resolve_scheduler(request.scheduler, held)
    init_image = _resolve_init_image(request.init_image, steps)
    width_px, height_px = _resolve_size(request, held)
    return GenerationSpec(
        prompt=request.prompt,
        negative_prompt=request.negative_prompt,
        model=held.model,
        width_px=width_px,
        height_px=height_px,
        num_inference_steps=steps,
        guidance_scale=_resolve_guidance(request.guidance_scale, held),
        scheduler=scheduler,
        seed=int(in_range("seed", _default(request.seed, drawn_seed), 0, MAX_SEED)),
        eta=_resolve_eta(request.eta, scheduler),
        init_image=init_image,
        sigma_spacing=spacing,
        clip_skip=int(in_range("clip_skip", _default(request.clip_skip, 0), 0, MAX_CLIP_SKIP)),
        prompt_syntax=_resolve_syntax(request, held),
    )


def _resolve_syntax(request: ImageRequest, held: HeldModel) -> PromptSyntax | None:
    """Return the syntax of both prompts, which are parsed here to refuse a faulty one before it is accepted."""
    if not request.prompt_syntax:
        return None
    known = [syntax.value for syntax in PromptSyntax]
    if request.prompt_syntax not in known:
        limit = f"must be {' or '.join(known)}, or empty for plain text"
        raise InvalidArgument.of("prompt_syntax", f"{limit}, got {request.prompt_syntax[:_SHOWN_LENGTH]!r}")
    if held.family not in WEIGHTED_FAMILIES:
        raise InvalidArgument.of("prompt_syntax", f"must be empty with {held.model}: its family takes plain text alone")
    syntax = PromptSyntax(request.prompt_syntax)
    if not parse_prompt(request.prompt, syntax, "prompt").plain.strip():
        raise InvalidArgument.of("prompt", "must have text besides its syntax")
    parse_prompt(request.negative_prompt, syntax, "negative_prompt")
    return syntax


def _check_prompt(field: str, prompt: str, *, may_be_empty: bool) -> None:
    # Characters bound bytes from below, so that a huge prompt is not copied just to be rejected.
    size = max(len(prompt), len(prompt[:MAX_PROMPT_BYTES].encode(errors="surrogatepass")))
    if size > MAX_PROMPT_BYTES:
        raise InvalidArgument.of(field, f"must have at most {MAX_PROMPT_BYTES} bytes of UTF-8, got {size}")
    if not may_be_empty and not prompt.strip():
        raise InvalidArgument.of(field, f"must have 1 to {MAX_PROMPT_BYTES} bytes of UTF-8, got only blanks")
    if "\0" in prompt:
        raise InvalidArgument.of(field, "must not hold NUL characters")


def _resolve_adapters(
    request: ImageRequest, spec: GenerationSpec, held: HeldModel, known: AdapterCatalogue
) -> GenerationSpec:
    if not (request.loras or request.controlnets or request.image_prompts):
        return spec
    size_px = (spec.width_px, spec.height_px)
    return replace(
        spec,
        loras=resolve_loras(request.loras, held, known),
        controlnets=resolve_controlnets(request.controlnets, size_px, held, known),
        image_prompts=resolve_image_prompts(request.image_prompts, held, known),
    )


def _resolve_size(request: ImageRequest, held: HeldModel) -> tuple[int, int]:
    """Return width and height in pixels. A missing side comes from the image to start from, rounded down as diffusers'
    VaeImageProcessor does, or without an image from the model."""
    default_px = (held.default_width_px, held.default_height_px)
    if request.init_image is not None and None in (request.width_px, request.height_px):
        default_px = _size_of_image(read_header(request.init_image.image, INIT_IMAGE), held)
    return (
        _resolve_side("width_px", request.width_px, default_px[0], held),
        _resolve_side("height_px", request.height_px, default_px[1], held),
    )


def _size_of_image(image: ImageHeader, held: HeldModel) -> tuple[int, int]:
    sides, multiple, longest = (image.width_px, image.height_px), held.size_multiple_px, held.max_size_px
    if min(sides) < multiple or max(sides) >= longest + multiple:
        limit = f"must have sides of {multiple} to {longest} pixels without a size"
        raise InvalidArgument.of(INIT_IMAGE, f"{limit}, got {image.width_px} x {image.height_px}")
    return image.width_px - image.width_px % multiple, image.height_px - image.height_px % multiple


def _resolve_side(field: str, asked: int | None, default: int, held: HeldModel) -> int:
    side, multiple, longest = _default(asked, default), held.size_multiple_px, held.max_size_px
    if not multiple <= side <= longest or side % multiple:
        raise InvalidArgument.of(field, f"must be a multiple of {multiple} from {multiple} to {longest}, got {side}")
    return side


def _resolve_guidance(asked: float | None, held: HeldModel) -> float:
    value = held.default_guidance_scale if asked is None else asked
    return in_range("guidance_scale", value, 0.0, MAX_GUIDANCE_SCALE)


def _resolve_scheduler(asked: str, held: HeldModel) -> tuple[Scheduler, SigmaSpacing | None]:
    """Return the sampler and the spacing of a name such as `euler` or `dpmpp_2m_karras`."""
    name = asked or held.schedulers[0]
    if name in held.schedulers:
        return Scheduler(name), None
    base, _, ending = name.rpartition("_")
    spaced = [scheduler.value for scheduler in WITH_SPACINGS if scheduler.value in held.schedulers]
    if base in spaced and ending in _SPACINGS:
        return Scheduler(base), SigmaSpacing(ending)
    known = ", ".join(held.schedulers)
    if spaced:
        known = f"{known}, or {', '.join(spaced)} with _{', _'.join(_SPACINGS)}"
    raise InvalidArgument.of("scheduler", f"must be one of {known}, got {name[:_SHOWN_LENGTH]!r}")


def _resolve_eta(asked: float | None, scheduler: Scheduler) -> float:
    eta = in_range("eta", 0.0 if asked is None else asked, 0.0, 1.0)
    if eta and scheduler not in WITH_ETA:
        raise InvalidArgument.of("eta", f"must be 0 with scheduler {scheduler.value}, got {eta:g}")
    return eta


def _resolve_init_image(asked: InitImage | None, steps: int) -> InitImage | None:
    if asked is None:
        return None
    header = read_image(asked.image, INIT_IMAGE)
    if asked.mask:
        _check_mask("init_image.mask", read_image(asked.mask, "init_image.mask"), header)
    strength = in_range("init_image.strength", asked.strength, 0.0, 1.0)
    if int(steps * strength) < 1:
        limit = f"must leave at least 1 of {steps} steps to run, got {strength:g}"
        raise InvalidArgument.of("init_image.strength", limit)
    return replace(asked, strength=strength)


def _check_mask(field: str, mask: ImageHeader, image: ImageHeader) -> None:
    if mask.format != "png":
        raise InvalidArgument.of(field, f"must be a PNG image, got {mask.format.upper()}")
    if (mask.width_px, mask.height_px) != (image.width_px, image.height_px):
        limit = f"must be of the image's size, {image.width_px} x {image.height_px}"
        raise InvalidArgument.of(field, f"{limit}, got {mask.width_px} x {mask.height_px}")


def default_deadline_ms(spec: GenerationSpec, held: HeldModel, limits: RequestLimits, image_count: int = 1) -> int:
    """Return the default deadline in milliseconds: the deployment's, or for a slow model a multiple of the time of its
    steps, up to the longest deadline."""
    share = spec.width_px * spec.height_px / (held.default_width_px * held.default_height_px)
    steps_s = held.step_s * spec.num_inference_steps * share * image_count
    scaled_ms = round(DEADLINE_FACTOR * steps_s * 1000)
    return max(round(limits.default_deadline_s * 1000), min(scaled_ms, limits.max_deadline_ms))


def resolve_limits(deadline_ms: int, preview_interval_steps: int, limits: RequestLimits) -> tuple[int, int]:
    """Return the deadline in milliseconds from now, and the number of denoising steps between previews."""
    return (
        int(in_range("deadline_ms", deadline_ms, 1, limits.max_deadline_ms)),
        int(in_range("preview_interval_steps", preview_interval_steps, 0, MAX_PREVIEW_INTERVAL_STEPS)),
    )


def check_cost(cost: float, max_cost: float | None, limits: RequestLimits, image_count: int = 1) -> None:
    """Raise InvalidArgument for a cost, in pixel steps of all images, above the deployment's or the client's own
    limit."""
    if cost > limits.max_request_cost:
        limit = f"must be at most {limits.max_request_cost:{EXACT}} pixel steps, got {cost:{EXACT}}"
        factors = "width_px x height_px x num_inference_steps" + (" x image_count" if image_count > 1 else "")
        raise InvalidArgument.of(factors, limit)
    if max_cost is not None and not cost <= in_range("max_cost", max_cost, 0.0, math.inf):
        raise InvalidArgument.of(
            "max_cost", f"must be at least the request's cost, {cost:{EXACT}} pixel steps, got {max_cost:{EXACT}}"
        )


def _default(value: int | None, default: int) -> int:
    return default if value is None else value
