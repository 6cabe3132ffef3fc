"""Validate the LoRAs and ControlNets of a request, and add their digests.

Pure except for lookups in the catalogue. Errors name the field and its limit, as in `resolution`.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from pentimento.domain.adapters import ADAPTER_NAME_RULE, Adapter, AdapterKind, is_adapter_name
from pentimento.domain.errors import FailedPrecondition, InvalidArgument, NotFound, Unavailable
from pentimento.domain.fleet import HeldModel
from pentimento.domain.generation import (
    ControlKind,
    ControlNetSelection,
    GenerationSpec,
    ImagePromptSelection,
    LoraSelection,
    Preprocessor,
)
from pentimento.domain.image_request import AskedControlNet, AskedImagePrompt, AskedLora
from pentimento.domain.reasons import Reason
from pentimento.images import ImageHeader, read_header
from services.frontdoor.workers.catalogue import AdapterCatalogue

# Adapters of one request.
MAX_COUNTS = {AdapterKind.LORA: 8, AdapterKind.CONTROLNET: 4, AdapterKind.IP_ADAPTER: 4}
# An image to start from, its mask, a conditioning image or an image prompt.
MAX_IMAGE_BYTES = 8 << 20
MAX_LORA_SCALE = 10.0
MAX_CONDITIONING_SCALE = 10.0
RETRY_MS = 1000
_SHOWN_LENGTH = 80
# The format of numbers in messages: a stated limit is exact to its last digit.
EXACT = ".15g"
# The word of a kind, the field of a request, the reasons for a name that is unknown or not served.
_KINDS = {
    AdapterKind.LORA: ("LoRA", "loras", "UNKNOWN_LORA", "LORAS_NOT_SERVED"),
    AdapterKind.CONTROLNET: ("ControlNet", "controlnets", "UNKNOWN_CONTROLNET", "CONTROLNETS_NOT_SERVED"),
    AdapterKind.IP_ADAPTER: ("IP-Adapter", "image_prompts", "UNKNOWN_IP_ADAPTER", "IP_ADAPTERS_NOT_SERVED"),
}


def resolve_loras(asked: Sequence[AskedLora], held: HeldModel, known: AdapterCatalogue) -> tuple[LoraSelection, ...]:
    """Return the LoRAs with their digests and scales, for the model `held`. Raises InvalidArgument, NotFound for an
    unknown name, FailedPrecondition if no worker supports LoRAs."""
    _check_count(AdapterKind.LORA, len(asked))
    selected: dict[str, LoraSelection] = {}
    for index, lora in enumerate(asked):
        where = f"loras[{index}]"
        adapter = _find(AdapterKind.LORA, lora.name, where, held, known)
        if lora.name in selected:
            raise InvalidArgument.of(f"{where}.name", f"must be unique, {lora.name} occurs twice")
        scale = 1.0 if lora.scale is None else in_range(f"{where}.scale", lora.scale, -MAX_LORA_SCALE, MAX_LORA_SCALE)
        selected[lora.name] = LoraSelection(lora.name, scale, adapter.digest, adapter.object, adapter.signed_entry)
    return tuple(selected.values())


def resolve_controlnets(
    asked: Sequence[AskedControlNet], size_px: tuple[int, int], held: HeldModel, known: AdapterCatalogue
) -> tuple[ControlNetSelection, ...]:
    """Return the ControlNets with their digests, scales and shares of the schedule, for an image of (width, height).
    Raises as `resolve_loras`, and Unavailable while a ControlNet has no live replica."""
    _check_count(AdapterKind.CONTROLNET, len(asked))
    return tuple(
        _resolve_controlnet(controlnet, f"controlnets[{index}]", size_px, held, known)
        for index, controlnet in enumerate(asked)
    )


def resolve_image_prompts(
    asked: Sequence[AskedImagePrompt], held: HeldModel, known: AdapterCatalogue
) -> tuple[ImagePromptSelection, ...]:
    """Return the image prompts with the digests of their IP-Adapters, and scales. Raises as `resolve_loras`."""
    _check_count(AdapterKind.IP_ADAPTER, len(asked))
    found = []
    for index, prompt in enumerate(asked):
        where = f"image_prompts[{index}]"
        adapter = _find(AdapterKind.IP_ADAPTER, prompt.name, where, held, known)
        scale = 1.0 if prompt.scale is None else prompt.scale
        in_range(f"{where}.scale", scale, -MAX_LORA_SCALE, MAX_LORA_SCALE)
        read_image(prompt.image, f"{where}.image")
        found.append(ImagePromptSelection(adapter.name, prompt.image, scale, adapter.digest))
    return tuple(found)


def with_served_adapters(spec: GenerationSpec, known: AdapterCatalogue) -> GenerationSpec:
    """Return a recorded spec with the signed entries that its LoRAs have now: keys may have changed since. Raises
    FailedPrecondition ADAPTER_CHANGED unless every adapter is served with the weights that it had then."""
    selected = [(AdapterKind.LORA, one.name, one.digest, "") for one in spec.loras]
    selected += [(AdapterKind.CONTROLNET, one.name, one.digest, one.preprocessor_digest) for one in spec.controlnets]
    selected += [(AdapterKind.IP_ADAPTER, one.name, one.digest, "") for one in spec.image_prompts]
    for kind, name, digest, depth_digest in selected:
        served = [one for one in known.find(kind, name) if one.digest == digest]
        if not any(depth_digest in ("", one.depth_digest) for one in served):
            other = f" with the depth model {depth_digest[:_SHOWN_LENGTH]}" if served else ""
            was = f"{name} is not served as {digest[:_SHOWN_LENGTH]}{other}"
            message = f"{_KINDS[kind][1]}: {was}, which the image was generated with"
            raise FailedPrecondition("ADAPTER_CHANGED", message)
    named = [(one, adapter) for one in spec.loras for adapter in known.find(AdapterKind.LORA, one.name)]
    entries = {(one.name, adapter.digest): adapter.signed_entry for one, adapter in named if adapter.signed_entry}
    loras = [replace(one, signed_entry=entries.get((one.name, one.digest), "")) for one in spec.loras]
    return replace(spec, loras=tuple(loras))


def _resolve_controlnet(
    asked: AskedControlNet, where: str, size_px: tuple[int, int], held: HeldModel, known: AdapterCatalogue
) -> ControlNetSelection:
    adapter = _find(AdapterKind.CONTROLNET, asked.name, where, held, known)
    scale = 1.0 if asked.conditioning_scale is None else asked.conditioning_scale
    start, end = _resolve_shares(asked, where)
    preprocessor = _resolve_preprocessor(asked.preprocessor, f"{where}.preprocessor", adapter)
    kind = _resolve_kind(asked.kind, f"{where}.kind", adapter)
    _check_image(asked.conditioning_image, f"{where}.conditioning_image", size_px)
    if not known.is_reachable(adapter):
        message = f"{where}.name: no replica that serves {adapter.name} is live"
        raise Unavailable(Reason.CONTROLNET_LOST, message, retry_after_ms=RETRY_MS)
    return ControlNetSelection(
        name=adapter.name,
        conditioning_image=asked.conditioning_image,
        conditioning_scale=in_range(f"{where}.conditioning_scale", scale, 0.0, MAX_CONDITIONING_SCALE),
        start_fraction=start,
        end_fraction=end,
        digest=adapter.digest,
        object=adapter.object,
        preprocessor=preprocessor,
        preprocessor_digest=adapter.depth_digest if preprocessor is Preprocessor.DEPTH else "",
        kind=kind,
    )


def _resolve_preprocessor(asked: str, field: str, adapter: Adapter) -> Preprocessor | None:
    """Return the preprocessor of a name, None for an empty one. Depth needs the model of the ControlNet's replicas."""
    if not asked:
        return None
    served = [one for one in Preprocessor if one is not Preprocessor.DEPTH or adapter.depth_digest]
    if asked not in [one.value for one in served]:
        limit = f"must be {' or '.join(one.value for one in served)}, or empty for an image that is the condition"
        raise InvalidArgument.of(field, f"{limit}, with {adapter.name} here, got {asked[:_SHOWN_LENGTH]!r}")
    return Preprocessor(asked)


def _resolve_kind(asked: str, field: str, adapter: Adapter) -> ControlKind | None:
    """Return the kind of condition of a ControlNet-Union; None for other ControlNets, which take one kind."""
    if not adapter.control_kind_count:
        if asked:
            limit = f"must be empty with {adapter.name}, which is no ControlNet-Union"
            raise InvalidArgument.of(field, f"{limit}, got {asked[:_SHOWN_LENGTH]!r}")
        return None
    taken = [kind.value for kind in ControlKind][: adapter.control_kind_count]
    if asked not in taken:
        limit = f"must be one of {', '.join(taken)} with {adapter.name}"
        raise InvalidArgument.of(field, f"{limit}, got {asked[:_SHOWN_LENGTH]!r}")
    return ControlKind(asked)


def _resolve_shares(asked: AskedControlNet, where: str) -> tuple[float, float]:
    start = 0.0 if asked.start_fraction is None else asked.start_fraction
    end = 1.0 if asked.end_fraction is None else asked.end_fraction
    in_range(f"{where}.start_fraction", start, 0.0, 1.0)
    in_range(f"{where}.end_fraction", end, 0.0, 1.0)
    if start >= end:
        limit = f"must be below end_fraction, {end:g}, got {start:g}"
        raise InvalidArgument.of(f"{where}.start_fraction", limit)
    return start, end


def _check_image(image: bytes, field: str, size_px: tuple[int, int]) -> None:
    header = read_image(image, field)
    if (header.width_px, header.height_px) != size_px:
        width, height = size_px
        got = f"{header.width_px} x {header.height_px}"
        raise InvalidArgument.of(field, f"must be of the image's size, {width} x {height} pixels, got {got}")


def read_image(image: bytes, field: str) -> ImageHeader:
    """Return the header of an input image. Raises InvalidArgument for a large one, and as `read_header`."""
    if len(image) > MAX_IMAGE_BYTES:
        raise InvalidArgument.of(field, f"must have at most {MAX_IMAGE_BYTES} bytes, got {len(image)}")
    return read_header(image, field)


def _find(kind: AdapterKind, name: str, where: str, held: HeldModel, known: AdapterCatalogue) -> Adapter:
    word, _, unknown, not_served = _KINDS[kind]
    if not is_adapter_name(name):
        raise InvalidArgument.of(f"{where}.name", f"{ADAPTER_NAME_RULE}, got {name[:_SHOWN_LENGTH]!r}")
    rejected = known.rejection(kind, name, held.model_digest)
    if not known.takes(kind) and rejected is None:
        message = f"{where}: no worker of this deployment supports {word}s"
        raise FailedPrecondition(not_served, message)
    found = known.find(kind, name)
    if rejected is not None and not found:
        message = f"{where}.name: the {word} {name} was found and cannot be used: {rejected.message}"
        raise FailedPrecondition(rejected.reason, message)
    if not found:
        raise NotFound.of(unknown, f"{where}.name", f"there is no {word} {name[:_SHOWN_LENGTH]!r}")
    fitting = [adapter for adapter in found if adapter.changes(held.model_digest, held.family)]
    if not fitting:
        base = found[-1].base_digest[:_SHOWN_LENGTH] or f"the family {found[-1].family[:_SHOWN_LENGTH]}"
        limit = f"must be a {word} for {held.model} ({held.family}, {held.model_digest[:_SHOWN_LENGTH]})"
        raise InvalidArgument.of(f"{where}.name", f"{limit}, {name} is for {base}")
    return fitting[-1]


def _check_count(kind: AdapterKind, number: int) -> None:
    if number > MAX_COUNTS[kind]:
        raise InvalidArgument.of(_KINDS[kind][1], f"must be at most {MAX_COUNTS[kind]}, got {number}")


def in_range(field: str, value: float, least: float, most: float) -> float:
    """Return the value. Raises InvalidArgument for one outside of the limits, both inclusive."""
    # NaN fails every comparison, so this one tests the valid range; infinity is rejected even if the limit is open.
    if not least <= value <= most or math.isinf(value):
        raise InvalidArgument.of(field, f"must be between {least:{EXACT}} and {most:{EXACT}}, got {value:{EXACT}}")
    return value
