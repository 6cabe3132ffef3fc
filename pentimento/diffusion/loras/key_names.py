"""Map the tensor names of a LoRA file to layers: names as diffusers, PEFT, kohya's trainer, LyCORIS and ComfyUI write
them.

| writer | example |
| --- | --- |
| diffusers | `unet.mid_block.attentions.0.proj_in.lora_A.weight` |
| diffusers before PEFT | `….lora.down.weight`, `….lora_linear_layer.up.weight` |
| diffusers before 0.22 | `….attn1.processor.to_q_lora.up.weight`; in a text encoder `….self_attn.to_q_lora…` |
| PEFT | `base_model.model.mid_block.attentions.0.proj_in.lora_B.weight`: the denoiser's; `….lora_B.style.weight` |
| kohya | `lora_unet_mid_block_attentions_0_proj_in.lora_down.weight`, `….alpha`; `lora_te1_…` |
| LyCORIS | `lycoris_mid_block_attentions_0_proj_in.hada_w1_a` |
| ComfyUI | `diffusion_model.middle_block.1.proj_in.lora_up.weight`; `text_encoders.clip_l.transformer.…` |

Transformers have their first release's names too (`transformer_names`). For SDXL, kohya's trainer writes the names of
Stable Diffusion's first release (`lora_unet_middle_block_1_proj_in`): input, middle and output blocks are numbered
consecutively. input_blocks.0 is the first convolution. Each residual block of the encoder, with the transformer after
it, is one input block, and so is each downsampler. The decoder's residual blocks are the output blocks; an upsampler is
the last part of the output block before it.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from pentimento.diffusion.loras.lora import BaseLayers
from pentimento.diffusion.loras.transformer_names import LayerPlace, LoraTarget, original_places
from pentimento.files.lora_headers import FactorPart, split_key

_INNER = {"conv1": "in_layers.2", "conv2": "out_layers.3", "time_emb_proj": "emb_layers.1"}
_RESIDUAL = {**_INNER, "conv_shortcut": "skip_connection"}
_OUTSIDE = {
    "conv_in": "input_blocks.0.0",
    "conv_out": "out.2",
    "time_embedding.linear_1": "time_embed.0",
    "time_embedding.linear_2": "time_embed.2",
    "add_embedding.linear_1": "label_emb.0.0",
    "add_embedding.linear_2": "label_emb.0.2",
}
_BLOCK = re.compile(r"(down_blocks|up_blocks)\.(\d+)\.(resnets|attentions|downsamplers|upsamplers)\.(\d+)")


def original_names(modules: Collection[str]) -> dict[str, str]:
    """Return the original name of each UNet module that has one, keyed by the module's name."""
    found = {match.groups() for name in modules if (match := _BLOCK.match(name)) is not None}
    parts = {(side, int(block), kind, int(place)) for side, block, kind, place in found}
    prefixes = {**dict(_input_blocks(parts)), **dict(_output_blocks(parts)), **_MIDDLE}
    renamed = ((name, _renamed(name, prefixes)) for name in modules)
    return {name: other for name, other in renamed if other is not None}


_Part = tuple[str, int, str, int]
_MIDDLE = {
    "mid_block.resnets.0": "middle_block.0",
    "mid_block.attentions.0": "middle_block.1",
    "mid_block.resnets.1": "middle_block.2",
}


def _input_blocks(parts: Collection[_Part]) -> Iterator[tuple[str, str]]:
    number = 0
    for _, block, _, place in sorted(part for part in parts if part[0] == "down_blocks" and part[2] == "resnets"):
        number += 1
        yield f"down_blocks.{block}.resnets.{place}", f"input_blocks.{number}.0"
        yield f"down_blocks.{block}.attentions.{place}", f"input_blocks.{number}.1"
        is_last = ("down_blocks", block, "resnets", place + 1) not in parts
        if is_last and ("down_blocks", block, "downsamplers", 0) in parts:
            number += 1
            yield f"down_blocks.{block}.downsamplers.0.conv", f"input_blocks.{number}.0.op"


def _output_blocks(parts: Collection[_Part]) -> Iterator[tuple[str, str]]:
    resnets = sorted(part for part in parts if part[0] == "up_blocks" and part[2] == "resnets")
    for number, (_, block, _, place) in enumerate(resnets):
        yield f"up_blocks.{block}.resnets.{place}", f"output_blocks.{number}.0"
        yield f"up_blocks.{block}.attentions.{place}", f"output_blocks.{number}.1"
        if ("up_blocks", block, "resnets", place + 1) not in parts:
            behind = 2 if ("up_blocks", block, "attentions", place) in parts else 1
            yield f"up_blocks.{block}.upsamplers.0.conv", f"output_blocks.{number}.{behind}.conv"


def _renamed(name: str, prefixes: Mapping[str, str]) -> str | None:
    if name in _OUTSIDE:
        return _OUTSIDE[name]
    for prefix, other in prefixes.items():
        if name == prefix:
            return other
        if name.startswith(prefix + "."):
            inner = name.removeprefix(prefix + ".")
            return f"{other}.{_RESIDUAL.get(inner, inner)}"
    return None


@dataclass(frozen=True)
class FactorKey:
    """Locate a tensor: component of the pipeline, the layers that it changes, and its part of the change."""

    component: str
    place: LayerPlace
    part: FactorPart


_CLIP_L = ("lora_te_", "lora_te1_", "text_encoders.clip_l.transformer.")
_CLIP_G = ("lora_te2_", "text_encoders.clip_g.transformer.")
_T5 = ("lora_te3_", "text_encoders.t5xxl.transformer.")
_DENOISER = (
    "lora_unet_",
    "lora_transformer_",
    "lycoris_",
    "diffusion_model.",
    "model.diffusion_model.",
    "base_model.model.",
    "",
)
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
        self._prefixes = {
            **{f"{component}.": component for component in base.shapes},
            **dict.fromkeys(_CLIP_L, "text_encoder"),
            **dict.fromkeys(_CLIP_G, "text_encoder_2"),
            # FLUX has two text encoders, and T5 is the second.
            **dict.fromkeys(_T5, "text_encoder_3" if "text_encoder_3" in base.shapes else "text_encoder_2"),
            **dict.fromkeys(_DENOISER, base.denoiser),
        }
        self._places = {component: _spellings(shapes) for component, shapes in base.shapes.items()}

    def find(self, key: str) -> FactorKey | None:
        """Return the place of the tensor `key`. Returns None if the name matches no layer of this base."""
        found = split_key(key)
        if found is None:
            return None
        stem, part, _ = found
        for prefix, component in self._prefixes.items():
            if stem.startswith(prefix):
                place = self._places.get(component, {}).get(stem.removeprefix(prefix))
                if place is not None:
                    return FactorKey(component, place, part)
        return None


@lru_cache(maxsize=8)
def key_names(base: BaseLayers) -> KeyNames:
    """Return the names for a base model's layers, cached: to build them takes longer than to look up a LoRA's keys."""
    return KeyNames(base)


def _in_processor(name: str) -> str:
    end = next((end for end in _IN_PROCESSORS if name.endswith(end)), "")
    return name.removesuffix(end) + _IN_PROCESSORS.get(end, "")


def _spellings(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, LayerPlace]:
    """Return the layers for each name that a file may use."""
    names = {name: name for name in shapes}
    for name in shapes:
        for spelling in (name, _in_processor(name)):
            bare = spelling.removeprefix(_TEXT_MODEL)
            names.update({bare: name, _TEXT_MODEL + bare: name})
    names.update({other: name for name, other in original_names(shapes).items()})
    places = {**original_places(shapes), **{spelling: (LoraTarget(name),) for spelling, name in names.items()}}
    return {**{spelling.replace(".", "_"): place for spelling, place in places.items()}, **places}
