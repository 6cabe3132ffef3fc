"""Sixels, decoded by the manual; and terminals that are asked whether they show them."""

import io
import os
import re
import termios
from collections.abc import Iterator

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from pentimento.cli.sixel import encode, sixel_of
from pentimento.cli.terminal_asking import QUESTION, attributes_of
from pentimento.cli.terminal_pictures import PictureProtocol, escape_of, protocol_of, wanted_protocol

RED, BLUE = (255, 0, 0), (0, 0, 255)
TOKEN = re.compile(r'"(\d+);(\d+);(\d+);(\d+)|#(\d+)(?:;2;(\d+);(\d+);(\d+))?|!(\d+)(.)|([$-])|([?-~])')
Colour = tuple[int, int, int]


def picture(rows: list[list[int]], palette: list[int]) -> Image.Image:
    made = Image.new("P", (len(rows[0]), len(rows)))
    made.putdata([colour for row in rows for colour in row])
    made.putpalette(palette)
    return made


def decoded(escape: str) -> list[list[Colour]]:
    """Rows of colours in percent, as a VT340 would set them: a position, a colour register, six pixels a character."""
    assert escape.startswith("\x1bP0;1;0q") and escape.endswith("\x1b\\")
    body = escape[8:-2]
    registers: dict[int, Colour] = {}
    pixels: dict[tuple[int, int], Colour] = {}
    width = height = x = top = colour = 0
    end = 0
    for found in TOKEN.finditer(body):
        assert found.start() == end, body[end : found.start()]
        end = found.end()
        raster, register, percents = found.group(3, 4), found[5], found.group(6, 7, 8)
        if raster[0]:
            width, height = int(raster[0]), int(raster[1])
        elif register is not None:
            colour = int(register)
            if percents[0] is not None:
                registers[colour] = (int(percents[0]), int(percents[1]), int(percents[2]))
        elif found[11]:
            x, top = 0, top + (6 if found[11] == "-" else 0)
        else:
            count, bits = int(found[9] or 1), ord(found[10] or found[12]) - 63
            pixels |= {
                (x + at, top + row): registers[colour] for at in range(count) for row in range(6) if bits >> row & 1
            }
            x += count
    assert end == len(body)
    assert set(pixels) == {(column, row) for column in range(width) for row in range(height)}
    return [[pixels[column, row] for column in range(width)] for row in range(height)]


def test_a_picture_of_six_pixels_by_hand() -> None:
    told = encode(picture([[0, 1, 1], [0, 0, 1]], [*RED, *BLUE]))

    # Red: both rows of column 0 (1 + 2 → B), row 1 of column 1 (2 → A). Blue: none (?), row 0 (1 → @), both (B).
    assert told == '\x1bP0;1;0q"1;1;3;2#0;2;100;0;0#1;2;0;0;100#0BA$#1?@B\x1b\\'


def test_runs_are_numbers_and_the_seventh_row_is_a_band_of_its_own() -> None:
    told = encode(picture([[0] * 5] * 7, [*RED]))

    # Six rows are all bits (63 → ~), the seventh alone is the first bit (@).
    assert told == '\x1bP0;1;0q"1;1;5;7#0;2;100;0;0#0!5~-#0!5@\x1b\\'


@st.composite
def pictures(draw: st.DrawFn) -> Image.Image:
    width, height, colours = draw(st.integers(1, 20)), draw(st.integers(1, 20)), draw(st.integers(1, 5))
    row = st.lists(st.integers(0, colours - 1), min_size=width, max_size=width)
    palette = draw(st.lists(st.integers(0, 255), min_size=3 * colours, max_size=3 * colours))
    return picture(draw(st.lists(row, min_size=height, max_size=height)), palette)


@given(shown=pictures())
def test_every_pixel_is_set_to_its_colour(shown: Image.Image) -> None:
    rows = decoded(encode(shown))

    colours = shown.convert("RGB")
    wanted = [
        [tuple(round(value * 100 / 255) for value in colours.getpixel((x, y))) for x in range(shown.width)]  # type: ignore[union-attr]
        for y in range(shown.height)
    ]
    assert rows == wanted


def png_of(size: tuple[int, int]) -> bytes:
    buffer = io.BytesIO()
    made = Image.linear_gradient("L").resize(size)
    Image.merge("RGB", (made, made.transpose(Image.Transpose.ROTATE_180), made)).save(buffer, "PNG")
    return buffer.getvalue()


def test_a_png_is_shown_in_its_colours_and_a_large_one_smaller() -> None:
    rows = decoded(escape_of(png_of((40, 20)), PictureProtocol.SIXEL))
    small = decoded(sixel_of(png_of((40, 20)), max_side_px=10))

    assert (len(rows), len(rows[0]), len(small), len(small[0])) == (20, 40, 5, 10)
    # From black to white down, and in green the other way.
    assert rows[0][0][0] < 10 < 90 < rows[0][0][1]
    assert rows[-1][-1][1] < 10 < 90 < rows[-1][-1][0]


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """The two ends of one: who is the terminal, and who is in it."""
    outside, inside = os.openpty()
    yield outside, inside
    os.close(outside)
    os.close(inside)


@pytest.mark.parametrize(
    ("answer", "limit_s", "attributes"),
    [
        (b"\x1b[?62;4;22c", 60.0, ["62", "4", "22"]),
        (b"typed\x1b[?1;2c", 60.0, ["1", "2"]),
        # No answer, whatever has come by now.
        (b"typed", 0.0, []),
        (b"", 0.0, []),
    ],
)
def test_a_terminal_is_asked_and_left_as_it_was(
    terminal: tuple[int, int], answer: bytes, limit_s: float, attributes: list[str]
) -> None:
    outside, inside = terminal
    before = termios.tcgetattr(inside)
    os.write(outside, answer)

    found = attributes_of(inside, inside, limit_s)

    assert found == attributes
    heard = b""
    while QUESTION not in heard:
        heard += os.read(outside, 1000)
    assert termios.tcgetattr(inside) == before


def test_a_terminal_that_no_variable_tells_of_is_asked() -> None:
    assert protocol_of({"TERM": "foot"}) is protocol_of({"TERM": "xterm-sixel"}) is PictureProtocol.SIXEL
    assert wanted_protocol({"TERM": "xterm"}, lambda: True) is PictureProtocol.SIXEL
    assert wanted_protocol({"TERM": "xterm-kitty"}, lambda: True) is PictureProtocol.KITTY
    with pytest.raises(click.UsageError, match="--show-as"):
        wanted_protocol({"TERM": "xterm"}, lambda: False)
