"""Read the alphas that a LoRA states outside its tensors: in diffusers' metadata or PEFT's adapter_config.json."""

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# diffusers' `save_lora_weights` stores PEFT's configuration here, its keys prefixed with the component and a dot.
METADATA_KEY = "lora_adapter_metadata"
# PEFT settings under which the change is not scale * up @ down.
_UNSUPPORTED = ("use_dora", "lora_bias", "use_qalora", "alora_invocation_tokens", "layer_replication", "fan_in_fan_out")
_PLAIN = str.maketrans("", "", "._")


@dataclass(frozen=True)
class StatedAlphas:
    """Hold the alphas that a configuration states for one component. `alpha` applies to every layer; `by_layer`
    overrides it by the end of the layer's name. `by_root` divides by the rank's square root (rsLoRA) instead of the
    rank."""

    alpha: float | None = None
    by_layer: Mapping[str, float] = field(default_factory=dict)
    by_root: bool = False

    def of(self, module: str, rank: int) -> float:
        """Return a module's alpha, adjusted for division by the rank. Returns the rank itself if none is stated."""
        ends = (alpha for end, alpha in self.by_layer.items() if module == end or module.endswith(f".{end}"))
        stated = next(ends, self.alpha)
        if stated is None:
            return float(rank)
        return stated * math.sqrt(rank) if self.by_root else stated


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
    alpha = config.get("lora_alpha")
    patterns = config.get("alpha_pattern") or {}
    if not isinstance(patterns, Mapping):
        raise ValueError("alpha_pattern is no object")
    by_layer = {_layer_end(pattern): _number(value) for pattern, value in patterns.items()}
    return StatedAlphas(None if alpha is None else _number(alpha), by_layer, bool(config.get("use_rslora")))


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


def _layer_end(pattern: str) -> str:
    """Return the layer name in a key of alpha_pattern. Raises ValueError for other patterns: PEFT takes regular
    expressions, but untrusted ones are never run, and training scripts write only names."""
    name = pattern.removeprefix("^").removesuffix("$")
    if not name.translate(_PLAIN).isalnum():
        raise ValueError(f"alpha_pattern {pattern[:80]!r} is no layer's name")
    return name


def _number(value: Any) -> float:
    # An integer may exceed the range of a float.
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        raise ValueError(f"alpha {str(value)[:40]!r} is no number")
    return float(value)
