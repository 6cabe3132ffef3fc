"""LoRAs: files, the in-place patch, the bypass by row, loading beside the first steps.

| module | what |
| --- | --- |
| `lora` | LoRAs and the layers that they change, as values |
| `files`, `reading` | files: bytes and digests; judged before they are used, by their headers before that |
| `patching` | in the weights, and the weights back |
| `bypass` | beside the weights, by row |
| `loading` | on their way, beside the first steps |
| `key_names`, `original_layout`, `alphas` | what the writers of files call layers, and where they state alpha |
"""

from pentimento.diffusion.loras.files import digest_lora, lora_file_in
from pentimento.diffusion.loras.lora import (
    AdapterSet,
    BadLora,
    BaseLayers,
    Lora,
    LowRankFactors,
    WeightedLora,
    layers_of,
    set_key,
)
from pentimento.diffusion.loras.reading import check_lora, read_lora

__all__ = [
    "AdapterSet",
    "BadLora",
    "BaseLayers",
    "Lora",
    "LowRankFactors",
    "WeightedLora",
    "check_lora",
    "digest_lora",
    "layers_of",
    "lora_file_in",
    "read_lora",
    "set_key",
]
