"""Both ends of the streams that `tensor_transport` measures: a server process of residuals that are there already, and
its client. Nothing is computed; torch is not imported."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import grpc.aio

from pentimento.api.controlnet.v1 import controlnet_service_pb2 as pb
from pentimento.api.controlnet.v1.controlnet_service_pb2_grpc import (
    ControlNetServiceServicer,
    add_ControlNetServiceServicer_to_server,
)
from pentimento.api.tensor.v1 import tensor_pb2 as tensor_pb
from pentimento.rpc import RpcServer, RpcServerSettings
from pentimento.tensors.outgoing import OutgoingTensor, outgoing
from pentimento.tensors.regions import RegionDirectory
from pentimento.tensors.sending import TensorSender, open_sender
from pentimento.wire.tensors import Binding, Dtype, WireTensor, described, size_of

FULL_NAME = pb.DESCRIPTOR.services_by_name["ControlNetService"].full_name
MAX_MESSAGE_BYTES = 1 << 28
# The condition of a stream says how its residuals are to come.
ONE_MESSAGE = b"one message"


@dataclass(frozen=True)
class ResidualSet:
    """What a network's ControlNet adds in a step, by layer: (channels, side) at the given rows and element type."""

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


# SDXL at 1024 x 1024 in half precision, both halves of guidance: 107.5 MB (Katz, section 5: 108 MiB).
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
# The zoo's: 64 x 64 pixels in single precision, both halves.
ZOO = ResidualSet("zoo", Dtype.FLOAT32, 2, ((32, 16), (32, 16), (32, 8), (64, 8), (64, 4), (96, 4), (96, 4)))
SETS = {residuals.name: residuals for residuals in (SDXL, ZOO)}


def tensors_of(residuals: ResidualSet) -> list[OutgoingTensor]:
    """Return the set's tensors, of arbitrary bytes, unbound."""
    made = [os.urandom(4096) * (size_of(residuals.dtype, dims) // 4096 + 1) for dims in residuals.dims]
    return [
        outgoing(WireTensor(residuals.dtype, dims, memoryview(data)[: size_of(residuals.dtype, dims)], Binding()))
        for dims, data in zip(residuals.dims, made, strict=True)
    ]


class ResidualServer(ControlNetServiceServicer):
    """Answers each step with the set that the stream's ControlNet is called by."""

    def __init__(self, directory: RegionDirectory) -> None:
        self._directory = directory
        self._sets = {name: tensors_of(residuals) for name, residuals in SETS.items()}

    async def StreamResiduals(
        self, request: AsyncIterator[pb.StreamResidualsRequest], context: Any
    ) -> AsyncIterator[pb.StreamResidualsResponse]:
        message = (await anext(aiter(request))).open
        tensors = self._sets[message.controlnet.name]
        sender, region = open_sender(message.transport, self._directory, [tensor.size_bytes for tensor in tensors])
        whole = message.controlnet.conditioning_image == ONE_MESSAGE
        try:
            yield pb.StreamResidualsResponse(opened=opened(message, tensors, region))
            async for one in request:
                match one.WhichOneof("message"):
                    case "step":
                        async for answer in answers(message, one.step.step_index, tensors, sender, whole=whole):
                            yield answer
                    case "ack":
                        sender.acknowledged(one.ack)
                    case "region_opened":
                        sender.region_opened(one.region_opened)
        finally:
            sender.close()


def opened(
    message: pb.OpenStream, tensors: Sequence[OutgoingTensor], region: tensor_pb.SharedMemoryRegion | None
) -> pb.StreamOpened:
    shapes = [
        pb.ResidualShape(
            layer=f"down_block_{index}", dtype=tensor_pb.Dtype.ValueType(tensor.dtype.value), dims=tensor.dims
        )
        for index, tensor in enumerate(tensors)
    ]
    return pb.StreamOpened(stream_epoch=message.stream_epoch, shapes=shapes, region=region, controlnet_digest="d")


async def answers(
    message: pb.OpenStream, step_index: int, tensors: Sequence[OutgoingTensor], sender: TensorSender, *, whole: bool
) -> AsyncIterator[pb.StreamResidualsResponse]:
    attempt = message.attempt
    bound = [
        replace(
            tensor,
            binding=Binding(
                attempt.request_id,
                attempt.fencing_token,
                step_index,
                f"down_block_{index}",
                "d",
                message.stream_epoch,
            ),
        )
        for index, tensor in enumerate(tensors)
    ]
    residuals = pb.Residuals(step_index=step_index, stream_epoch=message.stream_epoch, last_part=True)
    if whole:
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
        yield pb.StreamResidualsResponse(chunk=chunk)


async def serve(address: str, directory: Path) -> None:
    """Serve until the process is killed; says on standard output that it serves."""
    settings = RpcServerSettings(listen=(address,), max_message_bytes=MAX_MESSAGE_BYTES)
    server = RpcServer(settings, "residuals")
    server.add(add_ControlNetServiceServicer_to_server, ResidualServer(RegionDirectory(directory)), FULL_NAME)  # type: ignore[abstract]
    await server.start()
    print("serving", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    grpc.aio.init_grpc_aio()
    asyncio.run(serve(sys.argv[1], Path(sys.argv[2])))
