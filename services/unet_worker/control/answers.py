"""Convert the ControlNets' answers for a step into the engine's residuals."""

from collections.abc import Sequence

from pentimento.diffusion.controlnets import summed
from pentimento.diffusion.families.model import ControlResiduals
from pentimento.tensors.device import tensor_over
from pentimento.tensors.receiving import ReceivedTensors


def summed_answers(answers: Sequence[ReceivedTensors]) -> ControlResiduals:
    """Return the sum of the residuals that all ControlNets of a step have sent so far, in their order; a single
    ControlNet's residuals share the received bytes. Values are not checked, which takes as long as a copy: a value that
    is not finite shows in the engine's prediction, and ends the request there."""
    return summed([_residuals_of(received) for received in answers])


def _residuals_of(received: ReceivedTensors) -> ControlResiduals:
    """Return the residuals by layer, over the received bytes."""
    tensors = {wire.binding.layer: tensor_over(wire, finite=False) for wire in received.tensors}
    return ControlResiduals(
        tuple(tensor for layer, tensor in tensors.items() if layer.startswith("down_block_")),
        tensors.get("mid_block"),
        tuple(tensor for layer, tensor in tensors.items() if layer.startswith("block_")),
        received.awaited_count,
    )
