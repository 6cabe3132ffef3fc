"""Test the services' cost: figures of rounds, and the pixels of two files."""

import io

import pytest
from PIL import Image

from benchmarks.overhead import DIFFUSERS, ENGINE, MODES, SERVICES, TimedRound, figures_of, pixel_difference

PIXELS = bytes([10, 20, 30, 40, 50, 60])


def png(pixels: bytes, size: tuple[int, int] = (2, 1)) -> bytes:
    file = io.BytesIO()
    Image.frombytes("RGB", size, pixels).save(file, "PNG")
    return file.getvalue()


def test_pixel_difference_compares_png_with_raw() -> None:
    raw = b"P6 2 1 255\n" + bytes([10, 20, 30, 40, 53, 60])

    assert pixel_difference(png(PIXELS), raw) == 3
    assert pixel_difference(png(PIXELS), b"P6 2 1 255\n" + PIXELS) == 0


def test_pixel_difference_rejects_other_size() -> None:
    with pytest.raises(RuntimeError, match=r"ours is \(2, 1\), theirs \(1, 2\)"):
        pixel_difference(png(PIXELS), png(PIXELS, (1, 2)))


def test_overhead_figures_compare_same_mode() -> None:
    took_ms = {
        **{("compiled", side): ms for side, ms in ((SERVICES, 110.0), (ENGINE, 100.0), (DIFFUSERS, 220.0))},
        **{("eager", side): ms for side, ms in ((SERVICES, 330.0), (ENGINE, 300.0), (DIFFUSERS, 330.0))},
    }
    rounds = [TimedRound(took_ms, dict.fromkeys(MODES, 1))] * 3

    found = {figure.name: (figure.value, figure.ok) for figure in figures_of(rounds)}

    assert found["compiled: services ÷ engine in one process"] == (pytest.approx(1.1), False)
    assert found["compiled: services ÷ diffusers"] == (pytest.approx(0.5), True)
    assert found["compiled: services - engine"] == (pytest.approx(10.0), True)
    assert found["eager: services ÷ engine in one process"] == (pytest.approx(1.1), False)
    assert found["eager: services ÷ diffusers"] == (pytest.approx(1.0), True)
    assert found["eager: services - engine"] == (pytest.approx(30.0), True)
    assert found["eager: largest pixel difference"] == (1, True)
