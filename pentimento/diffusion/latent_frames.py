"""Read the frame around a compressed safetensors file, as earlier versions wrote it. A file that is not compressed has
no frame: the library's own header says what it holds.

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
    """A stored latent in a format that this version does not know. Its bytes may be sound."""


def framed_file(data: bytes, most_bytes: int) -> bytes:
    """Return the file of a frame, or `data` itself where there is no frame. Never makes more than `most_bytes`.

    Raises UnknownLatentFormat for another version or compression, ValueError for a file that is larger than that, or
    that is not what its frame says.
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
        # One byte more than was promised, so that a longer stream shows; a bound of zero would be none.
        file = inflater.decompress(stream, size + 1)
    except zlib.error:
        raise ValueError("a frame whose stream is damaged") from None
    if len(file) != size or not inflater.eof or inflater.unused_data:
        raise ValueError(f"a frame whose stream is not of {size} bytes")
    return file
