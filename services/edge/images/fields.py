"""The table of the images API's fields: requests are validated by it, and the API document is generated from it.

It has the limits that hold for every model; the frontdoor validates sizes, steps and costs.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Any

from pentimento.domain.generation import ControlKind, Preprocessor
from pentimento.domain.prompt_syntax import PromptSyntax

INT64 = 2**63 - 1
UINT64 = 2**64 - 1
SIZE_PATTERN = r"^(auto|[1-9][0-9]{0,4}x[1-9][0-9]{0,4})?$"
MAX_PROMPT_CHARS = 32_000
MAX_NAME_CHARS = 256
MAX_OBJECTS = 16


class FieldKind(Enum):
    """The kind of a JSON value; a form has the same value as text."""

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
    """Describe a field of a request.

    `least` and `most` are inclusive bounds of a number, of a text's length in characters, or of the count of objects.
    `words` are the values of a WORD, `items` the fields of OBJECTS. `default` documents an absent value."""

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
    RequestField("scale", FieldKind.NUMBER, "weight, other than 0", default=1.0),
)
CONTROLNET_FIELDS = (
    RequestField("name", FieldKind.TEXT, "a ControlNet of the deployment", required=True, least=1, most=MAX_NAME_CHARS),
    RequestField(
        "conditioning_image", FieldKind.BYTES, "PNG, JPEG or WebP of the image's size, in base64", required=True
    ),
    RequestField("conditioning_scale", FieldKind.NUMBER, "weight, 0 to 10; 0 has no effect", default=1.0),
    RequestField("start_fraction", FieldKind.NUMBER, "share of the steps after which it starts", least=0, most=1),
    RequestField("end_fraction", FieldKind.NUMBER, "share of the steps after which it ends", least=0, most=1),
    RequestField(
        "preprocessor",
        FieldKind.WORD,
        "how the condition is computed from the image; absent: the image is the condition",
        words=tuple(preprocessor.value for preprocessor in Preprocessor),
    ),
    RequestField(
        "kind",
        FieldKind.WORD,
        "what a ControlNet-Union takes the condition for; absent for other ControlNets",
        words=tuple(kind.value for kind in ControlKind),
    ),
)

IMAGE_PROMPT_FIELDS = (
    RequestField(
        "name", FieldKind.TEXT, "an IP-Adapter of the deployment", required=True, least=1, most=MAX_NAME_CHARS
    ),
    RequestField("image", FieldKind.BYTES, "PNG, JPEG or WebP of any size, in base64", required=True),
    RequestField("scale", FieldKind.NUMBER, "weight of the image, -10 to 10; 0 has no effect", default=1.0),
)

# Fields of OpenAI's clients.
OPENAI_FIELDS = (
    RequestField("prompt", FieldKind.TEXT, "description of the image", required=True, least=1, most=MAX_PROMPT_CHARS),
    RequestField(
        "model", FieldKind.TEXT, "a model of /v1/models; absent: the deployment's default", most=MAX_NAME_CHARS
    ),
    RequestField("n", FieldKind.INTEGER, "number of images, all or none", least=1, most=10, default=1),
    RequestField(
        "size",
        FieldKind.SIZE,
        "WIDTHxHEIGHT in pixels; `auto`: the model's default, or the edited image's size",
        default="auto",
    ),
    RequestField(
        "quality",
        FieldKind.QUALITY,
        "share of the quality from scratch to keep, 0 to 1, or a word; from `high` on nothing is reused",
        least=0,
        most=1,
        words=tuple(QUALITY_WORDS),
        default="auto",
    ),
    RequestField(
        "response_format",
        FieldKind.WORD,
        "encoding of the image in the answer",
        words=("b64_json", "url"),
        default="b64_json",
    ),
    RequestField(
        "output_format", FieldKind.WORD, "file format of the image", words=("png", "jpeg", "webp"), default="png"
    ),
    RequestField(
        "output_compression",
        FieldKind.INTEGER,
        "quality of a JPEG or WebP file in percent; 100 for PNG, which is lossless",
        least=0,
        most=100,
        default=100,
    ),
    RequestField(
        "background",
        FieldKind.WORD,
        "no model generates transparent images",
        words=("auto", "opaque", "transparent"),
        default="auto",
    ),
    RequestField("style", FieldKind.WORD, "no effect: describe the style in the prompt", words=("vivid", "natural")),
    RequestField("stream", FieldKind.BOOLEAN, "answer with events during the generation", default=False),
    RequestField("partial_images", FieldKind.INTEGER, "most previews of a streamed image", least=0, most=3, default=0),
    RequestField("moderation", FieldKind.WORD, "no effect: this suite does not moderate", words=("auto", "low")),
    RequestField("user", FieldKind.TEXT, "no effect: neither stored nor logged", most=MAX_NAME_CHARS),
    RequestField("safety_identifier", FieldKind.TEXT, "as `user`", most=MAX_NAME_CHARS),
)
# Fields of other APIs and of this suite.
EXTENSION_FIELDS = (
    RequestField(
        "negative_prompt", FieldKind.TEXT, "description of what the image must not show", most=MAX_PROMPT_CHARS
    ),
    RequestField("num_inference_steps", FieldKind.INTEGER, "denoising steps; absent: the model's default"),
    RequestField("guidance_scale", FieldKind.NUMBER, "weight of the prompt; absent: the model's default"),
    RequestField("scheduler", FieldKind.TEXT, "a scheduler of the model; absent: its default", most=MAX_NAME_CHARS),
    RequestField(
        "feature_reuse",
        FieldKind.BOOLEAN,
        "whether steps may reuse deep features where the model's profile allows it; absent: the deployment's mode",
    ),
    RequestField("clip_skip", FieldKind.INTEGER, "last layers of the CLIP text encoders to leave out; absent: none"),
    RequestField(
        "prompt_syntax",
        FieldKind.WORD,
        "how both prompts state weights of words; absent: plain text",
        words=tuple(syntax.value for syntax in PromptSyntax),
    ),
    RequestField("seed", FieldKind.INTEGER, "seed of the noise; absent: random", least=0, most=UINT64),
    RequestField("loras", FieldKind.OBJECTS, "LoRAs to apply", items=LORA_FIELDS, most=MAX_OBJECTS),
    RequestField("controlnets", FieldKind.OBJECTS, "ControlNets to apply", items=CONTROLNET_FIELDS, most=MAX_OBJECTS),
    RequestField(
        "image_prompts",
        FieldKind.OBJECTS,
        "images that are a part of the prompt",
        items=IMAGE_PROMPT_FIELDS,
        most=MAX_OBJECTS,
    ),
    RequestField("deadline_ms", FieldKind.INTEGER, "time limit in milliseconds"),
    RequestField("max_cost", FieldKind.NUMBER, "most width x height x steps that the image may cost"),
    RequestField(
        "cache",
        FieldKind.WORD,
        "use of the cache: `tenant` equals `read-write`; `shared` also looks into the shared pool",
        words=CACHE_WORDS,
    ),
    RequestField("provenance", FieldKind.BOOLEAN, "add the provenance of each image", default=False),
)
GENERATION_FIELDS = OPENAI_FIELDS + EXTENSION_FIELDS
EDIT_FIELDS = (
    *GENERATION_FIELDS,
    RequestField("strength", FieldKind.NUMBER, "share of the change: 0 keeps the image", least=0, most=1, default=0.8),
    RequestField("input_fidelity", FieldKind.WORD, "no effect: use `strength`", words=("high", "low")),
)

# Further fields of an edit as JSON.
JSON_EDIT_FIELDS = (
    *EDIT_FIELDS,
    RequestField("images", FieldKind.IMAGES, "the image to start from: PNG, JPEG or WebP", most=MAX_OBJECTS),
    RequestField("image", FieldKind.IMAGES, "as `images`", most=MAX_OBJECTS),
    RequestField("mask", FieldKind.IMAGE, "PNG of the image's size, white or transparent where the image may change"),
)


def by_field_name(fields: tuple[RequestField, ...]) -> dict[str, RequestField]:
    """Return the fields by name."""
    return {field.name: field for field in fields}
