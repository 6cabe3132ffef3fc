"""Map a UNet's module names to the layout of Stable Diffusion's first release, which kohya's trainer uses for SDXL.

Input, middle and output blocks are numbered consecutively. input_blocks.0 is the first convolution. Each residual block
of the encoder, with the transformer after it, is one input block, and so is each downsampler. The decoder's residual
blocks are the output blocks; an upsampler is the last part of the output block before it.
"""

import re
from collections.abc import Collection, Iterator, Mapping

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
