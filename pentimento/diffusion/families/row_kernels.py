"""Pictures that come out of a shared forward pass with the bits that they have alone.

In float32 on a CPU two kinds of layer sum in another order when more rows share the pass (torch 2.13, MKL and oneDNN on
AVX-512, layer by layer; normalisation, attention and the rest go row by row):

- products of a matrix of fewer than 16 rows, for which MKL has kernels of their own: what sees a picture as one row,
  above all the layers behind the timestep's embedding;
- convolutions for which torch changes from its own kernel to oneDNN's: 1x1 ones at 16 rows, others of less than some
  20,000 elements at two.

Where it is asked for, these layers run picture by picture, all others as ever. Other devices, other precisions and
compiled forward passes are left as they are. Not held are pictures with an odd number of values in a layer, no multiple
of 32: element-wise functions round the last ones differently. Trained models have none.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from pentimento.diffusion.families.model import AsAlone, DenoiserInput

# From here on a row of MKL's products does not depend on how many others there are; where it does below varies with
# the layer's width.
_FEW_MATRIX_ROWS = 16

# Fewer multiplications a matrix than that, and torch does a batch of matrices by loops of its own.
_LOOPED_PRODUCTS = 400

# Shapes of forward passes whose layers are remembered: some sizes times the batch sizes.
_KEPT_SHAPES = 128

Layer = nn.Linear | nn.Conv2d
Forward = Callable[[Tensor], Tensor]


class RowKernels:
    """Which layers of one network those are, found in the first pass of a shape."""

    def __init__(self, network: nn.Module) -> None:
        self._layers = [module for module in network.modules() if isinstance(module, Layer)]
        kinds = {(layer.weight.device.type, layer.weight.dtype) for layer in self._layers}
        self._applies = kinds == {("cpu", torch.float32)}
        self._found: dict[tuple[object, ...], dict[Layer, int]] = {}

    def held(self, inputs: DenoiserInput) -> AbstractContextManager[None]:
        """While it is open, the network keeps `inputs.as_alone`. Without any nothing is touched."""
        wanted, shape = inputs.as_alone, inputs.latents.shape
        if wanted is None or not self._applies:
            return nullcontext()
        key = (shape, inputs.conditioning.states.shape[1], wanted.rows_each, torch.get_num_threads())
        if (found := self._found.get(key)) is None:
            return self._finding(key, wanted, shape[0])
        return _replaced(found, lambda layer, plain, rows: _in_parts(wanted, found[layer], layer, plain, rows))

    @contextmanager
    def _finding(self, key: tuple[object, ...], wanted: AsAlone, row_count: int) -> Iterator[None]:
        found: dict[Layer, int] = {}

        def forward(layer: Layer, plain: Forward, inputs: Tensor) -> Tensor:
            at_once = _rows_at_once(layer, inputs, wanted.rows_each)
            if inputs.shape[0] != row_count or at_once == row_count:
                return plain(inputs)
            found[layer] = at_once
            return _in_parts(wanted, at_once, layer, plain, inputs)

        with _replaced(self._layers, forward):
            yield
        self._found[key] = found  # a pass that raised comes not here: it may have found only some
        while len(self._found) > _KEPT_SHAPES:
            self._found.pop(next(iter(self._found)))


@contextmanager
def _replaced(layers: Iterable[Layer], forward: Callable[[Layer, Forward, Tensor], Tensor]) -> Iterator[None]:
    """Past the modules' own bookkeeping, which takes longer than a small layer's arithmetic."""
    own = [(layer, layer.__dict__.get("forward")) for layer in layers]
    try:
        for layer, _ in own:
            layer.__dict__["forward"] = partial(forward, layer, layer.forward)
        yield
    finally:
        for layer, before in own:
            if before is None:
                layer.__dict__.pop("forward", None)
            else:
                layer.__dict__["forward"] = before


def _rows_at_once(layer: Layer, inputs: Tensor, rows_each: int) -> int:
    """How many rows, of whole pictures, get the kernel that one picture gets alone."""
    rows = inputs.shape[0]
    if isinstance(layer, nn.Linear):
        return rows_each if rows_each * math.prod(inputs.shape[1:-1]) < _FEW_MATRIX_ROWS else rows
    alone = _convolution(layer, inputs[:rows_each])
    while rows > rows_each and _convolution(layer, inputs[:rows]) != alone:
        rows = rows // rows_each // 2 * rows_each
    return rows


def _convolution(layer: nn.Conv2d, inputs: Tensor) -> Any:
    """Which kernel torch takes, by torch itself: it goes by shape and by the number of threads."""
    geometry = (layer.stride, layer.padding, layer.dilation, False, (0, 0), layer.groups)
    return torch._C._select_conv_backend(inputs, layer.weight, layer.bias, *geometry)


def _in_parts(wanted: AsAlone, at_once: int, layer: Layer, plain: Forward, inputs: Tensor) -> Tensor:
    if len(wanted.pictures) * wanted.rows_each == inputs.shape[0]:
        products = _products(layer, inputs, at_once) if type(layer) is nn.Linear else None
        return torch.cat([plain(part) for part in inputs.split(at_once)]) if products is None else products
    outputs = plain(inputs)
    for picture in wanted.pictures:
        rows = slice(picture * wanted.rows_each, (picture + 1) * wanted.rows_each)
        outputs[rows] = plain(inputs[rows])
    return outputs


def _products(layer: nn.Linear, inputs: Tensor, at_once: int) -> Tensor | None:
    """All parts in one call, which MKL multiplies one by one; None where torch would take neither for it."""
    parts = inputs.reshape(inputs.shape[0] // at_once, -1, inputs.shape[-1])
    if layer.bias is None or layer.out_features == 1 or parts[0].numel() * layer.out_features < _LOOPED_PRODUCTS:
        return None
    weights = layer.weight.t().expand(parts.shape[0], -1, -1)
    return torch.baddbmm(layer.bias, parts, weights).reshape(*inputs.shape[:-1], layer.out_features)
