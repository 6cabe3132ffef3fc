"""The table of what a request for pictures may say. Requests are judged by it, and the API document is made of it.

It says what holds for every model; sizes, steps and costs have limits of their own, which the frontdoor judges.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Any

INT64 = 2**63 - 1
UINT64 = 2**64 - 1
SIZE_PATTERN = r"^(auto|[1-9][0-9]{0,4}x[1-9][0-9]{0,4})?$"
MAX_PROMPT_CHARS = 32_000
MAX_NAME_CHARS = 256
MAX_OBJECTS = 16


class FieldKind(Enum):
    """What a value is in JSON; in a form it is the text of the same."""

    TEXT = "string"
    WORD = "word"
    SIZE = "size"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"
    QUALITY = "quality"
    BYTES = "bytes"
    IMAGE = "image"
    IMAGES = "images"
    OBJECTS = "objects"


@dataclass(frozen=True)
class RequestField:
    """`least` and `most` are inclusive bounds of numbers, and of the number of characters or objects. `words` are what
    a WORD may be. `items` are the fields of OBJECTS. `default` is what an absent value means, for the document."""

    name: str
    kind: FieldKind
    help: str
    required: bool = False
    least: float | None = None
    most: float | None = None
    words: tuple[str, ...] = ()
    items: tuple["RequestField", ...] = ()
    default: Any = None


QUALITY_WORDS = {
    "auto": None,
    "standard": None,
    "low": 0.8,
    "medium": 0.9,
    **dict.fromkeys(("high", "hd", "xhigh", "max"), 1.0),
}
CACHE_WORDS = ("off", "read", "read-write", "tenant", "shared")

LORA_FIELDS = (
    RequestField("name", FieldKind.TEXT, "a LoRA of the deployment", required=True, least=1, most=MAX_NAME_CHARS),
    RequestField("scale", FieldKind.NUMBER, "its weight, other than 0", default=1.0),
)
CONTROLNET_FIELDS = (
    RequestField("name", FieldKind.TEXT, "a ControlNet of the deployment", required=True, least=1, most=MAX_NAME_CHARS),
    RequestField(
        "conditioning_image", FieldKind.BYTES, "PNG, JPEG or WebP of the image's size, in base64", required=True
    ),
    RequestField("conditioning_scale", FieldKind.NUMBER, "0 to 10; 0 leaves it without effect", default=1.0),
    RequestField("start_fraction", FieldKind.NUMBER, "share of the steps after which it acts", least=0, most=1),
    RequestField("end_fraction", FieldKind.NUMBER, "share of the steps until which it acts", least=0, most=1),
)

# What OpenAI's clients send.
OPENAI_FIELDS = (
    RequestField("prompt", FieldKind.TEXT, "description of the image", required=True, least=1, most=MAX_PROMPT_CHARS),
    RequestField("model", FieldKind.TEXT, "a model of /v1/models; the deployment's default", most=MAX_NAME_CHARS),
    RequestField("n", FieldKind.INTEGER, "number of images: all or none are accepted", least=1, most=10, default=1),
    RequestField(
        "size", FieldKind.SIZE, "WIDTHxHEIGHT in pixels; `auto`: the model's own, or an edited image's", default="auto"
    ),
    RequestField(
        "quality",
        FieldKind.QUALITY,
        "how much of the quality from scratch to keep, 0 to 1, or a word for it: from `high` on nothing is reused",
        least=0,
        most=1,
        words=tuple(QUALITY_WORDS),
        default="auto",
    ),
    RequestField("response_format", FieldKind.WORD, "form of the image", words=("b64_json", "url"), default="b64_json"),
    RequestField(
        "output_format", FieldKind.WORD, "file format of the image", words=("png", "jpeg", "webp"), default="png"
    ),
    RequestField(
        "output_compression",
        FieldKind.INTEGER,
        "quality of a JPEG or WebP file in percent; PNG is lossless: only 100",
        least=0,
        most=100,
        default=100,
    ),
    RequestField(
        "background",
        FieldKind.WORD,
        "transparent is rejected: no model here generates it",
        words=("auto", "opaque", "transparent"),
        default="auto",
    ),
    RequestField("style", FieldKind.WORD, "ignored: use the prompt", words=("vivid", "natural")),
    RequestField("stream", FieldKind.BOOLEAN, "answer with events as steps pass", default=False),
    RequestField("partial_images", FieldKind.INTEGER, "previews of a streamed image", least=0, most=3, default=0),
    RequestField("moderation", FieldKind.WORD, "ignored: nothing is moderated", words=("auto", "low")),
    RequestField("user", FieldKind.TEXT, "ignored: neither stored nor logged", most=MAX_NAME_CHARS),
    RequestField("safety_identifier", FieldKind.TEXT, "as `user`", most=MAX_NAME_CHARS),
)
# What others send as well, and what only this suite has.
EXTENSION_FIELDS = (
    RequestField("negative_prompt", FieldKind.TEXT, "what the image should not show", most=MAX_PROMPT_CHARS),
    RequestField("num_inference_steps", FieldKind.INTEGER, "denoising steps; the model's own"),
    RequestField("guidance_scale", FieldKind.NUMBER, "weight of the prompt; the model's own"),
    RequestField("scheduler", FieldKind.TEXT, "a sampler of the model; its own", most=MAX_NAME_CHARS),
    RequestField("seed", FieldKind.INTEGER, "of the noise; drawn where absent", least=0, most=UINT64),
    RequestField("loras", FieldKind.OBJECTS, "LoRAs to use", items=LORA_FIELDS, most=MAX_OBJECTS),
    RequestField("controlnets", FieldKind.OBJECTS, "ControlNets to use", items=CONTROLNET_FIELDS, most=MAX_OBJECTS),
    RequestField("deadline_ms", FieldKind.INTEGER, "time limit in milliseconds from now"),
    RequestField("max_cost", FieldKind.NUMBER, "largest width x height x steps"),
    RequestField(
        "cache",
        FieldKind.WORD,
        "what may be reused and kept: `tenant` and `read-write` are one; `shared` looks into the shared pool",
        words=CACHE_WORDS,
    ),
    RequestField("provenance", FieldKind.BOOLEAN, "return the provenance of each image", default=False),
)
GENERATION_FIELDS = OPENAI_FIELDS + EXTENSION_FIELDS
EDIT_FIELDS = (
    *GENERATION_FIELDS,
    RequestField("strength", FieldKind.NUMBER, "how much of the image may change", least=0, most=1, default=0.8),
    RequestField("input_fidelity", FieldKind.WORD, "of no effect: `strength` says it", words=("high", "low")),
)

# What an edit may be as JSON besides.
JSON_EDIT_FIELDS = (
    *EDIT_FIELDS,
    RequestField("images", FieldKind.IMAGES, "the image to start from: PNG, JPEG or WebP", most=MAX_OBJECTS),
    RequestField("image", FieldKind.IMAGES, "as `images`", most=MAX_OBJECTS),
    RequestField("mask", FieldKind.IMAGE, "PNG of the image's size: where it may change"),
)


def by_field_name(fields: tuple[RequestField, ...]) -> dict[str, RequestField]:
    """Return the fields by their names."""
    return {field.name: field for field in fields}
