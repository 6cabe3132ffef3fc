"""Test images with ControlNets in other processes: equal to diffusers', also after the loss of replicas."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import count
from pathlib import Path

import pytest
import pytest_asyncio
import torch
from diffusers import ControlNetModel, DDIMScheduler, StableDiffusionPipeline
from PIL import Image
from torch import Tensor

from lab.fixtures.controlled_generation import ControlledByDiffusers, ControlledCase, conditions_for
from lab.fixtures.diffusers_reference import Case
from lab.fixtures.worker_under_test import noise_image, png_of
from pentimento.api.generation.v1 import generation_pb2
from pentimento.api.worker.v1 import unet_worker_service_pb2 as pb
from pentimento.clients.controlnet import ControlNetClient
from pentimento.diffusion.controlnets import ControlSetting
from pentimento.domain.errors import InvalidArgument, PentimentoError, Unavailable
from pentimento.domain.generation import (
    Attempt,
    ControlNetMode,
    ControlNetSelection,
    FromNoise,
    GenerationSpec,
    InitImage,
    Route,
    Scheduler,
)
from pentimento.files.adapter_registry import read_adapters
from pentimento.rpc import RpcChannelSettings, open_channel, transport
from pentimento.tensors.regions import RegionDirectory
from pentimento.wire.codec import encode
from tests.integration.unet_worker.conftest import Served, at_step, serve
from tests.integration.unet_worker.requests import final_latents, result_for
from tests.support.torch_threads import one_thread  # noqa: F401 (a fixture of this module)

pytestmark = pytest.mark.asyncio(loop_scope="module")

WEIGHTS = Path(__file__).parents[3] / "zoo" / "weights"
REGISTRY = WEIGHTS / "registry.json"
EDGES, LAYOUT = "tiny-controlnet-edges", "tiny-controlnet-layout"
SIDE_PX, STEPS = 64, 20
CASE = Case("a red circle", "blurred", Scheduler.DDIM, seed=3, steps=STEPS, guidance_scale=3.0)
CONDITIONS = conditions_for(2, SIDE_PX, SIDE_PX)
KEEPALIVE = transport.KEEPALIVE
_numbers = count(1)


@pytest.fixture(autouse=True)
def usual_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the product's keepalive on connections to replicas: some replicas are stopped, and must be abandoned."""
    monkeypatch.setattr(transport, "KEEPALIVE", KEEPALIVE)


@dataclass
class Replica:
    """Hold a process of the ControlNet service."""

    process: "subprocess.Popen[bytes]"
    address: str
    stopped: bool = False


@dataclass
class Parts:
    """Hold a worker that shares memory with the replicas of its host."""

    worker: Served
    folder: Path
    directory: RegionDirectory


def start_replica(folder: Path, *flags: str) -> Replica:
    address = f"unix:{folder}/c{next(_numbers)}"
    command = [sys.executable, "-m", "services.controlnet_svc", "--controlnets", str(REGISTRY), "--device", "cpu"]
    command += ["--listen", address, "--shared-memory-dir", f"{folder}/shared", "--log-level", "warning"]
    process = subprocess.Popen([*command, "--prefetch", EDGES, *flags], env={**os.environ, "OMP_NUM_THREADS": "1"})
    return Replica(process, address)


async def serving(replica: Replica) -> None:
    async with open_channel(replica.address, RpcChannelSettings()) as channel:
        async with asyncio.timeout(170):
            while True:
                try:
                    if (await ControlNetClient(channel).status(5.0)).load_count:
                        return
                except PentimentoError:
                    await asyncio.sleep(0.1)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def parts() -> AsyncIterator[Parts]:
    with tempfile.TemporaryDirectory(prefix="pmt-", dir="/dev/shm") as name:
        folder = Path(name)
        shared = folder / "shared"
        shared.mkdir(mode=0o700)
        async with serve(WEIGHTS / "tiny-heavy", folder, shared_memory_dir=str(shared)) as served:
            yield Parts(served, folder, RegionDirectory(shared))


@pytest.fixture(scope="module")
def started() -> Iterator[list[Replica]]:
    """Hold the processes of this module; a test uses the running ones."""
    made: list[Replica] = []
    yield made
    for replica in made:
        replica.process.kill()
        replica.process.wait()


async def at_least(count: int, folder: Path, started: list[Replica]) -> list[Replica]:
    """Return at least `count` serving replicas: start missing ones, remove stopped or killed ones."""
    for replica in started:
        if replica.stopped:
            replica.process.kill()
            replica.process.wait()
    started[:] = [replica for replica in started if replica.process.poll() is None and not replica.stopped]
    while len(started) < count:
        started.append(start_replica(folder))
    for replica in started:
        await serving(replica)
    return list(started)


@pytest_asyncio.fixture(loop_scope="module")
async def replicas(parts: Parts, started: list[Replica]) -> list[Replica]:
    """Return two serving replicas."""
    return await at_least(2, parts.folder, started)


@pytest_asyncio.fixture(loop_scope="module")
async def last_replicas(parts: Parts, started: list[Replica]) -> list[Replica]:
    """Return the remaining replicas, or one, for the test that loses all of them."""
    return await at_least(1, parts.folder, started)


def selection(name: str, pixels: Tensor, setting: ControlSetting) -> ControlNetSelection:
    values = (pixels[0].permute(1, 2, 0) * 255.0).round().to(torch.uint8)
    image = png_of(Image.fromarray(values.numpy()))
    digest = read_adapters(REGISTRY)[name].adapter.digest
    return ControlNetSelection(name, image, setting.scale, setting.start_fraction, setting.end_fraction, digest=digest)


def request_for(
    worker: Served,
    controlnets: Sequence[ControlNetSelection],
    addresses: Sequence[str],
    pipelined_from: int = 0,
    init_image: InitImage | None = None,
) -> pb.ExecuteRequest:
    number = next(_numbers)
    mode = ControlNetMode.PIPELINED if pipelined_from else ControlNetMode.SYNCHRONOUS
    route = Route("route", FromNoise(), "tiny", worker.held.model_digest)
    route = replace(route, controlnet_mode=mode, pipelined_from_step=pipelined_from)
    spec = GenerationSpec(
        CASE.prompt, CASE.negative_prompt, "tiny", SIDE_PX, SIDE_PX, CASE.steps, CASE.guidance_scale,
        CASE.scheduler, CASE.seed, controlnets=tuple(controlnets),
        init_image=init_image,
    )  # fmt: skip
    endpoints = [
        pb.ControlNetEndpoint(name=controlnet.name, address=address, controlnet_digest=controlnet.digest)
        for controlnet in controlnets
        for address in addresses
    ]
    return pb.ExecuteRequest(
        attempt=encode(Attempt(f"r{number}", 1, number, "frontdoor", 1, "tenant"), generation_pb2.Attempt),
        spec=encode(spec, generation_pb2.GenerationSpec),
        route=encode(route, generation_pb2.Route),
        worker_generation=worker.held.worker_generation,
        controlnet_endpoints=endpoints,
        return_latents=True,
    )


async def latents_of(worker: Served, request: pb.ExecuteRequest) -> Tensor:
    return final_latents(await result_for(worker, request))


def edges() -> ControlNetSelection:
    return selection(EDGES, CONDITIONS[0], ControlSetting())


ACTING = {
    "one": {EDGES: ControlSetting()},
    "two, each in its share": {
        EDGES: ControlSetting(0.7, end_fraction=0.5),
        LAYOUT: ControlSetting(1.3, start_fraction=0.2),
    },
}


@pytest.mark.parametrize("acting", ACTING)
async def test_a_controlled_image_is_that_of_diffusers(parts: Parts, replicas: list[Replica], acting: str) -> None:
    settings = ACTING[acting]
    controlnets = [
        selection(name, pixels, setting) for (name, setting), pixels in zip(settings.items(), CONDITIONS, strict=False)
    ]

    ours = await latents_of(parts.worker, request_for(parts.worker, controlnets, [replicas[0].address]))

    reference = ControlledByDiffusers(WEIGHTS / "tiny-heavy", [WEIGHTS / name for name in settings])
    theirs = reference.controlled(ControlledCase(CASE, tuple(settings.values())), CONDITIONS[: len(settings)])
    assert float((ours - theirs).abs().max()) <= 1e-4
    untold = await latents_of(parts.worker, request_for(parts.worker, [], []))
    assert float((ours - untold).abs().max()) > 0.1
    assert parts.directory.region_count() == 0


async def test_window_on_own_image_acts_in_steps_left(parts: Parts, replicas: list[Replica]) -> None:
    own = InitImage(png_of(noise_image(SIDE_PX, SIDE_PX)), strength=0.5)
    begun = await step_counts(replicas)

    def request(*acting: ControlSetting) -> pb.ExecuteRequest:
        nets = [selection(EDGES, CONDITIONS[0], setting) for setting in acting]
        return request_for(parts.worker, nets, [replicas[0].address], init_image=own)

    plain, controlled = [
        await latents_of(parts.worker, request(*acting)) for acting in ([], [ControlSetting(end_fraction=0.5)])
    ]

    assert float((controlled - plain).abs().max()) > 0.01
    # The ControlNets act in the first five of the ten remaining steps.
    assert sum(await step_counts(replicas)) - sum(begun) == 5


async def step_counts(replicas: Sequence[Replica]) -> list[int]:
    counts = []
    for replica in replicas:
        async with open_channel(replica.address, RpcChannelSettings()) as channel:
            counts.append((await ControlNetClient(channel).status(120.0)).step_count)
    return counts


async def all_closed(replicas: Sequence[Replica]) -> None:
    """Return once no replica holds a stream: a replica learns of a stream's end a moment after the image."""
    async with asyncio.timeout(120):
        for replica in replicas:
            async with open_channel(replica.address, RpcChannelSettings()) as channel:
                while (await ControlNetClient(channel).status(120.0)).open_stream_count:  # noqa: ASYNC110 - a process
                    await asyncio.sleep(0.05)


async def test_two_controlnets_of_a_image_compute_on_two_replicas(parts: Parts, replicas: list[Replica]) -> None:
    controlnets = [
        selection(name, pixels, ControlSetting()) for name, pixels in zip((EDGES, LAYOUT), CONDITIONS, strict=True)
    ]
    one = await latents_of(parts.worker, request_for(parts.worker, controlnets, [replicas[0].address]))
    before = await step_counts(replicas)

    two = await latents_of(parts.worker, request_for(parts.worker, controlnets, [one.address for one in replicas]))

    after = await step_counts(replicas)
    assert all(now - then >= CASE.steps for then, now in zip(before, after, strict=True))
    assert torch.equal(one, two)


async def test_what_a_replica_refuses_ends_the_image_by_name(parts: Parts, replicas: list[Replica]) -> None:
    small = selection(EDGES, CONDITIONS[0][:, :, :32, :32], ControlSetting())
    with pytest.raises(InvalidArgument) as caught:
        await latents_of(parts.worker, request_for(parts.worker, [edges(), small], [replicas[0].address]))
    assert caught.value.violations[0].field == "spec.controlnets[1].conditioning_image"

    nan = replace(edges(), conditioning_scale=float("nan"))
    with pytest.raises(InvalidArgument):
        await latents_of(parts.worker, request_for(parts.worker, [nan], [replicas[0].address]))


@cache
def pipeline_of_diffusers() -> StableDiffusionPipeline:
    return StableDiffusionPipeline.from_pretrained(WEIGHTS / "tiny-heavy", safety_checker=None)


@cache
def controlnet_of_diffusers(name: str) -> ControlNetModel:
    return ControlNetModel.from_pretrained(WEIGHTS / name)


@torch.inference_mode()
def generated_by_loop(settings: dict[str, ControlSetting], pipelined_from: int) -> Tensor:
    """Return the final latents of diffusers' parts in a loop: each ControlNet adds its residuals of the previous step
    from `pipelined_from` on, if it acted in that step."""
    pipeline = pipeline_of_diffusers()
    networks = [controlnet_of_diffusers(name) for name in settings]
    scheduler = DDIMScheduler.from_pretrained(WEIGHTS / "tiny-heavy", subfolder="scheduler")
    scheduler.set_timesteps(STEPS)
    with_prompt, without = pipeline.encode_prompt(CASE.prompt, "cpu", 1, True, CASE.negative_prompt)
    states = torch.cat([without, with_prompt])
    shape = (1, pipeline.unet.config.in_channels, *(SIDE_PX // pipeline.vae_scale_factor,) * 2)
    latents = torch.randn(shape, generator=torch.Generator().manual_seed(CASE.seed)) * scheduler.init_noise_sigma
    before: dict[int, tuple[list[Tensor], Tensor]] = {}
    for step, timestep in enumerate(scheduler.timesteps):
        rows = torch.cat([latents] * 2)
        now = {
            place: network(rows, timestep, states, CONDITIONS[place], conditioning_scale=one.scale, return_dict=False)
            for place, (network, one) in enumerate(zip(networks, settings.values(), strict=True))
            if step / STEPS >= one.start_fraction and (step + 1) / STEPS <= one.end_fraction
        }
        used = [before.get(place, own) if step >= pipelined_from else own for place, own in now.items()]
        down = [sum(parts) for parts in zip(*(residuals for residuals, _ in used), strict=True)]
        mid = sum(residual for _, residual in used) if used else None
        extra = {"down_block_additional_residuals": down, "mid_block_additional_residual": mid} if used else {}
        plain, told = pipeline.unet(rows, timestep, states, **extra).sample.chunk(2)
        latents = scheduler.step(plain + CASE.guidance_scale * (told - plain), timestep, latents).prev_sample
        before = now
    return latents


@pytest.mark.parametrize("acting", ACTING)
async def test_a_pipelined_image_has_the_residuals_of_the_step_before_and_no_others(
    parts: Parts, replicas: list[Replica], acting: str
) -> None:
    settings = ACTING[acting]
    controlnets = [
        selection(name, pixels, setting) for (name, setting), pixels in zip(settings.items(), CONDITIONS, strict=False)
    ]
    addresses = [replicas[0].address]

    found = {
        first: await latents_of(parts.worker, request_for(parts.worker, controlnets, addresses, first))
        for first in (1, 4, STEPS - 1)
    }

    for first, latents in found.items():
        assert float((latents - generated_by_loop(settings, first)).abs().max()) <= 1e-4
    assert float((found[1] - found[4]).abs().max()) > 1e-3
    assert parts.directory.region_count() == 0


async def test_images_of_both_modes_share_a_batch_and_keep_their_own_residuals(
    parts: Parts, replicas: list[Replica]
) -> None:
    modes = (0, 2, 0, 4)
    orders = [request_for(parts.worker, [edges()], [replicas[0].address], first) for first in modes]

    found = await asyncio.gather(*(latents_of(parts.worker, order) for order in orders))

    settings = ACTING["one"]
    wanted = {first: generated_by_loop(settings, first or STEPS) for first in modes}
    for first, latents in zip(modes, found, strict=True):
        assert float((latents - wanted[first]).abs().max()) <= 1e-4


@pytest.mark.parametrize(
    ("pipelined_from", "how", "back_after_s"),
    [(0, signal.SIGSTOP, None), (0, signal.SIGKILL, None), (2, signal.SIGSTOP, 1.0), (2, signal.SIGKILL, None)],
    ids=["silent", "lost", "pipelined, delayed", "pipelined, lost"],
)
async def test_lost_or_late_replica_changes_no_bit(
    parts: Parts, replicas: list[Replica], pipelined_from: int, how: signal.Signals, back_after_s: float | None
) -> None:
    addresses = [replica.address for replica in replicas]
    wanted = await latents_of(parts.worker, request_for(parts.worker, [edges()], addresses, pipelined_from))

    def lose() -> None:
        replicas[0].process.send_signal(how)
        replicas[0].stopped = back_after_s is None
        if back_after_s is not None:
            threading.Timer(back_after_s, replicas[0].process.send_signal, [signal.SIGCONT]).start()

    with at_step(5, lose):
        found = await latents_of(parts.worker, request_for(parts.worker, [edges()], addresses, pipelined_from))

    if back_after_s is None:
        replicas[0].process.kill()
    assert torch.equal(found, wanted)
    assert parts.directory.region_count() == 0


async def test_request_without_replicas_fails(parts: Parts, last_replicas: list[Replica]) -> None:
    def lose() -> None:
        for replica in last_replicas:
            replica.process.kill()
            replica.process.wait()

    addresses = [replica.address for replica in last_replicas]
    with pytest.raises(Unavailable) as caught, at_step(5, lose):
        await latents_of(parts.worker, request_for(parts.worker, [edges()], addresses))
    assert caught.value.reason == "CONTROLNET_LOST"

    with pytest.raises(Unavailable):
        await latents_of(parts.worker, request_for(parts.worker, [edges()], []))
    assert (await latents_of(parts.worker, request_for(parts.worker, [], []))).isfinite().all()
