"""Check the chunks of a WebP (RFC 9649), and extract the chunks that hold pixels."""

import struct
from collections.abc import Iterator

from pentimento.images.container import MAX_PARTS, BadImage, orientation_of, require

_HEADER_BYTES = 12
_FRAMES = (b"VP8 ", b"VP8L")
_ALPHA_FLAG = 0x10


def size(data: bytes) -> tuple[int, int]:
    """Return (width, height) of a still image: of its one frame, which must fill the canvas. Raises BadImage or
    struct.error."""
    chunks = list(_chunks(data))
    kinds = [kind for kind, _, _ in chunks]
    require(not {b"ANIM", b"ANMF"} & set(kinds), "an animation; only still images are accepted")
    frames = [chunk for chunk in chunks if chunk[0] in _FRAMES]
    require(len(frames) == 1, f"{len(frames)} frames")
    require(kinds.count(b"ALPH") <= 1 and b"VP8X" not in kinds[1:], "a chunk too many")
    require(kinds[0] in (b"VP8X", *_FRAMES), "it does not begin with a frame or VP8X")
    kind, start, end = frames[0]
    found = _lossy_size(data[start:end]) if kind == b"VP8 " else _lossless_size(data[start:end])
    require(kinds[0] != b"VP8X" or _canvas(data) == found, "its canvas has not the size of its frame")
    return found


def orientation(data: bytes) -> int:
    """Return the EXIF orientation (1 to 8) of an image in a valid container."""
    found = (data[start:end] for kind, start, end in _chunks(data) if kind == b"EXIF")
    return orientation_of(next(found, b""))


def essence(data: bytes) -> bytes:
    """Return the image without metadata."""
    parts = {kind: data[start:end] for kind, start, end in _chunks(data)}
    kind = next(kind for kind in _FRAMES if kind in parts)
    kept = [(kind, parts[kind])]
    extended = parts.get(b"VP8X", b"")
    if kind == b"VP8 " and b"ALPH" in parts and extended and extended[0] & _ALPHA_FLAG:
        header = bytes([_ALPHA_FLAG, 0, 0, 0]) + extended[4:10]
        kept = [(b"VP8X", header), (b"ALPH", parts[b"ALPH"]), *kept]
    body = b"WEBP" + b"".join(_written(*chunk) for chunk in kept)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def _written(kind: bytes, content: bytes) -> bytes:
    return kind + struct.pack("<I", len(content)) + content + b"\0" * (len(content) % 2)


def _chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield (kind, start, end of the content) of each chunk within the stated length; later bytes do not belong to the
    image."""
    (length,) = struct.unpack_from("<I", data, 4)
    require(8 + length <= len(data), "cut short")
    offset = _HEADER_BYTES
    for _ in range(MAX_PARTS):
        if offset >= 8 + length:
            return
        kind, content_bytes = struct.unpack_from("<4sI", data, offset)
        start, end = offset + 8, offset + 8 + content_bytes
        require(end <= 8 + length, "cut short")
        yield kind, start, end
        offset = end + content_bytes % 2
    raise BadImage(f"more than {MAX_PARTS} chunks")


def _canvas(data: bytes) -> tuple[int, int]:
    (length,) = struct.unpack_from("<I", data, _HEADER_BYTES + 4)
    require(length == 10, "its VP8X has not 10 bytes")
    at = _HEADER_BYTES + 12
    return 1 + int.from_bytes(data[at : at + 3], "little"), 1 + int.from_bytes(data[at + 3 : at + 6], "little")


def _lossy_size(frame: bytes) -> tuple[int, int]:
    """Return the size of a key frame that is shown (RFC 6386, section 9.1)."""
    tag = int.from_bytes(frame[:3], "little")
    require(not tag & 1 and bool(tag & 0x10) and frame[3:6] == b"\x9d\x01\x2a", "its frame is no key frame")
    width, height = struct.unpack_from("<HH", frame, 6)
    return width & 0x3FFF, height & 0x3FFF


def _lossless_size(frame: bytes) -> tuple[int, int]:
    require(frame[:1] == b"\x2f", "its frame is no lossless one")
    (bits,) = struct.unpack_from("<I", frame, 1)
    require(bits >> 29 == 0, "its frame is of an unknown version")
    return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
