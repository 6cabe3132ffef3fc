"""Map the layers of a transformer's first release, which kohya's trainer and ComfyUI name, to those of diffusers.

The first release computes queries, keys and values in one layer, where diffusers has three. Before an output layer it
has shift and scale in the other order.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pentimento.diffusion.loras.lora import Rows


@dataclass(frozen=True)
class LoraTarget:
    """Name a module, and its part of a file's layer: `rows` of the outputs, empty for all."""

    module: str
    rows: Rows = ()


# The modules that a file's layer changes: one, or several in the order of its outputs.
LayerPlace = tuple[LoraTarget, ...]
_Shapes = Mapping[str, tuple[int, ...]]

_QKV = ("attn.to_q", "attn.to_k", "attn.to_v")
_QKV_2 = ("attn2.to_q", "attn2.to_k", "attn2.to_v")
_ADDED_QKV = ("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj")
_TIMES = "time_text_embed.timestep_embedder.linear_"
_TEXTS = "time_text_embed.text_embedder.linear_"
_GUIDANCE = "time_text_embed.guidance_embedder.linear_"
# Names outside the blocks, and in a block: the first release's, and diffusers' of each part of its outputs.
_OUTPUT = {"final_layer.linear": ("proj_out",), "final_layer.adaLN_modulation.1": ("norm_out.linear",)}
_SD3 = {
    **_OUTPUT,
    "x_embedder.proj": ("pos_embed.proj",),
    "context_embedder": ("context_embedder",),
    "t_embedder.mlp.0": (f"{_TIMES}1",),
    "t_embedder.mlp.2": (f"{_TIMES}2",),
    "y_embedder.mlp.0": (f"{_TEXTS}1",),
    "y_embedder.mlp.2": (f"{_TEXTS}2",),
}
_SD3_BLOCK = {
    "x_block.attn.qkv": _QKV,
    "x_block.attn2.qkv": _QKV_2,
    "context_block.attn.qkv": _ADDED_QKV,
    "x_block.attn.proj": ("attn.to_out.0",),
    "x_block.attn2.proj": ("attn2.to_out.0",),
    "context_block.attn.proj": ("attn.to_add_out",),
    "x_block.adaLN_modulation.1": ("norm1.linear",),
    "context_block.adaLN_modulation.1": ("norm1_context.linear",),
    "x_block.mlp.fc1": ("ff.net.0.proj",),
    "x_block.mlp.fc2": ("ff.net.2",),
    "context_block.mlp.fc1": ("ff_context.net.0.proj",),
    "context_block.mlp.fc2": ("ff_context.net.2",),
}
_FLUX = {
    **_OUTPUT,
    "img_in": ("x_embedder",),
    "txt_in": ("context_embedder",),
    "time_in.in_layer": (f"{_TIMES}1",),
    "time_in.out_layer": (f"{_TIMES}2",),
    "vector_in.in_layer": (f"{_TEXTS}1",),
    "vector_in.out_layer": (f"{_TEXTS}2",),
    "guidance_in.in_layer": (f"{_GUIDANCE}1",),
    "guidance_in.out_layer": (f"{_GUIDANCE}2",),
}
_FLUX_BLOCK = {
    "img_attn.qkv": _QKV,
    "txt_attn.qkv": _ADDED_QKV,
    "img_attn.proj": ("attn.to_out.0",),
    "txt_attn.proj": ("attn.to_add_out",),
    "img_mod.lin": ("norm1.linear",),
    "txt_mod.lin": ("norm1_context.linear",),
    "img_mlp.0": ("ff.net.0.proj",),
    "img_mlp.2": ("ff.net.2",),
    "txt_mlp.0": ("ff_context.net.0.proj",),
    "txt_mlp.2": ("ff_context.net.2",),
}
_FLUX_SINGLE = {
    "linear1": (*_QKV, "proj_mlp"),
    "linear2": ("proj_out",),
    "modulation.lin": ("norm.linear",),
}
_TIMES_2 = "time_guidance_embed.timestep_embedder.linear_"
_GUIDANCE_2 = "time_guidance_embed.guidance_embedder.linear_"
_MODULATIONS = ("double_stream_modulation_img", "double_stream_modulation_txt", "single_stream_modulation")
_FLUX_2 = {
    **_OUTPUT,
    "img_in": ("x_embedder",),
    "txt_in": ("context_embedder",),
    "time_in.in_layer": (f"{_TIMES_2}1",),
    "time_in.out_layer": (f"{_TIMES_2}2",),
    "guidance_in.in_layer": (f"{_GUIDANCE_2}1",),
    "guidance_in.out_layer": (f"{_GUIDANCE_2}2",),
    **{f"{name}.lin": (f"{name}.linear",) for name in _MODULATIONS},
}
_FLUX_2_BLOCK = {
    "img_attn.qkv": _QKV,
    "txt_attn.qkv": _ADDED_QKV,
    "img_attn.proj": ("attn.to_out.0",),
    "txt_attn.proj": ("attn.to_add_out",),
    "img_mlp.0": ("ff.linear_in",),
    "img_mlp.2": ("ff.linear_out",),
    "txt_mlp.0": ("ff_context.linear_in",),
    "txt_mlp.2": ("ff_context.linear_out",),
}
_FLUX_2_SINGLE = {"linear1": ("attn.to_qkv_mlp_proj",), "linear2": ("attn.to_out",)}
# Keys are modules that only one network has. Values are the names of blocks, the release's and diffusers', with the
# layers inside.
_RELEASES = {
    "pos_embed.proj": (("", "", _SD3), ("joint_blocks.{}.", "transformer_blocks.{}.", _SD3_BLOCK)),
    "single_transformer_blocks.0.proj_mlp": (
        ("", "", _FLUX),
        ("double_blocks.{}.", "transformer_blocks.{}.", _FLUX_BLOCK),
        ("single_blocks.{}.", "single_transformer_blocks.{}.", _FLUX_SINGLE),
    ),
    "single_transformer_blocks.0.attn.to_qkv_mlp_proj": (
        ("", "", _FLUX_2),
        ("double_blocks.{}.", "transformer_blocks.{}.", _FLUX_2_BLOCK),
        ("single_blocks.{}.", "single_transformer_blocks.{}.", _FLUX_2_SINGLE),
    ),
}
_BLOCK = re.compile(r"(?:single_)?transformer_blocks\.(\d+)\.")
# Layers before an output layer: `AdaLayerNormContinuous`, which has twice as many outputs as inputs.
_SHIFT_FIRST = ("norm_out.linear", "norm1_context.linear")


def original_places(shapes: _Shapes) -> dict[str, LayerPlace]:
    """Return the place of each layer that the first release of SD3's or FLUX's transformer has; none for other
    networks."""
    tables = next((tables for module, tables in _RELEASES.items() if module in shapes), ())
    numbers = sorted({int(match[1]) for name in shapes if (match := _BLOCK.match(name)) is not None})
    places = {}
    for release, own, table in tables:
        for number in numbers if release else (0,):
            for name, parts in table.items():
                modules = [own.format(number) + part for part in parts]
                if all(module in shapes for module in modules):
                    places[release.format(number) + name] = _place(modules, shapes)
    return places


def _place(modules: list[str], shapes: _Shapes) -> LayerPlace:
    if len(modules) == 1:
        (module,) = modules
        outputs, inputs = shapes[module][:2]
        half = outputs // 2
        is_swapped = module.endswith(_SHIFT_FIRST) and outputs == 2 * inputs
        return (LoraTarget(module, ((half, outputs), (0, half)) if is_swapped else ()),)
    targets, start = [], 0
    for module in modules:
        stop = start + shapes[module][0]
        targets.append(LoraTarget(module, ((start, stop),)))
        start = stop
    return tuple(targets)


def shape_of(place: LayerPlace, shapes: _Shapes) -> tuple[int, ...]:
    """Return the shape of the file's layer: the modules' outputs one after the other."""
    inputs = shapes[place[0].module][1:]
    return (sum(shapes[target.module][0] for target in place), *inputs)
