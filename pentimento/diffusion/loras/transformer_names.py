"""Map the layers of a transformer's first release, which kohya's trainer and ComfyUI name, to those of diffusers.

The first release computes queries, keys and values in one layer, where diffusers has three. Before an output layer it
has shift and scale in the other order.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pentimento.diffusion.loras.changes import Rows


@dataclass(frozen=True)
class Target:
    """Name a module, and its part of a file's layer: `rows` of the outputs, empty for all."""

    module: str
    rows: Rows = ()


# The modules that a file's layer changes: one, or several in the order of its outputs.
LayerPlace = tuple[Target, ...]
_Shapes = Mapping[str, tuple[int, ...]]

_QKV = ("to_q", "to_k", "to_v")
_ADDED_QKV = ("add_q_proj", "add_k_proj", "add_v_proj")
# Names outside the blocks, and in a block: the first release's, and diffusers' of each part of its outputs.
_SD3 = {
    "x_embedder.proj": ("pos_embed.proj",),
    "context_embedder": ("context_embedder",),
    "t_embedder.mlp.0": ("time_text_embed.timestep_embedder.linear_1",),
    "t_embedder.mlp.2": ("time_text_embed.timestep_embedder.linear_2",),
    "y_embedder.mlp.0": ("time_text_embed.text_embedder.linear_1",),
    "y_embedder.mlp.2": ("time_text_embed.text_embedder.linear_2",),
    "final_layer.linear": ("proj_out",),
    "final_layer.adaLN_modulation.1": ("norm_out.linear",),
}
_SD3_BLOCK = {
    "x_block.attn.qkv": tuple(f"attn.{name}" for name in _QKV),
    "x_block.attn2.qkv": tuple(f"attn2.{name}" for name in _QKV),
    "context_block.attn.qkv": tuple(f"attn.{name}" for name in _ADDED_QKV),
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
_BLOCK = re.compile(r"transformer_blocks\.(\d+)\.")
# Layers before an output layer: `AdaLayerNormContinuous`, which has twice as many outputs as inputs.
_SHIFT_FIRST = ("norm_out.linear", "norm1_context.linear")


def original_places(shapes: _Shapes) -> dict[str, LayerPlace]:
    """Return the place of each layer that the first release of this transformer has; none for other networks."""
    if "pos_embed.proj" not in shapes:
        return {}
    blocks = sorted({int(match[1]) for name in shapes if (match := _BLOCK.match(name)) is not None})
    return dict(_named(shapes, blocks))


def _named(shapes: _Shapes, blocks: list[int]) -> Iterator[tuple[str, LayerPlace]]:
    tables = {"": ("", _SD3), **{f"joint_blocks.{n}.": (f"transformer_blocks.{n}.", _SD3_BLOCK) for n in blocks}}
    for prefix, (own_prefix, table) in tables.items():
        for name, parts in table.items():
            modules = [own_prefix + part for part in parts]
            if all(module in shapes for module in modules):
                yield prefix + name, _place(modules, shapes)


def _place(modules: list[str], shapes: _Shapes) -> LayerPlace:
    if len(modules) == 1:
        (module,) = modules
        outputs, inputs = shapes[module][:2]
        half = outputs // 2
        is_swapped = module.endswith(_SHIFT_FIRST) and outputs == 2 * inputs
        return (Target(module, ((half, outputs), (0, half)) if is_swapped else ()),)
    targets, start = [], 0
    for module in modules:
        stop = start + shapes[module][0]
        targets.append(Target(module, ((start, stop),)))
        start = stop
    return tuple(targets)


def shape_of(place: LayerPlace, shapes: _Shapes) -> tuple[int, ...]:
    """Return the shape of the file's layer: the modules' outputs one after the other."""
    inputs = shapes[place[0].module][1:]
    return (sum(shapes[target.module][0] for target in place), *inputs)
