"""Serve ready-made residuals, as the answering end of `tensor_transport`'s streams. Nothing is computed; torch is not
imported.
"""

import asyncio
import os
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import grpc.aio
import numpy as np

from pentimento.api.controlnet.v1 import controlnet_service_pb2 as pb
from pentimento.api.controlnet.v1.controlnet_service_pb2_grpc import (
    ControlNetServiceServicer,
    add_ControlNetServiceServicer_to_server,
)
from pentimento.api.tensor.v1 import tensor_pb2 as tensor_pb
from pentimento.clients.controlnet import ANSWER_LAYER
from pentimento.diffusion.thread_wait import ThreadWait
from pentimento.rpc import RpcServer, RpcServerSettings
from pentimento.rpc.memory import keep_freed_memory
from pentimento.rpc.settings import ServerBounds
from pentimento.tensors.outgoing import OutgoingTensor
from pentimento.tensors.receiving import ExpectedTensor
from pentimento.tensors.regions import RegionDirectory
from pentimento.tensors.sending import TensorSender
from pentimento.tensors.step_lines import MAX_UNDER_WAY
from pentimento.tensors.step_server import Deliver, StepService, serve_steps
from pentimento.wire.tensors import Binding, DeviceBytes, Dtype, described, size_of

FULL_NAME = pb.DESCRIPTOR.services_by_name["ControlNetService"].full_name
MAX_MESSAGE_BYTES = 1 << 28
# A stream's condition selects the transport of its residuals.
ONE_MESSAGE = b"one message"
BARE = b"bare"
LATENT_DIMS = (2, 8, 16, 16)


@dataclass(frozen=True)
class ResidualSet:
    """Describe a ControlNet's residuals in a step, by layer: (channels, side) at the given rows and element type."""

    name: str
    dtype: Dtype
    rows: int
    sides: tuple[tuple[int, int], ...]

    @cached_property
    def dims(self) -> tuple[tuple[int, ...], ...]:
        return tuple((self.rows, channels, side, side) for channels, side in self.sides)

    @cached_property
    def size_bytes(self) -> int:
        return sum(size_of(self.dtype, dims) for dims in self.dims)


# SDXL at 1024 x 1024 in half precision, both halves of guidance: 107.5 MB (Katz, section 5: 108 MiB)
SDXL = ResidualSet(
    "sdxl",
    Dtype.FLOAT16,
    2,
    (
        (320, 128),
        (320, 128),
        (320, 128),
        (320, 64),
        (640, 64),
        (640, 64),
        (640, 32),
        (1280, 32),
        (1280, 32),
        (1280, 32),
    ),
)
# the zoo's: 64 x 64 pixels in single precision, both halves
ZOO = ResidualSet("zoo", Dtype.FLOAT32, 2, ((32, 16), (32, 16), (32, 8), (64, 8), (64, 4), (96, 4), (96, 4)))
SETS = {residuals.name: residuals for residuals in (SDXL, ZOO)}


def tensors_of(residuals: ResidualSet) -> list[OutgoingTensor]:
    """Return the set's tensors, of arbitrary bytes, unbound."""
    return [_tensor_of(residuals.dtype, dims) for dims in residuals.dims]


def _tensor_of(dtype: Dtype, dims: tuple[int, ...]) -> OutgoingTensor:
    """Copy by numpy, which releases the interpreter lock as the suite's copies by torch do."""
    size = size_of(dtype, dims)
    made = np.frombuffer(os.urandom(4096) * (size // 4096 + 1), np.uint8)[:size]

    def fill(target: memoryview | DeviceBytes) -> None:
        assert isinstance(target, memoryview)
        np.copyto(np.frombuffer(target, np.uint8), made)

    return OutgoingTensor(dtype, dims, Binding(), fill, on_host=True)


class ResidualServer(ControlNetServiceServicer):
    """Answer each step with the set named by the stream's ControlNet."""

    def __init__(self, directory: RegionDirectory) -> None:
        self._directory = directory
        self._sets = {name: tensors_of(residuals) for name, residuals in SETS.items()}
        # Steps that come by lines are answered on a separate thread, as by the computing one.
        self._waiting = ThreadWait()
        threading.Thread(target=self._hear, daemon=True).start()

    def _hear(self) -> None:
        while True:
            self._waiting.wait()

    async def StreamResiduals(
        self, request: AsyncIterator[pb.StreamResidualsRequest], context: Any
    ) -> AsyncIterator[pb.StreamResidualsResponse]:
        message = (await anext(aiter(request))).open
        tensors = self._sets[message.controlnet.name]
        if message.controlnet.conditioning_image in (BARE, ONE_MESSAGE):
            answers = plain_answers(message, tensors, request)
        else:
            service = residuals_of(message, tensors, self._waiting)
            answers = serve_steps(request, message.transport, self._directory, service)
        async with aclosing(answers):
            async for answer in answers:
                yield answer


def residuals_of(message: pb.OpenStream, tensors: Sequence[OutgoingTensor], waiting: ThreadWait) -> StepService:
    """Return the service that answers each step at once."""
    named = [(f"down_block_{index}", tensor) for index, tensor in enumerate(tensors)]

    def submit(step: int, timestep: float, latents: object, deliver: Deliver[Any], in_parts: bool) -> "Future[Any]":
        future: Future[Any] = Future()
        future.set_result(deliver(named, ()))
        return future

    return StepService(
        step_count=message.step_count,
        latents=ExpectedTensor(Dtype.FLOAT32, LATENT_DIMS, bound_to(message, "latent", message.base_model_digest)),
        answer=bound_to(message, ANSWER_LAYER),
        answer_sizes=[tensor.size_bytes for tensor in tensors],
        submit=submit,
        outgoing=lambda tensor, binding: replace(tensor, binding=binding),
        listener=waiting,
        most_under_way=MAX_UNDER_WAY,
        opened=lambda region, line: pb.StreamResidualsResponse(opened=opened(message, tensors, region, line)),
        answered=lambda step, parts: answered(message, step, parts),
        chunk_field=pb.StreamResidualsResponse.CHUNK_FIELD_NUMBER,
    )


async def plain_answers(
    message: pb.OpenStream, tensors: Sequence[OutgoingTensor], requests: AsyncIterator[pb.StreamResidualsRequest]
) -> AsyncGenerator[pb.StreamResidualsResponse, None]:
    """Answer steps as the suite never does: in one message, or by chunks alone."""
    yield pb.StreamResidualsResponse(opened=opened(message, tensors, None, None))
    one_message = message.controlnet.conditioning_image == ONE_MESSAGE
    bare = [] if one_message else bare_chunks(tensors)
    async for request in requests:
        if request.WhichOneof("message") != "step":
            continue
        for chunk in bare:
            yield cast(pb.StreamResidualsResponse, chunk)
        if one_message:
            yield answered(message, request.step.step_index, whole_tensors(message, tensors))


def bound_to(message: pb.OpenStream, layer: str, digest: str = "d") -> Binding:
    attempt = message.attempt
    return Binding(attempt.request_id, attempt.fencing_token, 0, layer, digest, message.stream_epoch)


def bare_chunks(tensors: Sequence[OutgoingTensor]) -> list[bytes]:
    """Return a step's chunks as the bytes of their messages, so that only a stream of 1 MiB messages remains."""
    chunks = TensorSender().pack(tensors).chunks
    return [chunk.framed(pb.StreamResidualsResponse.CHUNK_FIELD_NUMBER) for chunk in chunks]


def opened(
    message: pb.OpenStream,
    tensors: Sequence[OutgoingTensor],
    region: tensor_pb.SharedMemoryRegion | None,
    line: tensor_pb.StepLine | None,
) -> pb.StreamOpened:
    shapes = [
        pb.ResidualShape(
            layer=f"down_block_{index}", dtype=tensor_pb.Dtype.ValueType(tensor.dtype.value), dims=tensor.dims
        )
        for index, tensor in enumerate(tensors)
    ]
    return pb.StreamOpened(
        stream_epoch=message.stream_epoch, shapes=shapes, region=region, line=line, controlnet_digest="d"
    )


def whole_tensors(message: pb.OpenStream, tensors: Sequence[OutgoingTensor]) -> list[tensor_pb.Tensor]:
    """Return the tensors as parts of one message."""
    parts = []
    for index, tensor in enumerate(tensors):
        part = described(tensor.dtype, tensor.dims, bound_to(message, f"down_block_{index}"))
        data = bytearray(tensor.size_bytes)
        tensor.fill(memoryview(data))
        part.inline = bytes(data)
        parts.append(part)
    return parts


def answered(message: pb.OpenStream, step_index: int, parts: Sequence[tensor_pb.Tensor]) -> pb.StreamResidualsResponse:
    epoch = message.stream_epoch
    residuals = pb.Residuals(step_index=step_index, stream_epoch=epoch, last_part=True, down_block_residuals=parts)
    return pb.StreamResidualsResponse(residuals=residuals)


async def serve(address: str, directory: Path) -> None:
    """Serve until the process is killed; report readiness on standard output."""
    bounds = ServerBounds(max_message_bytes=MAX_MESSAGE_BYTES)
    server = RpcServer(RpcServerSettings(listen=(address,)), "residuals", bounds=bounds)
    server.add(add_ControlNetServiceServicer_to_server, ResidualServer(RegionDirectory(directory)), FULL_NAME)  # type: ignore[abstract]
    await server.start()
    print("serving", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    keep_freed_memory()  # as a replica does
    grpc.aio.init_grpc_aio()
    asyncio.run(serve(sys.argv[1], Path(sys.argv[2])))
