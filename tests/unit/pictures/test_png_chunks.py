"""Chunks of PNG files."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pentimento.pictures.png_chunks import SIGNATURE, leading_chunks, png_chunk, png_file


def test_a_chunk_is_its_length_kind_content_and_checksum() -> None:
    # As every PNG file ends.
    assert png_chunk(b"IEND") == b"\0\0\0\0IEND\xae\x42\x60\x82"


def test_chunks_before_the_pixels_are_read() -> None:
    png = png_file(png_chunk(b"IHDR", b"12"), png_chunk(b"tEXt", b"a"), png_chunk(b"IDAT", b"b"), png_chunk(b"tEXt"))

    assert list(leading_chunks(png)) == [(b"IHDR", b"12"), (b"tEXt", b"a")]


def test_a_chunk_that_is_cut_off_ends_them() -> None:
    png = SIGNATURE + png_chunk(b"IHDR", b"12") + png_chunk(b"tEXt", b"abc")[:-1]

    assert list(leading_chunks(png)) == [(b"IHDR", b"12")]


@pytest.mark.parametrize("data", [b"", b"GIF89a", SIGNATURE[1:] + png_chunk(b"tEXt", b"a")])
def test_what_is_no_png_has_none(data: bytes) -> None:
    assert list(leading_chunks(data)) == []


@given(st.binary(max_size=100))
def test_any_bytes_after_a_signature_are_read_to_some_end(data: bytes) -> None:
    assert sum(12 + len(content) for _, content in leading_chunks(SIGNATURE + data)) <= len(data)
