"""A LoRA of one layer."""

from typing import Any

from torch import Tensor

from lab.fixtures.lora_files import (
    random_factors,
)
from pentimento.diffusion.loras import BaseLayers

LAYER = "mid_block.attentions.0.transformer_blocks.0.attn1.to_q"


def pair(base: BaseLayers, **changes: Any) -> dict[str, Tensor]:
    down, up = random_factors(base)["unet"][LAYER]
    return {
        f"unet.{LAYER}.lora_A.weight": changes.get("down", down),
        f"unet.{LAYER}.lora_B.weight": changes.get("up", up),
    }
