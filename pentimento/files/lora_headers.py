"""Validate a LoRA's file by its header only, before its model is known. Needs no torch."""

from collections.abc import Iterable, Mapping
from enum import Enum

from pentimento.domain.errors import FailedPrecondition, InvalidArgument
from pentimento.domain.reasons import Reason
from pentimento.files.safetensors_header import SafetensorsHeader, TensorEntry, judge_safetensors

MAX_RANK = 1024
MAX_KEY_COUNT = 20_000
_FACTOR_DTYPES = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")
# diffusers writes the rank itself when it gives a LoRA kohya's names.
_ALPHA_DTYPES = (*_FACTOR_DTYPES, "I64", "I32")
# Parts of names that reveal forms other than two factors; LyCORIS and PEFT write them.
_OTHER_FORMS = {
    "dora_scale": "DoRA",
    "lora_magnitude_vector": "DoRA",
    "hada_": "LoHa",
    "lokr_": "LoKr",
    "lora_mid": "Tucker decomposition",
}
# For a linear layer's factors, and for a convolution's.
_DIMENSIONS = (2, 4)
_NAMED_KEYS = 3


class FactorPart(Enum):
    """Name the role of a tensor in a layer's change."""

    DOWN = "down"
    UP = "up"
    ALPHA = "alpha"


FACTOR_SUFFIXES: Mapping[str, FactorPart] = {
    ".lora_A.weight": FactorPart.DOWN,
    ".lora_B.weight": FactorPart.UP,
    ".lora_down.weight": FactorPart.DOWN,
    ".lora_up.weight": FactorPart.UP,
    ".lora.down.weight": FactorPart.DOWN,
    ".lora.up.weight": FactorPart.UP,
    ".lora_linear_layer.down.weight": FactorPart.DOWN,
    ".lora_linear_layer.up.weight": FactorPart.UP,
    "_lora.down.weight": FactorPart.DOWN,
    "_lora.up.weight": FactorPart.UP,
    ".alpha": FactorPart.ALPHA,
}


def other_form_of(keys: Iterable[str]) -> str:
    """Return the form that these names reveal, other than two factors: DoRA, LoHa; empty for two factors."""
    return next((form for key in keys for part, form in _OTHER_FORMS.items() if part in key), "")


def dtypes_of(key: str) -> tuple[str, ...]:
    """Return the allowed types, by the format's names, of a tensor of that name: an alpha may be a whole number."""
    return _ALPHA_DTYPES if key.endswith(".alpha") else _FACTOR_DTYPES


def judge_lora(data: bytes, field: str) -> None:
    """Check a file's bytes without its model: only safetensors, every key a factor or an alpha, factors in pairs of one
    rank, with the dimensions of a layer's weights. Raises InvalidArgument that names `field`, the key and the limit,
    and FailedPrecondition UNSUPPORTED_LORA for a form of more than two factors."""
    try:
        header = judge_safetensors(data)
    except ValueError as error:
        raise InvalidArgument.of(field, f"must be a safetensors file: {error}") from None
    tensors = header.tensors
    if form := other_form_of(tensors):
        message = f"{field}: must be a LoRA of two factors for each layer, this one is a {form}"
        raise FailedPrecondition(Reason.UNSUPPORTED_LORA, message)
    if not 1 <= len(tensors) <= MAX_KEY_COUNT:
        raise InvalidArgument.of(field, f"must hold 1 to {MAX_KEY_COUNT} tensors, got {len(tensors)}")
    for key, entry in tensors.items():
        if entry.dtype not in (allowed := dtypes_of(key)):
            raise InvalidArgument.of(field, f"{_shown(key)} must be of {', '.join(allowed)}, got {entry.dtype}")
    for layer, parts in _by_layer(header, field).items():
        _judge_layer(layer, parts, field)


def _by_layer(header: SafetensorsHeader, field: str) -> dict[str, dict[FactorPart, TensorEntry]]:
    layers: dict[str, dict[FactorPart, TensorEntry]] = {}
    strangers = []
    for key, entry in header.tensors.items():
        suffix = next((suffix for suffix in FACTOR_SUFFIXES if key.endswith(suffix)), None)
        if suffix is None:
            strangers.append(key)
        else:
            layers.setdefault(key.removesuffix(suffix), {})[FACTOR_SUFFIXES[suffix]] = entry
    if strangers:
        named = ", ".join(_shown(key) for key in strangers[:_NAMED_KEYS])
        message = f"must hold factors of LoRAs and their alphas alone, {len(strangers)} keys are neither: {named}"
        raise InvalidArgument.of(field, message)
    return layers


def _judge_layer(layer: str, parts: Mapping[FactorPart, TensorEntry], field: str) -> None:
    for part in (FactorPart.DOWN, FactorPart.UP):
        if part not in parts:
            raise InvalidArgument.of(field, f"{_shown(layer)} must have both factors, it has no {part.value} factor")
        if len(parts[part].shape) not in _DIMENSIONS:
            limit = f"must have 2 or 4 dimensions, got {list(parts[part].shape)[:8]}"
            raise InvalidArgument.of(field, f"the {part.value} factor of {_shown(layer)} {limit}")
    down, up = parts[FactorPart.DOWN].shape, parts[FactorPart.UP].shape
    if not 1 <= down[0] <= MAX_RANK:
        raise InvalidArgument.of(field, f"{_shown(layer)} must be of rank 1 to {MAX_RANK}, got {down[0]}")
    if up[1] != down[0]:
        limit = f"must have two factors of one rank, got {down[0]} and {up[1]}"
        raise InvalidArgument.of(field, f"{_shown(layer)} {limit}")
    alpha = parts.get(FactorPart.ALPHA)
    if alpha is not None and any(side != 1 for side in alpha.shape):
        raise InvalidArgument.of(field, f"the alpha of {_shown(layer)} must be one number, got {list(alpha.shape)[:8]}")


def _shown(key: str) -> str:
    return repr(key[:120])
