"""PNG files of pixels, read by Pillow; the filters equal a plain version of the specification."""

import io
import zlib

import hypothesis.extra.numpy as arrays
import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from PIL import Image

from pentimento.diffusion import images
from pentimento.diffusion.images import filtered_rows, png_of_rows
from pentimento.images.png import leading_chunks

Pixels = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]
PIXELS = arrays.arrays(np.uint8, st.tuples(st.integers(1, 9), st.integers(1, 9), st.just(3)))


def predicted(kind: int, left: int, above: int, corner: int) -> int:
    """Apply a filter of RFC 2083, sections 6.2 to 6.6."""
    if kind == 4:
        near = left + above - corner
        return min((abs(near - left), 0, left), (abs(near - above), 1, above), (abs(near - corner), 2, corner))[2]
    return (0, left, above, (left + above) // 2)[kind]


def row_of(pixels: Pixels, row: int) -> bytes:
    """Return the filter of the smallest sum, the lowest number of several."""
    flat = pixels.reshape(pixels.shape[0], -1).astype(int)
    above = flat[row - 1] if row else np.zeros_like(flat[0])
    found = []
    for kind in range(5):
        values = [
            (int(value) - predicted(kind, *((flat[row][i - 3], above[i], above[i - 3]) if i > 2 else (0, above[i], 0))))
            % 256
            for i, value in enumerate(flat[row])
        ]
        found.append((sum(min(value, 256 - value) for value in values), kind, bytes([kind, *values])))
    return min(found)[2]


@given(PIXELS)
def test_rows_have_the_filter_of_the_smallest_differences(pixels: Pixels) -> None:
    rows = filtered_rows(torch.from_numpy(pixels))

    assert [bytes(row.tolist()) for row in rows] == [row_of(pixels, row) for row in range(len(pixels))]


@given(PIXELS)
def test_a_file_has_the_pixels_that_it_was_made_of(pixels: Pixels) -> None:
    image = Image.open(io.BytesIO(png_of_rows(filtered_rows(torch.from_numpy(pixels)))))

    assert image.format == "PNG" and image.mode == "RGB"
    assert np.array_equal(np.asarray(image), pixels)


def test_rows_of_several_bands_equal_one_band(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = torch.randint(0, 256, (40, 10, 3), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    whole = filtered_rows(pixels)

    monkeypatch.setattr(images, "_HOST_BAND", 70)

    assert torch.equal(filtered_rows(pixels), whole)


def test_a_photograph_is_no_larger_than_by_a_search_for_repetitions() -> None:
    """Smooth shades and a little noise."""
    places = np.mgrid[0:128, 0:128]
    shades = 128 + 60 * np.sin(places[0] / 20) + 50 * np.cos(places[1] / 30)
    noise = np.random.default_rng(0).normal(0, 3, (128, 128, 3))
    pixels = np.clip(shades[..., None] + noise, 0, 255).astype(np.uint8)
    rows = filtered_rows(torch.from_numpy(pixels))

    file = png_of_rows(rows)

    assert len(file) < 1.01 * len(zlib.compress(rows.numpy().tobytes(), 6))
    assert [kind for kind, _ in leading_chunks(file)] == [b"IHDR"]
