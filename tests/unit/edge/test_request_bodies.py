"""Bodies of requests are validated by their models, from JSON and from forms."""

import base64
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import InitImage
from pentimento.domain.image_request import AskedControlNet, AskedLora, ImageRequest
from services.edge.api.bodies import (
    EditJobRequest,
    EditRequest,
    GenerationRequest,
    JobRequest,
    JsonEditRequest,
)
from services.edge.http.bodies import FormPart, read_json
from services.edge.settings import aliases_of

FIELDS = sorted(GenerationRequest.model_fields)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def generation(**values: Any) -> ImageRequest:
    return GenerationRequest.read({"prompt": "x", **values}).to_request()


def edit_of_form(**texts: str) -> EditRequest:
    parts = [FormPart("image", PIXELS, True), *(FormPart(name, text.encode(), False) for name, text in texts.items())]
    return EditRequest.read_form(parts)


@given(st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=8), JSON, max_size=6))
def test_any_object_is_taken_or_refused_by_name(document: dict[str, object]) -> None:
    try:
        request = generation(**{"prompt": "x", **document})
    except InvalidArgument as error:
        assert error.violations[0].field
    else:
        assert request.prompt


@given(st.dictionaries(st.sampled_from(FIELDS), st.text(st.characters(codec="utf-8")), max_size=6))
def test_any_text_of_a_form_is_taken_or_refused_by_name(texts: dict[str, str]) -> None:
    try:
        edit_of_form(**{"prompt": "x", **texts})
    except InvalidArgument as error:
        assert error.violations[0].field


@given(st.binary())
def test_any_body_is_an_object_or_refused(body: bytes) -> None:
    try:
        assert isinstance(read_json(body), dict)
    except InvalidArgument as error:
        assert error.violations[0].field == "body"


def test_body_with_too_many_values_is_rejected_before_parsing() -> None:
    many = b'{"loras": [' + b"[]," * 100_001 + b"[]]}"

    with pytest.raises(InvalidArgument, match="body: must have at most 100000 values"):
        read_json(many)
    with pytest.raises(InvalidArgument, match="loras: must be a list"):
        edit_of_form(prompt="x", loras=many.decode())
    assert len(read_json(b'{"prompt": "%s"}' % (b"," * 32_000))["prompt"]) == 32_000


def test_json_in_other_encoding_or_with_repeated_name_is_refused() -> None:
    text = '{"prompt": "a ring"}'
    assert read_json(text.encode("utf-8-sig")) == read_json(text.encode()) == {"prompt": "a ring"}
    for encoding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32"):
        with pytest.raises(InvalidArgument, match="body: must be a JSON object in UTF-8"):
            read_json(text.encode(encoding))
    for body, name in (
        (b'{"prompt": "a ring", "prompt": "a cross"}', "prompt"),
        (b'{"prompt": "a", "loras": [{"name": "a", "scale": 1, "scale": 2}]}', "scale"),
        (b'{"prompt": "a", "n": 1, "\\u006e": 2}', "n"),
    ):
        with pytest.raises(InvalidArgument, match=f"^{name}: must occur once"):
            read_json(body)


def test_form_texts_are_values_and_empty_ones_absent() -> None:
    texts = {"prompt": "123", "n": "1", "guidance_scale": "2.5", "stream": "true", "quality": "high", "size": "64x32"}
    objects = {"loras": '[{"name": "a", "scale": 2}]', "quality": "0.25", "seed": str(2**64 - 1)}
    empty = dict.fromkeys(("n", "size", "quality", "strength", "stream", "loras", "style"), "")

    given = edit_of_form(**texts)
    request = given.to_request()
    assert (request.prompt, request.image_count, request.guidance_scale, given.stream) == ("123", None, 2.5, True)
    assert (request.quality, request.width_px, request.height_px) == (1.0, 64, 32)
    listed = edit_of_form(prompt="x", **objects).to_request()
    assert (listed.loras, listed.quality, listed.seed) == ((AskedLora("a", 2.0),), 0.25, 2**64 - 1)
    assert edit_of_form(prompt="x", **empty) == edit_of_form(prompt="x")


def test_form_names_repeated_field_and_file_in_place_of_text() -> None:
    image, prompt = FormPart("image", PIXELS, True), FormPart("prompt", b"x", False)
    for parts, error in (
        ([image, prompt, prompt], "prompt: must occur once"),
        ([image, image, prompt], "image: must be one image: no model here accepts several, got 2"),
        ([image, FormPart("mask", b"a", True), FormPart("mask", b"b", True)], "mask: must occur once"),
        ([image, FormPart("prompt", b"x", True)], "prompt: must be a text, not a file"),
        ([image, FormPart("prompt", b"\xff", False)], "prompt: must be text in UTF-8"),
        ([prompt], "image: must be one image to start from, got none"),
        ([prompt, FormPart("image", b"", True)], "image: must be a PNG, JPEG or WebP file, got none"),
        ([image, prompt, FormPart("mask", b"", True)], "mask: must be a PNG, JPEG or WebP file, got none"),
    ):
        with pytest.raises(InvalidArgument, match=f"^{re.escape(error)}"):
            EditRequest.read_form(parts)


def test_image_call_quality_compression_and_null() -> None:
    for word, quality in (("auto", None), ("standard", None), ("low", 0.8), ("hd", 1.0), (0.25, 0.25), ("", None)):
        assert generation(quality=word).quality == quality
    assert generation(output_compression=100).encoding_quality is None
    for kind, compression, kept in (("jpeg", None, 100), ("webp", 0, 0), ("jpeg", 99, 99)):
        assert generation(output_format=kind, output_compression=compression).encoding_quality == kept
    assert generation(**dict.fromkeys(FIELDS, None) | {"prompt": "x"}) == generation()
    assert generation(n=2.0).image_count == 2


def test_wrong_value_is_named_with_its_limit() -> None:
    condition = {"name": "c", "conditioning_image": BASE64}
    for name, value, says in (
        ("n", 11, "must be at most 10, got 11"),
        ("n", 1.5, "must be an integer"),
        ("quality", 1.5, "must be at most 1, got 1.5"),
        ("quality", "0.5", "must be one of auto, standard, low, medium, high, hd, xhigh, max or a number, got '0.5'"),
        ("guidance_scale", 10**400, "must be a number"),
        ("guidance_scale", True, "must be a number"),
        ("stream", 1, "must be true or false"),
        ("style", "loud", "must be one of vivid, natural, got 'loud'"),
        ("prompt", "x" * 32_001, "must have at most 32000 characters, got 32001"),
        ("loras", "[]", "must be a list"),
        ("loras", [{"name": "a"}] * 17, "must be a list of at most 16"),
        ("size", "64", "must be `auto` or WIDTHxHEIGHT in pixels, such as 512x512"),
        ("partial_images", 1, "must be 0 if stream is false"),
        ("none", None, "is not a parameter of this call"),
    ):
        with pytest.raises(InvalidArgument, match=f"^{name}: {re.escape(says)}$"):
            generation(**{name: value})
    for place, values, says in (
        ("loras[0]", {"loras": [7]}, "must be an object"),
        ("loras[1].scale", {"loras": [{"name": "a"}, {"name": "b", "scale": "1"}]}, "must be a number"),
        ("controlnets[0].end_fraction", {"controlnets": [{**condition, "end_fraction": 2}]}, "must be at most 1"),
        ("controlnets[0].kind", {"controlnets": [{**condition, "kind": "x"}]}, "must be one of pose, depth"),
    ):
        with pytest.raises(InvalidArgument, match=f"^{re.escape(place)}: {re.escape(says)}"):
            generation(**values)
    controlnet = AskedControlNet("c", PIXELS, 1.0, end_fraction=0.5, kind="pose")
    assert generation(controlnets=[{**condition, "end_fraction": 0.5, "kind": "pose"}]).controlnets == (controlnet,)


def test_unknown_field_is_named_before_missing_one() -> None:
    with pytest.raises(InvalidArgument, match=r"^promt: is not a parameter of this call$"):
        GenerationRequest.read({"promt": "a ring"})


@pytest.mark.parametrize("within", [False, True], ids=["body", "list"])
def test_body_of_unknown_names_has_one_error(within: bool) -> None:
    unknown = {f"name {number}": number for number in range(1000)}
    values = {"loras": [{"name": "a", **unknown}]} if within else unknown

    with pytest.raises(ValidationError) as refused:
        GenerationRequest.model_validate({"prompt": "x", **values})

    assert refused.value.error_count() == 1


def test_alias_stands_for_its_model_and_needs_a_name() -> None:
    aliases = aliases_of(("gpt-image-1=tiny", "dall-e-3="))

    for asked, model in (("gpt-image-1", "tiny"), ("dall-e-3", ""), ("other", "other")):
        assert GenerationRequest(prompt="x", model=asked).to_request(aliases).model == model
    for wrong in (("tiny",), ("=tiny",), ("a=b", "a=c")):
        with pytest.raises(ValueError, match="--model-aliases must be ALIAS=MODEL"):
            aliases_of(wrong)


PIXELS = bytes(range(250, 256)) * 20
BASE64 = base64.b64encode(PIXELS).decode()
URL_SAFE = base64.urlsafe_b64encode(b"\xfb\xff").decode()
DATA_URL = f"data:image/png;base64,{BASE64}"


def test_base64_is_read_in_any_of_its_forms() -> None:
    for text, data in (
        (BASE64, PIXELS),
        (f"data:image/png;base64,{BASE64}", PIXELS),
        (base64.encodebytes(PIXELS).decode(), PIXELS),
        (BASE64.replace("+", "-").replace("/", "_"), PIXELS),
        (URL_SAFE, b"\xfb\xff"),
        (URL_SAFE.rstrip("="), b"\xfb\xff"),
        ("+/8=\r\n", b"\xfb\xff"),
        ("", b""),
    ):
        assert generation(image_prompts=[{"name": "a", "image": text}]).image_prompts[0].image == data, text
    for text in ("*", "a", "aaaaa", "aa===", "a=aa", "data:image/png,aaaa", "data:image/png;base64", "é"):
        with pytest.raises(InvalidArgument, match=r"^image_prompts\[0\].image: must be "):
            generation(image_prompts=[{"name": "a", "image": text}])


IMAGES: tuple[dict[str, object], ...] = (
    {"images": [{"image_url": DATA_URL}]},
    {"images": [{"image_url": DATA_URL, "file_id": None}]},
    {"images": [DATA_URL]},
    {"image": DATA_URL},
    {"image": [BASE64]},
    {"image": {"image_url": DATA_URL}, "images": None},
)
WRONG_IMAGES: tuple[tuple[dict[str, object], str], ...] = (
    ({}, "image: must be one image to start from, got none"),
    ({"images": []}, "image: must be one image to start from, got none"),
    ({"images": [DATA_URL] * 2}, "image: must be one image: no model here accepts several, got 2"),
    ({"images": [DATA_URL] * 17}, "images: must be a list of at most 16"),
    ({"images": [{"image_url": "https://a.example/b.png"}]}, "images[0].image_url: must be a data URL"),
    ({"images": [{"image_url": "file:///etc/passwd"}]}, "images[0].image_url: must be a data URL"),
    ({"images": ["//a.example/b"]}, "images[0]: must be base64, or a data URL"),
    ({"images": [{"file_id": "file-1"}]}, "images[0].file_id: must be absent: no files are stored here"),
    ({"images": [{"url": DATA_URL}]}, "images[0].url: is not a parameter"),
    ({"images": [{}]}, "images[0].image_url: is required"),
    ({"images": [7]}, "images[0]: must be a data URL"),
    ({"images": [""]}, "images[0]: must be a PNG, JPEG or WebP file, got none"),
    ({"images": [DATA_URL], "mask": {"image_url": "http://a"}}, "mask.image_url: must be a data URL"),
)


def test_edit_of_json_has_one_image_or_names_the_fault() -> None:
    for document in IMAGES:
        edit = JsonEditRequest.read({"prompt": "x", **document, "mask": {"image_url": DATA_URL}})
        assert edit.to_request().init_image == InitImage(PIXELS, 0.8, PIXELS)
    for document, error in WRONG_IMAGES:
        with pytest.raises(InvalidArgument, match=f"^{re.escape(error)}"):
            JsonEditRequest.read({"prompt": "x", **document}).to_request()


def test_job_is_generation_without_image_and_streams_nothing() -> None:
    webhook = {"url": "https://a.example"}
    job = JobRequest.read({"prompt": "x", "webhook": webhook, "stream": False, "partial_images": 0})
    texts = {"prompt": b"x", "stream": b"false", "webhook": b'{"url": "https://a.example"}'}
    form = [FormPart("image[]", PIXELS, True), *(FormPart(name, text, False) for name, text in texts.items())]

    assert (job.to_request().init_image, job.webhook and job.webhook.url) == (None, "https://a.example")
    assert JobRequest.read({"prompt": "x", "image": DATA_URL}).to_request().init_image == InitImage(PIXELS, 0.8)
    assert EditJobRequest.read_form(form).to_request().init_image == InitImage(PIXELS, 0.8)
    for values, error in (
        ({"stream": True}, "stream: must be false: use /v1/jobs/{id}/events"),
        ({"partial_images": 1}, "partial_images: must be 0 if stream is false"),
        ({"strength": 0.5}, "strength: must come with an image"),
        ({"mask": DATA_URL}, "mask: must come with an image"),
        ({"webhook": {"url": ""}}, "webhook.url: must have at least 1 characters, got 0"),
        ({"webhook": {}}, "webhook.url: is required"),
    ):
        with pytest.raises(InvalidArgument, match=f"^{re.escape(error)}"):
            JobRequest.read({"prompt": "x", **values}).to_request()


def test_a_shown_name_has_no_control_characters() -> None:
    with pytest.raises(InvalidArgument) as refused:
        generation(**{"a\r\nb": 1})

    assert refused.value.violations[0].field == "a??b"
