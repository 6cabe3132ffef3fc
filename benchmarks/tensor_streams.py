"""Serve ready-made residuals, as the answering end of `tensor_transport`'s streams. Nothing is computed; torch is not
imported.
"""

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Sequence
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
from pentimento.tensors.outgoing import OutgoingTensor
from pentimento.tensors.receiving import ExpectedTensor
from pentimento.tensors.regions import RegionDirectory
from pentimento.tensors.sending import TensorSender, open_sender
from pentimento.tensors.step_lines import AnsweringLine, LinedLatents, LinedSteps, make_answering_line
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
        sender, region = open_sender(message.transport, self._directory, [tensor.size_bytes for tensor in tensors])
        line, told = make_answering_line(
            self._directory, sender, lambda step: latent_of(message, step), lambda step: bound_to(message, step)
        )
        lined = None if line is None else lined_steps(line, tensors, self._waiting)
        bare = bare_chunks(message, tensors) if message.controlnet.conditioning_image == BARE else []
        messages = request if lined is None else lined.until_failed(request)
        try:
            yield pb.StreamResidualsResponse(opened=opened(message, tensors, region, told))
            async for one in messages:
                match one.WhichOneof("message"):
                    case "step" if bare:
                        for chunk in bare:
                            yield cast(pb.StreamResidualsResponse, chunk)
                    case "step":
                        async for answer in answers(message, one.step.step_index, tensors, sender):
                            yield answer
                    case "ack":
                        sender.acknowledged(one.ack)
                    case "region_opened":
                        sender.region_opened(one.region_opened)
        finally:
            if lined is not None:
                lined.close()
            sender.close()


def lined_steps(line: AnsweringLine, tensors: Sequence[OutgoingTensor], waiting: ThreadWait) -> LinedSteps:
    def take(step: LinedLatents) -> None:
        line.answer(step.step_index, tensors)

    return LinedSteps(line, lambda step, timestep: None, take, waiting)


def bound_to(message: pb.OpenStream, step_index: int, layer: str = ANSWER_LAYER, digest: str = "d") -> Binding:
    attempt = message.attempt
    return Binding(attempt.request_id, attempt.fencing_token, step_index, layer, digest, message.stream_epoch)


def latent_of(message: pb.OpenStream, step_index: int) -> ExpectedTensor:
    binding = bound_to(message, step_index, "latent", message.base_model_digest)
    return ExpectedTensor(Dtype.FLOAT32, LATENT_DIMS, binding)


def bare_chunks(message: pb.OpenStream, tensors: Sequence[OutgoingTensor]) -> list[bytes]:
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


async def answers(
    message: pb.OpenStream, step_index: int, tensors: Sequence[OutgoingTensor], sender: TensorSender
) -> AsyncIterator[pb.StreamResidualsResponse]:
    bound = [
        replace(tensor, binding=bound_to(message, step_index, f"down_block_{index}"))
        for index, tensor in enumerate(tensors)
    ]
    residuals = pb.Residuals(step_index=step_index, stream_epoch=message.stream_epoch, last_part=True)
    if message.controlnet.conditioning_image == ONE_MESSAGE:
        for tensor in bound:
            part = described(tensor.dtype, tensor.dims, tensor.binding)
            data = bytearray(tensor.size_bytes)
            tensor.fill(memoryview(data))
            part.inline = bytes(data)
            residuals.down_block_residuals.append(part)
        yield pb.StreamResidualsResponse(residuals=residuals)
        return
    packed = sender.pack(bound)
    residuals.down_block_residuals.extend(packed.tensors)
    yield pb.StreamResidualsResponse(residuals=residuals)
    for chunk in packed.chunks:
        yield cast(pb.StreamResidualsResponse, chunk.framed(pb.StreamResidualsResponse.CHUNK_FIELD_NUMBER))


async def serve(address: str, directory: Path) -> None:
    """Serve until the process is killed; report readiness on standard output."""
    settings = RpcServerSettings(listen=(address,), max_message_bytes=MAX_MESSAGE_BYTES)
    server = RpcServer(settings, "residuals")
    server.add(add_ControlNetServiceServicer_to_server, ResidualServer(RegionDirectory(directory)), FULL_NAME)  # type: ignore[abstract]
    await server.start()
    print("serving", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    keep_freed_memory()  # as a replica does
    grpc.aio.init_grpc_aio()
    asyncio.run(serve(sys.argv[1], Path(sys.argv[2])))
