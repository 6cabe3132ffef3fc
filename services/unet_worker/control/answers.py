"""What ControlNets answered at a step, as the engine takes it."""

from collections.abc import Sequence

from pentimento.diffusion.controlnets import summed
from pentimento.diffusion.families.model import ControlResiduals
from pentimento.tensors.device import tensor_over
from pentimento.tensors.receiving import ReceivedTensors


def summed_answers(answers: Sequence[ReceivedTensors]) -> ControlResiduals:
    """Return the sum of a step's residuals, as far as all have come, in the order of its ControlNets; of one alone over
    the very bytes that came. Values are not looked at, which takes as long as copying them: one that is not finite
    shows in the engine's prediction, and ends the picture there."""
    return summed([_residuals_of(received) for received in answers])


def _residuals_of(received: ReceivedTensors) -> ControlResiduals:
    """By layer, over the very bytes that came."""
    tensors = {wire.binding.layer: tensor_over(wire, finite=False) for wire in received.tensors}
    return ControlResiduals(
        tuple(tensor for layer, tensor in tensors.items() if layer.startswith("down_block_")),
        tensors.get("mid_block"),
        tuple(tensor for layer, tensor in tensors.items() if layer.startswith("block_")),
        received.awaited_count,
    )
