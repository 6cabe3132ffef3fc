"""Hostile and odd images, and configurations that would not fit the tower."""

import io
import json
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from pentimento.diffusion.checkpoint import BadCheckpoint
from pentimento.domain.errors import InvalidArgument
from services.embedder.preprocessing import ImageLimits, decode, read_preprocessing

LIMITS = ImageLimits(max_pixels=10_000, max_aspect_ratio=20)


def encoded(image: Image.Image, image_format: str) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, image_format)
    return buffer.getvalue()


def png_claiming(width: int, height: int) -> bytes:
    """A PNG whose header promises that many pixels, with next to no data behind it."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("image_format", ["PNG", "JPEG", "WEBP"])
def test_the_allowed_formats_are_decoded(image_format):
    image = decode(encoded(Image.new("RGB", (20, 10), "red"), image_format), "images[0]", LIMITS)

    assert (image.mode, image.size) == ("RGB", (20, 10))


@pytest.mark.parametrize("image_format", ["GIF", "BMP", "TIFF", "PPM", "ICO"])
def test_other_formats_are_refused_by_name(image_format):
    with pytest.raises(InvalidArgument, match=r"images\[3\]: must be a whole image, one of PNG, JPEG, WEBP"):
        decode(encoded(Image.new("RGB", (16, 16)), image_format), "images[3]", LIMITS)


@pytest.mark.parametrize("size", [(101, 100), (60_000, 60_000), (2**31 - 1, 2**31 - 1)])
def test_dimensions_are_checked_before_decoding(size):
    with pytest.raises(InvalidArgument, match=r"images\[0\]: must"):
        decode(png_claiming(*size), "images[0]", LIMITS)


def test_an_image_too_flat_to_scale_is_refused():
    with pytest.raises(InvalidArgument, match="20 times as long as wide, got 421 x 20"):
        decode(encoded(Image.new("RGB", (421, 20)), "PNG"), "images[0]", LIMITS)


def test_a_truncated_image_is_refused():
    data = encoded(Image.effect_noise((80, 80), 50), "PNG")

    with pytest.raises(InvalidArgument, match="whole image"):
        decode(data[: len(data) // 2], "images[0]", LIMITS)


@given(st.binary(max_size=300), st.sampled_from(["PNG", "JPEG", "WEBP"]), st.integers(0, 200))
@settings(max_examples=200, deadline=None)
def test_no_bytes_make_decoding_fail_otherwise_than_by_refusing(noise, image_format, position):
    data = bytearray(encoded(Image.new("RGB", (12, 12), "blue"), image_format))
    data[position : position + len(noise)] = noise

    try:
        image = decode(bytes(data), "images[0]", LIMITS)
    except InvalidArgument:
        return
    assert image.mode == "RGB"


def test_transparency_is_laid_on_white():
    image = decode(encoded(Image.new("RGBA", (2, 2), (255, 0, 0, 0)), "PNG"), "images[0]", LIMITS)

    assert np.asarray(image).min() == 255


@pytest.mark.parametrize(
    "document",
    [
        {"crop_size": {"height": 20, "width": 24}, "size": 24},
        {"crop_size": {"height": "wide", "width": 24}},
        {"size": {"longest_edge": 24}, "crop_size": 24},
        {"do_center_crop": False, "size": {"shortest_edge": 24}},
        {"image_mean": "none", "size": 24, "crop_size": 24},
    ],
)
def test_a_configuration_that_does_not_fit_the_tower_is_refused(tmp_path, document):
    path = tmp_path / "preprocessor_config.json"
    path.write_text(json.dumps(document))

    with pytest.raises(BadCheckpoint, match=r"preprocessor_config\.json"):
        read_preprocessing(path, 24)
