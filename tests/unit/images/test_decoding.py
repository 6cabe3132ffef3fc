"""Decode the pixels of checked images; damaged ones are rejected by field."""

import io
import struct
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from pentimento.domain.errors import InvalidArgument
from pentimento.images import read_header
from pentimento.images.container import orientation_of
from pentimento.images.decoding import decode, decode_mask, resized
from pentimento.images.png import png_chunk
from tests.unit.images.samples import (
    encoded,
    grey_png,
    jpeg_parts,
    noise,
    one_row_png,
    riff,
    vp8x,
    webp_frame,
    wide_grey_png,
)


def pixels(data: bytes) -> np.ndarray:
    picture = decode(data, "image", lambda picture: picture)
    assert picture.mode == "RGB"
    return np.asarray(picture)


EXIF = b"Exif\0\0MM\0*\0\0\0\x08" + bytes(6)
SAMPLES = {
    "png": noise("png"),
    "interlaced palette": encoded("png", mode="P"),
    "jpeg": noise("jpeg"),
    "jpeg with restarts": noise("jpeg", restart_marker_blocks=2),
    "grey jpeg": encoded("jpeg", mode="L"),
    "CMYK jpeg": encoded("jpeg", mode="CMYK"),
    "webp": noise("webp"),
    "lossless webp": noise("webp", lossless=True),
    "jpeg with metadata": noise("jpeg", icc_profile=b"x" * 200_000, exif=EXIF, comment=b"c"),
    "webp with metadata": noise("webp", icc_profile=b"x" * 3000, exif=EXIF),
    "png with metadata": noise("png", icc_profile=b"x" * 3000, exif=EXIF),
}


def test_decode_gives_pixels_of_whole_files_alone() -> None:
    for kind, data in SAMPLES.items():
        with Image.open(io.BytesIO(data)) as image:
            expected = np.asarray(image.convert("RGB"))

        np.testing.assert_array_equal(pixels(data), expected, kind)
        with pytest.raises(InvalidArgument, match=r"images\[0\]: must be a whole"):
            decode(data[: len(data) * 2 // 3], "images[0]", lambda picture: picture)


TRANSPARENT = [
    encoded("png", (20, 300), "RGBA"),
    encoded("png", (20, 300), "LA"),
    encoded("png", (20, 300), "P", transparency=1),
    encoded("webp", (20, 300), "RGBA", lossless=True, exact=True),
    encoded("webp", (20, 300), "RGBA"),
]


def test_transparency_is_laid_on_white() -> None:
    for data in TRANSPARENT:
        with Image.open(io.BytesIO(data)) as image:
            opaque = image.convert("RGBA")
            expected = Image.alpha_composite(Image.new("RGBA", opaque.size, "white"), opaque).convert("RGB")

        np.testing.assert_array_equal(pixels(data), np.asarray(expected))


def test_grey_of_16_bits_has_upper_eight_and_white_where_transparent() -> None:
    opaque = pixels(wide_grey_png([0, 255, 256, 32768, 65535]))
    holed = pixels(wide_grey_png([1000, 1001], transparent=1000))

    assert opaque[0].tolist() == [[0] * 3, [0] * 3, [1] * 3, [128] * 3, [255] * 3]
    assert holed[0].tolist() == [[255] * 3, [3] * 3]


@pytest.mark.parametrize(
    ("depth", "row", "greys"),
    [(1, 0b01000000, [0, 255]), (2, 0b00011011, [0, 85, 170, 255]), (4, 0b10011100, [153, 204])],
    ids=["1 bit", "2 bits", "4 bits"],
)
def test_transparent_grey_of_few_bits_is_white_and_masked(depth: int, row: int, greys: list[int]) -> None:
    """Any grey may be the transparent one. Bits of tRNS beyond the depth are ignored (PNG specification, tRNS)."""
    for index, grey in enumerate(greys):
        clear = (1 << 15 | grey * ((1 << depth) - 1) // 255).to_bytes(2, "big")
        data = one_row_png(depth, 0, len(greys), bytes([row]), clear)
        mask = decode_mask(data, "mask", lambda picture, _: np.asarray(picture).copy())

        assert pixels(data)[0, :, 0].tolist() == [*greys[:index], 255, *greys[index + 1 :]]
        assert mask[0].tolist() == [255 * (other == index) for other in range(len(greys))]


@pytest.mark.parametrize("interlaced", [0, 1])
def test_a_colour_of_sixteen_bits_is_transparent_as_a_whole(interlaced: int) -> None:
    """Browsers compare all bits: neither the upper bytes alone nor the lower ones."""
    clear, others = (0x0501, 0x0602, 0x0703), ((0x0501, 0x0602, 0x0704), (0x0601, 0x0602, 0x0703))
    row = b"".join(struct.pack(">3H", *colour) for colour in (clear, *others))
    if interlaced:  # Adam7 has of such a row the first pixel, then the third, then the second
        row = b"\0".join((row[:6], row[12:], row[6:12]))
    data = one_row_png(16, 2, 3, row, struct.pack(">3H", *clear), interlaced)
    mask = decode_mask(data, "mask", lambda picture, _: np.asarray(picture).copy())

    assert pixels(data)[0].tolist() == [[255, 255, 255], [5, 6, 7], [6, 6, 7]]
    assert mask[0].tolist() == [255, 0, 0]


@pytest.mark.parametrize(
    ("transparent", "painted"), [(None, [0, 128, 255]), (32768, [0, 255, 0])], ids=["by brightness", "by transparency"]
)
def test_mask_of_sixteen_bits_equals_mask_of_eight(transparent: int | None, painted: list[int]) -> None:
    data = wide_grey_png([0, 32768, 65535], transparent)

    mask = decode_mask(data, "mask", lambda picture, _: np.asarray(picture).copy())

    assert mask[0].tolist() == painted


@pytest.mark.parametrize("kind", [b"zTXt", b"iCCP"])
def test_compressed_metadata_never_reaches_the_decoder(kind: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = png_chunk(kind, b"name\0\0" + zlib.compress(bytes(1 << 20)))
    seen = []
    opened = Image.open
    monkeypatch.setattr(
        Image, "open", lambda file, **options: (seen.append(file.getvalue()), opened(file, **options))[1]
    )

    pixels(grey_png(bomb, png_chunk(b"tEXt", b"a\0b"), png_chunk(b"eXIf", b"MM\0*\0\0\0\x08\0\0")))

    assert seen == [grey_png()]


def test_decode_refuses_wrong_sum_second_frame_and_many_scans() -> None:
    wrong_sum = bytearray(grey_png())
    wrong_sum[29] ^= 1  # the sum of IHDR
    with pytest.raises(InvalidArgument):
        pixels(bytes(wrong_sum))

    start, frame, scan, end = jpeg_parts(noise("jpeg", progressive=True))
    with pytest.raises(InvalidArgument, match="does not decode"):
        pixels(start + frame + scan + frame + scan + end)

    start, frame, scan, end = jpeg_parts(noise("jpeg"))
    with pytest.raises(InvalidArgument, match="does not decode"):
        pixels(start + frame + scan * 65 + end)


def test_alpha_that_the_canvas_does_not_announce_is_left_out() -> None:
    frame = webp_frame((8, 8))

    plain = pixels(riff(frame))

    np.testing.assert_array_equal(pixels(riff(vp8x(8, 8), (b"ALPH", bytes(65)), frame)), plain)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_mutated_files_are_rejected_or_decode_to_size_of_header(data: st.DataObject) -> None:
    mutated = bytearray(data.draw(st.sampled_from(list(SAMPLES.values()))))
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, min(len(mutated) - 1, 700)))
        piece = data.draw(st.binary(min_size=1, max_size=12))
        end = position + (len(piece) if data.draw(st.booleans()) else 0)
        mutated[position:end] = piece

    try:
        header = read_header(bytes(mutated), "image")
        height, width, _ = pixels(bytes(mutated)).shape
    except InvalidArgument as refused:
        assert [violation.field for violation in refused.violations] == ["image"]
        return
    assert (width, height) == (header.width_px, header.height_px)


def test_one_image_is_decoded_at_a_time() -> None:
    inside, together = threading.Lock(), []

    def alone(picture: Image.Image) -> None:
        together.append(not inside.acquire(blocking=False))
        resized(picture, (200, 200), Image.Resampling.LANCZOS)
        inside.release()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: decode(SAMPLES["jpeg"], "image", alone), range(32)))

    assert together == [False] * 32


@pytest.mark.parametrize("size", [(64, 48), (10, 90)])
def test_sizes_are_changed_as_pillow_does(size: tuple[int, int]) -> None:
    image = Image.effect_noise((40, 30), 60).convert("RGB")

    assert resized(image, size, Image.Resampling.LANCZOS) == image.resize(size, Image.Resampling.LANCZOS)


def test_intermediate_size_is_within_pixel_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pentimento.images.decoding.MAX_PIXELS", 10_000)
    image, steps = Image.new("RGB", (20, 400)), []
    resize = Image.Image.resize
    monkeypatch.setattr(Image.Image, "resize", lambda self, size, how: steps.append(size) or resize(self, size, how))

    assert resized(image, (100, 100), Image.Resampling.LANCZOS).size == (100, 100)
    assert steps == [(20, 100), (100, 100)]


ORIENTATION = 0x0112
FORMATS = {"png": {}, "jpeg": {"quality": 95}, "webp": {"lossless": True}}


def stored(orientation: int, picture_format: str, size: tuple[int, int] = (24, 10), exif: bytes | None = None) -> bytes:
    """Return an image with that orientation in its EXIF."""
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


@pytest.mark.parametrize("orientation", range(1, 9))
def test_decode_turns_image_and_mask_upright(orientation: int) -> None:
    for picture_format in FORMATS:
        data = stored(orientation, picture_format)
        expected = upright(data)

        header, pixels = read_header(data, "image"), decode(data, "image", np.asarray)

        np.testing.assert_array_equal(pixels, np.asarray(expected))
        assert (header.width_px, header.height_px) == ((24, 10) if orientation < 5 else (10, 24))
        if picture_format == "png":
            mask = decode_mask(data, "mask", lambda picture, _: np.asarray(picture))
            np.testing.assert_array_equal(mask, np.asarray(expected.convert("L")))


def test_invalid_exif_leaves_orientation() -> None:
    directory = b"MM\0*\0\0\0\x08\0\x01\x01\x12\0"
    blocks = {
        "nothing": b"",
        "no block": b"Exif\0\0",
        "no byte order": b"XX*\0" + bytes(20),
        "beyond its end": b"II*\0\xff\xff\xff\xff" + bytes(20),
        "nine": directory + b"\x03\0\0\0\x01\0\x09\0\0",
        "a text": directory + b"\x02\0\0\0\x01\0\x06\0\0",
        "cut short": directory + b"\x03\0\0\0\x01",
    }

    assert {what: orientation_of(block) for what, block in blocks.items()} == dict.fromkeys(blocks, 1)


@pytest.mark.parametrize(("mark", "order"), [(b"II*\0", "<"), (b"MM\0*", ">")])
def test_either_byte_order_is_read_with_the_prefix_and_without(mark: bytes, order: str) -> None:
    block = mark + struct.pack(f"{order}IHHHIHH", 8, 1, ORIENTATION, 3, 1, 8, 0)

    assert [orientation_of(block), orientation_of(b"Exif\0\0" + block)] == [8, 8]


@given(st.binary(max_size=80))
def test_any_bytes_say_some_orientation(rest: bytes) -> None:
    assert 1 <= orientation_of(b"II*\0" + rest) <= 8
