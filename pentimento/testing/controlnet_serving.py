"""A worker and replicas of the ControlNet service as processes, asked for the final latents of controlled pictures."""

import asyncio
import itertools
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path

import grpc.aio
import torch
from PIL import Image
from torch import Tensor

from pentimento.api.worker.v1 import unet_worker_service_pb2 as pb
from pentimento.api.worker.v1.unet_worker_service_pb2_grpc import UnetWorkerServiceStub
from pentimento.clients.controlnet import ControlNetClient
from pentimento.clients.errors import domain_errors
from pentimento.diffusion.checkpoint import digest_directory
from pentimento.diffusion.controlnets import ControlSetting
from pentimento.diffusion.controlnets.rules import open_controlnet
from pentimento.domain.errors import PentimentoError
from pentimento.domain.generation import Attempt, ControlNetMode, ControlNetSelection, FromNoise, LoraSelection, Route
from pentimento.rpc import RpcChannelSettings, open_channel
from pentimento.testing.controlled_painting import ControlledCase
from pentimento.testing.worker_process import START_S, start_on, worker_process
from pentimento.testing.worker_under_test import await_serving, png_of, spec_of
from pentimento.wire.generation import attempt_to_proto, route_to_proto, spec_to_proto
from pentimento.wire.tensors import tensor_from_proto
from pentimento.wire.torch_tensors import tensor_from_wire

REAL, PACED = "services.controlnet_svc", "services.controlnet_svc.pacing"


@dataclass(frozen=True)
class ServedControlNet:
    """A ControlNet, and the address of the replica that serves it."""

    selection: ControlNetSelection
    address: str


class ControlledByService:
    """The worker, and its ControlNets in the order in which pictures ask for them."""

    def __init__(self, channel: grpc.aio.Channel, held: pb.HeldModel, controlnets: Sequence[ServedControlNet]) -> None:
        self._stub = UnetWorkerServiceStub(channel)
        self._held = held
        self._controlnets = tuple(controlnets)
        self._peer: pb.LatentParallelPeer | None = None
        self._numbers = itertools.count(1)

    def only(self, *places: int) -> "ControlledByService":
        """Return the same worker with some of the ControlNets, in this order."""
        chosen = copy(self)
        chosen._controlnets = tuple(self._controlnets[place] for place in places)
        return chosen

    def with_peer(self, worker_id: str, address: str) -> "ControlledByService":
        """Return the same worker with a peer, which computes the other half of guided pictures."""
        paired = copy(self)
        paired._peer = pb.LatentParallelPeer(worker_id=worker_id, address=address)
        return paired

    async def controlled(self, controlled: ControlledCase, conditions: Sequence[Tensor]) -> Tensor:
        """Return the final latents (1, channels, height, width). Raises what the call fails with."""
        result = await self.painted(controlled, conditions)
        return tensor_from_wire(tensor_from_proto(result.final_latents))

    async def painted(
        self,
        controlled: ControlledCase,
        conditions: Sequence[Tensor],
        loras: Sequence[LoraSelection] = (),
        lora_patch_step: int = 0,
    ) -> pb.AttemptResult:
        """Return the whole answer. A case without settings is not controlled; its first condition says the size. LoRAs
        are waited for at the step. Raises what the call fails with."""
        held, number = self._held, next(self._numbers)
        acting = list(zip(self._controlnets, conditions, controlled.settings, strict=False))
        selections = tuple(_acting(served.selection, pixels, setting) for served, pixels, setting in acting)
        spec = replace(
            spec_of(controlled.case, held, _image(conditions[0])), controlnets=selections, loras=tuple(loras)
        )
        request = pb.ExecuteRequest(
            attempt=attempt_to_proto(Attempt(f"golden-{number}", 1, number, "golden", 1, "golden")),
            spec=spec_to_proto(spec),
            route=route_to_proto(
                replace(_route(held, controlled.pipelined_from_step), lora_patch_step=lora_patch_step)
            ),
            worker_generation=held.worker_generation,
            controlnet_endpoints=[_endpoint(served) for served, _, _ in acting],
            latent_parallel_peer=self._peer,
            return_latents=True,
        )
        with domain_errors():
            answers = [answer async for answer in self._stub.Execute(request)]
        return answers[-1].result


@asynccontextmanager
async def controlled_by_service(model: Path, controlnets: Sequence[Path]) -> AsyncIterator[ControlledByService]:
    """Start both processes, with memory that they share, and stop them in the end."""
    with ExitStack() as stack:
        folder = stack.enter_context(shared_folder())
        selections = register(folder, controlnets)
        flags = ("--controlnets", str(folder / "registry.json"))
        address = stack.enter_context(replica_process(folder, "controlnets", REAL, *flags))
        worker = stack.enter_context(worker_process(model, "--shared-memory-dir", str(folder / "shared")))
        served = [ServedControlNet(selection, address) for selection in selections]
        async with serving_together(worker, served) as together:
            yield together


@contextmanager
def shared_folder() -> Iterator[Path]:
    """A folder in memory, short enough for sockets, with the directory `shared` for regions."""
    with tempfile.TemporaryDirectory(prefix="pmt-", dir="/dev/shm") as name:
        (Path(name) / "shared").mkdir(mode=0o700)
        yield Path(name)


@contextmanager
def replica_process(folder: Path, name: str, module: str, *flags: str, core: int | None = None) -> Iterator[str]:
    """A replica of the ControlNet service, on the CPU with one torch thread, in such a folder; its address."""
    address = f"unix:{folder}/{name}"
    command = [sys.executable, "-m", module, "--listen", address, "--device", "cpu", "--log-level", "warning"]
    with start_on(core, [*command, "--shared-memory-dir", str(folder / "shared"), *flags]) as process:
        try:
            yield address
        finally:
            process.terminate()


@asynccontextmanager
async def serving_together(
    worker: str, controlnets: Sequence[ServedControlNet], start_s: float = START_S
) -> AsyncIterator[ControlledByService]:
    """Wait until all of them serve."""
    for address in dict.fromkeys(served.address for served in controlnets):
        await _serving(address, start_s)
    async with open_channel(worker, RpcChannelSettings()) as channel:
        held = (await await_serving(channel)).held
        yield ControlledByService(channel, held, controlnets)


def register(folder: Path, controlnets: Sequence[Path]) -> list[ControlNetSelection]:
    """Write a registry with copies of the ControlNets; return how each is selected."""
    entries = []
    for index, directory in enumerate(controlnets):
        name = f"control-{index}"
        (folder / name).mkdir()
        for file in open_controlnet(directory).files:
            (folder / name / file.name).write_bytes(file.read_bytes())
        family, digest = open_controlnet(directory).family, digest_directory(folder / name)
        entries.append({"name": name, "kind": "controlnet", "family": family, "path": name, "digest": digest})
    (folder / "registry.json").write_text(json.dumps({"models": entries}))
    return [ControlNetSelection(entry["name"], b"", digest=entry["digest"]) for entry in entries]


def _route(held: pb.HeldModel, pipelined_from_step: int) -> Route:
    mode = ControlNetMode.PIPELINED if pipelined_from_step else None
    start, digest = FromNoise(), held.model_digest
    return Route("golden", start, held.model, digest, controlnet_mode=mode, pipelined_from_step=pipelined_from_step)


def _endpoint(served: ServedControlNet) -> pb.ControlNetEndpoint:
    selection = served.selection
    return pb.ControlNetEndpoint(name=selection.name, address=served.address, controlnet_digest=selection.digest)


def _acting(controlnet: ControlNetSelection, pixels: Tensor, setting: ControlSetting) -> ControlNetSelection:
    image, share = png_of(_image(pixels)), (setting.start_fraction, setting.end_fraction)
    return ControlNetSelection(controlnet.name, image, setting.scale, *share, digest=controlnet.digest)


def _image(pixels: Tensor) -> Image.Image:
    return Image.fromarray((pixels[0].permute(1, 2, 0) * 255.0).round().to(torch.uint8).numpy())


async def _serving(address: str, start_s: float) -> None:
    async with open_channel(address, RpcChannelSettings()) as channel, asyncio.timeout(start_s):
        while True:
            try:
                await ControlNetClient(channel).status(5.0)
                return
            except PentimentoError:
                await asyncio.sleep(0.2)
