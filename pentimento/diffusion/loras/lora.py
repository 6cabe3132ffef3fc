"""Describe LoRAs as values: the changes of a file's layers, their weights in a request, and the layers that can be
changed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from pentimento.diffusion.inversions import Inversion
from pentimento.diffusion.loras.changes import LayerChange, LowRankFactors
from pentimento.diffusion.packed_weights import is_packed
from pentimento.domain.errors import FailedPrecondition
from pentimento.domain.reasons import Reason


class BadLora(FailedPrecondition):
    """Report a file that cannot be used: BAD_LORA if it is unsound, LORA_MISMATCH if it changes another base,
    UNSUPPORTED_LORA if it has another form. The message is one line that names the file and the fault."""

    def __init__(self, message: str, reason: str = Reason.BAD_LORA) -> None:
        super().__init__(reason, message)


@dataclass(frozen=True)
class Lora:
    """Describe the changes of one file, by component of the pipeline ("unet", "text_encoder") and name of the module,
    and the textual inversions in it. `digest` is the file's (`files.digest_lora`)."""

    digest: str
    size_bytes: int
    components: Mapping[str, Mapping[str, LayerChange]]
    words: tuple[Inversion, ...] = ()

    @cached_property
    def patched_components(self) -> frozenset[str]:
        """Return the components with changes that only patched weights have: all but two small factors."""
        return frozenset(
            component
            for component, modules in self.components.items()
            if not all(isinstance(change, LowRankFactors) for change in modules.values())
        )


@dataclass(frozen=True)
class WeightedLora:
    """Pair a LoRA with the weight that a request sets; 1 is the trained strength."""

    lora: Lora
    weight: float = 1.0

    @property
    def key(self) -> tuple[str, float]:
        """Return the identity of the pair: the file's digest and the weight."""
        return (self.lora.digest, self.weight)


AdapterSet = tuple[WeightedLora, ...]


def set_key(adapters: AdapterSet, component: str | None = None) -> tuple[tuple[str, float], ...]:
    """Return a key that differs for sets with different weights of `component`, or of any component if None. It is
    empty for a set that changes nothing."""
    return tuple(one.key for one in adapters if one.weight and (component is None or component in one.lora.components))


def patched_key(adapters: AdapterSet, component: str) -> tuple[tuple[str, float], ...]:
    """Return `set_key` of a component if the set must be in its weights; empty if rows of a batch may have it apart."""
    patched = any(one.weight and component in one.lora.patched_components for one in adapters)
    return set_key(adapters, component) if patched else ()


def changes_by_module(adapters: AdapterSet, component: str) -> dict[str, list[tuple[LayerChange, float]]]:
    """Return the changes of each module of a component with their weights, in the order of the set."""
    changes: dict[str, list[tuple[LayerChange, float]]] = {}
    for one in adapters:
        for name, change in one.lora.components.get(component, {}).items() if one.weight else ():
            changes.setdefault(name, []).append((change, one.weight))
    return changes


@dataclass(frozen=True, eq=False)
class BaseLayers:
    """Hold the weight shapes of a base model's layers that a LoRA may change, by component and name of the module.
    `denoiser` names the component that denoises; `is_packed` if its weights are in eight bits and cannot be patched.
    Equality is identity."""

    family: str
    denoiser: str
    shapes: Mapping[str, Mapping[str, tuple[int, ...]]]
    is_packed: bool = False


def layers_of(family: str, components: Mapping[str, nn.Module]) -> BaseLayers:
    """Return the linear layers and convolutions of `components`; the first component is the denoiser."""
    shapes = {name: _shapes(component) for name, component in components.items()}
    denoiser = next(iter(components))
    return BaseLayers(family, denoiser, shapes, is_packed(components[denoiser]))


def _shapes(component: nn.Module) -> dict[str, tuple[int, ...]]:
    return {
        name: tuple(module.weight.shape)
        for name, module in component.named_modules()
        if isinstance(module, nn.Linear) or (isinstance(module, nn.Conv2d) and module.groups == 1)
    }


def joined(parts: Sequence[tuple[LowRankFactors, float]]) -> tuple[Tensor, Tensor]:
    """Return down (rank, inputs, ...) and up (outputs, rank) of several changes of one layer, multiplied by their
    scales and weights. Ranks are concatenated, so that the product is the sum of the products."""
    down = torch.cat([factors.down for factors, _ in parts])
    up = torch.cat([factors.up.flatten(1) * (factors.scale * weight) for factors, weight in parts], dim=1)
    return down, up
