"""Test images by two workers: equal to one worker's, also after the loss of the second, which is a process."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from torch import Tensor

from lab.fixtures.step_streams import answer_to
from pentimento.api.generation.v1 import generation_pb2
from pentimento.api.worker.v1 import unet_worker_service_pb2 as pb
from pentimento.clients.controlnet import ControlNetClient, ResidualStream
from pentimento.clients.guidance_half import GuidanceHalfClient, HalfStream, HalfStreamRequest
from pentimento.clients.worker import WorkerClient
from pentimento.domain.errors import (
    Aborted,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PentimentoError,
    ResourceExhausted,
    Unavailable,
)
from pentimento.domain.fleet import Capability
from pentimento.domain.generation import (
    Attempt,
    FromNoise,
    GenerationSpec,
    LoraSelection,
    ObjectReference,
    Route,
    Scheduler,
)
from pentimento.domain.prompt_syntax import PromptSyntax
from pentimento.policies import latent_pairing
from pentimento.rpc import RpcChannelSettings, open_channel
from pentimento.tensors.cuda import outgoing_tensor, tensor_over
from pentimento.tensors.regions import RegionDirectory
from pentimento.wire.codec import encode
from pentimento.wire.tensors import UNBOUND
from services.unet_worker.remote.halves import GuidanceHalves
from tests.integration.unet_worker.conftest import Served, at_step, serve
from tests.integration.unet_worker.requests import final_latents, result_for
from tests.support.torch_threads import one_thread  # noqa: F401 (a fixture of this module)

pytestmark = pytest.mark.asyncio(loop_scope="module")

ZOO = Path(__file__).parents[3] / "zoo" / "weights"
NEON = "tiny-lora-neon"
SIDE_PX, STEPS = 64, 20
# The batch's composition may change an image by this much (ADR 0009): a half is one row, a whole step has two.
TOLERANCE = 1e-4
OPEN_S = 120.0
SPEC = GenerationSpec("a red circle", "blurred", "tiny", SIDE_PX, SIDE_PX, STEPS, 3.0, Scheduler.DDIM, seed=3)
_numbers = count(1)


@dataclass
class Parts:
    """Hold a worker, and the folder in which it shares memory with others of its host."""

    worker: Served
    folder: Path
    directory: RegionDirectory
    peers: list["Peer"] = field(default_factory=list)


@dataclass
class Peer:
    """Hold a worker's process."""

    process: "subprocess.Popen[bytes]"
    address: str
    is_fit: bool = True

    def lose(self, how: signal.Signals) -> None:
        self.is_fit = False
        self.process.send_signal(how)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def parts() -> AsyncIterator[Parts]:
    with tempfile.TemporaryDirectory(prefix="pmt-", dir="/dev/shm") as name:
        folder = Path(name)
        shared = folder / "shared"
        shared.mkdir(mode=0o700)
        options: dict[str, Any] = {"shared_memory_dir": str(shared), "adapters_dir": ZOO}
        options["component_cache_dir"] = folder / "fetched"
        async with serve(ZOO / "tiny-heavy", folder, **options) as served:
            made = Parts(served, folder, RegionDirectory(shared))
            yield made
            for peer in made.peers:
                peer.process.kill()
                peer.process.wait()


@pytest_asyncio.fixture(loop_scope="module")
async def peer(parts: Parts) -> Peer:
    """Return a serving peer: the previous test's unless that one was lost."""
    for old in parts.peers:
        if not old.is_fit:
            old.process.kill()
            old.process.wait()
    fit = [old for old in parts.peers if old.is_fit]
    found = fit[0] if fit else start_peer(parts)
    parts.peers[:] = [found]
    await credits_of(found)
    await freed(parts, found)
    return found


def start_peer(parts: Parts) -> Peer:
    address = f"unix:{parts.folder}/p{next(_numbers)}"
    command = [sys.executable, "-m", "services.unet_worker", "--model", str(ZOO / "tiny-heavy"), "--device", "cpu"]
    command += ["--model-name", "tiny", "--listen", address, "--objects-url", f"file://{parts.folder}/objects"]
    command += ["--shared-memory-dir", f"{parts.folder}/shared", "--adapters-dir", str(ZOO), "--credits", "1"]
    command += ["--component-cache-dir", f"{parts.folder}/fetched-by-peer", "--log-level", "warning"]
    return Peer(subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}), address)


async def credits_of(peer: Peer) -> None:
    """Return once the peer serves."""
    async with open_channel(peer.address, RpcChannelSettings()) as channel:
        while True:
            try:
                async for _ in WorkerClient(channel).watch_credits("frontdoor", 1):
                    return
            except Unavailable:
                assert peer.process.poll() is None
                await asyncio.sleep(0.05)  # not a spin: it needs the processor to start


async def freed(parts: Parts, peer: Peer) -> None:
    """Return once it computes no half: it has one credit, and learns of the end of a half a moment after the image."""
    async with open_channel(peer.address, RpcChannelSettings()) as channel, asyncio.timeout(OPEN_S):
        while True:
            try:
                stream = await GuidanceHalfClient(channel).open_stream(half_of(parts), 1, OPEN_S)
                break
            except ResourceExhausted:
                await asyncio.sleep(0.01)
        latent = outgoing_tensor(torch.zeros(halves_of(parts).latent_shape(SIDE_PX, SIDE_PX)[1]), UNBOUND)
        # The peer ends this half itself, and reports it.
        with pytest.raises(InvalidArgument):
            await answer_to(stream, STEPS, 900.0, latent)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep pairs on a slow machine."""
    monkeypatch.setattr(latent_pairing, "MIN_GAIN", 0.0)
    monkeypatch.setattr(latent_pairing, "_LEAST_PATIENCE_S", 60.0)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep pairs, but abandon a late half immediately."""
    monkeypatch.setattr(latent_pairing, "MIN_GAIN", 0.0)


@contextmanager
def peers_come_second() -> Iterator[None]:
    """Delay requests for halves until the worker in this process has opened a stream of residuals."""
    opened, open_stream, open_half = asyncio.Event(), ControlNetClient.open_stream, GuidanceHalfClient.open_stream

    async def opening(client: ControlNetClient, *how: Any) -> ResidualStream:
        stream = await open_stream(client, *how)
        opened.set()
        return stream

    async def opening_half(client: GuidanceHalfClient, *how: Any) -> HalfStream:
        await opened.wait()
        return await open_half(client, *how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ControlNetClient, "open_stream", opening)
        patch.setattr(GuidanceHalfClient, "open_stream", opening_half)
        yield


@dataclass(frozen=True)
class Generated:
    latents: Tensor
    note: str

    @property
    def paired_steps(self) -> int:
        """Return the paired steps of the note; 0 without a note."""
        return int(self.note.split()[4]) if self.note else 0


async def generated_for(request: pb.ExecuteRequest, worker: Served) -> Generated:
    """Execute the request; return the latents and the note about the pair."""
    result = await result_for(worker, request)
    notes = [note for note in result.notes if note.startswith("generated by two workers")]
    return Generated(final_latents(result), "".join(notes))


async def generate(parts: Parts, peer_address: str = "", spec: GenerationSpec = SPEC, replay_of: str = "") -> Generated:
    worker, number = parts.worker, next(_numbers)
    request = pb.ExecuteRequest(
        attempt=encode(Attempt(f"r{number}", 1, number, "frontdoor", 1, "tenant"), generation_pb2.Attempt),
        spec=encode(spec, generation_pb2.GenerationSpec),
        route=encode(
            Route("route", FromNoise(), "tiny", worker.held.model_digest, replay_of=replay_of), generation_pb2.Route
        ),
        worker_generation=worker.held.worker_generation,
        return_latents=True,
        latent_parallel_peer=pb.LatentParallelPeer(worker_id="p", address=peer_address) if peer_address else None,
    )
    return await generated_for(request, worker)


def difference(one: Generated, other: Generated) -> float:
    return float((one.latents - other.latents).abs().max())


def spec_of(parts: Parts, kind: str) -> GenerationSpec:
    if kind == "lora":
        neon = next(one for one in parts.worker.model.adapters.known if one.name == NEON)
        return replace(SPEC, loras=(LoraSelection(NEON, 0.8, neon.digest),))
    if kind == "uploaded lora":
        file = (ZOO / NEON / "pytorch_lora_weights.safetensors").read_bytes()
        stored = parts.worker.objects.put("adapters/uploaded", file)
        return replace(SPEC, loras=(LoraSelection("uploaded", 0.8, stored.digest, stored),))
    ancestral = replace(SPEC, scheduler=Scheduler.EULER_ANCESTRAL, guidance_scale=7.5)
    long = replace(SPEC, prompt="a (blue:1.4) ring BREAK on a black background", prompt_syntax=PromptSyntax.A1111)
    return {"plain": SPEC, "euler ancestral": ancestral, "long prompt": long}[kind]


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("kind", ["plain", "euler ancestral", "long prompt", "lora", "uploaded lora"])
async def test_a_pair_generates_the_image_that_one_worker_generates(parts: Parts, peer: Peer, kind: str) -> None:
    spec = spec_of(parts, kind)
    alone = await generate(parts, spec=spec)

    paired = await generate(parts, peer.address, spec)

    assert (alone.note, paired.note) == ("", f"generated by two workers: {STEPS} of {STEPS} steps with p")
    assert difference(paired, alone) <= TOLERANCE
    assert parts.directory.region_count() == 0
    if kind != "plain":
        assert difference(paired, await generate(parts)) > 0.1


@pytest.mark.usefixtures("patient")
async def test_a_replay_is_generated_by_one_worker(parts: Parts, peer: Peer) -> None:
    alone = await generate(parts, replay_of="another")

    assert torch.equal((await generate(parts, peer.address, replay_of="another")).latents, alone.latents)


async def test_missing_peer_is_not_awaited(parts: Parts) -> None:
    paired = await generate(parts, f"unix:{parts.folder}/nobody")

    assert paired.paired_steps == 0
    assert difference(paired, await generate(parts)) <= TOLERANCE


def halves_of(parts: Parts) -> GuidanceHalves:
    return parts.worker.model.halves._halves


def text_states(parts: Parts) -> Tensor:
    shape = halves_of(parts).opening_shapes["text_states"][1]
    return torch.zeros(shape)


def half_of(parts: Parts, **changes: Any) -> HalfStreamRequest:
    half = HalfStreamRequest(
        attempt=Attempt(f"h{next(_numbers)}", 1, 1, "frontdoor", 1, "tenant"),
        model_digest=parts.worker.held.model_digest,
        width_px=SIDE_PX,
        height_px=SIDE_PX,
        step_count=STEPS,
        states=outgoing_tensor(text_states(parts), UNBOUND),
    )
    return replace(half, **changes)


LITTLE = outgoing_tensor(torch.zeros(1, 8), UNBOUND)
OTHERS_FILE = LoraSelection("other", 1.0, "sha256:" + "0" * 64, ObjectReference("adapters/x", "sha256:" + "1" * 64, 9))
BAD_OPENINGS: dict[str, tuple[dict[str, Any], type[PentimentoError], str]] = {
    "another model": ({"model_digest": "sha256:other"}, FailedPrecondition, "MODEL_DIGEST_MISMATCH"),
    "a LoRA that is not here": ({"loras": (LoraSelection("none", 1.0, "sha256:no"),)}, NotFound, "UNKNOWN_LORA"),
    "a reference of another file": ({"loras": (OTHERS_FILE,)}, InvalidArgument, "INVALID_FIELD"),
    "another size": ({"width_px": SIDE_PX + 1}, InvalidArgument, "INVALID_FIELD"),
    "no steps": ({"step_count": 0}, InvalidArgument, "INVALID_FIELD"),
    "too many steps": ({"step_count": 2**31}, InvalidArgument, "INVALID_FIELD"),
    "two rows": ({"states": outgoing_tensor(torch.zeros(2, 77, 64), UNBOUND)}, InvalidArgument, "INVALID_FIELD"),
    # The opening is refused when it is read: a client that still writes chunks may see the call end without its status.
    "half a chunk": ({"states": outgoing_tensor(torch.zeros(1, 100, 64), UNBOUND)}, InvalidArgument, "INVALID_FIELD"),
    "pooled states": ({"pooled": LITTLE, "states": LITTLE}, InvalidArgument, "INVALID_FIELD"),
}


@pytest.mark.parametrize("what", BAD_OPENINGS)
async def test_invalid_opening_of_a_half_is_refused(parts: Parts, what: str) -> None:
    changes, error, reason = BAD_OPENINGS[what]

    with pytest.raises(error) as refused:
        await GuidanceHalfClient(parts.worker.channel).open_stream(half_of(parts, **changes), 1, OPEN_S)

    assert refused.value.reason == reason
    assert parts.worker.model.halves.open_count == 0


async def test_a_half_is_the_networks_prediction(parts: Parts) -> None:
    latent = torch.randn(halves_of(parts).latent_shape(SIDE_PX, SIDE_PX)[1])
    stream = await GuidanceHalfClient(parts.worker.channel).open_stream(half_of(parts), 1, OPEN_S)
    try:
        first = await answer_to(stream, 0, 900.0, outgoing_tensor(latent, UNBOUND))
        again = await answer_to(stream, 7, 900.0, outgoing_tensor(latent, UNBOUND))
        other = await answer_to(stream, 8, 100.0, outgoing_tensor(latent, UNBOUND))
    finally:
        stream.close()

    predictions = [tensor_over(one.tensors[0]) for one in (first, again, other)]
    assert torch.equal(predictions[0], predictions[1])
    assert not torch.equal(predictions[0], predictions[2])


@pytest.mark.parametrize(
    ("step_index", "timestep", "shape", "error"),
    [
        (3, 900.0, None, Aborted),
        (STEPS, 900.0, None, InvalidArgument),
        (5, float("nan"), None, InvalidArgument),
        (5, 900.0, (1, 4, 2, 2), InvalidArgument),
    ],
    ids=["an old step", "a step beyond the last", "no timestep", "another shape"],
)
async def test_wrong_step_ends_the_stream(
    parts: Parts, step_index: int, timestep: float, shape: tuple[int, ...] | None, error: type[PentimentoError]
) -> None:
    usual = halves_of(parts).latent_shape(SIDE_PX, SIDE_PX)[1]
    stream = await GuidanceHalfClient(parts.worker.channel).open_stream(half_of(parts), 1, OPEN_S)
    await answer_to(stream, 3, 900.0, outgoing_tensor(torch.zeros(usual), UNBOUND))

    with pytest.raises(error):
        await answer_to(stream, step_index, timestep, outgoing_tensor(torch.zeros(shape or usual), UNBOUND))


async def test_worker_computes_one_half_per_credit(parts: Parts, peer: Peer) -> None:
    async with open_channel(peer.address, RpcChannelSettings()) as channel:
        first = await GuidanceHalfClient(channel).open_stream(half_of(parts), 1, OPEN_S)
        with pytest.raises(ResourceExhausted):
            await GuidanceHalfClient(channel).open_stream(half_of(parts), 1, OPEN_S)
        first.close()


@pytest.mark.usefixtures("patient")
async def test_workers_say_that_they_pair_as_long_as_that_is_faster(
    parts: Parts, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await generate(parts, peer.address)
    told = parts.worker.process.worker.credits
    assert Capability.LATENT_PARALLEL in told().capabilities

    monkeypatch.setattr(latent_pairing, "MIN_GAIN", 1e9)

    assert Capability.LATENT_PARALLEL not in told().capabilities
    assert (await generate(parts, peer.address)).paired_steps == 0


# Keep these tests last: lost peers are not restarted.
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])
async def test_lost_peer_leaves_image_unchanged(parts: Parts, peer: Peer, how: signal.Signals) -> None:
    alone = await generate(parts)

    with at_step(5, lambda: peer.lose(how)):
        paired = await generate(parts, peer.address)

    assert difference(paired, alone) <= TOLERANCE
    assert paired.paired_steps < STEPS
    assert parts.directory.region_count() == 0
