"""Turn validated values into a request for the frontdoor. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import InitImage
from pentimento.domain.image_request import (
    AskedControlNet,
    AskedImagePrompt,
    AskedLora,
    CacheMode,
    ImageFormat,
    ImageRequest,
)

CACHE_MODES = {
    "off": CacheMode.OFF,
    "read": CacheMode.READ,
    "read-write": CacheMode.READ_WRITE,
    "tenant": CacheMode.READ_WRITE,
    "shared": CacheMode.SHARED,
}
DEFAULT_STRENGTH = 0.8
# Names in this API of fields of the contract.
API_NAMES = {
    "width_px": "size",
    "height_px": "size",
    "width_px x height_px x num_inference_steps": "size",
    "width_px x height_px x num_inference_steps x image_count": "n",
    "init_image.image": "image",
    "init_image.strength": "strength",
    "format": "output_format",
    "preview_interval_steps": "partial_images",
    "init_image.mask": "mask",
    "image_count": "n",
    "encoding_quality": "output_compression",
    "idempotency_key": "Idempotency-Key",
    "page_token": "after",
}


@dataclass(frozen=True)
class ImageCall:
    """A call: the request, and how to answer. `partial_images`: the most previews; `as_urls`: answer with URLs."""

    request: ImageRequest
    stream: bool = False
    partial_images: int = 0
    provenance: bool = False
    as_urls: bool = False


def image_call(values: Mapping[str, Any], image: bytes | None = None, mask: bytes = b"") -> ImageCall:
    """Return the call of validated values; `image` is the start of an edit, `mask` the region that may change."""
    check_unserved(values)
    width, height = values.get("size") or (None, None)
    request = ImageRequest(
        prompt=values["prompt"],
        negative_prompt=values.get("negative_prompt", ""),
        model=values.get("model", ""),
        width_px=width,
        height_px=height,
        num_inference_steps=values.get("num_inference_steps"),
        guidance_scale=values.get("guidance_scale"),
        scheduler=values.get("scheduler", ""),
        clip_skip=values.get("clip_skip"),
        prompt_syntax=values.get("prompt_syntax", ""),
        feature_reuse=values.get("feature_reuse"),
        seed=values.get("seed"),
        loras=tuple(AskedLora(**lora) for lora in values.get("loras", ())),
        controlnets=tuple(AskedControlNet(**controlnet) for controlnet in values.get("controlnets", ())),
        image_prompts=tuple(AskedImagePrompt(**prompt) for prompt in values.get("image_prompts", ())),
        init_image=None if image is None else InitImage(image, values.get("strength", DEFAULT_STRENGTH), mask),
        cache=CACHE_MODES[values["cache"]] if "cache" in values else None,
        format=ImageFormat(values.get("output_format", "png")),
        quality=values.get("quality"),
        deadline_ms=values.get("deadline_ms"),
        max_cost=values.get("max_cost"),
        # One image is the default: requests with and without `n` have the same digest under a key.
        image_count=values["n"] if values.get("n", 1) != 1 else None,
        encoding_quality=encoding_quality(values),
    )
    return ImageCall(
        request,
        values.get("stream", False),
        values.get("partial_images", 0),
        values.get("provenance", False),
        values.get("response_format") == "url",
    )


def with_alias(asked: ImageCall, aliases: Mapping[str, str]) -> ImageCall:
    """Return a call with the alias of a model replaced by the model's name."""
    name = asked.request.model
    return replace(asked, request=replace(asked.request, model=aliases.get(name, name)))


def encoding_quality(values: Mapping[str, Any]) -> int | None:
    """Return the encoding quality of the file, 0 to 100; None for a PNG. InvalidArgument for a PNG below 100."""
    asked: int = values.get("output_compression", 100)
    if values.get("output_format", "png") != "png":
        return asked
    if asked != 100:
        raise InvalidArgument.of("output_compression", f"must be 100 if output_format is png, got {asked}")
    return None


def check_unserved(values: Mapping[str, Any]) -> None:
    """Raise InvalidArgument for options of OpenAI's API that no model here supports."""
    if values.get("background") == "transparent":
        raise InvalidArgument.of("background", "must be auto or opaque: no model here generates transparent images")
    if values.get("response_format") == "url" and values.get("stream"):
        raise InvalidArgument.of("response_format", "must be b64_json if stream is true")
    if values.get("partial_images") and not values.get("stream"):
        raise InvalidArgument.of("partial_images", "must be 0 if stream is false")
