"""Decode the largest permitted images, in their costliest formats, in real processes."""

import struct
import subprocess
import sys
import zlib
from pathlib import Path

from PIL import Image

from pentimento.images.png import png_chunk, png_file

ROOT = Path(__file__).parents[3]
LARGEST, FLATTEST, TALLEST = (4096, 2048), (12_940, 647), (647, 12_940)
MIB = 1024 * 1024


def sixteen_bits(path: Path, width: int, height: int) -> None:
    """Write a PNG with 8 bytes per pixel."""

    rows = zlib.compress((b"\0" + b"\x12\x34" * 4 * width) * height, level=1)
    header = struct.pack(">IIBBBBB", width, height, 16, 6, 0, 0, 0)
    path.write_bytes(png_file(png_chunk(b"IHDR", header), png_chunk(b"IDAT", rows)))


def clear_colour(path: Path, width: int, height: int) -> None:
    """Write a PNG with 6 bytes per pixel and a transparent colour."""
    rows = zlib.compress((b"\0" + b"\x12\x34" * 3 * width) * height, level=1)
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0))
    path.write_bytes(png_file(header, png_chunk(b"tRNS", b"\x12\x34" * 3), png_chunk(b"IDAT", rows)))


def test_the_largest_images_allowed_take_a_bounded_amount_of_memory(tmp_path: Path) -> None:
    Image.new("RGBA", LARGEST, (1, 2, 3, 4)).save(tmp_path / "a-lossy.webp", method=0)
    Image.new("RGBA", LARGEST, (1, 2, 3, 4)).save(tmp_path / "lossless.webp", lossless=True, method=0)
    Image.new("P", LARGEST, 1).save(tmp_path / "palette.png", transparency=1, compress_level=1)
    Image.new("CMYK", LARGEST, 1).save(tmp_path / "progressive.jpg", progressive=True, subsampling=0)
    Image.new("RGB", FLATTEST).save(tmp_path / "flat.png", compress_level=1)
    Image.new("RGB", TALLEST).save(tmp_path / "tall.png", compress_level=1)
    sixteen_bits(tmp_path / "sixteen.png", *LARGEST)
    clear_colour(tmp_path / "clear.png", *LARGEST)
    command = [sys.executable, "-m", "tests.integration.images.decode_memory", str(tmp_path)]

    outcome = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=170, check=True)

    assert int(outcome.stdout) < 256 * MIB
