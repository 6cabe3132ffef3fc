"""Describe LoRAs as values: the changes of a file's layers, their weights in a request, and the layers that can be
changed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from pentimento.diffusion.inversions import Inversion
from pentimento.diffusion.packed_weights import is_packed
from pentimento.domain.errors import FailedPrecondition
from pentimento.domain.reasons import Reason
from pentimento.files.lora_headers import ChangeShape, FactorPart, Shape

# Parts of a layer's outputs, from and to, in the order of the module's own rows; empty for all.
Rows = tuple[tuple[int, int], ...]
# Returns a tensor on the weight's device in single precision.
Moved = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class LowRankFactors:
    """Describe the change of one layer's weight, `scale` * up @ down. Linear layers have down (rank, inputs) and up
    (outputs, rank); convolutions have down (rank, inputs, height, width) and up (outputs, rank, 1, 1). A Tucker
    decomposition's core is multiplied into down."""

    down: Tensor
    up: Tensor
    alpha: float

    @property
    def rank(self) -> int:
        """Return the number of rows of `down`."""
        return self.down.shape[0]

    @property
    def scale(self) -> float:
        """Return alpha / rank, the factor of the product at weight 1."""
        return self.alpha / self.rank

    def matrix(self, moved: Moved) -> Tensor:
        """Return up @ down, without the scale, as (outputs, inputs * height * width)."""
        return moved(self.up).flatten(1) @ moved(self.down).flatten(1)


@dataclass(frozen=True)
class FactoredMatrix:
    """Describe a matrix as a file holds it: `left` alone, left @ right, or a Tucker decomposition. With a `core` (rank,
    rank, height, width), left is (rank, outputs) and right (rank, inputs)."""

    left: Tensor
    right: Tensor | None = None
    core: Tensor | None = None

    def product(self, moved: Moved) -> Tensor:
        """Return the matrix as (outputs, inputs) or (outputs, inputs, height, width)."""
        left = moved(self.left)
        if self.right is None:
            return left
        right = moved(self.right)
        if self.core is not None:
            return torch.einsum("ijkl,ip,jr->prkl", moved(self.core), left, right)
        return (left @ right.flatten(1)).view(-1, *right.shape[1:])


@dataclass(frozen=True)
class CombinedFactors:
    """Describe a change by two matrices: `scale` times their elementwise product, LoHa's (Hyeon-Woo et al. 2022), or
    their Kronecker product, LoKr's. `rows` are the module's outputs in it."""

    combine: Callable[[Tensor, Tensor], Tensor]
    first: FactoredMatrix
    second: FactoredMatrix
    scale: float
    rows: Rows = ()

    def matrix(self, moved: Moved) -> Tensor:
        """Return the product, without the scale, as (outputs, inputs * height * width)."""
        first, second = self.first.product(moved), self.second.product(moved)
        return rows_of(self.combine(first.flatten(1), second.flatten(1)), self.rows)


PlainChange = LowRankFactors | CombinedFactors


@dataclass(frozen=True)
class DecomposedFactors:
    """Describe DoRA's change (Liu et al. 2024, Eq. 5): the sum V of weight and change is scaled to `magnitude` / |V|.
    The magnitude is shaped (outputs, 1, ...), or (1, inputs, 1, ...) where the norms are by input."""

    change: PlainChange
    magnitude: Tensor


LayerChange = PlainChange | DecomposedFactors


def rows_of(matrix: Tensor, rows: Rows) -> Tensor:
    """Return these rows of a matrix, one part after the other; one part is not copied."""
    if len(rows) > 1:
        return torch.cat([matrix[start:stop] for start, stop in rows])
    return matrix[slice(*rows[0])] if rows else matrix


def difference(change: LayerChange, strength: float, base: Tensor, moved: Moved) -> Tensor:
    """Return the change of a weight at a strength, in single precision and shaped as the weight. DoRA's depends on
    `base`, the weight without any LoRA, as in PEFT's layers: so several are added in any order."""
    if not isinstance(change, DecomposedFactors):
        return change.matrix(moved).mul(change.scale * strength).view(base.shape)
    plain = base.float()
    whole = plain + difference(change.change, strength, base, moved)
    magnitude = moved(change.magnitude)
    axes = [axis for axis, side in enumerate(magnitude.shape) if side == 1]
    norm = torch.linalg.vector_norm(whole, dim=axes, keepdim=True)
    # A row of zeros stays zero.
    return whole.mul_(magnitude / norm.clamp(min=torch.finfo(norm.dtype).tiny)).sub_(plain)


_Tensors = Mapping[FactorPart, Tensor]
# How the two matrices of a form are combined, and the parts of each: whole, left, right, core.
_COMBINED = {
    "LoHa": (
        torch.mul,
        (None, FactorPart.HADA_W1_A, FactorPart.HADA_W1_B, FactorPart.HADA_T1),
        (None, FactorPart.HADA_W2_A, FactorPart.HADA_W2_B, FactorPart.HADA_T2),
    ),
    "LoKr": (
        torch.kron,
        (FactorPart.LOKR_W1, FactorPart.LOKR_W1_A, FactorPart.LOKR_W1_B, None),
        (FactorPart.LOKR_W2, FactorPart.LOKR_W2_A, FactorPart.LOKR_W2_B, FactorPart.LOKR_T2),
    ),
}


def built_change(found: ChangeShape, tensors: _Tensors, shape: Shape, alpha: float, rows: Rows) -> LayerChange:
    """Return the change of a module: the `rows` of the change that the validated tensors make of a layer of `shape`,
    times alpha / rank, or alpha if there is no rank."""
    plain: PlainChange
    if found.form == "LoRA":
        plain = _low_rank(tensors, shape, alpha, rows)
    else:
        combine, first, second = _COMBINED[found.form]
        scale = alpha / (found.rank or 1)
        plain = CombinedFactors(combine, _matrix(tensors, *first), _matrix(tensors, *second), scale, rows)
    if found.magnitudes is None:
        return plain
    magnitude = tensors.get(FactorPart.MAGNITUDE, tensors.get(FactorPart.DORA_SCALE))
    assert magnitude is not None
    ones = (1,) * (len(shape) - 2)
    if found.magnitudes == 1:
        return DecomposedFactors(plain, magnitude.reshape(1, -1, *ones))
    return DecomposedFactors(plain, rows_of(magnitude.reshape(-1, 1, *ones), rows))


def _low_rank(tensors: _Tensors, shape: Shape, alpha: float, rows: Rows) -> LowRankFactors:
    down, up = tensors[FactorPart.DOWN], tensors[FactorPart.UP]
    rank = down.shape[0]
    if (core := tensors.get(FactorPart.MID)) is not None:
        down = torch.einsum("mnkl,nj->mjkl", core.float(), down.flatten(1).float()).to(down.dtype)
    ups = rows_of(up.flatten(1), rows)
    ones = (1,) * (len(shape) - 2)
    return LowRankFactors(down.reshape(rank, *shape[1:]), ups.view(*ups.shape, *ones), alpha)


def _matrix(
    tensors: _Tensors, whole: FactorPart | None, left: FactorPart, right: FactorPart, core: FactorPart | None
) -> FactoredMatrix:
    if whole is not None and whole in tensors:
        return FactoredMatrix(tensors[whole])
    return FactoredMatrix(tensors[left], tensors[right], None if core is None else tensors.get(core))


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
