"""Values of requests are validated by the table of fields, from JSON and from forms."""

import base64
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pentimento.domain.errors import InvalidArgument
from pentimento.domain.image_request import ImageRequest
from services.edge.images.fields import (
    EDIT_FIELDS,
    GENERATION_FIELDS,
    JSON_EDIT_FIELDS,
    FieldKind,
    RequestField,
    by_field_name,
)
from services.edge.images.form_values import edit_of_json
from services.edge.images.image_call import image_call, with_alias
from services.edge.images.values import from_texts, read_json, validated
from services.edge.settings import aliases_of

FIELDS = by_field_name(GENERATION_FIELDS)
JSON_EDITS = by_field_name(JSON_EDIT_FIELDS)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(sorted(FIELDS)) | st.text(max_size=8), JSON, max_size=6))
def test_any_object_is_taken_or_refused_by_name(document: dict[str, object]) -> None:
    try:
        request = image_call(validated({"prompt": "x", **document}, FIELDS)).request
    except InvalidArgument as error:
        assert error.violations[0].field
    else:
        assert request.prompt


@given(st.dictionaries(st.sampled_from(sorted(FIELDS)), st.text(), max_size=6))
def test_any_text_of_a_form_is_taken_or_refused_by_name(texts: dict[str, str]) -> None:
    try:
        validated(from_texts({"prompt": "x", **texts}, FIELDS), FIELDS)
    except InvalidArgument as error:
        assert error.violations[0].field


@given(st.binary())
def test_any_body_is_an_object_or_refused(body: bytes) -> None:
    try:
        assert isinstance(read_json(body), dict)
    except InvalidArgument as error:
        assert error.violations[0].field == "body"


def test_a_body_of_more_values_than_any_request_has_is_refused_before_they_are_made() -> None:
    many = b'{"loras": [' + b"[]," * 100_001 + b"[]]}"

    with pytest.raises(InvalidArgument, match="body: must have at most 100000 values"):
        read_json(many)
    assert from_texts({"loras": many.decode()}, FIELDS) == {"loras": many.decode()}
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
    fields = by_field_name(EDIT_FIELDS)
    texts = {"prompt": "123", "n": "1", "guidance_scale": "2.5", "stream": "true", "quality": "high", "size": "64x32"}
    values = {"prompt": "123", "n": 1, "guidance_scale": 2.5, "stream": True, "quality": 1.0, "size": (64, 32)}
    empty = {"prompt": "x", **dict.fromkeys(("n", "size", "quality", "strength", "stream", "loras", "style"), "")}

    assert validated(from_texts(texts, fields), fields) == values
    assert validated(from_texts(empty, fields), fields) == {"prompt": "x"}


def test_image_call_quality_compression_and_null() -> None:
    def asked(**values: object) -> ImageRequest:
        return image_call(validated({"prompt": "x", **values}, FIELDS)).request

    for word, quality in (("auto", None), ("standard", None), ("low", 0.8), ("hd", 1.0), (0.25, 0.25)):
        assert asked(quality=word).quality == quality
    assert asked(output_compression=100).encoding_quality is None
    for kind, compression, kept in (("jpeg", None, 100), ("webp", 0, 0), ("jpeg", 99, 99)):
        assert asked(output_format=kind, output_compression=compression).encoding_quality == kept
    absent = asked(n=None, seed=None, size=None)
    assert (absent.seed, absent.width_px, absent.encoding_quality) == (None, None, None)


def test_alias_stands_for_its_model_and_needs_a_name() -> None:
    aliases = aliases_of(("gpt-image-1=tiny", "dall-e-3="))

    for asked, model in (("gpt-image-1", "tiny"), ("dall-e-3", ""), ("other", "other")):
        assert with_alias(image_call({"prompt": "x", "model": asked}), aliases).request.model == model
    for wrong in (("tiny",), ("=tiny",), ("a=b", "a=c")):
        with pytest.raises(ValueError, match="--model-aliases must be ALIAS=MODEL"):
            aliases_of(wrong)


PIXELS = bytes(range(250, 256)) * 20
BASE64 = base64.b64encode(PIXELS).decode()
URL_SAFE = base64.urlsafe_b64encode(b"\xfb\xff").decode()
CONTROLNETS = by_field_name((RequestField("image", FieldKind.BYTES, "pixels"),))


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
        assert validated({"image": text}, CONTROLNETS) == {"image": data}, text
    for text in ("*", "a", "aaaaa", "aa===", "a=aa", "data:image/png,aaaa", "data:image/png;base64", "é"):
        with pytest.raises(InvalidArgument, match=r"^image: must be "):
            validated({"image": text}, CONTROLNETS)


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
    ({"images": [DATA_URL] * 17}, "images: must be a list of at most 16 images"),
    ({"images": [{"image_url": "https://a.example/b.png"}]}, "images[0].image_url: must be a data URL"),
    ({"images": [{"image_url": "file:///etc/passwd"}]}, "images[0].image_url: must be a data URL"),
    ({"images": ["//a.example/b"]}, "images[0]: must be base64, or a data URL"),
    ({"images": [{"file_id": "file-1"}]}, "images[0].file_id: must be absent: no files are stored here"),
    ({"images": [{"url": DATA_URL}]}, "images[0].url: is not a parameter"),
    ({"images": [{}]}, "images[0].image_url: must be a data URL"),
    ({"images": [7]}, "images[0]: must be a data URL"),
    ({"images": [""]}, "images[0]: must be a PNG, JPEG or WebP file, got none"),
    ({"images": [DATA_URL], "mask": {"image_url": "http://a"}}, "mask.image_url: must be a data URL"),
)


def test_edit_of_json_has_one_image_or_names_the_fault() -> None:
    for document in IMAGES:
        edit = edit_of_json({"prompt": "x", **document, "mask": {"image_url": DATA_URL}}, JSON_EDITS)
        assert (edit.image, edit.mask, edit.values) == (PIXELS, PIXELS, {"prompt": "x"})
    for document, error in WRONG_IMAGES:
        with pytest.raises(InvalidArgument, match=f"^{re.escape(error)}"):
            edit_of_json({"prompt": "x", **document}, JSON_EDITS)


def test_a_shown_name_has_no_control_characters() -> None:
    with pytest.raises(InvalidArgument) as refused:
        validated({"prompt": "x", "a\r\nb": 1}, FIELDS)

    assert refused.value.violations[0].field == "a??b"
