"""LoRAs as values (Hu et al. 2021): what changes which layer of which component, and the layers that can be changed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pentimento.domain.errors import FailedPrecondition
from pentimento.domain.reasons import Reason


class BadLora(FailedPrecondition):
    """The file cannot be used: BAD_LORA where it is unsound, LORA_MISMATCH where it changes another base,
    UNSUPPORTED_LORA where it is of another form. The message is one line that names the file and what is wrong."""

    def __init__(self, message: str, reason: str = Reason.BAD_LORA) -> None:
        super().__init__(reason, message)


@dataclass(frozen=True)
class LowRankFactors:
    """The change of one layer's weight, `scale` * up @ down (Hu et al. 2021, section 4.1). Of a linear layer down
    (rank, inputs) and up (outputs, rank); of a convolution down (rank, inputs, height, width) and up
    (outputs, rank, 1, 1)."""

    down: Tensor
    up: Tensor
    alpha: float

    @property
    def rank(self) -> int:
        """How many rows `down` has."""
        return self.down.shape[0]

    @property
    def scale(self) -> float:
        """alpha / rank, what the product is multiplied by at weight 1."""
        return self.alpha / self.rank


@dataclass(frozen=True)
class Lora:
    """What one file changes: factors by component of the pipeline ("unet", "text_encoder") and name of the module.
    `digest` is that of the file (`files.digest_lora`)."""

    digest: str
    size_bytes: int
    components: Mapping[str, Mapping[str, LowRankFactors]]


@dataclass(frozen=True)
class WeightedLora:
    """A LoRA at the weight that a request asks for; 1 is as it was trained."""

    lora: Lora
    weight: float = 1.0

    @property
    def key(self) -> tuple[str, float]:
        """What tells it from others: the file's digest and the weight."""
        return (self.lora.digest, self.weight)


AdapterSet = tuple[WeightedLora, ...]


def set_key(adapters: AdapterSet, component: str | None = None) -> tuple[tuple[str, float], ...]:
    """Return what tells sets apart that make different weights of `component`, of any of them where it is None.
    Without one that changes anything it is empty."""
    return tuple(one.key for one in adapters if one.weight and (component is None or component in one.lora.components))


@dataclass(frozen=True, eq=False)
class BaseLayers:
    """Weight shapes of the layers of a base model that a LoRA may change, by component and name of the module.
    `denoiser` names the component that denoises. Equal to itself alone."""

    family: str
    denoiser: str
    shapes: Mapping[str, Mapping[str, tuple[int, ...]]]


def layers_of(family: str, components: Mapping[str, nn.Module]) -> BaseLayers:
    """Return the linear layers and convolutions of `components`, of which the first is the denoiser."""
    shapes = {name: _shapes(component) for name, component in components.items()}
    return BaseLayers(family, next(iter(components)), shapes)


def _shapes(component: nn.Module) -> dict[str, tuple[int, ...]]:
    return {
        name: tuple(module.weight.shape)
        for name, module in component.named_modules()
        if isinstance(module, nn.Linear) or (isinstance(module, nn.Conv2d) and module.groups == 1)
    }


def joined(parts: Sequence[tuple[LowRankFactors, float]]) -> tuple[Tensor, Tensor]:
    """Return down (rank, inputs, ...) and up (outputs, rank) of several changes of one layer at their weights, scales
    multiplied in: their ranks one behind the other, so that the product is the sum of the products."""
    down = torch.cat([factors.down for factors, _ in parts])
    up = torch.cat([factors.up.flatten(1) * (factors.scale * weight) for factors, weight in parts], dim=1)
    return down, up
