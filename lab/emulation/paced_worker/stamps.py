"""Residuals of paced ControlNets as they come: the first element of each row is what such a ControlNet wrote."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pentimento.diffusion.families.model import ControlResiduals
from pentimento.tensors.cuda import TORCH_DTYPES
from pentimento.tensors.receiving import ReceivedTensors


def summed_stamps(answers: Sequence[ReceivedTensors]) -> ControlResiduals:
    """Return the sum of the residuals' stamps (rows, 1, 1, 1), layer by layer. A device reads residuals in place and
    adds them within its pass, so only the stamps are read here."""
    layers = [wire.binding.layer for wire in answers[0].tensors] if answers else []
    summed: Tensor | None = None
    for answer in answers:
        stamps = _stamps(answer)
        summed = stamps if summed is None else summed + stamps
    by_layer = dict(zip(layers, summed.unbind() if summed is not None else (), strict=True))
    down = tuple(stamp for layer, stamp in by_layer.items() if layer.startswith("down_block_"))
    return ControlResiduals(down, by_layer.get("mid_block"))


def _stamps(answer: ReceivedTensors) -> Tensor:
    """Those of all layers in one tensor (layers, rows, 1, 1, 1)."""
    firsts = bytearray()
    for wire in answer.tensors:
        data = wire.data
        assert isinstance(data, bytes | memoryview), "a paced device has the host's memory"
        rows, item_bytes = wire.dims[0], TORCH_DTYPES[wire.dtype].itemsize
        row_bytes = len(data) // rows
        for row in range(rows):
            firsts += data[row * row_bytes : row * row_bytes + item_bytes]
    first = answer.tensors[0]
    return torch.frombuffer(firsts, dtype=TORCH_DTYPES[first.dtype]).view(len(answer.tensors), -1, 1, 1, 1)
