"""LoRAs with random factors, as values and of a single layer."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from lab.fixtures.lora_files import EVERYWHERE, random_factors
from pentimento.diffusion.loras import BaseLayers, Lora, LowRankFactors


def made_lora(
    base: BaseLayers,
    seed: int,
    *,
    rank: int = 3,
    alpha: float = 5.0,
    components: Sequence[str] | None = None,
    ends: Sequence[str] = EVERYWHERE,
    size: float = 0.2,
) -> Lora:
    """Return a LoRA that changes layers of all components, or of some."""
    factors = random_factors(base, rank=rank, seed=seed, components=components, ends=ends, size=size)
    layers = {
        component: {name: LowRankFactors(down, up, alpha) for name, (down, up) in modules.items()}
        for component, modules in factors.items()
    }
    return Lora(f"sha256:{seed:064x}", 1000, layers)


LAYER = "mid_block.attentions.0.transformer_blocks.0.attn1.to_q"


def pair(base: BaseLayers, **changes: Any) -> dict[str, Tensor]:
    down, up = random_factors(base)["unet"][LAYER]
    return {
        f"unet.{LAYER}.lora_A.weight": changes.get("down", down),
        f"unet.{LAYER}.lora_B.weight": changes.get("up", up),
    }
