"""Read LoRA files and validate them before use: safetensors only, complete, and for this base model.

A file is read once, when its LoRA is requested: the bytes that are validated and digested are the bytes that are used,
even if the file changes. Before that, its header decides whether it fits. Textual inversions
in a file (`bundle_emb`) are read with it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pentimento.diffusion.inversions import MAX_VECTORS, Inversion
from pentimento.diffusion.loras.files import (
    LoraFile,
    StatedAlphas,
    config_of,
    open_header,
    open_lora,
    stated_in_config,
    stated_in_metadata,
)
from pentimento.diffusion.loras.key_names import FactorKey, key_names
from pentimento.diffusion.loras.lora import BadLora, BaseLayers, LayerChange, Lora, built_change
from pentimento.diffusion.loras.transformer_names import LayerPlace, shape_of
from pentimento.diffusion.tensor_files import DTYPES
from pentimento.domain.reasons import Reason
from pentimento.files.file_sums import FileSums
from pentimento.files.lora_headers import (
    ChangeShape,
    FactorPart,
    Shape,
    bundled_word,
    change_shape,
    check_adapters,
    dtypes_of,
    other_form_of,
)
from pentimento.files.safetensors_header import SafetensorsHeader, judge_safetensors

_NAMED_KEYS = 3
# Keys of a word's vectors, with the text encoder that reads them, by family.
_ENCODERS = {
    "stable_diffusion": {"": "text_encoder"},
    "stable_diffusion_xl": {"clip_l": "text_encoder", "clip_g": "text_encoder_2"},
}


@dataclass(frozen=True)
class _CheckedLayer:
    """Hold a layer of a file: its place in the base, the shape of its weight and of its change, and its keys."""

    component: str
    place: LayerPlace
    shape: Shape
    change: ChangeShape
    keys: Mapping[FactorPart, str]


@dataclass(frozen=True)
class _CheckedHeader:
    """Hold the layers of a file, and the alphas that it states, by component."""

    layers: Sequence[_CheckedLayer]
    stated: Mapping[str, StatedAlphas]


def read_lora(
    path: Path, base: BaseLayers, dtype: torch.dtype, expected_digest: str = "", sums: FileSums | None = None
) -> Lora:
    """Return the LoRA in a safetensors file, converted to `dtype` in host memory; an adapter_config.json in its folder
    supplies the alphas that its tensors lack. A file in `sums` is verified by the read. Raises BadLora, and OSError
    if the file cannot be read."""
    return lora_of(open_lora(path, sums), base, dtype, expected_digest)


def check_lora(path: Path, base: BaseLayers) -> None:
    """Validate a file by its header and the configuration in its folder, without reading tensors: names, types, ranks
    and shapes. Raises as `read_lora`."""
    header, config = open_header(path)
    _checked(path.name, header, config, base)


def lora_of(file: LoraFile, base: BaseLayers, dtype: torch.dtype, expected_digest: str = "") -> Lora:
    """Return the changes that a file's bytes make to `base`. Raises BadLora for another digest than expected, an
    unsound header or number, or a key or shape that does not match this base."""
    if expected_digest not in ("", file.digest):
        raise BadLora(f"{file.name}: its digest is {file.digest}, expected {expected_digest[:80]}")
    try:
        header = judge_safetensors(file.data)
    except ValueError as error:
        raise BadLora(f"{file.name}: {error}") from None
    checked = _checked(file.name, header, file.config, base)
    numbers = _Numbers.of(file.data, header, dtype)
    components: dict[str, dict[str, LayerChange]] = {}
    for layer in checked.layers:
        changes = components.setdefault(layer.component, {})
        changes.update(_changes(file.name, layer, header, numbers, checked.stated[layer.component]))
    bundled = {key: numbers.made[key].view(header.tensors[key].shape) for key in header.tensors if bundled_word(key)}
    if not all(map(_all_finite, bundled.values())):
        raise BadLora(f"{file.name}: an embedding holds numbers that are not finite")
    return Lora(file.digest, len(file.data), components, words_of(file.name, bundled))


def _checked(file_name: str, header: SafetensorsHeader, config: bytes, base: BaseLayers) -> _CheckedHeader:
    told = config_of(config)
    if form := other_form_of(header.tensors):
        message = f"{file_name}: it is {form}, and LoRAs, LoHas and LoKrs are read"
        raise BadLora(message, Reason.UNSUPPORTED_LORA)
    try:
        _check_types(header)
        check_adapters(header.tensors)
        stated = {name: _stated(told, header, name, base) for name in base.shapes}
    except ValueError as error:
        raise BadLora(f"{file_name}: {error}") from None
    layers = [
        _checked_layer(file_name, component, place, keys, header, base)
        for (component, place), keys in _by_layer(file_name, header, base).items()
    ]
    check_words(file_name, {key: entry.shape for key, entry in header.tensors.items()}, base)
    _check_once(file_name, layers)
    _check_small(file_name, layers, base)
    for layer in layers:
        if stated[layer.component].decomposed and layer.change.form == "LoRA" and layer.change.magnitudes is None:
            raise BadLora(f"{file_name}: {_layer_name(layer.component, layer.place)} has no magnitudes, and is a DoRA")
    return _CheckedHeader(layers, stated)


def _checked_layer(
    file_name: str,
    component: str,
    place: LayerPlace,
    keys: Mapping[FactorPart, str],
    header: SafetensorsHeader,
    base: BaseLayers,
) -> _CheckedLayer:
    """Return a layer with a change that fits its weight. Raises BadLora for other shapes."""
    where = f"{file_name}: {_layer_name(component, place)}"
    shapes = {part: header.tensors[key].shape for part, key in keys.items()}
    shape = shape_of(place, base.shapes[component])
    try:
        change = change_shape(shapes)
    except ValueError as error:
        raise BadLora(f"{where} {error}") from None
    if change.outputs != shape[0] or not _fits(change.inputs, shape[1:]) or not _magnitudes_fit(change, shapes, shape):
        factors = " and ".join(str(list(shapes[part])) for part in FactorPart if part in shapes and part.form)
        raise BadLora(f"{where}: factors {factors} do not make a change of {list(shape)}", Reason.LORA_MISMATCH)
    if change.magnitudes == 1 and any(target.rows for target in place):
        message = f"{where}: a DoRA by inputs of a layer that is several here is not read"
        raise BadLora(message, Reason.UNSUPPORTED_LORA)
    return _CheckedLayer(component, place, shape, change, keys)


def _magnitudes_fit(change: ChangeShape, shapes: Mapping[FactorPart, Shape], shape: Shape) -> bool:
    return change.magnitudes != 1 or math.prod(shapes[FactorPart.DORA_SCALE]) == shape[1]


def _check_once(file_name: str, layers: Sequence[_CheckedLayer]) -> None:
    """Raise BadLora if two layers of the file change one module: one by the module's name, one by the original's."""
    seen: set[tuple[str, str]] = set()
    for layer in layers:
        for target in layer.place:
            if (layer.component, target.module) in seen:
                raise BadLora(f"{file_name}: holds two changes of {layer.component}.{target.module}")
            seen.add((layer.component, target.module))


def _check_small(file_name: str, layers: Sequence[_CheckedLayer], base: BaseLayers) -> None:
    """Raise BadLora for a change without small factors of weights that are in eight bits."""
    for layer in layers if base.is_packed else ():
        is_small = layer.change.form == "LoRA" and layer.change.magnitudes is None
        if layer.component == base.denoiser and not is_small:
            form = "DoRA" if layer.change.magnitudes is not None else layer.change.form
            message = f"{file_name}: a {form} changes weights, which are in eight bits here (--weights full)"
            raise BadLora(message, Reason.UNSUPPORTED_LORA)


def _layer_name(component: str, place: LayerPlace) -> str:
    return f"{component}.{'+'.join(target.module for target in place)}"


def _check_types(header: SafetensorsHeader) -> None:
    for name, entry in header.tensors.items():
        if entry.dtype not in (allowed := dtypes_of(name)):
            raise ValueError(f"tensor {name[:80]!r} is of type {entry.dtype}, not of {', '.join(allowed)}")


def _stated(
    config: Mapping[str, Any] | None, header: SafetensorsHeader, component: str, base: BaseLayers
) -> StatedAlphas:
    if config is not None and component == base.denoiser:
        return stated_in_config(config)
    return stated_in_metadata(header.metadata, component)


def _by_layer(
    file_name: str, header: SafetensorsHeader, base: BaseLayers
) -> dict[tuple[str, LayerPlace], dict[FactorPart, str]]:
    """Return the file's keys by layer and part. Raises BadLora for a key without a place, or two keys for one place."""
    names = key_names(base)
    found: dict[tuple[str, LayerPlace], dict[FactorPart, str]] = {}
    strangers = []
    for key in header.tensors:
        if bundled_word(key) is not None:
            continue
        one = names.find(key)
        if one is None:
            strangers.append(key)
        elif found.setdefault((one.component, one.place), {}).setdefault(one.part, key) != key:
            raise BadLora(f"{file_name}: {key[:120]!r} and another tensor are both for {_said(one)}")
    _refuse_strangers(file_name, strangers, len(header.tensors), base)
    if not found:
        raise BadLora(f"{file_name}: holds no tensor")
    return found


def _said(one: FactorKey) -> str:
    return f"{one.part.value} of {_layer_name(one.component, one.place)}"


def _refuse_strangers(file_name: str, strangers: list[str], key_count: int, base: BaseLayers) -> None:
    if not strangers:
        return
    named = ", ".join(repr(key[:120]) for key in strangers[:_NAMED_KEYS])
    rest = f" and {len(strangers) - _NAMED_KEYS} more" if len(strangers) > _NAMED_KEYS else ""
    message = f"{file_name}: of {key_count} keys {len(strangers)} match no layer of this {base.family} model: "
    raise BadLora(f"{message}{named}{rest}", Reason.LORA_MISMATCH)


@dataclass(frozen=True)
class _Numbers:
    """Hold a file's tensors, flat, as stored and as converted, and whether all converted numbers are finite. Tensors
    are copied, converted and checked together: one call for each of thousands would hold the interpreter for as long as
    a step of the engine."""

    stored: Mapping[str, Tensor]
    made: Mapping[str, Tensor]
    finite: bool

    @classmethod
    def of(cls, data: bytes | bytearray, header: SafetensorsHeader, dtype: torch.dtype) -> "_Numbers":
        stored: dict[str, Tensor] = {}
        made: dict[str, Tensor] = {}
        finite, start = True, header.start
        for name, run in groupby(header.tensors.items(), key=lambda item: item[1].dtype):
            counts = {key: math.prod(entry.shape) for key, entry in run}
            together = torch.empty(sum(counts.values()), dtype=DTYPES[name])
            place = together.view(torch.uint8).numpy()
            # Unlike a copy by Python, this one lets other threads run.
            np.copyto(place, np.frombuffer(data, np.uint8, place.size, start))
            start += place.size
            converted = together.to(dtype)
            finite = finite and _all_finite(converted)
            stored.update(zip(counts, together.split(list(counts.values())), strict=True))
            made.update(zip(counts, converted.split(list(counts.values())), strict=True))
        return cls(stored, made, finite)


def _all_finite(numbers: Tensor) -> bool:
    """Return whether all numbers are finite, without memory for one result each."""
    return not numbers.numel() or all(math.isfinite(end.item()) for end in torch.aminmax(numbers))


def _changes(
    file_name: str, layer: _CheckedLayer, header: SafetensorsHeader, numbers: _Numbers, stated: StatedAlphas
) -> dict[str, LayerChange]:
    """Return the changes of a layer's modules. Raises BadLora for numbers that are not finite."""
    where = f"{file_name}: {_layer_name(layer.component, layer.place)}"
    tensors: dict[FactorPart, Tensor] = {
        part: numbers.made[key].view(header.tensors[key].shape)
        for part, key in layer.keys.items()
        if part is not FactorPart.ALPHA
    }
    if not (numbers.finite or all(map(_all_finite, tensors.values()))):
        raise BadLora(f"{where}: holds numbers that are not finite")
    rank, own = layer.change.rank, None
    if FactorPart.ALPHA in layer.keys:
        own = _alpha(where, numbers.stored[layer.keys[FactorPart.ALPHA]])
    changes = {}
    for target in layer.place:
        alpha = stated.of(target.module, rank) if own is None or rank is None else own
        changes[target.module] = built_change(layer.change, tensors, layer.shape, alpha, target.rows)
    return changes


def _fits(inputs: Shape, wanted: Shape) -> bool:
    """Return whether the inputs of a change are those of a weight; 1x1 convolutions may be written as linear layers,
    and the factors of other convolutions flat."""
    return inputs == wanted or _without_ones(inputs) == _without_ones(wanted) or inputs == (math.prod(wanted),)


def _without_ones(inputs: Shape) -> Shape:
    return inputs[:1] if all(side == 1 for side in inputs[1:]) else inputs


def _alpha(where: str, stored: Tensor) -> float:
    if stored.numel() != 1 or not math.isfinite(stored.item()):
        raise BadLora(f"{where}: its alpha is no finite number")
    return float(stored.item())


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
