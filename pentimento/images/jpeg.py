"""Check the segments of a JPEG (ITU-T T.81), and extract the segments that hold pixels."""

import re
import struct
from collections.abc import Iterator

from pentimento.images.container import EXIF_PREFIX, UPRIGHT, BadImage, orientation_of, require

MAGIC = b"\xff\xd8\xff"
_START, _END, _SCAN = b"\xff\xd8", 0xD9, 0xDA
# Baseline, extended and progressive frames, which Pillow reads; others are rejected.
_FRAMES = (0xC0, 0xC1, 0xC2)
# Huffman and quantisation tables, restart interval.
_TABLES = (0xC4, 0xDB, 0xDD)
# JFIF and Adobe segments describe the colour encoding.
_COLOURS = (0xE0, 0xEE)
_EXIF = 0xE1
_METADATA = (*range(0xE0, 0xF0), 0xFE)
_MAX_SEGMENTS = 512
# Encoders write about ten. Each scan covers the whole image, so a file of thousands would decode for minutes.
_MAX_SCANS = 64
# The end of entropy-coded data: a marker other than a stuffed zero or a restart.
_MARKER = re.compile(rb"\xff[\x01-\xcf\xd8-\xfe]")


def size(data: bytes) -> tuple[int, int]:
    """Return (width, height) of the only frame before the first scan. Raises BadImage, struct.error or IndexError."""
    frames = []
    for marker, start, _ in _segments(data, 2):
        if marker in _FRAMES:
            frames.append(struct.unpack_from(">BHHB", data, start + 4))
        if marker == _SCAN:
            break
    require(len(frames) == 1, f"{len(frames)} frames before its first scan")
    precision, height, width, components = frames[0]
    require(precision == 8 and components in (1, 3, 4), f"{components} components of {precision} bits")
    return width, height


def orientation(data: bytes) -> int:
    """Return the EXIF orientation (1 to 8) of an image in a valid container."""
    for marker, start, end in _segments(data, 2):
        if marker == _EXIF and data.startswith(EXIF_PREFIX, start + 4):
            return orientation_of(data[start + 4 : end])
    return UPRIGHT


def essence(data: bytes) -> bytes:
    """Return the image without metadata, up to its end marker. Raises BadImage, struct.error or IndexError."""
    kept, offset, scans, frames = [_START], 2, 0, 0
    while True:
        for marker, start, end in _segments(data, offset):
            frames += marker in _FRAMES
            if marker in (*_FRAMES, *_TABLES, *_COLOURS, _SCAN):
                kept.append(data[start:end])
            offset, last = end, marker
        require(frames == 1, f"{frames} frames")
        if last == _END:
            return b"".join([*kept, b"\xff\xd9"])
        scans += 1
        require(scans <= _MAX_SCANS, f"more than {_MAX_SCANS} scans")
        found = _MARKER.search(data, offset)
        require(found is not None, "cut short")
        end = found.start() if found else offset
        kept.append(data[offset:end])
        offset = end


def _segments(data: bytes, offset: int) -> Iterator[tuple[int, int, int]]:
    """Yield (marker, start, end) of each segment from `offset`, through a scan's header or the end."""
    for _ in range(_MAX_SEGMENTS):
        require(data[offset] == 0xFF, "a marker is missing")
        while data[offset + 1] == 0xFF:
            offset += 1
        marker = data[offset + 1]
        if marker == _END:
            yield marker, offset, offset + 2
            return
        require(marker in (*_FRAMES, *_TABLES, *_METADATA, _SCAN), f"a marker {marker:#x}, which is not taken")
        (length,) = struct.unpack_from(">H", data, offset + 2)
        end = offset + 2 + length
        require(length >= 2 and end <= len(data), "cut short")
        yield marker, offset, end
        if marker == _SCAN:
            return
        offset = end
    raise BadImage(f"more than {_MAX_SEGMENTS} segments")
