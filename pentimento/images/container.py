"""Share the formats, the limit and the error of the containers' readers, and read the orientation from EXIF (CIPA
DC-008): cameras store the sensor's image, and note there how to turn it."""

import struct

# Formats of images, by Pillow's names.
IMAGE_FORMATS = {"png": "PNG", "jpeg": "JPEG", "webp": "WEBP"}
# More parts than any encoder writes for an image of a few megabytes; walking them takes milliseconds.
MAX_PARTS = 4096


class BadImage(Exception):
    """Report a container that is damaged, or has unsupported content; the message names the fault."""


def require(condition: bool, otherwise: str) -> None:
    """Raise BadImage with the message `otherwise` unless the condition holds."""
    if not condition:
        raise BadImage(otherwise)


UPRIGHT, _LAST = 1, 8
# From this orientation on width and height are exchanged.
FIRST_ON_ITS_SIDE = 5
EXIF_PREFIX = b"Exif\0\0"
_ORDERS = {b"II*\0": "<", b"MM\0*": ">"}
_ORIENTATION_TAG, _SHORT, _LONG = 0x0112, 3, 4
# Cameras write some twenty.
_MAX_TAGS = 512


def orientation_of(data: bytes) -> int:
    """Return the orientation (1 to 8) of an EXIF block, with or without its prefix; 1 if it has none, or is damaged: an
    image is not rejected for that."""
    tiff = data.removeprefix(EXIF_PREFIX)
    order = _ORDERS.get(tiff[:4])
    if order is None:
        return UPRIGHT
    try:
        return _read(tiff, order)
    except struct.error:
        return UPRIGHT


def _read(tiff: bytes, order: str) -> int:
    (start,) = struct.unpack_from(f"{order}I", tiff, 4)
    (count,) = struct.unpack_from(f"{order}H", tiff, start)
    for at in range(start + 2, start + 2 + 12 * min(count, _MAX_TAGS), 12):
        tag, kind = struct.unpack_from(f"{order}HH", tiff, at)
        if tag == _ORIENTATION_TAG and kind in (_SHORT, _LONG):
            (value,) = struct.unpack_from(order + ("H" if kind == _SHORT else "I"), tiff, at + 8)
            return value if UPRIGHT <= value <= _LAST else UPRIGHT
    return UPRIGHT
