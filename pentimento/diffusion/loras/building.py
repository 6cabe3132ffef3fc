"""Make a layer's change of its tensors, after their shapes were validated."""

from collections.abc import Mapping

import torch
from torch import Tensor

from pentimento.diffusion.loras.changes import (
    DecomposedFactors,
    FactoredMatrix,
    HadamardFactors,
    KroneckerFactors,
    LayerChange,
    LowRankFactors,
    PlainChange,
    Rows,
    rows_of,
)
from pentimento.files.lora_headers import ChangeShape, FactorPart, Shape

_Tensors = Mapping[FactorPart, Tensor]


def built_change(found: ChangeShape, tensors: _Tensors, shape: Shape, alpha: float, rows: Rows) -> LayerChange:
    """Return the change of a module: the `rows` of the change that the tensors make of a layer of `shape`, times alpha
    / rank, or alpha if there is no rank."""
    plain = _plain(found, tensors, shape, alpha, rows)
    if found.magnitudes is None:
        return plain
    magnitude = tensors.get(FactorPart.MAGNITUDE, tensors.get(FactorPart.DORA_SCALE))
    assert magnitude is not None
    ones = (1,) * (len(shape) - 2)
    if found.magnitudes == 1:
        return DecomposedFactors(plain, magnitude.reshape(1, -1, *ones))
    return DecomposedFactors(plain, rows_of(magnitude.reshape(-1, 1, *ones), rows))


def _plain(found: ChangeShape, tensors: _Tensors, shape: Shape, alpha: float, rows: Rows) -> PlainChange:
    if found.form == "LoRA":
        return _low_rank(tensors, shape, alpha, rows)
    make = _hadamard if found.form == "LoHa" else _kronecker
    return make(tensors, alpha / (found.rank or 1), rows)


def _low_rank(tensors: _Tensors, shape: Shape, alpha: float, rows: Rows) -> LowRankFactors:
    down, up = tensors[FactorPart.DOWN], tensors[FactorPart.UP]
    rank = down.shape[0]
    if (core := tensors.get(FactorPart.MID)) is not None:
        down = torch.einsum("mnkl,nj->mjkl", core.float(), down.flatten(1).float()).to(down.dtype)
    ups = rows_of(up.flatten(1), rows)
    ones = (1,) * (len(shape) - 2)
    return LowRankFactors(down.reshape(rank, *shape[1:]), ups.view(*ups.shape, *ones), alpha)


def _hadamard(tensors: _Tensors, scale: float, rows: Rows) -> HadamardFactors:
    first = FactoredMatrix(
        tensors[FactorPart.HADA_W1_A], tensors[FactorPart.HADA_W1_B], tensors.get(FactorPart.HADA_T1)
    )
    second = FactoredMatrix(
        tensors[FactorPart.HADA_W2_A], tensors[FactorPart.HADA_W2_B], tensors.get(FactorPart.HADA_T2)
    )
    return HadamardFactors(first, second, scale, rows)


def _kronecker(tensors: _Tensors, scale: float, rows: Rows) -> KroneckerFactors:
    first = (
        FactoredMatrix(tensors[FactorPart.LOKR_W1])
        if FactorPart.LOKR_W1 in tensors
        else FactoredMatrix(tensors[FactorPart.LOKR_W1_A], tensors[FactorPart.LOKR_W1_B])
    )
    second = (
        FactoredMatrix(tensors[FactorPart.LOKR_W2])
        if FactorPart.LOKR_W2 in tensors
        else FactoredMatrix(
            tensors[FactorPart.LOKR_W2_A], tensors[FactorPart.LOKR_W2_B], tensors.get(FactorPart.LOKR_T2)
        )
    )
    return KroneckerFactors(first, second, scale, rows)
