import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from pentimento.domain.errors import InvalidArgument
from services.frontdoor.image_header import ImageHeader, read_image_header


def encoded(image_format: str, size: tuple[int, int], **options: object) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, (10, 200, 30)).save(buffer, image_format, **options)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("image_format", "options"),
    [
        ("png", {}),
        ("jpeg", {}),
        ("jpeg", {"progressive": True}),
        ("jpeg", {"exif": b"Exif\x00\x00" + b"x" * 5000}),
        ("webp", {}),
        ("webp", {"lossless": True}),
        ("webp", {"exif": b"Exif\x00\x00II*\x00"}),
    ],
)
def test_the_header_tells_format_and_size(image_format: str, options: dict[str, object]) -> None:
    data = encoded(image_format, (37, 21), **options)

    assert read_image_header(data, "image") == ImageHeader(image_format, 37, 21)


@pytest.mark.parametrize("image_format", ["gif", "bmp", "tiff", "ppm"])
def test_other_formats_are_refused_by_their_magic_bytes(image_format: str) -> None:
    with pytest.raises(InvalidArgument, match=r"init_image\.image: must be a PNG, JPEG or WebP"):
        read_image_header(encoded(image_format, (8, 8)), "init_image.image")


@pytest.mark.parametrize("image_format", ["png", "jpeg", "webp"])
def test_a_header_that_was_cut_is_refused(image_format: str) -> None:
    data = encoded(image_format, (8, 8))

    for length in range(20):
        with pytest.raises(InvalidArgument):
            read_image_header(data[:length], "image")


def test_a_picture_of_no_size_is_refused() -> None:
    data = bytearray(encoded("png", (8, 8)))
    data[16:20] = bytes(4)

    with pytest.raises(InvalidArgument):
        read_image_header(bytes(data), "image")


@given(
    st.sampled_from([b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"RIFF\0\0\0\0WEBP", b"RIFF\0\0\0\0WEBPVP8 "]),
    st.binary(),
)
def test_whatever_bytes_come_the_answer_is_a_header_or_a_typed_error(magic: bytes, rest: bytes) -> None:
    try:
        header = read_image_header(magic + rest, "image")
    except InvalidArgument:
        return
    assert header.width_px >= 1
    assert header.height_px >= 1
