"""LoRAs with random factors as values, without a file."""

from collections.abc import Sequence

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
    """One that changes layers of all components, or of some."""
    factors = random_factors(base, rank=rank, seed=seed, components=components, ends=ends, size=size)
    layers = {
        component: {name: LowRankFactors(down, up, alpha) for name, (down, up) in modules.items()}
        for component, modules in factors.items()
    }
    return Lora(f"sha256:{seed:064x}", 1000, layers)
