"""Read headers without decoding; wrong images are rejected by field and limit."""

import io
import subprocess
import sys
import zlib
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from pentimento.domain.errors import InvalidArgument
from pentimento.images import ImageHeader, check_whole, read_header
from pentimento.images.png import SIGNATURE, png_chunk, png_file
from tests.support.refusals import wrong_refusals
from tests.unit.images.samples import encoded, grey_png, idat, ihdr, jpeg_parts, riff, segment, vp8x, webp_frame


def animation(image_format: str) -> bytes:
    buffer = io.BytesIO()
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "green", "blue")]
    frames[0].save(buffer, image_format, save_all=True, append_images=frames[1:])
    return buffer.getvalue()


def test_read_header_tells_format_and_size() -> None:
    kinds: list[tuple[str, dict[str, object]]] = [
        *(("png", {"mode": mode}) for mode in ("RGB", "P", "1", "LA", "RGBA", "I;16")),
        *(("jpeg", {"mode": mode}) for mode in ("RGB", "L", "CMYK")),
        ("jpeg", {"progressive": True}),
        ("jpeg", {"exif": b"Exif\x00\x00" + b"x" * 5000}),
        ("jpeg", {"icc_profile": b"x" * 200_000}),
        ("webp", {}),
        ("webp", {"lossless": True}),
        ("webp", {"mode": "RGBA"}),
        ("webp", {"exif": b"Exif\x00\x00II*\x00"}),
    ]
    for image_format, options in kinds:
        data = encoded(image_format, (37, 21), **options)
        assert read_header(data, "image") == ImageHeader(image_format, 37, 21), options


def test_read_header_refuses_other_formats_and_cut_files() -> None:
    for other in ("gif", "bmp", "tiff", "ppm"):
        with pytest.raises(InvalidArgument, match=r"init_image\.image: must be a PNG, JPEG or WebP"):
            read_header(encoded(other, (8, 8)), "init_image.image")
    for data in (encoded("png", (8, 8)), encoded("webp", (8, 8))):
        for length in range(len(data)):
            with pytest.raises(InvalidArgument):
                read_header(data[:length], "image")


OUT_OF_LIMITS = [
    ((16_777_216, 1), "at most 8388608 pixels"),
    ((2**31 - 1, 2**31 - 1), "at most 8388608 pixels"),
    ((4097, 2048), "at most 8388608 pixels, got 4097 x 2048"),
    ((4096, 2049), "at most 8388608 pixels, got 4096 x 2049"),
    ((21, 1), "at most 20 times as long as wide, got 21 x 1"),
    ((100, 2001), "at most 20 times as long as wide, got 100 x 2001"),
    ((0, 8), "at least 1 pixel"),
    ((8, 0), "at least 1 pixel"),
]


def test_read_header_names_limit_of_size() -> None:
    rows = [
        (png_file(ihdr(*size), idat(1, 1)), rf"images\[3\]: must (be|have) {limit}") for size, limit in OUT_OF_LIMITS
    ]

    assert wrong_refusals(InvalidArgument, lambda data: read_header(data, "images[3]"), rows) == []


def test_read_header_takes_sizes_at_the_limits() -> None:
    for size in ((4096, 2048), (20, 1), (1, 20), (1, 1)):
        assert read_header(png_file(ihdr(*size), idat(1, 1)), "image") == ImageHeader("png", *size)


JPEG_START, JPEG_FRAME, JPEG_SCAN, JPEG_END = jpeg_parts(encoded("jpeg", (8, 8)))
REFUSED = {
    "two IHDR": (grey_png(ihdr(16_777_216, 1)), "more than one IHDR"),
    "two palettes": (grey_png(png_chunk(b"PLTE", b"abc"), png_chunk(b"PLTE", b"abc")), "more than one PLTE"),
    "a palette too large": (grey_png(png_chunk(b"PLTE", bytes(771))), "'PLTE' has more than 768 bytes"),
    "no palette": (png_file(ihdr(8, 6, 8, 3), idat(8, 6)), "its palette is missing"),
    "an odd depth": (png_file(ihdr(8, 6, 16, 3), idat(8, 6)), "no colour type 3 has 16 bits"),
    "an unknown critical chunk": (grey_png(png_chunk(b"CgBI", b"abcd")), "an unknown chunk 'CgBI'"),
    "chunks without end": (grey_png(*[png_chunk(b"tEXt", b"a")] * 5000), "more than 4096 chunks"),
    "pixels before the palette": (grey_png(idat(8, 6), png_chunk(b"PLTE", b"abc")), "out of order"),
    "pixels apart": (grey_png(idat(8, 6), png_chunk(b"tEXt", b"a")), "its IDATs are apart"),
    "no pixels": (png_file(ihdr(8, 6)), "it has no IDAT"),
    "an animated PNG": (animation("png"), "an animation"),
    "an animated WebP": (animation("webp"), "an animation"),
    "a canvas that is no frame's": (riff(vp8x(8, 8), webp_frame((16, 16))), "its canvas"),
    "a canvas that is no lossless frame's": (riff(vp8x(8, 8), webp_frame((16, 16), lossless=True)), "its canvas"),
    "two frames": (riff(webp_frame((8, 8)), webp_frame((16, 16))), "2 frames"),
    "two canvases": (riff(vp8x(8, 8), vp8x(16, 16), webp_frame((8, 8))), "a chunk too many"),
    "two frame headers": (JPEG_START + JPEG_FRAME + JPEG_FRAME + JPEG_SCAN + JPEG_END, "2 frames"),
    "a lossless JPEG": (JPEG_START + b"\xff\xc3" + JPEG_FRAME[2:] + JPEG_SCAN + JPEG_END, "a marker 0xc3"),
    "12 bits": (JPEG_START + JPEG_FRAME[:4] + b"\x0c" + JPEG_FRAME[5:] + JPEG_SCAN + JPEG_END, "of 12 bits"),
    "a late height": (JPEG_START + segment(0xDC, b"\0\x08") + JPEG_FRAME + JPEG_SCAN + JPEG_END, "a marker 0xdc"),
    "segments without end": (JPEG_START + segment(0xFE, b"a") * 600 + JPEG_FRAME, "more than 512 segments"),
}


def test_container_that_might_be_read_in_two_ways_is_refused_by_name() -> None:
    rows = [(data, f"image: must be a whole (PNG|JPEG|WEBP) image: .*{reason}") for data, reason in REFUSED.values()]

    assert wrong_refusals(InvalidArgument, lambda data: read_header(data, "image"), rows) == []


@given(
    st.sampled_from([b"", SIGNATURE, b"\xff\xd8\xff", b"RIFF\0\0\0\0WEBP", b"RIFF\x40\0\0\0WEBPVP8 ", JPEG_START]),
    st.binary(),
)
def test_whatever_bytes_come_the_answer_is_a_header_or_a_typed_error(magic: bytes, rest: bytes) -> None:
    try:
        header = read_header(magic + rest, "image")
    except InvalidArgument:
        return
    assert header.width_px >= 1
    assert header.height_px >= 1


def test_headers_are_read_without_a_decoder() -> None:
    script = "import sys, pentimento.images; print({'PIL', 'numpy', 'torch'} & set(sys.modules))"

    outcome = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, timeout=60)

    assert outcome.stdout == b"set()\n"


DAMAGED = {
    "rows": (png_file(ihdr(8, 6), idat(8, 5)), "its pixels are cut short"),
    "a byte": (png_file(ihdr(8, 6), idat(7, 6)), "its pixels are cut short"),
    "colours": (png_file(ihdr(8, 6, colour=2), idat(8, 6)), "its pixels are cut short"),
    "passes": (png_file(ihdr(8, 6, interlace=1), idat(8, 6)), "its pixels are cut short"),
    "stream": (png_file(ihdr(8, 6), png_chunk(b"IDAT", b"no stream")), "its pixels are damaged"),
    "no stream": (png_file(ihdr(8, 6), png_chunk(b"IDAT")), "its pixels are cut short"),
    "sum": (grey_png()[:-20] + bytes([grey_png()[-20] ^ 1]) + grey_png()[-19:], "the sum of 'IDAT' is wrong"),
}


def test_png_without_all_its_pixels_is_refused_undecoded() -> None:
    rows = [(data, f"image: must be a whole PNG image: {said}") for data, said in DAMAGED.values()]
    for data, _ in rows:
        read_header(data, "image")

    assert wrong_refusals(InvalidArgument, lambda data: check_whole(data, "image"), rows) == []


def test_check_whole_takes_whole_images() -> None:
    for mode, size in product(("1", "L", "P", "LA", "RGB", "RGBA", "I;16"), ((1, 1), (37, 21), (300, 200))):
        check_whole(encoded("png", size, mode=mode), "image")
    for size in ((1, 1), (37, 21), (300, 200)):
        check_whole(encoded("jpeg", size), "image")
    # Seven passes of 8 x 8 pixels: of 1, 1, 2, 4, 8, 16 and 32, in 15 rows.
    check_whole(png_file(ihdr(8, 8, interlace=1), png_chunk(b"IDAT", zlib.compress(bytes(64 + 15)))), "image")
