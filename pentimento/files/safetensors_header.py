"""Check the header of a safetensors file before a library maps the file: a renamed pickle is rejected here. Find models
that are one file, and name them."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pentimento.domain.models import derived_name

SUFFIXES = (".safetensors", ".gguf")
_MAX_HEADER_BYTES = 100 * 1024 * 1024
# No file needs a size of more than 19 digits, and PyTorch's tensors have at most this many dimensions.
_MAX_DIGITS = 19
_MAX_DIMENSIONS = 64
ITEM_SIZES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1,
}  # fmt: skip
FLOATS = frozenset({"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"})


@dataclass(frozen=True)
class TensorEntry:
    """Describe one tensor by its header: the format's name of the type, and the shape."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class SafetensorsHeader:
    """Hold the tensors of a file by name, in the order of their bytes from byte `start` of the file to its end, and its
    writer's texts."""

    tensors: Mapping[str, TensorEntry]
    metadata: Mapping[str, str]
    start: int


def judge_safetensors(data: bytes | bytearray, size_bytes: int | None = None) -> SafetensorsHeader:
    """Return the header of a file's bytes, and check that it covers every byte. `data` may end with the header if
    `size_bytes`, the file's size, is given. Raises ValueError as `read_header`."""
    size = len(data) if size_bytes is None else size_bytes
    length = header_length(data, size)
    return _judged(data[8 : 8 + length], size - 8 - length)


def header_length(data: bytes | bytearray, size_bytes: int) -> int:
    """Return the length of the header after the file's first eight bytes. Raises ValueError for one that cannot be."""
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > min(_MAX_HEADER_BYTES, size_bytes - 8):
        raise ValueError("its header length does not fit the file")
    return length


def check_safetensors(path: Path) -> frozenset[str]:
    """Return the names of a file's tensors. Raises as `read_header`."""
    return frozenset(read_header(path).tensors)


def read_header(path: Path) -> SafetensorsHeader:
    """Return the header of a file; only the header is read. Raises ValueError naming the fault: length, JSON, bytes
    that do not match a shape, gaps or overlaps."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = header_length(file.read(8), size)
        return _judged(file.read(length), size - 8 - length)


def _judged(text: bytes | bytearray, data_bytes: int) -> SafetensorsHeader:
    header, metadata = _parse(text)
    names = _in_order(header, data_bytes)
    tensors = {name: TensorEntry(header[name]["dtype"], tuple(header[name]["shape"])) for name in names}
    return SafetensorsHeader(tensors, metadata, 8 + len(text))


def _parse(data: bytes | bytearray) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the tensors' entries, still unchecked, and the texts of the file's writer."""
    try:
        header = json.loads(data, parse_int=_whole_number)
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
        raise ValueError("its header is not JSON") from None
    if not isinstance(header, dict):
        raise ValueError("its header is not a JSON object")
    metadata = header.pop("__metadata__", None)
    texts = metadata.items() if isinstance(metadata, dict) else ()
    return header, {name: text for name, text in texts if isinstance(text, str)}


def _whole_number(digits: str) -> int:
    """Return the number of a header. Raises ValueError before any arithmetic with a number that no header needs."""
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"its header has a number of {len(digits)} digits, at most {_MAX_DIGITS} are taken")
    return int(digits)


def _in_order(header: dict[str, Any], data_bytes: int) -> list[str]:
    """Return the tensors' names in the order of their bytes; tensors share no bytes."""
    spans = sorted((*_span(name, entry), name) for name, entry in header.items())
    end = 0
    for start, stop, _ in spans:
        if start != end:
            raise ValueError("its tensors overlap or leave gaps")
        end = stop
    if end != data_bytes:
        raise ValueError(f"it holds {data_bytes} bytes of tensors, its header says {end}")
    return [name for _, _, name in spans]


def _span(name: str, entry: Any) -> tuple[int, int]:
    try:
        start, stop = entry["data_offsets"]
        item_size, shape = ITEM_SIZES[entry["dtype"]], entry["shape"]
        sound = len(shape) <= _MAX_DIMENSIONS and all(type(n) is int and n >= 0 for n in (start, stop, *shape))
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"the entry of tensor {name[:80]!r} is malformed") from None
    if not sound or stop - start != math.prod(shape) * item_size:
        raise ValueError(f"the bytes of tensor {name[:80]!r} do not match its shape")
    return start, stop


def found_model(path: Path) -> Path:
    """Return the path of a model. A name without a suffix may be that of a file, which the directory completes."""
    files = (path.with_name(path.name + suffix) for suffix in SUFFIXES)
    return next((file for file in files if file.is_file()), path)


def model_name(path: Path) -> str:
    """Return the name that requests use for the model of a directory or file."""
    # A file of a hub's cache is a link to a file without a name.
    name = path.name if path.is_file() else path.resolve().name
    suffix = next((suffix for suffix in SUFFIXES if name.endswith(suffix)), "")
    return derived_name(name.removesuffix(suffix))
