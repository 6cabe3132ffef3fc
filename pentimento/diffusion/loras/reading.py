"""Read LoRA files and validate them before use: safetensors only, complete, and for this base model.

A file is read once, when its LoRA is requested: the bytes that are validated and digested are the bytes that are used,
even if the file changes. Before that, its header decides whether it fits.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

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
from pentimento.diffusion.loras.lora import BadLora, BaseLayers, Lora, LowRankFactors
from pentimento.domain.reasons import Reason
from pentimento.files.lora_headers import MAX_RANK, FactorPart, dtypes_of, other_form_of
from pentimento.files.safetensors_header import SafetensorsHeader, judge_safetensors

_NAMED_KEYS = 3
_Shape = tuple[int, ...]
_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "I64": torch.int64, "I32": torch.int32,
}  # fmt: skip


@dataclass(frozen=True)
class _JudgedHeader:
    """Hold the keys of a file by layer and part, and the alphas that it states, by component."""

    layers: Mapping[tuple[str, str], Mapping[FactorPart, str]]
    stated: Mapping[str, StatedAlphas]


def read_lora(path: Path, base: BaseLayers, dtype: torch.dtype, expected_digest: str = "") -> Lora:
    """Return the LoRA in a safetensors file, converted to `dtype` in host memory; an adapter_config.json in its folder
    supplies the alphas that its tensors lack. Raises BadLora, and OSError if the file cannot be read."""
    return lora_of(open_lora(path), base, dtype, expected_digest)


def check_lora(path: Path, base: BaseLayers) -> None:
    """Validate a file by its header and the configuration in its folder, without reading tensors: names, types, ranks
    and shapes. Raises as `read_lora`."""
    header, config = open_header(path)
    _judge(path.name, header, config, base)


def lora_of(file: LoraFile, base: BaseLayers, dtype: torch.dtype, expected_digest: str = "") -> Lora:
    """Return the changes that a file's bytes make to `base`. Raises BadLora for another digest than expected, an
    unsound header or number, or a key or shape that does not match this base."""
    if expected_digest not in ("", file.digest):
        raise BadLora(f"{file.name}: its digest is {file.digest}, expected {expected_digest[:80]}")
    try:
        header = judge_safetensors(file.data)
    except ValueError as error:
        raise BadLora(f"{file.name}: {error}") from None
    judged = _judge(file.name, header, file.config, base)
    numbers = _Numbers.of(file.data, header, dtype)
    components: dict[str, dict[str, LowRankFactors]] = {}
    for (component, module), keys in judged.layers.items():
        rank = header.tensors[keys[FactorPart.DOWN]].shape[0]
        shapes, alpha = _factor_shapes(rank, base.shapes[component][module]), judged.stated[component].of(module, rank)
        factors = _factors(f"{file.name}: {component}.{module}", keys, numbers, shapes, alpha)
        components.setdefault(component, {})[module] = factors
    return Lora(file.digest, len(file.data), components)


def _judge(file_name: str, header: SafetensorsHeader, config: bytes, base: BaseLayers) -> _JudgedHeader:
    told = config_of(config)
    if form := other_form_of(header.tensors):
        message = f"{file_name}: it is a {form}, and LoRAs of two factors for each layer are read"
        raise BadLora(message, Reason.UNSUPPORTED_LORA)
    try:
        _check_types(header)
        stated = {name: _stated(told, header, name, base) for name in base.shapes}
    except ValueError as error:
        raise BadLora(f"{file_name}: {error}") from None
    layers = _by_layer(file_name, header, base)
    for (component, module), keys in layers.items():
        down, up = (header.tensors[keys[part]].shape for part in (FactorPart.DOWN, FactorPart.UP))
        _check_shapes(f"{file_name}: {component}.{module}", down, up, base.shapes[component][module])
    return _JudgedHeader(layers, stated)


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
) -> dict[tuple[str, str], dict[FactorPart, str]]:
    """Return the file's keys by layer and part. Raises BadLora for a key without a place, a layer without both factors,
    or two keys for one place."""
    names = key_names(base)
    found: dict[tuple[str, str], dict[FactorPart, str]] = {}
    strangers = []
    for key in header.tensors:
        place = names.find(key)
        if place is None:
            strangers.append(key)
        elif found.setdefault((place.component, place.module), {}).setdefault(place.part, key) != key:
            raise BadLora(f"{file_name}: {key[:120]!r} and another tensor are both for {_said(place)}")
    _refuse_strangers(file_name, strangers, len(header.tensors), base)
    for (component, module), keys in found.items():
        for part in (FactorPart.DOWN, FactorPart.UP):
            if part not in keys:
                raise BadLora(f"{file_name}: {component}.{module} has no {part.value} factor")
    if not found:
        raise BadLora(f"{file_name}: holds no tensor")
    return found


def _said(place: FactorKey) -> str:
    return f"{place.part.value} of {place.component}.{place.module}"


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
    def of(cls, data: bytes, header: SafetensorsHeader, dtype: torch.dtype) -> "_Numbers":
        stored: dict[str, Tensor] = {}
        made: dict[str, Tensor] = {}
        finite, start = True, header.start
        for name, run in groupby(header.tensors.items(), key=lambda item: item[1].dtype):
            counts = {key: math.prod(entry.shape) for key, entry in run}
            together = torch.empty(sum(counts.values()), dtype=_DTYPES[name])
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
    return not len(numbers) or all(math.isfinite(end.item()) for end in torch.aminmax(numbers))


def _check_shapes(where: str, down: _Shape, up: _Shape, shape: _Shape) -> None:
    """Raise BadLora if the factors' shapes do not make a change of a weight of `shape`."""
    rank = down[0] if down else 0
    if not 1 <= rank <= MAX_RANK:
        raise BadLora(f"{where}: its rank {rank} is not between 1 and {MAX_RANK}")
    wanted = _factor_shapes(rank, shape)
    if not (_fits(down, wanted[0]) and _fits(up, wanted[1])):
        message = f"{where}: factors {list(down)} and {list(up)} do not make a change of {list(shape)}"
        raise BadLora(message, Reason.LORA_MISMATCH)


def _factor_shapes(rank: int, shape: _Shape) -> tuple[_Shape, _Shape]:
    return (rank, *shape[1:]), (shape[0], rank, *(1 for _ in shape[2:]))


def _factors(
    where: str, keys: Mapping[FactorPart, str], numbers: _Numbers, shapes: tuple[_Shape, _Shape], stated_alpha: float
) -> LowRankFactors:
    """Return factors of validated shapes. Raises BadLora for numbers that are not finite."""
    down, up = (numbers.made[keys[part]] for part in (FactorPart.DOWN, FactorPart.UP))
    if not (numbers.finite or (_all_finite(down) and _all_finite(up))):
        raise BadLora(f"{where}: holds numbers that are not finite")
    alpha = _alpha(where, numbers.stored[keys[FactorPart.ALPHA]]) if FactorPart.ALPHA in keys else stated_alpha
    return LowRankFactors(down.view(shapes[0]), up.view(shapes[1]), alpha)


def _fits(shape: _Shape, wanted: _Shape) -> bool:
    """Return whether the shape is as wanted; 1x1 convolutions and linear layers may be written either way."""
    return shape == wanted or _without_ones(shape) == _without_ones(wanted)


def _without_ones(shape: _Shape) -> _Shape:
    return shape[:2] if all(side == 1 for side in shape[2:]) else shape


def _alpha(where: str, stored: Tensor) -> float:
    if stored.numel() != 1 or not math.isfinite(stored.item()):
        raise BadLora(f"{where}: its alpha is no finite number")
    return float(stored.item())
