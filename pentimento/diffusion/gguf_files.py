"""Read GGUF files (llama.cpp's format): names, shapes and types without torch, then tensors for diffusers' mappings.

GGUF is data: nothing in a file is run.
"""

import importlib.util
from collections.abc import Collection
from pathlib import Path
from typing import Any

from pentimento.domain.errors import FailedPrecondition
from pentimento.files.safetensors_header import SafetensorsHeader, TensorEntry

SUFFIX = ".gguf"
_MAGIC = b"GGUF"
# The types that diffusers turns into weights.
TYPES = frozenset(
    {"F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
     "IQ4_NL", "IQ4_XS"}
)  # fmt: skip


def gguf_header(file: Path) -> SafetensorsHeader:
    """Return the tensors of a file. Raises FailedPrecondition without the package gguf, ValueError for a damaged file
    and for a type that cannot be read, naming tensor and type."""
    if importlib.util.find_spec("gguf") is None:
        raise FailedPrecondition("LIBRARY_MISSING", f"{file}: needs a package: `pip install 'pentimento[worker]'`")
    with file.open("rb") as opened:
        if opened.read(len(_MAGIC)) != _MAGIC:
            raise ValueError("it does not begin with GGUF")
    from gguf import GGUFReader

    try:
        found = GGUFReader(file).tensors
    except (ValueError, IndexError, KeyError, TypeError, OverflowError) as error:
        raise ValueError(" ".join(str(error).split())[:200] or "it is truncated") from None
    entries = {}
    for tensor in found:
        kind = tensor.tensor_type.name
        if kind not in TYPES:
            raise ValueError(f"tensor {tensor.name[:80]!r} is of type {kind}, not of {', '.join(sorted(TYPES))}")
        # GGML states the innermost side first.
        entries[tensor.name] = TensorEntry(kind, tuple(int(side) for side in reversed(tensor.shape)))
    return SafetensorsHeader(entries, {}, 0)


def gguf_tensors(file: Path, wanted: Collection[str]) -> dict[str, Any]:
    """Return the named tensors, the packed ones as diffusers' GGUFParameter."""
    from diffusers.models.model_loading_utils import load_gguf_checkpoint

    found = load_gguf_checkpoint(str(file))
    return {name: found[name] for name in wanted}
