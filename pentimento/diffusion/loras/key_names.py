"""Map the tensor names of a LoRA file to layers: names as diffusers, PEFT and kohya's trainer write them.

| writer | example |
| --- | --- |
| diffusers | `unet.mid_block.attentions.0.proj_in.lora_A.weight` |
| diffusers before PEFT | `….lora.down.weight`, `….lora_linear_layer.up.weight` |
| diffusers before 0.22 | `….attn1.processor.to_q_lora.up.weight`; in a text encoder `….self_attn.to_q_lora…` |
| PEFT | `base_model.model.mid_block.attentions.0.proj_in.lora_B.weight`: the denoiser's |
| kohya | `lora_unet_mid_block_attentions_0_proj_in.lora_down.weight`, `….alpha`; `lora_te1_…` |

For SDXL, kohya's trainer writes the names of the original layout (`lora_unet_middle_block_1_proj_in`);
`original_layout` has these names.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from pentimento.diffusion.loras.lora import BaseLayers
from pentimento.diffusion.loras.original_layout import original_names
from pentimento.files.lora_headers import FACTOR_SUFFIXES, FactorPart


@dataclass(frozen=True)
class FactorKey:
    """Locate a tensor: component of the pipeline, name of its module, and its part of the change."""

    component: str
    module: str
    part: FactorPart


_KOHYA_TEXTS = {"lora_te_": "text_encoder", "lora_te1_": "text_encoder", "lora_te2_": "text_encoder_2"}
# Prefix of a text encoder's modules in files, and in the classes of some releases of transformers.
_TEXT_MODEL = "text_model."
# Former names of attention layers as parts of processors; text encoders' layers followed the same scheme.
_OF_PROCESSORS = {"to_q": "to_q", "to_k": "to_k", "to_v": "to_v", "to_out.0": "to_out"}
_IN_PROCESSORS = {
    **{f".attn1.{layer}": f".attn1.processor.{old}" for layer, old in _OF_PROCESSORS.items()},
    **{f".attn2.{layer}": f".attn2.processor.{old}" for layer, old in _OF_PROCESSORS.items()},
    **{f".self_attn.{part}_proj": f".self_attn.to_{part}" for part in ("q", "k", "v", "out")},
}


class KeyNames:
    """Hold the names that files may use for the layers of one base model."""

    def __init__(self, base: BaseLayers) -> None:
        prefixed = {f"{component}.": component for component in base.shapes}
        kohya = {"lora_unet_": base.denoiser, "lora_transformer_": base.denoiser, **_KOHYA_TEXTS}
        self._prefixes = {**prefixed, "base_model.model.": base.denoiser, **kohya, "": base.denoiser}
        self._modules = {component: _spellings(shapes) for component, shapes in base.shapes.items()}

    def find(self, key: str) -> FactorKey | None:
        """Return the place of the tensor `key`. Returns None if the name matches no layer of this base."""
        for suffix, part in FACTOR_SUFFIXES.items():
            if key.endswith(suffix):
                return self._find_module(key.removesuffix(suffix), part)
        return None

    def _find_module(self, stem: str, part: FactorPart) -> FactorKey | None:
        for prefix, component in self._prefixes.items():
            if stem.startswith(prefix):
                module = self._modules.get(component, {}).get(stem.removeprefix(prefix))
                if module is not None:
                    return FactorKey(component, module, part)
        return None


@lru_cache(maxsize=8)
def key_names(base: BaseLayers) -> KeyNames:
    """Return the names for a base model's layers, cached: to build them takes longer than to look up a LoRA's keys."""
    return KeyNames(base)


def _in_processor(name: str) -> str:
    end = next((end for end in _IN_PROCESSORS if name.endswith(end)), "")
    return name.removesuffix(end) + _IN_PROCESSORS.get(end, "")


def _spellings(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
    """Return the module's own name for each name that a file may use."""
    names = {name: name for name in shapes}
    for name in shapes:
        for spelling in (name, _in_processor(name)):
            bare = spelling.removeprefix(_TEXT_MODEL)
            names.update({bare: name, _TEXT_MODEL + bare: name})
    names.update({other: name for name, other in original_names(shapes).items()})
    return {**{spelling.replace(".", "_"): name for spelling, name in names.items()}, **names}
