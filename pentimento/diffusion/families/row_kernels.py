"""Compute images in a shared forward pass with the same bits as alone.

In float32 on a CPU two kinds of layer sum in another order when more rows share the pass (torch 2.13, MKL and oneDNN on
AVX-512, layer by layer; normalisation, attention and the rest run row by row):

- products of a matrix of fewer than 16 rows, which MKL computes with separate kernels: layers with one row per image,
  above all the layers after the timestep's embedding;
- convolutions that torch moves from its own kernel to oneDNN's: 1x1 ones at 16 rows, others of less than about
  20,000 elements at two.

For selected images these layers run image by image, all others together. Other processors have other bounds: the first
pass of a shape also compares each layer's output with its output for single images, and a layer that differs runs image
by image from then on. Other devices, other precisions and compiled forward passes are not changed. Images with an odd
number of values in a layer, no multiple of 32, may still differ: element-wise functions round the last values
differently. Trained models have no such layers.
"""

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pentimento.diffusion.families.model import AsAlone, DenoiserInput
from pentimento.diffusion.families.row_updates import Forward, replaced

# From this number on a row of MKL's products does not depend on the number of rows; below, that varies with the
# layer's width.
_FEW_MATRIX_ROWS = 16

# Below this number of multiplications per matrix torch multiplies a batch of matrices with its own loops.
_LOOPED_PRODUCTS = 400

# Pass shapes with stored groupings: some image sizes times the batch sizes.
_KEPT_SHAPES = 128

Layer = nn.Linear | nn.Conv2d


@dataclass(frozen=True)
class _Grouping:
    """Hold the number of rows that a layer multiplies together; `in_one_call` if MKL receives all groups together."""

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
    """Run some layers of one network image by image; the first pass of a shape finds them."""

    def __init__(self, network: nn.Module) -> None:
        self._layers = [module for module in network.modules() if isinstance(module, Layer)]
        kinds = {(layer.weight.device.type, layer.weight.dtype) for layer in self._layers}
        self._applies = kinds == {("cpu", torch.float32)}
        self._found: dict[tuple[object, ...], dict[Layer, _Grouping]] = {}

    def held(self, inputs: DenoiserInput, part: str = "") -> AbstractContextManager[None]:
        """Apply `inputs.as_alone` while the context is open: to a whole pass, or to the part of that name. Without it
        nothing changes."""
        wanted, shape = inputs.as_alone, inputs.latents.shape
        if wanted is None or not self._applies:
            return nullcontext()
        texts = inputs.conditioning
        # Inputs computed before the pass skip the layers that compute them.
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
            # As in every later pass of the shape: images that are not selected get the whole batch's result.
            return _outputs(wanted, grouping, layer, plain, inputs)

        with replaced(self._layers, forward):
            yield
        self._found[key] = found  # not reached if the pass raised: it may have found only some layers
        while len(self._found) > _KEPT_SHAPES:
            self._found.pop(next(iter(self._found)))


def _rows_at_once(layer: Layer, inputs: Tensor, rows_each: int) -> int:
    """Return the number of rows, in whole images, that get the same kernel as a single image."""
    rows = inputs.shape[0]
    if isinstance(layer, nn.Linear):
        return rows_each if rows_each * math.prod(inputs.shape[1:-1]) < _FEW_MATRIX_ROWS else rows
    alone = _convolution(layer, inputs[:rows_each])
    while rows > rows_each and _convolution(layer, inputs[:rows]) != alone:
        rows = rows // rows_each // 2 * rows_each
    return rows


def _convolution(layer: nn.Conv2d, inputs: Tensor) -> Any:
    """Return the kernel that torch selects; it depends on the shape and the number of threads."""
    geometry = (layer.stride, layer.padding, layer.dilation, False, (0, 0), layer.groups)
    return torch._C._select_conv_backend(inputs, layer.weight, layer.bias, *geometry)


def _possible(layer: Layer, inputs: Tensor, rows_each: int) -> Iterator[_Grouping]:
    """Yield the groupings that should give the bits of single images, fastest first."""
    rows = _rows_at_once(layer, inputs, rows_each)
    if rows < inputs.shape[0] and type(layer) is nn.Linear and _takes_one_call(layer, inputs[:rows]):
        yield _Grouping(rows, in_one_call=True)
    yield _Grouping(rows)


def _takes_one_call(layer: nn.Linear, group: Tensor) -> bool:
    """Return whether MKL multiplies such groups one by one in one call; torch uses other kernels otherwise."""
    return layer.bias is not None and layer.out_features > 1 and group.numel() * layer.out_features >= _LOOPED_PRODUCTS


def _outputs(wanted: AsAlone, grouping: _Grouping, layer: Layer, plain: Forward, inputs: Tensor) -> Tensor:
    if len(wanted.pictures) * wanted.rows_each == inputs.shape[0]:
        return grouping.outputs(layer, plain, inputs)
    outputs = plain(inputs)
    for picture in wanted.pictures:
        rows = slice(picture * wanted.rows_each, (picture + 1) * wanted.rows_each)
        outputs[rows] = plain(inputs[rows])
    return outputs
