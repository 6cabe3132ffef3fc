"""Pictures as sixels: bands of six rows, each colour of a band as a line of characters whose bits are the rows (VT330/
VT340 Programmer Reference Manual, volume 2, chapter 14)."""

import io
import re
from collections.abc import Iterator

from PIL import Image

MAX_COLOURS = 256
# Wider ones would be cut off by most terminals.
MAX_SIDE_PX = 800
_BAND_ROWS = 6
_FIRST_CHARACTER = 63
_REPEATED = re.compile(r"(.)\1{3,}")


def sixel_of(png: bytes, max_side_px: int = MAX_SIDE_PX) -> str:
    """Return the escape that shows a picture where the cursor is, in at most 256 colours; one that is larger is made
    smaller, keeping its shape."""
    with Image.open(io.BytesIO(png)) as opened:
        picture = opened.convert("RGB")
    picture.thumbnail((max_side_px, max_side_px))
    return encode(picture.quantize(MAX_COLOURS))


def encode(picture: Image.Image) -> str:
    """Return the escape of a picture with a palette (mode P)."""
    width, height = picture.size
    palette = picture.getpalette() or []
    pixels = picture.tobytes()
    used = sorted(set(pixels))
    colours = (f"#{index};2;" + ";".join(str(_percent(palette[3 * index + one])) for one in range(3)) for index in used)
    bands = (_band(pixels[top * width : (top + _BAND_ROWS) * width], width) for top in range(0, height, _BAND_ROWS))
    # Pixels are square, and what no colour names keeps the background.
    return f'\x1bP0;1;0q"1;1;{width};{height}{"".join(colours)}{"-".join(bands)}\x1b\\'


def _percent(value: int) -> int:
    return round(value * 100 / 255)


def _band(pixels: bytes, width: int) -> str:
    """Return the lines of up to six rows, a colour each; `$` goes back to the beginning."""
    lines: dict[int, bytearray] = {}
    for place, colour in enumerate(pixels):
        row, column = divmod(place, width)
        line = lines.get(colour)
        if line is None:
            line = lines[colour] = bytearray(width)
        line[column] |= 1 << row
    return "$".join(f"#{colour}{''.join(_characters(line))}" for colour, line in sorted(lines.items()))


def _characters(line: bytearray) -> Iterator[str]:
    """Yield the line's characters, four and more of one as a number; empty ones at its end are left out."""
    text = "".join(chr(_FIRST_CHARACTER + bits) for bits in line.rstrip(b"\0"))
    yield _REPEATED.sub(lambda found: f"!{len(found[0])}{found[1]}", text)
