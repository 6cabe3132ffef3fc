"""What a replica of the ControlNet service answers is judged: nonsense is the replica's, and another one is asked."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from pentimento.api.controlnet.v1 import controlnet_service_pb2 as pb
from pentimento.api.tensor.v1 import tensor_pb2 as tensor_pb
from pentimento.clients.controlnet import ResidualStream, ResidualStreamRequest
from pentimento.domain.errors import Aborted
from pentimento.domain.generation import Attempt, ControlNetSelection
from pentimento.tensors.outgoing import OutgoingTensor, outgoing
from pentimento.wire.tensors import UNBOUND, Binding, Dtype, WireTensor, described

LAYER, DIGEST = "mid_block", "sha256:edges"


class ScriptedCall:
    """A call whose answers are known beforehand."""

    def __init__(self, answers: Sequence[pb.StreamResidualsResponse]) -> None:
        self._answers = list(answers)

    async def write(self, message: pb.StreamResidualsRequest) -> None:
        """Takes whatever is asked."""

    async def read(self) -> pb.StreamResidualsResponse:
        return self._answers.pop(0)

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Does not end."""


def tensor(dims: tuple[int, ...]) -> OutgoingTensor:
    return outgoing(WireTensor(Dtype.UINT8, dims, memoryview(bytes(dims[0])), UNBOUND))


def stream_with(*answers: pb.StreamResidualsResponse) -> ResidualStream:
    request = ResidualStreamRequest(
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
    return ResidualStream(cast(Any, ScriptedCall(answers)), request, 1, None)


def opened(dtype: int = tensor_pb.DTYPE_UINT8, layer_count: int = 1) -> pb.StreamResidualsResponse:
    shape = pb.ResidualShape(layer=LAYER, dtype=cast(Any, dtype), dims=[2])
    message = pb.StreamOpened(controlnet_digest=DIGEST, stream_epoch=1, shapes=[shape] * layer_count)
    return pb.StreamResidualsResponse(opened=message)


def residuals(dims: tuple[int, ...]) -> pb.StreamResidualsResponse:
    residual = described(Dtype.UINT8, dims, Binding("r", 1, 0, LAYER, DIGEST, 1))
    residual.inline = bytes(dims[0])
    message = pb.Residuals(step_index=0, stream_epoch=1, last_part=True, mid_block_residual=residual)
    return pb.StreamResidualsResponse(residuals=message)


@pytest.mark.parametrize("answer", [opened(dtype=99), opened(layer_count=0)], ids=["another type", "no layers"])
async def test_an_opening_that_is_none_is_the_replica_s(answer: pb.StreamResidualsResponse) -> None:
    with pytest.raises(Aborted) as refused:
        await stream_with(answer).open()

    assert refused.value.reason == "STALE_FRAME"


async def test_residuals_of_another_shape_are_the_replica_s() -> None:
    stream = stream_with(opened(), residuals((3,)))
    await stream.open()

    with pytest.raises(Aborted) as refused:
        await stream.answer(0, 1.0, tensor((1,)))

    assert refused.value.reason == "STALE_FRAME"


async def test_chunks_that_nobody_waits_for_are_the_replica_s() -> None:
    residual = described(Dtype.UINT8, (2,), Binding("r", 1, 0, LAYER, DIGEST, 1))
    residual.chunks.bundle_id, residual.chunks.size_bytes = 1, 2
    answer = pb.Residuals(step_index=0, stream_epoch=1, last_part=True, mid_block_residual=residual)
    chunk = tensor_pb.TensorChunk(bundle_id=2, data=b"xx", last=True)
    answers = (pb.StreamResidualsResponse(residuals=answer), pb.StreamResidualsResponse(chunk=chunk))
    stream = stream_with(opened(), *answers)
    await stream.open()

    with pytest.raises(Aborted) as refused:
        await stream.answer(0, 1.0, tensor((1,)))

    assert refused.value.reason == "STALE_FRAME"
