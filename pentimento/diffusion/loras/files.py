"""Open and digest a LoRA's file and the PEFT configuration in its folder, without validation, and
read the alphas that a LoRA states outside its tensors: in diffusers' metadata or that configuration."""

import hashlib
import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pentimento.diffusion.loras.lora import BadLora
from pentimento.files.file_sums import CorruptComponent, FileSums, read_verified
from pentimento.files.safetensors_header import SafetensorsHeader, read_header

# diffusers' `save_lora_weights` stores PEFT's configuration here, its keys prefixed with the component and a dot.
METADATA_KEY = "lora_adapter_metadata"
# PEFT settings under which the change is not scale * up @ down.
_UNSUPPORTED = ("lora_bias", "use_qalora", "alora_invocation_tokens", "layer_replication", "fan_in_fan_out")
_PLAIN = str.maketrans("", "", "._")


@dataclass(frozen=True)
class StatedAlphas:
    """Hold the alphas that a configuration states for one component. `alpha` applies to every layer; `by_layer`
    overrides it by the end of the layer's name. `by_root` divides by the rank's square root (rsLoRA) instead of the
    rank. `rank` and `rank_by_layer` are the ranks of LoKr's layers without low-rank factors. `decomposed` says that
    the layers have magnitudes (DoRA)."""

    alpha: float | None = None
    by_layer: Mapping[str, float] = field(default_factory=dict)
    by_root: bool = False
    rank: float | None = None
    rank_by_layer: Mapping[str, float] = field(default_factory=dict)
    decomposed: bool = False

    def of(self, module: str, rank: int | None) -> float:
        """Return a module's alpha, adjusted for division by the rank; the rank itself if none is stated. Without a
        `rank`, return the factor of the change: PEFT's alpha / rank, or LyCORIS' 1 if they are not stated."""
        stated = _for_layer(self.by_layer, module, self.alpha)
        if rank is None:
            divisor = _for_layer(self.rank_by_layer, module, self.rank)
            return stated / divisor if stated is not None and divisor else 1.0
        if stated is None:
            return float(rank)
        return stated * math.sqrt(rank) if self.by_root else stated


def _for_layer(by_layer: Mapping[str, float], module: str, otherwise: float | None) -> float | None:
    """Return the number of the first key that ends the layer's name."""
    ends = (number for end, number in by_layer.items() if module == end or module.endswith(f".{end}"))
    return next(ends, otherwise)


def stated_in_metadata(metadata: Mapping[str, str], component: str) -> StatedAlphas:
    """Return a component's alphas in safetensors metadata. Raises ValueError for malformed or unsupported settings."""
    text = metadata.get(METADATA_KEY)
    if text is None:
        return StatedAlphas()
    fields = _json_object(text)
    prefix = f"{component}."
    return stated_in_config({key.removeprefix(prefix): fields[key] for key in fields if key.startswith(prefix)})


def stated_in_config(config: Mapping[str, Any]) -> StatedAlphas:
    """Return the alphas in PEFT's configuration. Raises ValueError for malformed or unsupported settings."""
    for key in _UNSUPPORTED:
        if config.get(key):
            raise ValueError(f"{key} is not supported")
    stated = StatedAlphas(
        alpha=_optional_number(config, "lora_alpha"),
        by_layer=_by_layer(config, "alpha_pattern"),
        by_root=bool(config.get("use_rslora")),
        decomposed=bool(config.get("use_dora")),
    )
    if "alpha" not in config:
        return stated
    # PEFT's LoHa and LoKr. The ranks of a LoRA are those of its factors.
    ranks = _optional_number(config, "r"), _by_layer(config, "rank_pattern")
    return replace(stated, alpha=_optional_number(config, "alpha"), rank=ranks[0], rank_by_layer=ranks[1])


def _optional_number(config: Mapping[str, Any], key: str) -> float | None:
    value = config.get(key)
    return None if value is None else _number(value)


def _by_layer(config: Mapping[str, Any], key: str) -> dict[str, float]:
    patterns = config.get(key) or {}
    if not isinstance(patterns, Mapping):
        raise ValueError(f"{key} is no object")
    return {_layer_end(key, pattern): _number(value) for pattern, value in patterns.items()}


def parse_config(text: str) -> Mapping[str, Any]:
    """Return the JSON object of an adapter_config.json. Raises ValueError for any other text."""
    return _json_object(text)


def _json_object(text: str) -> Mapping[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("its configuration is not JSON") from None
    if not isinstance(document, dict):
        raise ValueError("its configuration is not a JSON object")
    return document


def _layer_end(key: str, pattern: str) -> str:
    """Return the layer name in a pattern of alphas or ranks. Raises ValueError for other patterns: PEFT takes regular
    expressions, but untrusted ones are never run, and training scripts write only names."""
    name = pattern.removeprefix("^").removesuffix("$")
    if not name.translate(_PLAIN).isalnum():
        raise ValueError(f"{key} {pattern[:80]!r} is no layer's name")
    return name


def _number(value: Any) -> float:
    # An integer may exceed the range of a float.
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        raise ValueError(f"alpha or rank {str(value)[:40]!r} is no number")
    return float(value)


MAX_LORA_BYTES = 4 * 1024**3
_MAX_CONFIG_BYTES = 1024 * 1024
CONFIG_NAME = "adapter_config.json"
_FILE_NAMES = ("pytorch_lora_weights.safetensors", "adapter_model.safetensors")


@dataclass(frozen=True)
class LoraFile:
    """Hold a file's name for errors, its bytes, the bytes of the PEFT configuration in its folder, empty without one,
    and the file's sha256 if its bytes were verified as they were read."""

    name: str
    data: bytes | bytearray
    config: bytes = b""
    sha256: str = ""

    @cached_property
    def digest(self) -> str:
        """Return the sha256 of all bytes that change an image; see `digest_lora`."""
        return _digest(self.sha256 or hashlib.sha256(self.data).hexdigest(), self.config)


def open_lora(path: Path, sums: FileSums | None = None) -> LoraFile:
    """Return a file's bytes, verified if there are `sums`. Raises BadLora if it is absent, too large, not a file or
    changed, and OSError if reading fails, which may be temporary."""
    _check_file(path)
    if sums is None:
        return LoraFile(path.name, path.read_bytes(), _config_beside(path))
    found = sums.of(path)
    try:
        return LoraFile(path.name, read_verified(path, found), _config_beside(path), found.sha256)
    except CorruptComponent as error:
        raise BadLora(error.message) from None


def digest_lora(path: Path, sums: FileSums | None = None) -> str:
    """Return the LoRA's digest, "sha256:<hex>": the sha256 of the file, or of both files if PEFT's configuration, which
    has alphas, is in its folder. A file in `sums` is not read again. Raises as `open_lora`."""
    _check_file(path)
    return _digest((sums or FileSums()).of(path).sha256, _config_beside(path))


def open_header(path: Path) -> tuple[SafetensorsHeader, bytes]:
    """Return a file's header and the configuration in its folder, without reading tensors. Raises as `open_lora`, and
    BadLora for other formats than safetensors."""
    _check_file(path)
    try:
        return read_header(path), _config_beside(path)
    except ValueError as error:
        raise BadLora(f"{path.name}: {error}") from None


def lora_file_in(folder: Path) -> Path | None:
    """Return a folder's LoRA file: named as by diffusers or PEFT, else the first safetensors file."""
    return next(iter(lora_files_in(folder)), None)


def lora_files_in(folder: Path) -> list[Path]:
    """Return a folder's LoRA files, the choice of `lora_file_in` first."""
    if not folder.is_dir():
        return []
    named = [folder / name for name in _FILE_NAMES if (folder / name).is_file()]
    return named + [path for path in sorted(folder.iterdir()) if is_lora_file(path) and path not in named]


def is_lora_file(path: Path) -> bool:
    """Return whether a path is a file with a LoRA's suffix."""
    return path.suffix.lower() == ".safetensors" and path.is_file()


def config_of(config: bytes) -> Mapping[str, Any] | None:
    """Return PEFT's configuration; None for empty bytes. Raises BadLora for malformed JSON."""
    if not config:
        return None
    try:
        return parse_config(config.decode("utf-8"))
    except ValueError as error:
        raise BadLora(f"{CONFIG_NAME}: {error}") from None


def _digest(file_hex: str, config: bytes) -> str:
    if config:
        both = f"{file_hex}\n{hashlib.sha256(config).hexdigest()}\n"
        return f"sha256:{hashlib.sha256(both.encode()).hexdigest()}"
    return f"sha256:{file_hex}"


def _check_file(path: Path) -> None:
    if not path.is_file():
        raise BadLora(f"{path.name}: no file")
    if path.stat().st_size > MAX_LORA_BYTES:
        raise BadLora(f"{path.name}: larger than {MAX_LORA_BYTES} bytes")


def _config_beside(path: Path) -> bytes:
    config = path.parent / CONFIG_NAME
    if not config.is_file():
        return b""
    if config.stat().st_size > _MAX_CONFIG_BYTES:
        raise BadLora(f"{CONFIG_NAME}: larger than {_MAX_CONFIG_BYTES} bytes")
    return config.read_bytes()
