"""LoRA files, judged before a tensor of them is used: safetensors alone, whole, of this base and no other.

A file is read once, when its LoRA is wanted: what was judged and digested is what is used, whatever happens to the file
meanwhile. Before that its header says whether it fits.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pentimento.diffusion.loras.alphas import StatedAlphas, stated_in_config, stated_in_metadata
from pentimento.diffusion.loras.files import LoraFile, config_of, open_header, open_lora
from pentimento.diffusion.loras.key_names import FactorKey, KeyNames
from pentimento.diffusion.loras.lora import BadLora, BaseLayers, Lora, LowRankFactors
from pentimento.files.lora_headers import MAX_RANK, FactorPart
from pentimento.files.safetensors_header import SafetensorsHeader, judge_safetensors

_NAMED_KEYS = 3
_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True)
class _JudgedHeader:
    """The keys of a file by layer and part, and the alphas that it states, by component."""

    layers: Mapping[tuple[str, str], Mapping[FactorPart, str]]
    stated: Mapping[str, StatedAlphas]


def read_lora(path: Path, base: BaseLayers, dtype: torch.dtype, expected_digest: str = "") -> Lora:
    """Return the LoRA in a safetensors file, converted to `dtype` in host memory; an adapter_config.json beside it says
    the alphas that the file does not. Raises BadLora, and OSError where the file cannot be read."""
    return lora_of(open_lora(path), base, dtype, expected_digest)


def check_lora(path: Path, base: BaseLayers) -> None:
    """Judge a file by its header and the configuration beside it, all that can be said without a tensor: names, types,
    ranks and shapes. Raises as `read_lora`."""
    header, config = open_header(path)
    _judge(path.name, header, config, base)


def lora_of(file: LoraFile, base: BaseLayers, dtype: torch.dtype, expected_digest: str = "") -> Lora:
    """Return what a file's bytes change in `base`. Raises BadLora: the digest is another one than expected, the header
    or a number is unsound, or a key or shape is not of this base."""
    if expected_digest not in ("", file.digest):
        raise BadLora(f"{file.name}: its digest is {file.digest}, expected {expected_digest[:80]}")
    try:
        header = judge_safetensors(file.data)
    except ValueError as error:
        raise BadLora(f"{file.name}: {error}") from None
    judged = _judge(file.name, header, file.config, base)
    tensors = _tensors(file.data, header)
    components: dict[str, dict[str, LowRankFactors]] = {}
    for (component, module), keys in judged.layers.items():
        given = {part: tensors[key] for part, key in keys.items()}
        shape, alphas = base.shapes[component][module], judged.stated[component]
        factors = _factors(f"{file.name}: {component}.{module}", given, shape, alphas, module, dtype)
        components.setdefault(component, {})[module] = factors
    return Lora(file.digest, len(file.data), components)


def _judge(file_name: str, header: SafetensorsHeader, config: bytes, base: BaseLayers) -> _JudgedHeader:
    told = config_of(config)
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
        if entry.dtype not in _DTYPES:
            raise ValueError(f"tensor {name[:80]!r} is of type {entry.dtype}, not of {', '.join(_DTYPES)}")


def _stated(
    config: Mapping[str, Any] | None, header: SafetensorsHeader, component: str, base: BaseLayers
) -> StatedAlphas:
    if config is not None and component == base.denoiser:
        return stated_in_config(config)
    return stated_in_metadata(header.metadata, component)


def _by_layer(
    file_name: str, header: SafetensorsHeader, base: BaseLayers
) -> dict[tuple[str, str], dict[FactorPart, str]]:
    """The file's keys by layer and part. Every key must have its place, every layer both factors, and no place two."""
    names = KeyNames(base)
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
    raise BadLora(f"{message}{named}{rest}", "LORA_MISMATCH")


def _tensors(data: bytes, header: SafetensorsHeader) -> dict[str, Tensor]:
    """Views of the file's bytes: tensors lie one behind the other in the order of the header's offsets."""
    from safetensors.torch import load

    return load(data) if header.tensors else {}


def _check_shapes(where: str, down: tuple[int, ...], up: tuple[int, ...], shape: tuple[int, ...]) -> None:
    """Whether factors of these shapes make a change of a weight of `shape`."""
    rank = down[0] if down else 0
    if not 1 <= rank <= MAX_RANK:
        raise BadLora(f"{where}: its rank {rank} is not between 1 and {MAX_RANK}")
    wanted = _factor_shapes(rank, shape)
    if not (_fits(down, wanted[0]) and _fits(up, wanted[1])):
        message = f"{where}: factors {list(down)} and {list(up)} do not make a change of {list(shape)}"
        raise BadLora(message, "LORA_MISMATCH")


def _factor_shapes(rank: int, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return (rank, *shape[1:]), (shape[0], rank, *(1 for _ in shape[2:]))


def _factors(
    where: str,
    given: Mapping[FactorPart, Tensor],
    shape: tuple[int, ...],
    stated: StatedAlphas,
    module: str,
    dtype: torch.dtype,
) -> LowRankFactors:
    """Factors whose shapes were judged."""
    down, up = given[FactorPart.DOWN], given[FactorPart.UP]
    wanted = _factor_shapes(down.shape[0], shape)
    alpha = _alpha(where, given, stated, module, down.shape[0])
    factors = LowRankFactors(_made(down, wanted[0], dtype), _made(up, wanted[1], dtype), alpha)
    if not (torch.isfinite(factors.down).all() and torch.isfinite(factors.up).all()):
        raise BadLora(f"{where}: holds numbers that are not finite")
    return factors


def _fits(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Whether the shape is the one wanted; 1x1 convolutions and linear layers are written either way."""
    return shape == wanted or _without_ones(shape) == _without_ones(wanted)


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape[:2] if all(side == 1 for side in shape[2:]) else shape


def _made(tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor of its own: what it came from may be the file's bytes."""
    return tensor.reshape(shape).to(dtype, copy=True).contiguous()


def _alpha(where: str, given: Mapping[FactorPart, Tensor], stated: StatedAlphas, module: str, rank: int) -> float:
    if FactorPart.ALPHA not in given:
        return stated.of(module, rank)
    stored = given[FactorPart.ALPHA]
    if stored.numel() != 1 or not math.isfinite(stored.item()):
        raise BadLora(f"{where}: its alpha is no finite number")
    return float(stored.item())
