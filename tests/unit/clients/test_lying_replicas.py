"""Validate answers of ControlNet replicas: nonsense counts against the replica, and another one is used."""

from typing import Any, cast

import pytest

from lab.fixtures.step_streams import answer_to
from pentimento.api.controlnet.v1 import controlnet_service_pb2 as pb
from pentimento.api.tensor.v1 import tensor_pb2 as tensor_pb
from pentimento.clients.controlnet import ResidualStream
from pentimento.domain.errors import Aborted
from pentimento.wire.tensors import Binding, Dtype, described
from tests.unit.clients.scripted_residuals import DIGEST, LAYER, ScriptedCall, opened, request, residuals, tensor


def stream_with(*answers: pb.StreamResidualsResponse) -> ResidualStream:
    return ResidualStream(cast(Any, ScriptedCall(answers)), request(), 1, None)


@pytest.mark.parametrize("answer", [opened(dtype=99), opened(layer_count=0)], ids=["another type", "no layers"])
async def test_an_opening_that_is_none_is_the_replica_s(answer: pb.StreamResidualsResponse) -> None:
    with pytest.raises(Aborted) as refused:
        await stream_with(answer).open()

    assert refused.value.reason == "STALE_FRAME"


def wrong_chunks() -> tuple[pb.StreamResidualsResponse, ...]:
    """Return residuals in one bundle, and a chunk of another."""
    residual = described(Dtype.UINT8, (2,), Binding("r", 1, 0, LAYER, DIGEST, 1))
    residual.chunks.bundle_id, residual.chunks.size_bytes = 1, 2
    answer = pb.Residuals(step_index=0, stream_epoch=1, last_part=True, mid_block_residual=residual)
    chunk = tensor_pb.TensorChunk(bundle_id=2, data=b"xx", last=True)
    return pb.StreamResidualsResponse(residuals=answer), pb.StreamResidualsResponse(chunk=chunk)


@pytest.mark.parametrize(
    "answers",
    [(residuals((3,)),), (residuals((2,), step_index=1),), wrong_chunks()],
    ids=["another shape", "another step", "another bundle"],
)
async def test_wrong_residuals_are_fault_of_replica(answers: tuple[pb.StreamResidualsResponse, ...]) -> None:
    stream = stream_with(opened(), *answers)
    await stream.open()

    with pytest.raises(Aborted) as refused:
        await answer_to(stream, 0, 1.0, tensor((1,)))

    assert refused.value.reason == "STALE_FRAME"
    stream.close()
