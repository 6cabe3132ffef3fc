"""Bodies of requests: they are validated by these models, and the API document is generated from them.

They have the limits that hold for every model; the frontdoor validates sizes, steps and costs."""

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic.json_schema import SkipJsonSchema

from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import ControlKind, InitImage, Preprocessor
from pentimento.domain.image_request import (
    AskedControlNet,
    AskedImagePrompt,
    AskedLora,
    CacheMode,
    ImageFormat,
    ImageRequest,
)
from pentimento.domain.prompt_syntax import PromptSyntax
from services.edge.api.fields import (
    MAX_OBJECTS,
    UINT64,
    Body,
    Data,
    FormFile,
    Int64,
    JsonImage,
    JsonImages,
    Name,
    Number,
    RequiredName,
    Schema,
    Share,
    Whole,
    Word,
    json_value,
    optional_may_be_null,
)
from services.edge.http.bodies import FormPart, shown, text_of

SIZE_PATTERN = r"^(auto|[1-9][0-9]{0,4}x[1-9][0-9]{0,4})?$"
MAX_PROMPT_CHARS = 32_000
# One file, or a list of one in the notation of OpenAI's clients.
IMAGE_NAMES = ("image", "image[]")
DEFAULT_STRENGTH = 0.8
QUALITY_WORDS = {
    "auto": None,
    "standard": None,
    "low": 0.8,
    "medium": 0.9,
    **dict.fromkeys(("high", "hd", "xhigh", "max"), 1.0),
    "": None,
}
CACHE_MODES = {
    "off": CacheMode.OFF,
    "read": CacheMode.READ,
    "read-write": CacheMode.READ_WRITE,
    "tenant": CacheMode.READ_WRITE,
    "shared": CacheMode.SHARED,
}
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


def quality_of(value: Any) -> Any:
    """Return the share of a word, None for the deployment's default; a number stays one."""
    if not isinstance(value, str):
        return value
    if value not in QUALITY_WORDS:
        raise ValueError(f"must be one of {', '.join(filter(None, QUALITY_WORDS))} or a number, got {shown(value)!r}")
    return QUALITY_WORDS[value]


QUALITY: Schema = {
    "anyOf": [{"type": "string", "enum": list(QUALITY_WORDS)}, {"type": "number", "minimum": 0, "maximum": 1}]
}
AUTO: Any = Field(None, json_schema_extra={"default": "auto"})


class LoraBody(Body):
    name: RequiredName
    """a LoRA of the deployment"""
    scale: Number = 1.0
    """weight, other than 0"""


class ControlNetBody(Body):
    name: RequiredName
    """a ControlNet of the deployment"""
    conditioning_image: Data
    """PNG, JPEG or WebP of the image's size, in base64"""
    conditioning_scale: Number = 1.0
    """weight, 0 to 10; 0 has no effect"""
    start_fraction: Share | None = None
    """share of the steps after which it starts"""
    end_fraction: Share | None = None
    """share of the steps after which it ends"""
    preprocessor: Annotated[str, Word(tuple(one.value for one in Preprocessor))] = ""
    """how the condition is computed from the image; absent: the image is the condition"""
    kind: Annotated[str, Word(tuple(one.value for one in ControlKind))] = ""
    """what a ControlNet-Union takes the condition for; absent for other ControlNets"""


class ImagePromptBody(Body):
    name: RequiredName
    """an IP-Adapter of the deployment"""
    image: Data
    """PNG, JPEG or WebP of any size, in base64"""
    scale: Number = 1.0
    """weight of the image, -10 to 10; 0 has no effect"""


class ImageBody(Body):
    """The description of an image, of OpenAI's clients first, then of other APIs and of this suite."""

    prompt: Annotated[str, Field(min_length=1, max_length=MAX_PROMPT_CHARS)]
    """description of the image"""
    model: Name = ""
    """a model of /v1/models; absent: the deployment's default"""
    n: Annotated[int, Field(ge=1, le=10), Whole] = 1
    """number of images, all or none"""
    size: Annotated[str, Field(pattern=SIZE_PATTERN)] = "auto"
    """WIDTHxHEIGHT in pixels; `auto`: the model's default, or the edited image's size"""
    quality: Annotated[Share | None, BeforeValidator(quality_of), WithJsonSchema(QUALITY)] = AUTO
    """share of the quality from scratch to keep, 0 to 1, or a word; from `high` on nothing is reused"""
    output_format: Annotated[str, Word(("png", "jpeg", "webp"))] = "png"
    """file format of the image"""
    output_compression: Annotated[int, Field(ge=0, le=100), Whole] = 100
    """quality of a JPEG or WebP file in percent; 100 for PNG, which is lossless"""
    background: Annotated[str, Word(("auto", "opaque", "transparent"))] = "auto"
    """no model generates transparent images"""
    style: Annotated[str, Word(("vivid", "natural"))] = ""
    """no effect: describe the style in the prompt"""
    moderation: Annotated[str, Word(("auto", "low"))] = ""
    """no effect: the classifiers of the deployment decide, if it has any"""
    user: Name = ""
    """no effect: neither stored nor logged"""
    safety_identifier: Name = ""
    """as `user`"""
    negative_prompt: Annotated[str, Field(max_length=MAX_PROMPT_CHARS)] = ""
    """description of what the image must not show"""
    num_inference_steps: Int64 | None = None
    """denoising steps; absent: the model's default"""
    guidance_scale: Number | None = None
    """weight of the prompt; absent: the model's default"""
    scheduler: Name = ""
    """a scheduler of the model; absent: its default"""
    feature_reuse: bool | None = None
    """whether steps may reuse deep features where the model's profile allows it; absent: the deployment's mode"""
    clip_skip: Int64 | None = None
    """last layers of the CLIP text encoders to leave out; absent: none"""
    prompt_syntax: Annotated[str, Word(tuple(one.value for one in PromptSyntax))] = ""
    """how both prompts state weights of words; absent: plain text"""
    seed: Annotated[int, Field(ge=0, le=UINT64), Whole] | None = None
    """seed of the noise; absent: random"""
    loras: list[LoraBody] = Field([], max_length=MAX_OBJECTS)
    """LoRAs to apply"""
    controlnets: list[ControlNetBody] = Field([], max_length=MAX_OBJECTS)
    """ControlNets to apply"""
    image_prompts: list[ImagePromptBody] = Field([], max_length=MAX_OBJECTS)
    """images that are a part of the prompt"""
    deadline_ms: Int64 | None = None
    """time limit in milliseconds"""
    max_cost: Number | None = None
    """most width x height x steps that the image may cost"""
    cache: Annotated[str, Word(tuple(CACHE_MODES))] = ""
    """use of the cache: `tenant` equals `read-write`; `shared` also looks into the shared pool"""

    def init_image(self) -> InitImage | None:
        """Return the image to start from; None for a generation."""
        return None

    def to_request(self, aliases: Mapping[str, str] | None = None) -> ImageRequest:
        """Return the request for the frontdoor, with a model in place of its alias. InvalidArgument for what no model
        here supports."""
        if self.background == "transparent":
            raise InvalidArgument.of("background", "must be auto or opaque: no model here generates transparent images")
        width, _, height = self.size.partition("x") if "x" in self.size else ("", "", "")
        image_format = ImageFormat(self.output_format or "png")
        if image_format is ImageFormat.PNG and self.output_compression != 100:
            message = f"must be 100 if output_format is png, got {self.output_compression}"
            raise InvalidArgument.of("output_compression", message)
        return ImageRequest(
            prompt=self.prompt,
            negative_prompt=self.negative_prompt,
            model=(aliases or {}).get(self.model, self.model),
            width_px=int(width) if width else None,
            height_px=int(height) if height else None,
            num_inference_steps=self.num_inference_steps,
            guidance_scale=self.guidance_scale,
            scheduler=self.scheduler,
            clip_skip=self.clip_skip,
            prompt_syntax=self.prompt_syntax,
            feature_reuse=self.feature_reuse,
            seed=self.seed,
            loras=tuple(AskedLora(**dict(one)) for one in self.loras),
            controlnets=tuple(AskedControlNet(**dict(one)) for one in self.controlnets),
            image_prompts=tuple(AskedImagePrompt(**dict(one)) for one in self.image_prompts),
            init_image=self.init_image(),
            cache=CACHE_MODES.get(self.cache),
            format=image_format,
            quality=self.quality,
            deadline_ms=self.deadline_ms,
            max_cost=self.max_cost,
            # One image is the default: requests with and without `n` have the same digest under a key.
            image_count=self.n if self.n != 1 else None,
            encoding_quality=None if image_format is ImageFormat.PNG else self.output_compression,
        )


class GenerationRequest(ImageBody):
    """A call for images: the image, and the form of the answer."""

    response_format: Annotated[str, Word(("b64_json", "url"))] = "b64_json"
    """encoding of the image in the answer"""
    stream: bool = False
    """answer with events during the generation"""
    partial_images: Annotated[int, Field(ge=0, le=3), Whole] = 0
    """most previews of a streamed image"""
    provenance: bool = False
    """add the provenance of each image"""

    @property
    def as_urls(self) -> bool:
        return self.response_format == "url"

    def to_request(self, aliases: Mapping[str, str] | None = None) -> ImageRequest:
        """Return the request for the frontdoor. InvalidArgument for options that exclude each other."""
        if self.as_urls and self.stream:
            raise InvalidArgument.of("response_format", "must be b64_json if stream is true")
        if self.partial_images and not self.stream:
            raise InvalidArgument.of("partial_images", "must be 0 if stream is false")
        return super().to_request(aliases)


class EditBody(ImageBody):
    """Fields of every edit."""

    strength: Share = DEFAULT_STRENGTH
    """share of the change: 0 keeps the image"""
    input_fidelity: Annotated[str, Word(("high", "low"))] = ""
    """no effect: use `strength`"""


def needs_an_image(schema: Schema) -> None:
    """Require `images` or `image` in an edit's schema."""
    optional_may_be_null(schema)
    schema["anyOf"] = [{"required": ["images"]}, {"required": ["image"]}]


def one_image(images: list[bytes]) -> bytes:
    """Return the image that an edit starts from. InvalidArgument for none or several."""
    if not images:
        raise InvalidArgument.of("image", "must be one image to start from, got none")
    if len(images) > 1:
        raise InvalidArgument.of("image", f"must be one image: no model here accepts several, got {len(images)}")
    return images[0]


class JsonEditRequest(EditBody, GenerationRequest):
    """An edit as JSON. Its image is `images` or `image`."""

    model_config = ConfigDict(json_schema_extra=needs_an_image)

    images: JsonImages = Field([])
    """the image to start from: PNG, JPEG or WebP"""
    image: JsonImages = Field([])
    """as `images`"""
    mask: JsonImage = b""
    """PNG of the image's size, white or transparent where the image may change"""

    def init_image(self) -> InitImage | None:
        """Return the image to start from. InvalidArgument for none or several."""
        return InitImage(one_image([*self.images, *self.image]), self.strength, self.mask)


class EditRequest(EditBody, GenerationRequest):
    """An edit as a form. Its files are the image and the mask."""

    image: FormFile
    """PNG, JPEG or WebP; `image[]` is the same"""
    mask: FormFile = b""
    """PNG of the image's size, white or transparent where the image may change"""

    @classmethod
    def read_form(cls, parts: list[FormPart]) -> Self:
        """Validate a form; empty texts count as absent. InvalidArgument for a repeated field, a file in place of text,
        and unless there is one image."""
        values: dict[str, Any] = {"image": one_image([part.data for part in parts if part.name in IMAGE_NAMES])}
        for part in parts:
            if part.name in IMAGE_NAMES:
                continue
            if part.name in values:
                raise InvalidArgument.of(shown(part.name), "must occur once")
            field = cls.model_fields.get(part.name)
            is_text = field is None or field.annotation is str
            if part.name == "mask":
                values[part.name] = part.data
            elif text := text_of(part):
                values[part.name] = text if is_text else json_value(text)
        return cls.read(values)

    def init_image(self) -> InitImage | None:
        return InitImage(self.image, self.strength, self.mask)


def unstreamed(value: bool) -> bool:
    """Return False. ValueError for a stream."""
    if value:
        raise ValueError("must be false: use /v1/jobs/{id}/events")
    return value


class WebhookBody(Body):
    url: Annotated[str, Field(min_length=1)]
    """URL of a host that the deployment allows"""


class JobBody(GenerationRequest):
    """Fields of every job."""

    stream: Annotated[bool, AfterValidator(unstreamed), WithJsonSchema({"const": False})] = False
    """use /v1/jobs/{id}/events"""
    partial_images: SkipJsonSchema[int] = 0
    webhook: WebhookBody | None = None
    """called once the job has ended"""


class JobRequest(JobBody, JsonEditRequest):
    """A job as JSON: an edit if it has an image, else a generation."""

    model_config = ConfigDict(json_schema_extra=optional_may_be_null)

    def init_image(self) -> InitImage | None:
        """Return the image to start from, if there is one. InvalidArgument for several, and for fields of an edit
        without an image."""
        if self.images or self.image:
            return super().init_image()
        for name in ("strength", "input_fidelity", "mask"):
            if name in self.model_fields_set:
                raise InvalidArgument.of(name, "must come with an image")
        return None


class EditJobRequest(JobBody, EditRequest):
    """A job as a form: an edit."""
