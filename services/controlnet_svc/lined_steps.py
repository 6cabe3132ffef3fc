"""Answer steps that come by a stream's line: validated as those of the stream are, and computed and answered by the
same thread."""

from collections.abc import Callable
from functools import partial

from torch import Tensor

from pentimento.diffusion.families.model import ControlResiduals
from pentimento.domain.errors import Internal, ResourceExhausted
from pentimento.tensors.device import WIRE_DTYPES, tensor_over
from pentimento.tensors.outgoing import OutgoingTensor
from pentimento.tensors.step_lines import MAX_UNDER_WAY, AnsweringLine, LinedLatents, LinedSteps
from pentimento.wire.tensors import UNBOUND, Binding, size_of
from services.controlnet_svc.compute.layers import are_of, named_tensors
from services.controlnet_svc.streams import OpenedStream

ANSWER_LAYER = "residuals"


class LinedResiduals:
    """Answer the steps of one stream: the compute thread takes, computes and answers each, `in_parts` as residuals
    become ready. `steps` reports failures."""

    def __init__(
        self,
        line: AnsweringLine,
        stream: OpenedStream,
        outgoing: Callable[[Tensor, Binding], OutgoingTensor],
        *,
        in_parts: bool = True,
    ) -> None:
        self._in_parts = in_parts
        self._line = line
        self._stream = stream
        self._outgoing = outgoing
        self.steps = LinedSteps(line, self._begin, self._take, stream.listener)

    def _begin(self, step_index: int, timestep: float) -> None:
        if self._stream.under_way_count >= MAX_UNDER_WAY:
            raise ResourceExhausted("NO_CREDIT", f"at most {MAX_UNDER_WAY} steps may be under way")
        self._stream.begin(step_index, timestep)

    def _take(self, step: LinedLatents) -> None:
        deliver = partial(self._deliver, step.step_index)
        future = self._stream.submit(step.timestep, tensor_over(step.latents), deliver, in_parts=self._in_parts)
        future.add_done_callback(self.steps.settled)

    def _deliver(self, step_index: int, residuals: ControlResiduals) -> None:
        """Answer a step by the line, on the compute thread."""
        if not are_of(residuals, self._stream.layers):
            raise Internal("CONTROLNET_FAILED", "the ControlNet's residuals are not those of its first pass")
        named = named_tensors(residuals)
        dtype, awaited = WIRE_DTYPES[self._stream.dtype], self._stream.layers[len(named) :]
        self._line.answer(
            step_index,
            [self._outgoing(tensor, UNBOUND) for _, tensor in named],
            [size_of(dtype, layer.dims) for layer in awaited],
        )
