"""Pictures that a camera stored on their side are seen upright, as Pillow's own `exif_transpose` turns them."""

import io
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from pentimento.pictures import read_header
from pentimento.pictures.decoding import decode, decode_mask
from pentimento.pictures.exif import orientation_of

ORIENTATION = 0x0112
FORMATS = {"png": {}, "jpeg": {"quality": 95}, "webp": {"lossless": True}}


def stored(orientation: int, picture_format: str, size: tuple[int, int] = (24, 10), exif: bytes | None = None) -> bytes:
    """A picture whose EXIF says how it is to be turned."""
    width, height = size
    pixels = np.arange(width * height * 3, dtype=np.uint8).reshape(height, width, 3)
    tags = Image.Exif()
    tags[ORIENTATION] = orientation
    file = io.BytesIO()
    block = tags.tobytes() if exif is None else exif
    Image.fromarray(pixels).save(file, picture_format, exif=block, **FORMATS[picture_format])
    return file.getvalue()


def upright(data: bytes) -> Image.Image:
    with Image.open(io.BytesIO(data)) as image:
        return ImageOps.exif_transpose(image).convert("RGB")


@pytest.mark.parametrize("picture_format", FORMATS)
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_picture_is_seen_upright(orientation: int, picture_format: str) -> None:
    data = stored(orientation, picture_format)

    header, pixels = read_header(data, "image"), decode(data, "image", np.asarray)

    np.testing.assert_array_equal(pixels, np.asarray(upright(data)))
    assert (header.width_px, header.height_px) == ((24, 10) if orientation < 5 else (10, 24))


def test_a_mask_is_turned_as_the_picture_that_it_belongs_to() -> None:
    data = stored(6, "png")

    mask = decode_mask(data, "mask", lambda picture, _: np.asarray(picture))

    np.testing.assert_array_equal(mask, np.asarray(upright(data).convert("L")))


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"Exif\0\0", id="no block"),
        pytest.param(b"XX*\0" + bytes(20), id="no byte order"),
        pytest.param(b"II*\0\xff\xff\xff\xff" + bytes(20), id="beyond its end"),
        pytest.param(b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x09\0\0", id="nine"),
        pytest.param(b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x02\0\0\0\x01\0\x06\0\0", id="a text"),
        pytest.param(b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01", id="cut short"),
    ],
)
def test_what_says_nothing_leaves_a_picture_as_it_is(block: bytes) -> None:
    assert orientation_of(block) == 1


@pytest.mark.parametrize(("mark", "order"), [(b"II*\0", "<"), (b"MM\0*", ">")])
def test_either_byte_order_is_read_with_the_prefix_and_without(mark: bytes, order: str) -> None:
    block = mark + struct.pack(f"{order}IHHHIHH", 8, 1, ORIENTATION, 3, 1, 8, 0)

    assert [orientation_of(block), orientation_of(b"Exif\0\0" + block)] == [8, 8]


@given(st.binary(max_size=80))
def test_any_bytes_say_some_orientation(rest: bytes) -> None:
    assert 1 <= orientation_of(b"II*\0" + rest) <= 8
