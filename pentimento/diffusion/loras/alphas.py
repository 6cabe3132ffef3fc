"""The alphas that a LoRA file states beside its tensors: in diffusers' metadata, or in PEFT's adapter_config.json."""

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# Where diffusers' `save_lora_weights` puts PEFT's configuration, its keys behind the component's name and a dot.
METADATA_KEY = "lora_adapter_metadata"
# Settings of PEFT that make something else of the factors than scale * up @ down.
_UNSUPPORTED = ("use_dora", "lora_bias", "use_qalora", "alora_invocation_tokens", "layer_replication", "fan_in_fan_out")
_PLAIN = str.maketrans("", "", "._")


@dataclass(frozen=True)
class StatedAlphas:
    """What a configuration says of one component: alpha of every layer, other ones by the end of the layer's name, and
    whether it is divided by the rank's root (rsLoRA) instead of the rank."""

    alpha: float | None = None
    by_layer: Mapping[str, float] = field(default_factory=dict)
    by_root: bool = False

    def of(self, module: str, rank: int) -> float:
        """Return the alpha of a module as if it was divided by the rank; the rank itself where nothing is stated."""
        ends = (alpha for end, alpha in self.by_layer.items() if module == end or module.endswith(f".{end}"))
        stated = next(ends, self.alpha)
        if stated is None:
            return float(rank)
        return stated * math.sqrt(rank) if self.by_root else stated


def stated_in_metadata(metadata: Mapping[str, str], component: str) -> StatedAlphas:
    """Return what a safetensors file's metadata says. Raises ValueError for what is not supported."""
    text = metadata.get(METADATA_KEY)
    if text is None:
        return StatedAlphas()
    fields = _json_object(text)
    prefix = f"{component}."
    return stated_in_config({key.removeprefix(prefix): fields[key] for key in fields if key.startswith(prefix)})


def stated_in_config(config: Mapping[str, Any]) -> StatedAlphas:
    """Return what PEFT's configuration says. Raises ValueError for what is not supported."""
    for key in _UNSUPPORTED:
        if config.get(key):
            raise ValueError(f"{key} is not supported")
    alpha = config.get("lora_alpha")
    patterns = config.get("alpha_pattern") or {}
    if not isinstance(patterns, Mapping):
        raise ValueError("alpha_pattern is no object")
    by_layer = {_layer_end(pattern): _number(value) for pattern, value in patterns.items()}
    return StatedAlphas(None if alpha is None else _number(alpha), by_layer, bool(config.get("use_rslora")))


def parse_config(text: str) -> Mapping[str, Any]:
    """Return the object in an adapter_config.json. Raises ValueError where there is none."""
    return _json_object(text)


def _json_object(text: str) -> Mapping[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("its configuration is not JSON") from None
    if not isinstance(document, dict):
        raise ValueError("its configuration is not a JSON object")
    return document


def _layer_end(pattern: str) -> str:
    """PEFT takes regular expressions; those of strangers are not run, names are all that training scripts write."""
    name = pattern.removeprefix("^").removesuffix("$")
    if not name.translate(_PLAIN).isalnum():
        raise ValueError(f"alpha_pattern {pattern[:80]!r} is no layer's name")
    return name


def _number(value: Any) -> float:
    # A whole number may have more digits than a float has room for.
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        raise ValueError(f"alpha {str(value)[:40]!r} is no number")
    return float(value)
