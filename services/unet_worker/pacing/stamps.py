"""Residuals of paced ControlNets as they come: the first element of each row is what such a ControlNet wrote."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pentimento.diffusion.families.model import ControlResiduals
from pentimento.tensors.receiving import ReceivedTensors
from pentimento.wire.tensors import WireTensor
from pentimento.wire.torch_tensors import TORCH_DTYPES


def summed_stamps(answers: Sequence[ReceivedTensors]) -> ControlResiduals:
    """Return the sum of the residuals' stamps (rows, 1, 1, 1), layer by layer. A device reads residuals where they lie
    and adds them up within its pass, so nothing else of them is touched here."""
    layers: dict[str, Tensor] = {}
    for answer in answers:
        for wire in answer.tensors:
            stamp = _stamp(wire)
            layer = wire.binding.layer
            layers[layer] = layers[layer] + stamp if layer in layers else stamp
    down = tuple(stamp for layer, stamp in layers.items() if layer.startswith("down_block_"))
    return ControlResiduals(down, layers.get("mid_block"))


def _stamp(wire: WireTensor) -> Tensor:
    dtype, rows = TORCH_DTYPES[wire.dtype], wire.dims[0]
    data = wire.data
    assert isinstance(data, bytes | memoryview), "a paced device has the host's memory"
    row_bytes = len(data) // rows
    firsts = b"".join(data[row * row_bytes : row * row_bytes + dtype.itemsize] for row in range(rows))
    return torch.frombuffer(bytearray(firsts), dtype=dtype).view(rows, 1, 1, 1)
