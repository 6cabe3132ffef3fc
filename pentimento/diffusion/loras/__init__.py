"""Load and apply LoRAs: files, in-place patches, per-row updates, and loading during the first steps.

| module | what it does |
| --- | --- |
| `lora` | describes LoRAs and the layers that they change, as values; make and compute a layer's change |
| `files`, `reading` | read and digest files and their alphas; validate them before use, their headers first |
| `patching` | adds LoRAs to the weights, and restores the weights; adds them next to the weights, per row |
| `loading` | loads LoRAs while the first steps run |
| `key_names`, `transformer_names` | map the layer names of each file format |
"""

from typing import TYPE_CHECKING

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
from pentimento.lazy_names import imported_when_used

if TYPE_CHECKING:
    from pentimento.diffusion.loras.files import digest_lora, lora_file_in
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

# The formats of files: a worker without LoRAs reads none.
__getattr__ = imported_when_used(__name__, {"files": "digest_lora lora_file_in", "reading": "check_lora read_lora"})
