"""A stream of residuals; the test is its other end."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

from pentimento.api.controlnet.v1 import controlnet_service_pb2 as pb
from pentimento.api.tensor.v1 import tensor_pb2 as tensor_pb
from pentimento.clients.controlnet import ResidualStreamRequest
from pentimento.domain.errors import PentimentoError
from pentimento.domain.generation import Attempt, ControlNetSelection
from pentimento.tensors.outgoing import OutgoingTensor, outgoing
from pentimento.wire.tensors import UNBOUND, Binding, Dtype, WireTensor, described

LAYER, DIGEST = "mid_block", "sha256:edges"


class ScriptedCall:
    """Gives the answers of the test, in their order, and then waits."""

    def __init__(self, answers: Sequence[pb.StreamResidualsResponse] = ()) -> None:
        self._answers: asyncio.Queue[pb.StreamResidualsResponse | PentimentoError] = asyncio.Queue()
        self.written: list[pb.StreamResidualsRequest] = []
        for answer in answers:
            self.answer(answer)

    def answer(self, answer: pb.StreamResidualsResponse) -> None:
        self._answers.put_nowait(answer)

    def fail(self, error: PentimentoError) -> None:
        self._answers.put_nowait(error)

    async def write(self, message: pb.StreamResidualsRequest) -> None:
        self.written.append(message)

    async def read(self) -> pb.StreamResidualsResponse:
        answer = await self._answers.get()
        if isinstance(answer, PentimentoError):
            raise answer
        return answer

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Ignore the callback: the call does not end."""

    def cancel(self) -> None:
        """Ignore it: the test ends with the call."""


def tensor(dims: tuple[int, ...]) -> OutgoingTensor:
    return outgoing(WireTensor(Dtype.UINT8, dims, memoryview(bytes(dims[0])), UNBOUND))


def request() -> ResidualStreamRequest:
    return ResidualStreamRequest(
        attempt=Attempt("r", 0, 1, "frontdoor", 1, "tenant"),
        controlnet=ControlNetSelection("edges", b"image", digest=DIGEST),
        base_model_digest="sha256:base",
        base_model_family="stable_diffusion",
        width_px=8,
        height_px=8,
        step_count=2,
        latent_dims=(1, 1, 1),
        states=tensor((1,)),
    )


def opened(dtype: int = tensor_pb.DTYPE_UINT8, layer_count: int = 1) -> pb.StreamResidualsResponse:
    shape = pb.ResidualShape(layer=LAYER, dtype=cast(Any, dtype), dims=[2])
    message = pb.StreamOpened(controlnet_digest=DIGEST, stream_epoch=1, shapes=[shape] * layer_count)
    return pb.StreamResidualsResponse(opened=message)


def residuals(dims: tuple[int, ...], step_index: int = 0) -> pb.StreamResidualsResponse:
    residual = described(Dtype.UINT8, dims, Binding("r", 1, step_index, LAYER, DIGEST, 1))
    residual.inline = bytes(dims[0])
    message = pb.Residuals(step_index=step_index, stream_epoch=1, last_part=True, mid_block_residual=residual)
    return pb.StreamResidualsResponse(residuals=message)
