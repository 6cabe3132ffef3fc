"""Read the textual inversions inside LoRA files (`bundle_emb`), and let prompts of requests with the LoRA use them.

The word of an inversion means its vectors in requests with that LoRA alone. So the text encoders get the vectors under
another token, and the word is replaced by that token in the prompts of requests with the LoRA.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol
from weakref import WeakKeyDictionary

from torch import Tensor

from pentimento.diffusion.inversions import MAX_VECTORS, Inversion
from pentimento.diffusion.loras.lora import AdapterSet, BadLora, BaseLayers
from pentimento.domain.errors import ResourceExhausted
from pentimento.domain.generation import GenerationSpec
from pentimento.domain.reasons import Reason
from pentimento.files.lora_headers import Shape, bundled_word

# Keys of a word's vectors, with the text encoder that reads them, by family.
_ENCODERS = {
    "stable_diffusion": {"": "text_encoder"},
    "stable_diffusion_xl": {"clip_l": "text_encoder", "clip_g": "text_encoder_2"},
}
# Words of all LoRAs that one process has read: each takes rows of the text encoders' tables.
MAX_WORDS = 1024


class TakesInversions(Protocol):
    """Describe a model that textual inversions can be added to."""

    def add_inversion(self, inversion: Inversion) -> None: ...


def check_words(file_name: str, shapes: Mapping[str, Shape], base: BaseLayers) -> None:
    """Check the inversions among a file's tensors by their shapes. Raises BadLora for a family without them, and for
    other keys, numbers of vectors or widths than the model's."""
    words: dict[str, dict[str, str]] = {}
    for key in shapes:
        if (found := bundled_word(key)) is not None:
            words.setdefault(found[0], {})[found[1]] = key
    encoders = _ENCODERS.get(base.family)
    if words and encoders is None:
        message = f"{file_name}: it has embeddings, which are read for {' and '.join(_ENCODERS)}"
        raise BadLora(message, Reason.UNSUPPORTED_LORA)
    for word, keys in words.items():
        where = f"{file_name}: the embedding {word[:60]!r}"
        if encoders is None or keys.keys() != encoders.keys():
            wanted = " and ".join(key or "string_to_param" for key in encoders or ())
            raise BadLora(f"{where} must have {wanted}, got {sorted(keys)}", Reason.LORA_MISMATCH)
        counts = {_check_vectors(where, shapes[key], _width(base, encoders[part])) for part, key in keys.items()}
        if len(counts) > 1:
            raise BadLora(f"{where} must have equal numbers of vectors for each text encoder")


def _check_vectors(where: str, shape: Shape, width: int) -> int:
    count = shape[0] if len(shape) == 2 else 1
    if shape[-1:] != (width,) or len(shape) not in (1, 2) or not 1 <= count <= MAX_VECTORS:
        limit = f"must be 1 to {MAX_VECTORS} vectors of {width} values"
        raise BadLora(f"{where} {limit}, got {list(shape)[:4]}", Reason.LORA_MISMATCH)
    return count


def _width(base: BaseLayers, encoder: str) -> int:
    shapes = base.shapes[encoder]
    return next(shape[1] for name, shape in shapes.items() if name.endswith("q_proj"))


def words_of(file_name: str, tensors: Mapping[str, Tensor]) -> tuple[Inversion, ...]:
    """Return the inversions among a file's checked tensors."""
    words: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        if (found := bundled_word(key)) is not None:
            vectors = tensor.view(1, -1) if tensor.ndim == 1 else tensor
            words.setdefault(found[0], {})[found[1]] = vectors
    return tuple(Inversion(word, vectors, file_name) for word, vectors in words.items())


# For each model the token that stands for a word, by the LoRA's digest and the word.
_TOKENS: "WeakKeyDictionary[TakesInversions, dict[tuple[str, str], str]]" = WeakKeyDictionary()


class LoraWords:
    """Add the inversions of LoRAs to a model as requests need them. One thread only."""

    def __init__(self, model: TakesInversions) -> None:
        self._model = model
        self._tokens = _TOKENS.setdefault(model, {})

    def replaced(self, spec: GenerationSpec, adapters: AdapterSet) -> GenerationSpec:
        """Return the request with the words of its LoRAs replaced in both prompts. Where two LoRAs have one word, the
        first wins. Raises ResourceExhausted for more words than a process holds."""
        for one in adapters:
            for inversion in one.lora.words if one.weight else ():
                # A word, not a part of a longer one.
                word = re.compile(rf"(?<!\w){re.escape(inversion.word)}(?!\w)")
                if word.search(spec.prompt) or word.search(spec.negative_prompt):
                    token = self._token(one.lora.digest, inversion)
                    prompts = (word.sub(token, prompt) for prompt in (spec.prompt, spec.negative_prompt))
                    spec = replace(spec, prompt=next(prompts), negative_prompt=next(prompts))
        return spec

    def _token(self, digest: str, inversion: Inversion) -> str:
        key = (digest, inversion.word)
        if key not in self._tokens:
            if len(self._tokens) >= MAX_WORDS:
                message = f"this worker holds {MAX_WORDS} embeddings of LoRAs, its most, until it restarts"
                raise ResourceExhausted("TOO_MANY_EMBEDDINGS", message)
            token = "lora" + hashlib.sha256(f"{digest} {inversion.word}".encode()).hexdigest()[:16]
            self._model.add_inversion(replace(inversion, word=token))
            self._tokens[key] = token
        return self._tokens[key]
