"""A ControlNet that sleeps for the times of a pace, and stamps its residuals."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lab.emulation.pace import ControlNetPace, DevicePace
from pentimento.diffusion.controlnets import ControlNetInfo, ControlStep, ResidualsSoFar, unheard
from pentimento.diffusion.families.model import ControlResiduals
from pentimento.tensors.cuda import WIRE_DTYPES
from pentimento.tensors.outgoing import OutgoingTensor
from pentimento.wire.tensors import Binding, DeviceBytes

# Integer types by item size: numpy has no bfloat16.
_BITS = {2: torch.int16, 4: torch.int32}


class PacedControlNet:
    """See `controlnets.ControlNet`. Its residuals have the shapes of the pace's UNet; each row holds one number made of
    condition, latents and timestep, so that an image shows which residuals arrived."""

    def __init__(self, pace: DevicePace, controlnet: ControlNetPace, digest: str, dtype: torch.dtype) -> None:
        self._pace = pace
        self._step = controlnet.step
        self.dtype = dtype
        self.device = torch.device("cpu")
        self.config: Mapping[str, Any] = {}
        self.info = ControlNetInfo(pace.family, digest, "", pace.latent_channels, 3, False, False)

    def embed(self, condition: Tensor, row_count: int = 1) -> Tensor:
        """Return the mean of a condition, by rows."""
        return condition.float().mean().expand(row_count, 1)

    def residuals(self, steps: Sequence[ControlStep], tell: ResidualsSoFar = unheard) -> list[ControlResiduals]:
        """Take as long as a pass over all rows."""
        began_s = time.monotonic()
        answers = [self._of(step) for step in steps]
        seconds = self._step.of(sum(step.inputs.latents.shape[0] for step in steps))
        time.sleep(max(began_s + seconds - time.monotonic(), 0.0))
        return answers

    def _of(self, step: ControlStep) -> ControlResiduals:
        latents = step.inputs.latents
        rows, _, height, width = latents.shape
        seen = latents[:, :, 0, 0].float().mean(dim=1) + step.inputs.timesteps.expand(rows) / 1000
        stamp = ((seen + step.embedded[:, 0]) * step.setting.scale).to(self.dtype).view(rows, 1, 1, 1)
        down, mid = self._pace.residual_dims(rows, height, width)
        return ControlResiduals(tuple(stamp.expand(dims) for dims in down), stamp.expand(mid))


def stamped_tensor(tensor: Tensor, binding: Binding) -> OutgoingTensor:
    """Return a residual to send, with only the first element of each row written. A device writes its residuals in
    place within its pass, so the rest must cost this machine nothing."""

    item_bytes = tensor.dtype.itemsize
    firsts = _first_of_rows(tensor).view(_BITS[item_bytes]).numpy().tobytes()

    def fill(target: memoryview | DeviceBytes) -> None:
        assert isinstance(target, memoryview), "a paced device has the host's memory"
        row_bytes = len(target) // tensor.shape[0]
        for row in range(tensor.shape[0]):
            first = firsts[row * item_bytes : (row + 1) * item_bytes]
            target[row * row_bytes : row * row_bytes + item_bytes] = first

    return OutgoingTensor(WIRE_DTYPES[tensor.dtype], tuple(tensor.shape), binding, fill)


def _first_of_rows(tensor: Tensor) -> Tensor:
    return tensor.as_strided((tensor.shape[0],), (tensor.stride(0),))
