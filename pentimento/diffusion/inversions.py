"""Read textual inversions (Gal et al. 2022) from safetensors files: vectors that a word of the prompt stands for."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor

from pentimento.domain.errors import FailedPrecondition
from pentimento.files.safetensors_header import read_header

# A file of AUTOMATIC1111's web UI has this key, diffusers' files have the word itself.
_UNNAMED_KEY = "emb_params"
_XL_KEYS = frozenset({"clip_l", "clip_g"})
_MAX_BYTES = 16 * 2**20
# All vectors of a word must fit a chunk of tokens.
MAX_VECTORS = 75
_MAX_WORD_LENGTH = 64
_FLOATS = ("F64", "F32", "F16", "BF16")


class BadInversion(FailedPrecondition):
    """Report a textual inversion that cannot be used; the message is one line that names the file and the fault."""

    def __init__(self, message: str) -> None:
        super().__init__("BAD_EMBEDDING", message)


@dataclass(frozen=True)
class Inversion:
    """Hold a textual inversion: the word, and its vectors (vectors, width) by the encoder's key: "" for the only
    encoder, clip_l and clip_g for the two of SDXL. `file` is its name for errors."""

    word: str
    vectors: Mapping[str, Tensor]
    file: str


def read_inversion(path: Path) -> Inversion:
    """Return the inversion of a file: its word is the file's name without its ending, or the key of diffusers' form.
    Raises BadInversion, which names the file and the key, for any other form."""
    shapes = _shapes(path)
    if shapes.keys() == _XL_KEYS:
        word = path.stem
    elif len(shapes) == 1 and not shapes.keys() & _XL_KEYS:
        word = path.stem if _UNNAMED_KEY in shapes else next(iter(shapes))
    else:
        keys = ", ".join(sorted(key[:60] for key in shapes)[:5])
        raise BadInversion(f"{path.name}: must have one tensor, or clip_l and clip_g, got {keys or 'none'}")
    if not word.isprintable() or any(map(str.isspace, word)) or not 1 <= len(word) <= _MAX_WORD_LENGTH:
        limit = f"must be 1 to {_MAX_WORD_LENGTH} printable characters without blanks"
        raise BadInversion(f"{path.name}: its word {limit}, got {word[:80]!r}")
    counts = {shape[0] for shape in shapes.values()}
    if len(counts) != 1:
        raise BadInversion(f"{path.name}: clip_l and clip_g must have equal numbers of vectors")
    vectors = {key: tensor.reshape(shapes[key]) for key, tensor in load_file(path).items()}
    for key, tensor in vectors.items():
        if not tensor.isfinite().all():
            raise BadInversion(f"{path.name}: {key[:60]!r} has values that are not finite")
    return Inversion(word, vectors if len(vectors) > 1 else {"": next(iter(vectors.values()))}, path.name)


def _shapes(path: Path) -> Mapping[str, tuple[int, int]]:
    """Return the numbers of vectors and of values of each tensor, by the file's header."""
    try:
        size = path.stat().st_size
        tensors = read_header(path).tensors
    except (OSError, ValueError) as error:
        raise BadInversion(f"{path.name}: {error}") from None
    if size > _MAX_BYTES:
        raise BadInversion(f"{path.name}: must have at most {_MAX_BYTES} bytes, got {size}")
    shapes = {}
    for key, tensor in tensors.items():
        shape = tensor.shape if len(tensor.shape) != 1 else (1, *tensor.shape)
        if len(shape) != 2 or not 1 <= shape[0] <= MAX_VECTORS or tensor.dtype not in _FLOATS:
            limit = f"must be 1 to {MAX_VECTORS} vectors of floats"
            raise BadInversion(f"{path.name}: {key[:60]!r} {limit}, got {tensor.dtype} {list(tensor.shape)[:4]}")
        shapes[key] = (shape[0], shape[1])
    return shapes
