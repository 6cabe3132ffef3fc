"""Values of requests are validated by the table of fields, from JSON and from forms."""

import base64
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pentimento.domain.errors import InvalidArgument
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


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_a_body_is_of_no_other_encoding_than_utf_8(encoding: str) -> None:
    text = '{"prompt": "a ring"}'

    assert read_json(text.encode("utf-8-sig")) == read_json(text.encode()) == {"prompt": "a ring"}
    with pytest.raises(InvalidArgument, match="body: must be a JSON object in UTF-8"):
        read_json(text.encode(encoding))


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (b'{"prompt": "a ring", "prompt": "a cross"}', "prompt"),
        (b'{"prompt": "a", "loras": [{"name": "a", "scale": 1, "scale": 2}]}', "scale"),
        (b'{"prompt": "a", "n": 1, "\\u006e": 2}', "n"),
    ],
)
def test_a_name_that_is_there_twice_is_refused(body: bytes, name: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^{name}: must occur once"):
        read_json(body)


def test_texts_of_a_form_are_what_json_says() -> None:
    texts = {"prompt": "123", "n": "1", "guidance_scale": "2.5", "stream": "true", "quality": "high", "size": "64x32"}

    values = validated(from_texts(texts, by_field_name(EDIT_FIELDS)), by_field_name(EDIT_FIELDS))

    assert values == {
        "prompt": "123",
        "n": 1,
        "guidance_scale": 2.5,
        "stream": True,
        "quality": 1.0,
        "size": (64, 32),
    }


@pytest.mark.parametrize(
    ("word", "asked"), [("auto", None), ("standard", None), ("low", 0.8), ("hd", 1.0), (0.25, 0.25)]
)
def test_quality_is_a_word_or_a_share(word: object, asked: float | None) -> None:
    assert image_call(validated({"prompt": "x", "quality": word}, FIELDS)).request.quality == asked


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        ({}, None),
        ({"output_compression": 100}, None),
        ({"output_format": "jpeg"}, 100),
        ({"output_format": "webp", "output_compression": 0}, 0),
        ({"output_format": "jpeg", "output_compression": 99}, 99),
    ],
)
def test_a_file_keeps_all_of_a_picture_unless_it_is_asked_for_less(values: dict[str, object], kept: int | None) -> None:
    assert image_call(validated({"prompt": "x", **values}, FIELDS)).request.encoding_quality == kept


def test_null_is_absent() -> None:
    request = image_call(validated({"prompt": "x", "n": None, "seed": None, "size": None}, FIELDS)).request

    assert (request.seed, request.width_px) == (None, None)


PIXELS = bytes(range(250, 256)) * 20
BASE64 = base64.b64encode(PIXELS).decode()
URL_SAFE = base64.urlsafe_b64encode(b"\xfb\xff").decode()
CONTROLNETS = by_field_name((RequestField("image", FieldKind.BYTES, "pixels"),))


@pytest.mark.parametrize(
    ("text", "data"),
    [
        (BASE64, PIXELS),
        (f"data:image/png;base64,{BASE64}", PIXELS),
        (base64.encodebytes(PIXELS).decode(), PIXELS),
        (BASE64.replace("+", "-").replace("/", "_"), PIXELS),
        (URL_SAFE, b"\xfb\xff"),
        (URL_SAFE.rstrip("="), b"\xfb\xff"),
        ("+/8=\r\n", b"\xfb\xff"),
        ("", b""),
    ],
    ids=["plain", "data URL", "in lines", "URL-safe", "padded", "unpadded", "with a last line", "empty"],
)
def test_base64_comes_in_any_of_its_forms(text: str, data: bytes) -> None:
    assert validated({"image": text}, CONTROLNETS) == {"image": data}


@pytest.mark.parametrize(
    "text", ["*", "a", "aaaaa", "aa===", "a=aa", "data:image/png,aaaa", "data:image/png;base64", "é"]
)
def test_what_is_no_base64_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"^image: must be "):
        validated({"image": text}, CONTROLNETS)


DATA_URL = f"data:image/png;base64,{BASE64}"


@pytest.mark.parametrize(
    "given",
    [
        {"images": [{"image_url": DATA_URL}]},
        {"images": [{"image_url": DATA_URL, "file_id": None}]},
        {"images": [DATA_URL]},
        {"image": DATA_URL},
        {"image": [BASE64]},
        {"image": {"image_url": DATA_URL}, "images": None},
    ],
)
def test_edit_of_json_has_one_image(given: dict[str, object]) -> None:
    edit = edit_of_json({"prompt": "x", **given, "mask": {"image_url": DATA_URL}}, JSON_EDITS)

    assert (edit.image, edit.mask, edit.values) == (PIXELS, PIXELS, {"prompt": "x"})


@pytest.mark.parametrize(
    ("given", "error"),
    [
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
    ],
)
def test_wrong_image_of_json_is_named(given: dict[str, object], error: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^{re.escape(error)}"):
        edit_of_json({"prompt": "x", **given}, JSON_EDITS)


def test_empty_texts_of_a_form_are_absent() -> None:
    fields = by_field_name(EDIT_FIELDS)
    texts = {"prompt": "x", "n": "", "size": "", "quality": "", "strength": "", "stream": "", "loras": "", "style": ""}

    assert validated(from_texts(texts, fields), fields) == {"prompt": "x"}


@pytest.mark.parametrize(("asked", "model"), [("gpt-image-1", "tiny"), ("dall-e-3", ""), ("other", "other")])
def test_alias_stands_for_its_model(asked: str, model: str) -> None:
    aliases = aliases_of(("gpt-image-1=tiny", "dall-e-3="))

    assert with_alias(image_call({"prompt": "x", "model": asked}), aliases).request.model == model


@pytest.mark.parametrize("given", [("tiny",), ("=tiny",), ("a=b", "a=c")])
def test_alias_without_a_name_is_refused(given: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="--model-aliases must be ALIAS=MODEL"):
        aliases_of(given)


def test_a_shown_name_has_no_control_characters() -> None:
    with pytest.raises(InvalidArgument) as refused:
        validated({"prompt": "x", "a\r\nb": 1}, FIELDS)

    assert refused.value.violations[0].field == "a??b"
