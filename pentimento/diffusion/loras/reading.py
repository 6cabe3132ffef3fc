"""LoRA files, judged before a tensor of them is used: safetensors alone, whole, of this base and no other.

The file is read once. What was judged and digested is what is used, whatever happens to the file meanwhile.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pentimento.diffusion.loras.alphas import StatedAlphas, parse_config, stated_in_config, stated_in_metadata
from pentimento.diffusion.loras.key_names import FactorKey, FactorPart, KeyNames
from pentimento.diffusion.loras.lora import BadLora, BaseLayers, Lora, LowRankFactors
from pentimento.diffusion.safetensors_header import SafetensorsHeader, judge_safetensors

MAX_LORA_BYTES = 4 * 1024**3
MAX_RANK = 1024
_MAX_CONFIG_BYTES = 1024 * 1024
_NAMED_KEYS = 3
_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
CONFIG_NAME = "adapter_config.json"


@dataclass(frozen=True)
class LoraFile:
    """A file as it was read: what it is called in errors, its bytes, and PEFT's configuration beside it if any."""

    name: str
    data: bytes
    config: Mapping[str, Any] | None = None

    @property
    def digest(self) -> str:
        """sha256 of the bytes."""
        return f"sha256:{hashlib.sha256(self.data).hexdigest()}"


def read_lora(path: Path, base: BaseLayers, dtype: torch.dtype, expected_digest: str = "") -> Lora:
    """Return the LoRA in a safetensors file, converted to `dtype` in host memory; an adapter_config.json beside it says
    the alphas that the file does not. Raises BadLora."""
    return lora_of(open_lora(path), base, dtype, expected_digest)


def open_lora(path: Path) -> LoraFile:
    """Return a file's bytes. Raises BadLora when it is absent, too large or no file."""
    try:
        if not path.is_file():
            raise BadLora(f"{path.name}: no file")
        if path.stat().st_size > MAX_LORA_BYTES:
            raise BadLora(f"{path.name}: larger than {MAX_LORA_BYTES} bytes")
        return LoraFile(path.name, path.read_bytes(), _config_beside(path))
    except OSError as error:
        raise BadLora(f"{path.name}: cannot be read ({error.strerror})") from None


def _config_beside(path: Path) -> Mapping[str, Any] | None:
    config = path.parent / CONFIG_NAME
    if not config.is_file():
        return None
    if config.stat().st_size > _MAX_CONFIG_BYTES:
        raise BadLora(f"{CONFIG_NAME}: larger than {_MAX_CONFIG_BYTES} bytes")
    try:
        return parse_config(config.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadLora(f"{CONFIG_NAME}: {error}") from None


def lora_of(file: LoraFile, base: BaseLayers, dtype: torch.dtype, expected_digest: str = "") -> Lora:
    """Return what a file's bytes change in `base`. Raises BadLora: the digest is another one than expected, the header
    or a number is unsound, or a key or shape is not of this base."""
    if expected_digest not in ("", file.digest):
        raise BadLora(f"{file.name}: its digest is {file.digest}, expected {expected_digest[:80]}")
    try:
        header = judge_safetensors(file.data)
        _check_types(header)
        stated = {name: _stated(file, header, name, base) for name in base.shapes}
    except ValueError as error:
        raise BadLora(f"{file.name}: {error}") from None
    layers = _by_layer(file.name, header, base)
    tensors = _tensors(file.data, header)
    components: dict[str, dict[str, LowRankFactors]] = {}
    for (component, module), keys in layers.items():
        given = {part: tensors[key] for part, key in keys.items()}
        shape, alphas = base.shapes[component][module], stated[component]
        factors = _factors(f"{file.name}: {component}.{module}", given, shape, alphas, module, dtype)
        components.setdefault(component, {})[module] = factors
    return Lora(file.digest, len(file.data), components)


def _check_types(header: SafetensorsHeader) -> None:
    for name, entry in header.tensors.items():
        if entry.dtype not in _DTYPES:
            raise ValueError(f"tensor {name[:80]!r} is of type {entry.dtype}, not of {', '.join(_DTYPES)}")


def _stated(file: LoraFile, header: SafetensorsHeader, component: str, base: BaseLayers) -> StatedAlphas:
    if file.config is not None and component == base.denoiser:
        return stated_in_config(file.config)
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


def _factors(
    where: str,
    given: Mapping[FactorPart, Tensor],
    shape: tuple[int, ...],
    stated: StatedAlphas,
    module: str,
    dtype: torch.dtype,
) -> LowRankFactors:
    down, up = given[FactorPart.DOWN], given[FactorPart.UP]
    rank = down.shape[0] if down.dim() else 0
    if not 1 <= rank <= MAX_RANK:
        raise BadLora(f"{where}: its rank {rank} is not between 1 and {MAX_RANK}")
    wanted = ((rank, *shape[1:]), (shape[0], rank, *(1 for _ in shape[2:])))
    if not (_fits(down, wanted[0]) and _fits(up, wanted[1])):
        message = f"{where}: factors {list(down.shape)} and {list(up.shape)} do not make a change of {list(shape)}"
        raise BadLora(message, "LORA_MISMATCH")
    alpha = _alpha(where, given, stated, module, rank)
    factors = LowRankFactors(_made(down, wanted[0], dtype), _made(up, wanted[1], dtype), alpha)
    if not (torch.isfinite(factors.down).all() and torch.isfinite(factors.up).all()):
        raise BadLora(f"{where}: holds numbers that are not finite")
    return factors


def _fits(tensor: Tensor, wanted: tuple[int, ...]) -> bool:
    """Whether the shape is the one wanted; 1x1 convolutions and linear layers are written either way."""
    return tuple(tensor.shape) == wanted or _without_ones(tuple(tensor.shape)) == _without_ones(wanted)


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
