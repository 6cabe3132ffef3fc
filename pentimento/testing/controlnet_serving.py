"""A worker and a replica of the ControlNet service as processes, asked for the final latents of controlled pictures."""

import asyncio
import itertools
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import grpc.aio
import torch
from PIL import Image
from torch import Tensor

from pentimento.api.worker.v1 import unet_worker_service_pb2 as pb
from pentimento.api.worker.v1.unet_worker_service_pb2_grpc import UnetWorkerServiceStub
from pentimento.clients.controlnet import ControlNetClient
from pentimento.diffusion.checkpoint import digest_directory
from pentimento.diffusion.controlnets import ControlSetting
from pentimento.diffusion.controlnets.rules import open_controlnet
from pentimento.domain.errors import PentimentoError
from pentimento.domain.generation import Attempt, ControlNetSelection, FromNoise, Route
from pentimento.rpc import RpcChannelSettings, open_channel
from pentimento.testing.controlled_painting import ControlledCase
from pentimento.testing.worker_process import START_S, start_on, worker_process
from pentimento.testing.worker_under_test import await_serving, png_of, spec_of
from pentimento.wire.generation import attempt_to_proto, route_to_proto, spec_to_proto
from pentimento.wire.tensors import tensor_from_proto
from pentimento.wire.torch_tensors import tensor_from_wire


class ControlledByService:
    """The worker, and where its ControlNets are served."""

    def __init__(
        self, channel: grpc.aio.Channel, held: pb.HeldModel, address: str, controlnets: Sequence[ControlNetSelection]
    ) -> None:
        self._stub = UnetWorkerServiceStub(channel)
        self._held = held
        self._address = address
        self._controlnets = tuple(controlnets)
        self._numbers = itertools.count(1)

    async def controlled(self, controlled: ControlledCase, conditions: Sequence[Tensor]) -> Tensor:
        """Return the final latents (1, channels, height, width). Raises what the call fails with."""
        held, number = self._held, next(self._numbers)
        image = _image(conditions[0])
        selections = [
            _acting(controlnet, pixels, setting)
            for controlnet, pixels, setting in zip(self._controlnets, conditions, controlled.settings, strict=False)
        ]
        spec = replace(spec_of(controlled.case, held, image), controlnets=tuple(selections))
        request = pb.ExecuteRequest(
            attempt=attempt_to_proto(Attempt(f"golden-{number}", 1, number, "golden", 1, "golden")),
            spec=spec_to_proto(spec),
            route=route_to_proto(Route("golden", FromNoise(), held.model, held.model_digest)),
            worker_generation=held.worker_generation,
            controlnet_endpoints=[
                pb.ControlNetEndpoint(name=one.name, address=self._address, controlnet_digest=one.digest)
                for one in selections
            ],
            return_latents=True,
        )
        answers = [answer async for answer in self._stub.Execute(request)]
        return tensor_from_wire(tensor_from_proto(answers[-1].result.final_latents))


@asynccontextmanager
async def controlled_by_service(model: Path, controlnets: Sequence[Path]) -> AsyncIterator[ControlledByService]:
    """Start both processes, with memory that they share, and stop them in the end."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pmt-", dir="/dev/shm")))
        (shared := folder / "shared").mkdir(mode=0o700)
        selections = _register(folder, controlnets)
        address = f"unix:{folder}/controlnets"
        command = [sys.executable, "-m", "services.controlnet_svc", "--controlnets", str(folder / "registry.json")]
        command += [
            "--listen",
            address,
            "--device",
            "cpu",
            "--shared-memory-dir",
            str(shared),
            "--log-level",
            "warning",
        ]
        replica = stack.enter_context(start_on(None, command))
        stack.callback(replica.terminate)
        worker = stack.enter_context(worker_process(model, "--shared-memory-dir", str(shared)))
        await _serving(address)
        async with open_channel(worker, RpcChannelSettings()) as channel:
            held = (await await_serving(channel)).held
            yield ControlledByService(channel, held, address, selections)


def _register(folder: Path, controlnets: Sequence[Path]) -> list[ControlNetSelection]:
    """Write a registry of links to the ControlNets."""
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


def _acting(controlnet: ControlNetSelection, pixels: Tensor, setting: ControlSetting) -> ControlNetSelection:
    image, share = png_of(_image(pixels)), (setting.start_fraction, setting.end_fraction)
    return ControlNetSelection(controlnet.name, image, setting.scale, *share, digest=controlnet.digest)


def _image(pixels: Tensor) -> Image.Image:
    return Image.fromarray((pixels[0].permute(1, 2, 0) * 255.0).round().to(torch.uint8).numpy())


async def _serving(address: str) -> None:
    async with open_channel(address, RpcChannelSettings()) as channel, asyncio.timeout(START_S):
        while True:
            try:
                await ControlNetClient(channel).status(5.0)
                return
            except PentimentoError:
                await asyncio.sleep(0.2)
