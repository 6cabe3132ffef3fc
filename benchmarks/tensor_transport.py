"""Measure the speed of residuals between two processes: through shared memory, in chunks, and in one message.

    python -m benchmarks.tensor_transport

A server process has the residuals ready (SDXL's of one step: 107.5 MB, which Katz gives as 108 MiB; the zoo's: 0.2 MB),
and a client in this process requests one step after the other, with the suite's contract and client. GB/s is bytes over
the time from the request until the tensors exist, unread. The ways alternate:

- shared memory: as the suite does it on one host, by a line next to the stream
- shared memory, asked by the stream: the same slots without a line
- chunks: over gRPC and a Unix socket, as between hosts
- one message
- a bare stream: gRPC with the same messages, prepared beforehand, read and dropped; no tensors are made
- a plain copy: the same bytes from this process's memory into such a region, layer by layer, by one thread, without any
  request. The suite copies with two threads if the process has two processors

The last two are the machine's limit at that moment; others are reported as a share of it. Then streams are opened
while either process is killed at a random moment, and regions are counted.
"""

import asyncio
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio
import psutil

from benchmarks.tensor_streams import (
    BARE,
    FULL_NAME,
    LATENT_DIMS,
    MAX_MESSAGE_BYTES,
    ONE_MESSAGE,
    SDXL,
    ZOO,
    ResidualSet,
    tensors_of,
)
from lab.fixtures.step_streams import answer_to
from lab.runs.intervals import median_ratio
from lab.runs.measure import Figure, Options, at_least, at_most, counted, informative, measured, parse_options, publish
from pentimento.api.controlnet.v1 import controlnet_service_pb2 as pb
from pentimento.api.controlnet.v1.controlnet_service_pb2_grpc import ControlNetServiceStub
from pentimento.clients.controlnet import ControlNetClient, ResidualStream, ResidualStreamRequest
from pentimento.diffusion.thread_wait import ThreadWait
from pentimento.domain.errors import PentimentoError
from pentimento.domain.generation import Attempt, ControlNetSelection
from pentimento.rpc import RpcChannelSettings, open_channel, transport
from pentimento.rpc.memory import keep_freed_memory
from pentimento.tensors.chunks import CHUNK_BYTES
from pentimento.tensors.outgoing import OutgoingTensor, layout_of, outgoing
from pentimento.tensors.receiving import ReceivedTensors
from pentimento.tensors.regions import RegionDirectory, RegionSize
from pentimento.wire.tensors import UNBOUND, Dtype, WireTensor

LINED, BY_STREAM, CHUNKS, WHOLE, STREAM, COPY = WAYS = (
    "shared memory",
    "shared memory, asked by the stream",
    "chunks",
    "one message",
    "a bare stream",
    "a plain copy",
)
# each as a share of the machine's limit in the same round
COMPARED = ((LINED, COPY), (CHUNKS, STREAM))
STREAMS_A_KILL = 250
OPEN_S = 60.0
LATENT = WireTensor(Dtype.FLOAT32, LATENT_DIMS, bytes(2 * 8 * 16 * 16 * 4), UNBOUND)
CHANNEL = RpcChannelSettings()
transport.MAX_MESSAGE_BYTES = MAX_MESSAGE_BYTES
TARGETS_GB_S = {LINED: at_least(8.0, "GB/s"), CHUNKS: at_least(1.0, "GB/s")}


@dataclass(frozen=True)
class StepCost:
    """Store a step's elapsed seconds, and its processor seconds in both processes."""

    seconds: float
    cpu_s: float


# a step by each way, in the order of `WAYS`
Round = tuple[StepCost, ...]
Step = Callable[[int], Awaitable[object]]


@contextmanager
def server(address: str, directory: Path) -> "Iterator[subprocess.Popen[str]]":
    command = [sys.executable, "-m", "benchmarks.tensor_streams", address, str(directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield process
        finally:
            process.kill()


class WholeMessages(ResidualStream):
    """Receive residuals inside one message, which the suite's receiver rejects."""

    async def _read(self) -> None:
        while True:
            parts = (await self._stream.read(self.answer_field)).residuals.down_block_residuals
            tensors = [WireTensor(Dtype(part.dtype), tuple(part.dims), part.inline, UNBOUND) for part in parts]
            self._keep(next(iter(self._asked_at)), ReceivedTensors(tuple(tensors)))
            self.heard()


def stream_request(residuals: ResidualSet, number: int = 1, condition: bytes = b"") -> ResidualStreamRequest:
    states = outgoing(WireTensor(Dtype.FLOAT32, (2, 1, 1), bytes(8), UNBOUND))
    return ResidualStreamRequest(
        attempt=Attempt(f"r{number}", 1, number, "benchmark", 1, "benchmark"),
        controlnet=ControlNetSelection(residuals.name, condition),
        base_model_digest="",
        base_model_family="",
        width_px=64,
        height_px=64,
        step_count=10**9,
        latent_dims=(8, 16, 16),
        states=states,
    )


async def whole_messages(channel: grpc.aio.Channel, residuals: ResidualSet) -> ResidualStream:
    call = ControlNetServiceStub(channel).StreamResiduals()
    stream = WholeMessages(call, stream_request(residuals, condition=ONE_MESSAGE), 1, None)
    await stream.open()
    return stream


async def bare_step(channel: grpc.aio.Channel, residuals: ResidualSet) -> Step:
    """Return a function that receives a step's messages without reading them."""
    method: Any = channel.stream_stream(
        f"/{FULL_NAME}/StreamResiduals", request_serializer=pb.StreamResidualsRequest.SerializeToString
    )
    call = method()
    opening = pb.StreamResidualsRequest()
    opening.open.controlnet.name, opening.open.controlnet.conditioning_image = residuals.name, BARE
    await call.write(opening)
    await call.read()
    messages = -(-residuals.size_bytes // CHUNK_BYTES)

    async def step(number: int) -> None:
        await call.write(pb.StreamResidualsRequest(step=pb.ResidualStep(step_index=number)))
        for _ in range(messages):
            await call.read()

    return step


def lined_step(stream: ResidualStream, waiting: ThreadWait, latents: OutgoingTensor) -> Step:
    """Return a function that takes a step on a separate thread, as a worker's engine does."""
    assert stream.lined, "the line could not be opened"

    def take(number: int) -> None:
        stream.ask(number, 500.0, latents, number)
        while stream.take(number) is None:
            waiting.wait()

    async def step(number: int) -> None:
        await asyncio.to_thread(take, number)

    return step


def asked_step(stream: ResidualStream, latents: OutgoingTensor) -> Step:
    """Return a function that requests a step by the stream."""

    async def step(number: int) -> None:
        await answer_to(stream, number, 500.0, latents)

    return step


@contextmanager
def plain_copy(residuals: ResidualSet, directory: RegionDirectory) -> Iterator[Step]:
    """Yield a function that copies a step's layers into a region."""
    tensors = tensors_of(residuals)
    layout = layout_of([tensor.size_bytes for tensor in tensors])
    region = directory.create(RegionSize(layout.size_bytes, 1))

    async def step(number: int) -> None:
        for tensor, offset in zip(tensors, layout.offsets, strict=True):
            tensor.fill(region.slot(0)[offset : offset + tensor.size_bytes])

    try:
        yield step
    finally:
        region.close()


async def timed(step: Step, number: int, other: psutil.Process) -> StepCost:
    began, began_cpu = time.perf_counter(), cpu_seconds(other)
    await step(number)
    return StepCost(time.perf_counter() - began, cpu_seconds(other) - began_cpu)


def cpu_seconds(other: psutil.Process) -> float:
    times = other.cpu_times()
    return time.process_time() + times.user + times.system


async def rounds_of(residuals: ResidualSet, count: int, folder: Path) -> list[Round]:
    """Return rounds of all ways alternating, each on a separate stream."""
    shared, address = folder / "shared", f"unix:{folder}/s"
    directory, latents = RegionDirectory(shared), outgoing(LATENT)
    with server(address, shared) as serving, plain_copy(residuals, directory) as copying:
        other = psutil.Process(serving.pid)
        async with open_channel(address, CHANNEL) as channel:
            waiting, request = ThreadWait(), stream_request(residuals)
            lined = ControlNetClient(channel, directory, listener=waiting)
            streams = (
                await lined.open_stream(request, 1, OPEN_S),
                await ControlNetClient(channel, directory, lined=False).open_stream(request, 1, OPEN_S),
                await ControlNetClient(channel).open_stream(request, 1, OPEN_S),
                await whole_messages(channel, residuals),
            )
            ways = (
                lined_step(streams[0], waiting, latents),
                *(asked_step(stream, latents) for stream in streams[1:]),
                await bare_step(channel, residuals),
                copying,
            )
            rounds: list[Round] = []
            for step in range(count + 2):
                rounds.append(tuple([await timed(way, step, other) for way in ways]))
            for stream in streams:
                stream.close()
    # the first two fault pages in and open connections
    return rounds[2:]


async def use_streams(address: str, directory: RegionDirectory, count: int) -> int:
    """Open streams and take steps on them until the server ends; return the number of opened streams."""
    opened = 0

    async def use(number: int) -> None:
        nonlocal opened
        with suppress(PentimentoError):
            stream = await client.open_stream(stream_request(ZOO, number), 1, OPEN_S)
            opened += 1
            for step in range(10**6):
                await answer_to(stream, step, 500.0, outgoing(LATENT))

    async with open_channel(address, CHANNEL) as channel:
        client = ControlNetClient(channel, directory)
        await asyncio.gather(*(use(number) for number in range(count)))
    return opened


def kill_round(source: random.Random, folder: Path) -> tuple[int, int]:
    """Kill one side; return the number of regions named then, and after the next one was made."""
    shared, address = folder / "shared", f"unix:{folder}/k"
    directory = RegionDirectory(shared)
    with server(address, shared) as serving:
        command = [sys.executable, "-m", "benchmarks.tensor_transport", "--use", address, str(shared)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
            assert client.stdout is not None
            client.stdout.readline()
            time.sleep(source.uniform(0.0, 0.4))
            who = source.choice(("server", "client"))
            (serving if who == "server" else client).send_signal(signal.SIGKILL)
            (serving if who == "server" else client).wait()
            if who == "client":
                # The server notices by the connection, and releases regions that are not mapped.
                deadline = time.monotonic() + 10
                while directory.region_count() and time.monotonic() < deadline:
                    time.sleep(0.01)
            left = directory.region_count()
            client.kill()
    directory.create(RegionSize(1, 1)).close()
    return left, directory.region_count()


def speed_figures(rounds: Sequence[Round]) -> list[Figure]:
    figures = []
    for place, way in enumerate(WAYS):
        name = f"SDXL's residuals ({SDXL.size_bytes / 1e6:.1f} MB) by {way}"
        speeds = [SDXL.size_bytes / one[place].seconds / 1e9 for one in rounds]
        figures.append(measured(name, speeds, statistics.median, TARGETS_GB_S.get(way, informative("GB/s"))))
        figures.append(measured(f"{name}, the fastest step", speeds, max, informative("GB/s")))
        cpu = [1e3 * one[place].cpu_s for one in rounds]
        figures.append(measured(f"{name}, processor time", cpu, statistics.median, informative("ms")))
    for way, machine in COMPARED:
        pairs = [(one[WAYS.index(machine)].seconds, one[WAYS.index(way)].seconds) for one in rounds]
        name = f"speed of {way} / of {machine}"
        figures.append(measured(name, pairs, median_ratio, informative()))
    return figures


def latency_figures(rounds: Sequence[Round]) -> list[Figure]:
    figures = []
    for place, way in enumerate(WAYS[:-1]):
        name = f"a step of the zoo ({ZOO.size_bytes / 2**10:.0f} KiB) there and back by {way}"
        waits = [1e3 * one[place].seconds for one in rounds]
        target = at_most(1.0, "ms") if place == 0 else informative("ms")
        figures.append(measured(name, waits, statistics.median, target))
        figures.append(measured(f"{name}, the fastest", waits, min, informative("ms")))
    return figures


def run(options: Options) -> int:
    keep_freed_memory()  # as a worker does
    steps, zoo_steps, kills = (3, 50, 2) if options.quick else (12, 400, 40)
    source = random.Random(1)
    with tempfile.TemporaryDirectory(prefix="pmt-", dir="/dev/shm") as name:
        folder = Path(name)
        (folder / "shared").mkdir(mode=0o700)
        large = asyncio.run(rounds_of(SDXL, steps, folder))
        small = asyncio.run(rounds_of(ZOO, zoo_steps, folder))
        killed = [kill_round(source, folder) for _ in range(kills)]
    figures = [*speed_figures(large), *latency_figures(small)]
    left = sum(after for _, after in killed)
    streams = kills * STREAMS_A_KILL
    figures.append(counted(f"regions left of {streams} streams", left, streams, at_most(0, "regions")))
    by_name = sum(before for before, _ in killed)
    name = f"regions that had a name right after the kill, of {streams} streams"
    figures.append(counted(name, by_name, streams, informative("regions")))
    notes = {"steps": steps, "zoo_steps": zoo_steps, "kills": kills, "streams_a_kill": STREAMS_A_KILL}
    return publish(options, figures, notes=notes)


def use(address: str, directory: Path) -> None:
    """Use streams as the client process that may be killed."""
    print("using", flush=True)
    asyncio.run(use_streams(address, RegionDirectory(directory), STREAMS_A_KILL))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--use"]:
        use(sys.argv[2], Path(sys.argv[3]))
    else:
        raise SystemExit(run(parse_options("tensor_transport", __doc__)))
