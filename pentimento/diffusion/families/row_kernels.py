"""Pictures that come out of a shared forward pass with the bits that they have alone.

In float32 on a CPU two kinds of layer sum in another order when more rows share the pass (torch 2.13, MKL and oneDNN on
AVX-512, layer by layer; normalisation, attention and the rest go row by row):

- products of a matrix of fewer than 16 rows, for which MKL has kernels of their own: what sees a picture as one row,
  above all the layers behind the timestep's embedding;
- convolutions for which torch changes from its own kernel to oneDNN's: 1x1 ones at 16 rows, others of less than some
  20,000 elements at two.

Where it is asked for, these layers run picture by picture, all others as ever. Other processors choose by other bounds:
so the first pass of a shape also compares each layer's output with that of its pictures alone, and a layer that differs
runs picture by picture from then on. Other devices, other precisions and compiled forward passes are left as they are.
Not held are pictures with an odd number of values in a layer, no multiple of 32: element-wise functions round the last
ones differently. Trained models have none.
"""

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pentimento.diffusion.families.layer_forwards import Forward, replaced
from pentimento.diffusion.families.model import AsAlone, DenoiserInput

# From here on a row of MKL's products does not depend on how many others there are; where it does below varies with
# the layer's width.
_FEW_MATRIX_ROWS = 16

# Fewer multiplications a matrix than that, and torch does a batch of matrices by loops of its own.
_LOOPED_PRODUCTS = 400

# Shapes of forward passes whose layers are remembered: some sizes times the batch sizes.
_KEPT_SHAPES = 128

Layer = nn.Linear | nn.Conv2d


@dataclass(frozen=True)
class _Grouping:
    """How many rows a layer multiplies together; `in_one_call` where MKL is given all groups at once."""

    rows: int
    in_one_call: bool = False

    def outputs(self, layer: Layer, plain: Forward, inputs: Tensor) -> Tensor:
        if self.rows == inputs.shape[0]:
            return plain(inputs)
        if not self.in_one_call:
            return torch.cat([plain(group) for group in inputs.split(self.rows)])
        groups = inputs.reshape(inputs.shape[0] // self.rows, -1, inputs.shape[-1])
        weights = layer.weight.t().expand(groups.shape[0], -1, -1)
        return torch.baddbmm(layer.bias, groups, weights).reshape(*inputs.shape[:-1], -1)  # type: ignore[arg-type]


class RowKernels:
    """Which layers of one network run picture by picture, found in the first pass of a shape."""

    def __init__(self, network: nn.Module) -> None:
        self._layers = [module for module in network.modules() if isinstance(module, Layer)]
        kinds = {(layer.weight.device.type, layer.weight.dtype) for layer in self._layers}
        self._applies = kinds == {("cpu", torch.float32)}
        self._found: dict[tuple[object, ...], dict[Layer, _Grouping]] = {}

    def held(self, inputs: DenoiserInput, part: str = "") -> AbstractContextManager[None]:
        """Keep `inputs.as_alone` while the context is open: over a whole pass, or the part of that name. Without any
        nothing is touched."""
        wanted, shape = inputs.as_alone, inputs.latents.shape
        if wanted is None or not self._applies:
            return nullcontext()
        texts = inputs.conditioning
        # What was computed before the pass leaves out the layers that compute it.
        without = (inputs.time_terms is None, texts.projected is None)
        key = (shape, texts.states.shape[1], wanted.rows_each, torch.get_num_threads(), without, part)
        if (found := self._found.get(key)) is None:
            return self._finding(key, wanted, shape[0])
        return replaced(found, lambda layer, plain, rows: _outputs(wanted, found[layer], layer, plain, rows))

    @contextmanager
    def _finding(self, key: tuple[object, ...], wanted: AsAlone, row_count: int) -> Iterator[None]:
        found: dict[Layer, _Grouping] = {}

        def forward(layer: Layer, plain: Forward, inputs: Tensor) -> Tensor:
            if inputs.shape[0] != row_count:
                return plain(inputs)
            alone = _Grouping(wanted.rows_each).outputs(layer, plain, inputs)
            possible = _possible(layer, inputs, wanted.rows_each)
            kept = (grouping for grouping in possible if torch.equal(grouping.outputs(layer, plain, inputs), alone))
            grouping = next(kept, _Grouping(wanted.rows_each))
            if grouping.rows != row_count:
                found[layer] = grouping
            # As every later pass of the shape does: who is not to be as alone gets what the whole batch gives.
            return _outputs(wanted, grouping, layer, plain, inputs)

        with replaced(self._layers, forward):
            yield
        self._found[key] = found  # a pass that raised comes not here: it may have found only some
        while len(self._found) > _KEPT_SHAPES:
            self._found.pop(next(iter(self._found)))


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


def _possible(layer: Layer, inputs: Tensor, rows_each: int) -> Iterator[_Grouping]:
    """Yield the groupings that should keep the bits of pictures alone, fastest first."""
    rows = _rows_at_once(layer, inputs, rows_each)
    if rows < inputs.shape[0] and type(layer) is nn.Linear and _takes_one_call(layer, inputs[:rows]):
        yield _Grouping(rows, in_one_call=True)
    yield _Grouping(rows)


def _takes_one_call(layer: nn.Linear, group: Tensor) -> bool:
    """Whether MKL multiplies many such groups one by one; torch takes other kernels for what this leaves out."""
    return layer.bias is not None and layer.out_features > 1 and group.numel() * layer.out_features >= _LOOPED_PRODUCTS


def _outputs(wanted: AsAlone, grouping: _Grouping, layer: Layer, plain: Forward, inputs: Tensor) -> Tensor:
    if len(wanted.pictures) * wanted.rows_each == inputs.shape[0]:
        return grouping.outputs(layer, plain, inputs)
    outputs = plain(inputs)
    for picture in wanted.pictures:
        rows = slice(picture * wanted.rows_each, (picture + 1) * wanted.rows_each)
        outputs[rows] = plain(inputs[rows])
    return outputs
