"""Read the frame around a compressed safetensors file, as earlier versions wrote it. An uncompressed file has no frame:
the library's own header describes it.

    "PLAT"        4 bytes; as the first bytes of a safetensors file they would announce a header of 1.4 GB
    version       1 byte, 1
    compression   1 byte, 1 for deflate (zlib's stream, with its own checksum)
    reserved      2 bytes, 0
    file size     4 bytes, little-endian: bytes of the file that was compressed
    stream        the rest
"""

import struct
import zlib

MAGIC = b"PLAT"
_HEAD = struct.Struct("<4sBBHI")
_VERSION = 1
_DEFLATE = 1


class UnknownLatentFormat(ValueError):
    """Report a stored latent in a format unknown to this version. Its bytes may be valid."""


def framed_file(data: bytes, most_bytes: int) -> bytes:
    """Return the file of a frame, or `data` itself if there is no frame. Never allocates more than `most_bytes`.

    Raises UnknownLatentFormat for another version or compression, ValueError for a file that is larger than that or
    does not match its frame.
    """
    if not data.startswith(MAGIC):
        _check_size(len(data), most_bytes)
        return data
    if len(data) < _HEAD.size:
        raise ValueError("a frame that ends in its head")
    _, version, compression, reserved, size = _HEAD.unpack_from(data)
    if (version, compression, reserved) != (_VERSION, _DEFLATE, 0):
        raise UnknownLatentFormat(f"a frame of version {version} with compression {compression}")
    _check_size(size, most_bytes)
    return _inflated(memoryview(data)[_HEAD.size :], size)


def _check_size(size_bytes: int, most_bytes: int) -> None:
    if size_bytes > most_bytes:
        raise ValueError(f"a file of {size_bytes} bytes, where at most {most_bytes} can be")


def _inflated(stream: memoryview, size: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        # One byte more than stated, to detect a longer stream; a bound of zero would mean no bound.
        file = inflater.decompress(stream, size + 1)
    except zlib.error:
        raise ValueError("a frame whose stream is damaged") from None
    if len(file) != size or not inflater.eof or inflater.unused_data:
        raise ValueError(f"a frame whose stream is not of {size} bytes")
    return file
