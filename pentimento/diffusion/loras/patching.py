"""LoRAs in the weights themselves: W += scale * up @ down in place, and back to the very same bits (Katz, section 6);
in copies of the weights, a layer at a time, for text encoders, which run once a prompt.

A layer's weight before its first patch is kept in host memory from then on: the next patch of the layer needs no copy,
which takes longer than the product. What is put back are these bits, not a difference: in floating point
W + change - change is not W.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn
from torch.nn import functional

from pentimento.diffusion.families.layer_forwards import Forward, replaced
from pentimento.diffusion.loras.device_copies import FactorsThere, KeptWeights
from pentimento.diffusion.loras.lora import AdapterSet, LowRankFactors, set_key

_CACHED_BYTES, _ROWS = 1024 * 1024, 64


class WeightPatch:
    """The weights of one network with one set of LoRAs in them, or none. One thread only; nobody else may change the
    weights as long as it lives."""

    def __init__(self, network: nn.Module, component: str, changed: Callable[[], None] = lambda: None) -> None:
        """`changed` is called after each change of a weight."""
        self._network = network
        self._component = component
        self._changed = changed
        self._held: AdapterSet = ()
        self._originals = KeptWeights()
        self._patched: set[str] = set()

    @property
    def held(self) -> AdapterSet:
        """The set that is in the weights."""
        return self._held

    @property
    def saved_bytes(self) -> int:
        """Host memory that the kept weights take: those of all layers that were ever patched."""
        return sum(original.nbytes for original in self._originals.by_name.values())

    def holds(self, adapters: AdapterSet) -> bool:
        """Return whether the weights are those of the set."""
        return set_key(self._held, self._component) == set_key(adapters, self._component)

    def hold(self, adapters: AdapterSet) -> None:
        """Make the weights those of the set, of which each LoRA is added in turn. Whatever goes wrong, the network then
        has its own weights."""
        if self.holds(adapters):
            return
        parts = _parts(adapters, self._component)
        try:
            self._replace(parts)
        except BaseException:
            self._replace({})
            self._held = ()
            raise
        self._held = adapters

    @torch.no_grad()
    def _replace(self, parts: dict[str, list[tuple[LowRankFactors, float]]]) -> None:
        for name in sorted(self._patched):
            self._weight(name).copy_(self._originals.by_name[name], non_blocking=True)
            self._patched.remove(name)
        weights = {name: self._weight(name) for name in parts}
        self._originals.keep(weights)
        there = FactorsThere(next(self._network.parameters()).device)
        for name, changes in parts.items():
            self._patched.add(name)
            for factors, strength in changes:
                _add(weights[name], factors, strength, there)
        self._changed()

    def _weight(self, name: str) -> Tensor:
        weight = self._network.get_submodule(name).weight
        assert isinstance(weight, Tensor)
        return weight.detach()


def patched_copies(network: nn.Module, component: str, adapters: AdapterSet) -> AbstractContextManager[None]:
    """Have linear layers of `network` compute with the set in their weights while the context is open, to the bits of
    `WeightPatch`. Each layer's weight is copied for the time of its product, and no longer: nothing is to be put
    back."""
    changes = {network.get_submodule(name): parts for name, parts in _parts(adapters, component).items()}

    def forward(layer: nn.Module, plain: Forward, inputs: Tensor) -> Tensor:
        assert isinstance(layer, nn.Linear), "text encoders have no other layers that LoRAs change"
        weight = layer.weight.detach().clone()
        for factors, strength in changes[layer]:
            _add(weight, factors, strength, FactorsThere(weight.device))
        return functional.linear(inputs, weight, layer.bias)

    return replaced(changes, forward)


def _parts(adapters: AdapterSet, component: str) -> dict[str, list[tuple[LowRankFactors, float]]]:
    """What changes each module, in the order of the set."""
    parts: dict[str, list[tuple[LowRankFactors, float]]] = {}
    for one in adapters:
        for name, factors in one.lora.components.get(component, {}).items() if one.weight else ():
            parts.setdefault(name, []).append((factors, one.weight))
    return parts


def _add(weight: Tensor, factors: LowRankFactors, strength: float, there: FactorsThere) -> None:
    """Rounds as PEFT does where it merges: the product, then times its scale, then added. A convolution's weight is a
    matrix too: (outputs, inputs * height * width)."""
    (up, down), scale = there.matrices(factors), factors.scale * strength
    row_count = min(_rows_at_once(down), len(weight)) if down.device.type == "cpu" else len(weight)
    change = down.new_empty((row_count, down.shape[1]))
    for part, rows in zip(weight.split(row_count), up.split(row_count), strict=True):
        torch.mm(rows, down, out=change[: len(part)])
        # Half precision keeps what the change has in single precision until it is added: so torch adds different types.
        part.add_(change[: len(part)].mul_(scale).view(part.shape))


def _rows_at_once(down: Tensor) -> int:
    """So many that their change stays in a processor's cache, which takes 0.7 of the time that its memory does.
    Multiples of 64 keep the product's bits, which depend on how it is cut."""
    return max(_CACHED_BYTES // (down.shape[1] * down.itemsize) // _ROWS * _ROWS, _ROWS)
