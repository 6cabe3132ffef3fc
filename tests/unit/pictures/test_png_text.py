"""Text inside PNG files: written without touching the picture, read back, never confused by what is no PNG."""

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from pentimento.pictures.png_text import flat_png, text_of, with_text

PNG = flat_png(8, 4, (10, 20, 30))
TEXTS = st.text(st.characters(min_codepoint=1, max_codepoint=255), max_size=300)


def test_a_flat_picture_is_one_that_others_read() -> None:
    with Image.open(io.BytesIO(PNG)) as picture:
        assert (picture.format, picture.size) == ("PNG", (8, 4))
        assert picture.convert("RGB").getpixel((7, 3)) == (10, 20, 30)


@settings(deadline=None)
@given(TEXTS)
def test_what_is_written_is_what_is_read(text: str) -> None:
    assert text_of(with_text(PNG, "label", text), "label") == text


def test_others_still_read_the_picture_and_its_text() -> None:
    with Image.open(io.BytesIO(with_text(PNG, "label", "0.5"))) as picture:
        picture.load()
        assert picture.convert("RGB").getpixel((0, 0)) == (10, 20, 30)
        assert picture.info["label"] == "0.5"


def test_a_text_under_another_keyword_is_not_it() -> None:
    assert text_of(with_text(PNG, "label2", "x"), "label") is None
    assert text_of(PNG, "label") is None


@pytest.mark.parametrize("content", [b"", b"GIF89a", PNG[:20], b"\x89PNG\r\n\x1a\n" + bytes(40)])
def test_what_is_no_png_takes_no_text(content: bytes) -> None:
    with pytest.raises(ValueError, match="not a PNG"):
        with_text(content, "label", "x")


@pytest.mark.parametrize(("keyword", "text"), [("", "x"), ("k" * 80, "x"), ("k\0", "x"), ("k", "\0")])
def test_a_keyword_or_text_that_a_png_does_not_take_is_refused(keyword: str, text: str) -> None:
    with pytest.raises(ValueError, match="keywords"):
        with_text(PNG, keyword, text)


@settings(deadline=None)
@given(st.binary(max_size=200), st.integers(0, 100))
def test_broken_bytes_hold_no_text(garbage: bytes, cut: int) -> None:
    labelled = with_text(PNG, "label", "x" * 50)

    assert text_of(garbage, "label") is None
    assert text_of(labelled[:cut], "label") in (None, "x" * 50)
