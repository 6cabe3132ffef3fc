"""Chunks of PNG files and the text in them."""

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from lab.emulation.png_text import flat_png, text_of, with_text
from pentimento.images.png import SIGNATURE, leading_chunks, png_chunk, png_file
from tests.support.refusals import wrong_refusals


def test_a_chunk_is_its_length_kind_content_and_checksum() -> None:
    # As every PNG file ends.
    assert png_chunk(b"IEND") == b"\0\0\0\0IEND\xae\x42\x60\x82"


IHDR, TEXT = png_chunk(b"IHDR", b"12"), png_chunk(b"tEXt", b"abc")


@pytest.mark.parametrize(
    ("data", "chunks"),
    [
        (png_file(IHDR, TEXT, png_chunk(b"IDAT", b"b"), png_chunk(b"tEXt")), [(b"IHDR", b"12"), (b"tEXt", b"abc")]),
        (SIGNATURE + IHDR + TEXT[:-1], [(b"IHDR", b"12")]),
        (b"", []),
        (b"GIF89a", []),
        (SIGNATURE[1:] + TEXT, []),
    ],
    ids=["before the pixels", "cut off", "nothing", "GIF", "no signature"],
)
def test_leading_chunks_end_before_pixels(data: bytes, chunks: list[tuple[bytes, bytes]]) -> None:
    assert list(leading_chunks(data)) == chunks


@given(st.binary(max_size=100))
def test_any_bytes_after_a_signature_are_read_to_some_end(data: bytes) -> None:
    assert sum(12 + len(content) for _, content in leading_chunks(SIGNATURE + data)) <= len(data)


PNG = flat_png(8, 4, (10, 20, 30))
TEXTS = st.text(st.characters(min_codepoint=1, max_codepoint=255), max_size=300)


def test_text_is_read_by_its_keyword_and_by_pillow() -> None:
    with Image.open(io.BytesIO(PNG)) as picture:
        assert (picture.format, picture.size) == ("PNG", (8, 4))
        assert picture.convert("RGB").getpixel((7, 3)) == (10, 20, 30)
    with Image.open(io.BytesIO(with_text(PNG, "label", "0.5"))) as picture:
        picture.load()
        assert picture.convert("RGB").getpixel((0, 0)) == (10, 20, 30)
        assert picture.info["label"] == "0.5"
    assert text_of(with_text(PNG, "label2", "x"), "label") is None
    assert text_of(PNG, "label") is None


@settings(deadline=None)
@given(TEXTS)
def test_written_text_is_read(text: str) -> None:
    assert text_of(with_text(PNG, "label", text), "label") == text


def test_with_text_refuses_other_files_keywords_and_texts() -> None:
    files = (b"", b"GIF89a", PNG[:20], b"\x89PNG\r\n\x1a\n" + bytes(40))
    wrong = (("", "x"), ("k" * 80, "x"), ("k\0", "x"), ("k", "\0"))
    rows = [
        *((file, "label", "x", "not a PNG") for file in files),
        *((PNG, keyword, text, "keywords") for keyword, text in wrong),
    ]

    assert wrong_refusals(ValueError, with_text, rows) == []


@settings(deadline=None)
@given(st.binary(max_size=200), st.integers(0, 100))
def test_broken_bytes_hold_no_text(garbage: bytes, cut: int) -> None:
    labelled = with_text(PNG, "label", "x" * 50)

    assert text_of(garbage, "label") is None
    assert text_of(labelled[:cut], "label") in (None, "x" * 50)
