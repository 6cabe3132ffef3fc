"""Validate a LoRA's file by its header only, before its model is known. Needs no torch.

A layer's tensors have one of three forms, by Hu et al. 2021, Hyeon-Woo et al. 2022 (LoHa) and LyCORIS (LoKr):

| form | change of the weight | tensors |
| --- | --- | --- |
| LoRA | up · down | `lora_up`, `lora_down`; `lora_mid` is the core of a Tucker decomposition |
| LoHa | (w1_a · w1_b) ∘ (w2_a · w2_b) | `hada_w1_a` … `hada_w2_b`; cores `hada_t1`, `hada_t2` |
| LoKr | w1 ⊗ w2, each whole or a product | `lokr_w1` or `lokr_w1_a`, `lokr_w1_b`; likewise w2; its core `lokr_t2` |

Each may have an alpha, and the magnitudes of DoRA (Liu et al. 2024): `lora_magnitude_vector` by PEFT, `dora_scale` by
LyCORIS.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from pentimento.domain.errors import FailedPrecondition, InvalidArgument
from pentimento.domain.reasons import Reason
from pentimento.files.safetensors_header import SafetensorsHeader, judge_safetensors

MAX_RANK = 1024
MAX_KEY_COUNT = 20_000
# Numbers of one layer's change. The largest layer of the served families has a quarter of that.
MAX_CHANGE_NUMBERS = 2**28
_FACTOR_DTYPES = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")
# diffusers writes the rank itself when it gives a LoRA kohya's names.
_ALPHA_DTYPES = (*_FACTOR_DTYPES, "I64", "I32")
# Ends of names that reveal forms which are not read; LyCORIS and PEFT write them.
_OTHER_FORMS = {
    "oft_blocks": "OFT",
    "oft_diag": "OFT",
    "oft_R": "OFT",
    "rescale": "OFT",
    "on_input": "IA3",
    "ia3_l": "IA3",
    "diff": "difference of whole weights",
    "diff_b": "difference of whole weights",
    "w_norm": "difference of whole weights",
    "b_norm": "difference of whole weights",
}
# Textual inversions inside a LoRA's file: `bundle_emb.WORD.string_to_param.*`, for SDXL `.clip_l` and `.clip_g`.
_BUNDLED = re.compile(r"bundle_emb\.([^.\s]{1,64})\.(?:string_to_param\.[^.]{1,64}|(clip_[lg]))")
# For a linear layer's factors, and for a convolution's.
_DIMENSIONS = (2, 4)
_NAMED_KEYS = 3

Shape = tuple[int, ...]


class FactorPart(Enum):
    """Name the role of a tensor in a layer's change."""

    DOWN = "down"
    UP = "up"
    MID = "mid"
    HADA_W1_A = "hada_w1_a"
    HADA_W1_B = "hada_w1_b"
    HADA_W2_A = "hada_w2_a"
    HADA_W2_B = "hada_w2_b"
    HADA_T1 = "hada_t1"
    HADA_T2 = "hada_t2"
    LOKR_W1 = "lokr_w1"
    LOKR_W1_A = "lokr_w1_a"
    LOKR_W1_B = "lokr_w1_b"
    LOKR_W2 = "lokr_w2"
    LOKR_W2_A = "lokr_w2_a"
    LOKR_W2_B = "lokr_w2_b"
    LOKR_T2 = "lokr_t2"
    ALPHA = "alpha"
    # One number for each output, by PEFT.
    MAGNITUDE = "magnitude"
    # One number for each output or for each input, by LyCORIS.
    DORA_SCALE = "dora_scale"

    @property
    def form(self) -> str:
        """Return the form that the part belongs to; empty for the parts of every form."""
        if self in (FactorPart.DOWN, FactorPart.UP, FactorPart.MID):
            return "LoRA"
        return {"hada": "LoHa", "lokr": "LoKr"}.get(self.value[:4], "")


_BY_LYCORIS = [part for part in FactorPart if part.form in ("LoHa", "LoKr")]
FACTOR_SUFFIXES: Mapping[str, FactorPart] = {
    ".lora_A.weight": FactorPart.DOWN,
    ".lora_B.weight": FactorPart.UP,
    ".lora_down.weight": FactorPart.DOWN,
    ".lora_up.weight": FactorPart.UP,
    ".lora_mid.weight": FactorPart.MID,
    ".lora.down.weight": FactorPart.DOWN,
    ".lora.up.weight": FactorPart.UP,
    ".lora_linear_layer.down.weight": FactorPart.DOWN,
    ".lora_linear_layer.up.weight": FactorPart.UP,
    "_lora.down.weight": FactorPart.DOWN,
    "_lora.up.weight": FactorPart.UP,
    ".alpha": FactorPart.ALPHA,
    ".lora_magnitude_vector": FactorPart.MAGNITUDE,
    ".lora_magnitude_vector.weight": FactorPart.MAGNITUDE,
    ".dora_scale": FactorPart.DORA_SCALE,
    **{f".{part.value}": part for part in _BY_LYCORIS},
}
# PEFT's modules name the adapter inside the key: `….lora_A.style.weight`, `….hada_w1_a.style`.
_NAMED_ADAPTER = re.compile(r"\.(lora_A|lora_B|lora_magnitude_vector|(?:hada|lokr)_\w+)\.([^.]+)(\.weight)?$")


@dataclass(frozen=True)
class ChangeShape:
    """Describe a layer's change by its factors' shapes: its form, and its size of `outputs` by `inputs`, which are
    (inputs,) or (inputs, height, width). `rank` divides alpha; None if LoKr holds both matrices whole, which LyCORIS
    does not scale. `magnitudes` is the axis of DoRA's magnitudes, 0 for outputs and 1 for inputs; None without."""

    form: str
    outputs: int
    inputs: Shape
    rank: int | None
    magnitudes: int | None = None


def split_key(key: str) -> tuple[str, FactorPart, str] | None:
    """Return the layer's name in a key, the part, and the name of PEFT's adapter or an empty text. None for others."""
    adapter = ""
    if named := _NAMED_ADAPTER.search(key):
        bare = f"{key[: named.start()]}.{named[1]}{named[3] or ''}"
        if named[2] != "weight":
            key, adapter = bare, named[2]
    for suffix, part in FACTOR_SUFFIXES.items():
        if key.endswith(suffix):
            return key.removesuffix(suffix), part, adapter
    return None


def bundled_word(key: str) -> tuple[str, str] | None:
    """Return the word of a textual inversion inside a LoRA's file, and the key of its text encoder: clip_l or clip_g of
    SDXL, else empty. None for other keys."""
    found = _BUNDLED.fullmatch(key)
    return (found[1], found[2] or "") if found is not None else None


def check_adapters(keys: Iterable[str]) -> None:
    """Raise ValueError if the keys are of several adapters of PEFT: a file is one LoRA."""
    names = sorted({found[2] for key in keys if (found := split_key(key)) is not None})
    if len(names) > 1:
        raise ValueError(f"holds {len(names)} adapters, must hold one: {', '.join(map(shown, names[:_NAMED_KEYS]))}")


def other_form_of(keys: Iterable[str]) -> str:
    """Return a form that these names reveal and that is not read: OFT, IA3; empty for LoRA, LoHa and LoKr."""
    for key in keys:
        if bundled_word(key) is not None:
            continue
        end = key.removesuffix(".weight").rpartition(".")[2]
        if end in _OTHER_FORMS:
            return _OTHER_FORMS[end]
    return ""


def dtypes_of(key: str) -> tuple[str, ...]:
    """Return the allowed types, by the format's names, of a tensor of that name: an alpha may be a whole number."""
    return _ALPHA_DTYPES if key.endswith(".alpha") else _FACTOR_DTYPES


def change_shape(shapes: Mapping[FactorPart, Shape]) -> ChangeShape:
    """Return the change that a layer's tensors make, by their shapes. Raises ValueError naming the tensor and the limit
    if one is missing, or if they do not multiply."""
    forms = sorted({part.form for part in shapes} - {""})
    if len(forms) > 1:
        raise ValueError(f"must have factors of one form, it has those of {' and '.join(forms)}")
    found = _CHANGES[forms[0] if forms else "LoRA"](shapes)
    numbers = found.outputs * math.prod(found.inputs)
    if numbers > MAX_CHANGE_NUMBERS:
        size = f"{found.outputs} by {' x '.join(map(str, found.inputs))}"
        raise ValueError(f"must change at most {MAX_CHANGE_NUMBERS} numbers, got {size}")
    alpha = shapes.get(FactorPart.ALPHA, ())
    if any(side != 1 for side in alpha):
        raise ValueError(f"must have an alpha of one number, got {list(alpha)[:8]}")
    return ChangeShape(found.form, found.outputs, found.inputs, found.rank, _magnitude_axis(shapes, found))


def _lora(shapes: Mapping[FactorPart, Shape]) -> ChangeShape:
    up = _shape(shapes, FactorPart.UP, _DIMENSIONS)
    down = _shape(shapes, FactorPart.DOWN, _DIMENSIONS)
    _check_ones(FactorPart.UP, up)
    rank = _rank(down[0])
    _check_equal(FactorPart.DOWN, FactorPart.UP, rank, up[1])
    if FactorPart.MID not in shapes:
        return ChangeShape("LoRA", up[0], down[1:], rank)
    mid = _shape(shapes, FactorPart.MID, (4,))
    _check_ones(FactorPart.DOWN, down)
    _check_equal(FactorPart.MID, FactorPart.UP, mid[0], rank)
    _check_equal(FactorPart.MID, FactorPart.DOWN, mid[1], rank)
    return ChangeShape("LoRA", up[0], (down[1], *mid[2:]), rank)


def _loha(shapes: Mapping[FactorPart, Shape]) -> ChangeShape:
    first, second = FactorPart.HADA_W1_A, FactorPart.HADA_W2_A
    one = _product(shapes, first, FactorPart.HADA_W1_B, FactorPart.HADA_T1, FactorPart.HADA_T2 in shapes)
    other = _product(shapes, second, FactorPart.HADA_W2_B, FactorPart.HADA_T2, FactorPart.HADA_T1 in shapes)
    if one != other:
        raise ValueError(f"must have two products of one shape, got {one} and {other}")
    rank, outputs, inputs = one
    return ChangeShape("LoHa", outputs, inputs, rank)


def _lokr(shapes: Mapping[FactorPart, Shape]) -> ChangeShape:
    first_rank, rows, columns = _whole_or_product(
        shapes, FactorPart.LOKR_W1, FactorPart.LOKR_W1_A, FactorPart.LOKR_W1_B, None
    )
    second_rank, outputs, inputs = _whole_or_product(
        shapes, FactorPart.LOKR_W2, FactorPart.LOKR_W2_A, FactorPart.LOKR_W2_B, FactorPart.LOKR_T2
    )
    rank = first_rank if second_rank is None else second_rank
    return ChangeShape("LoKr", rows * outputs, (math.prod(columns) * inputs[0], *inputs[1:]), rank)


_CHANGES = {"LoRA": _lora, "LoHa": _loha, "LoKr": _lokr}


def _whole_or_product(
    shapes: Mapping[FactorPart, Shape], whole: FactorPart, left: FactorPart, right: FactorPart, core: FactorPart | None
) -> tuple[int | None, int, Shape]:
    parts = [part for part in (left, right, core) if part is not None and part in shapes]
    if whole not in shapes and parts:
        return _product(shapes, left, right, core, has_core=False)
    shape = _shape(shapes, whole, _DIMENSIONS if core is not None else (2,))
    if parts:
        raise ValueError(f"must have {whole.value} or {parts[0].value}, it has both")
    return None, shape[0], shape[1:]


def _product(
    shapes: Mapping[FactorPart, Shape], left: FactorPart, right: FactorPart, core: FactorPart | None, has_core: bool
) -> tuple[int, int, Shape]:
    """Return rank, outputs and inputs of left · right, or of the Tucker decomposition with its core: both sides then
    have the rank first. `has_core` says that a core must be there."""
    first = _shape(shapes, left, (2,))
    if core is None or (core not in shapes and not has_core):
        second = _shape(shapes, right, _DIMENSIONS)
        _check_equal(left, right, first[1], second[0])
        return _rank(second[0]), first[0], second[1:]
    second, middle = _shape(shapes, right, (2,)), _shape(shapes, core, (4,))
    _check_equal(core, left, middle[0], first[0])
    _check_equal(core, right, middle[1], second[0])
    return _rank(second[0]), first[1], (second[1], *middle[2:])


def _magnitude_axis(shapes: Mapping[FactorPart, Shape], change: ChangeShape) -> int | None:
    there = [part for part in (FactorPart.MAGNITUDE, FactorPart.DORA_SCALE) if part in shapes]
    if not there:
        return None
    if len(there) > 1:
        raise ValueError("must have one tensor of magnitudes, it has PEFT's and LyCORIS'")
    shape = shapes[there[0]]
    count = math.prod(shape)
    # PEFT's of a convolution have the outputs on their second axis.
    by_output = there[0] is FactorPart.MAGNITUDE or len(shape) < 2 or shape[0] == change.outputs
    # A convolution's factors may be flat: then the inputs are a divisor of the columns.
    fits = count == change.outputs if by_output else count > 0 and change.inputs[0] % count == 0
    if not fits or max(shape, default=1) != count:
        raise ValueError(f"must have a magnitude for each output or input, got {list(shape)[:8]}")
    return 0 if by_output else 1


def _shape(shapes: Mapping[FactorPart, Shape], part: FactorPart, dimensions: tuple[int, ...]) -> Shape:
    if part not in shapes:
        raise ValueError(f"must have all factors, it has no {part.value} factor")
    shape = shapes[part]
    if len(shape) not in dimensions:
        limit = f"must have {' or '.join(map(str, dimensions))} dimensions, got {list(shape)[:8]}"
        raise ValueError(f"{limit} of the {part.value} factor")
    return shape


def _check_ones(part: FactorPart, shape: Shape) -> None:
    if any(side != 1 for side in shape[2:]):
        raise ValueError(f"must have a 1x1 {part.value} factor, got {list(shape)}")


def _check_equal(left: FactorPart, right: FactorPart, one: int, other: int) -> None:
    if one != other:
        raise ValueError(f"must have {left.value} and {right.value} factors of one rank, got {one} and {other}")


def _rank(rank: int) -> int:
    if not 1 <= rank <= MAX_RANK:
        raise ValueError(f"must be of rank 1 to {MAX_RANK}, got {rank}")
    return rank


def judge_lora(data: bytes, field: str, size_bytes: int | None = None) -> None:
    """Check a file's bytes without its model: only safetensors, every key a part of a LoRA, each layer complete, with
    shapes that multiply, within the limits. `data` may end with the header if `size_bytes`, the file's size, is given.
    Raises InvalidArgument that names `field`, the key and the limit, and FailedPrecondition UNSUPPORTED_LORA for a form
    that is not read."""
    try:
        header = judge_safetensors(data, size_bytes)
    except ValueError as error:
        raise InvalidArgument.of(field, f"must be a safetensors file: {error}") from None
    tensors = header.tensors
    if form := other_form_of(tensors):
        raise FailedPrecondition(Reason.UNSUPPORTED_LORA, f"{field}: must be a LoRA, LoHa or LoKr, this one is {form}")
    if not 1 <= len(tensors) <= MAX_KEY_COUNT:
        raise InvalidArgument.of(field, f"must hold 1 to {MAX_KEY_COUNT} tensors, got {len(tensors)}")
    for key, entry in tensors.items():
        if entry.dtype not in (allowed := dtypes_of(key)):
            raise InvalidArgument.of(field, f"{shown(key)} must be of {', '.join(allowed)}, got {entry.dtype}")
    try:
        check_adapters(tensors)
    except ValueError as error:
        raise InvalidArgument.of(field, str(error)) from None
    for layer, shapes in _by_layer(header, field).items():
        try:
            change_shape(shapes)
        except ValueError as error:
            raise InvalidArgument.of(field, f"{shown(layer)} {error}") from None


def _by_layer(header: SafetensorsHeader, field: str) -> dict[str, dict[FactorPart, Shape]]:
    layers: dict[str, dict[FactorPart, Shape]] = {}
    strangers = []
    for key, entry in header.tensors.items():
        found = split_key(key)
        if bundled_word(key) is not None:
            continue  # checked by its model
        if found is None:
            strangers.append(key)
        else:
            layers.setdefault(found[0], {})[found[1]] = entry.shape
    if strangers:
        named = ", ".join(shown(key) for key in strangers[:_NAMED_KEYS])
        message = f"must hold factors of LoRAs and their alphas alone, {len(strangers)} keys are neither: {named}"
        raise InvalidArgument.of(field, message)
    return layers


def shown(key: str) -> str:
    """Return a file's key for a message."""
    return repr(key[:120])
