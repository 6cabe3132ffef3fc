"""Serve a ControlNet service on a Unix socket, in this process: real server, channel and client, the zoo's
ControlNets."""

import io
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import torch
from diffusers import ControlNetModel
from PIL import Image
from torch import Tensor

from pentimento.clients.controlnet import ControlNetClient, ResidualStreamRequest
from pentimento.devices.choices import DeviceChoice
from pentimento.domain.generation import Attempt, ControlNetSelection
from pentimento.files.adapter_registry import read_adapters
from pentimento.rpc import RpcChannelSettings, RpcServerSettings, open_channel
from pentimento.tensors.cuda import outgoing_tensor, tensor_over
from pentimento.tensors.receiving import ReceivedTensors
from pentimento.tensors.regions import RegionDirectory
from pentimento.wire.tensors import UNBOUND
from services.controlnet_svc.settings import ControlNetSettings
from services.controlnet_svc.wiring import ControlNetProcess, wire
from tests.support.images import png_of
from tests.support.patient_connections import be_patient

ROOT = Path(__file__).parents[3]
REGISTRY = ROOT / "zoo" / "weights" / "registry.json"
EDGES, LAYOUT = "tiny-controlnet-edges", "tiny-controlnet-layout"
SIDE_PX, LATENT_DIMS = 64, (8, 16, 16)
OPEN_S = 120.0


def condition(side_px: int = SIDE_PX, seed: int = 1) -> bytes:
    """Return a conditioning image, as PNG."""
    values = torch.randint(0, 256, (side_px, side_px, 3), generator=torch.Generator().manual_seed(seed))
    return png_of(Image.fromarray(values.to(torch.uint8).numpy()))


def states(rows: int = 2) -> torch.Tensor:
    return torch.randn(rows, 77, 128, generator=torch.Generator().manual_seed(2))


def latents(rows: int = 2, seed: int = 3) -> torch.Tensor:
    return torch.randn(rows, *LATENT_DIMS, generator=torch.Generator().manual_seed(seed))


def pixels() -> Tensor:
    values = np.array(Image.open(io.BytesIO(condition())))
    return torch.from_numpy(values).permute(2, 0, 1).unsqueeze(0).float() / 255.0


@torch.inference_mode()
def of_diffusers(name: str, timestep: float, scale: float, rows: int = 2, seed: int = 3) -> dict[str, Tensor]:
    network = ControlNetModel.from_pretrained(REGISTRY.parent / name)
    down, mid = network(
        latents(rows, seed),
        torch.tensor(timestep),
        states(rows),
        pixels().expand(rows, -1, -1, -1),
        conditioning_scale=scale,
        return_dict=False,
    )
    return {**{f"down_block_{index}": tensor for index, tensor in enumerate(down)}, "mid_block": mid}


def assert_equal(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for layer, tensor in wanted.items():
        torch.testing.assert_close(found[layer], tensor, atol=1e-5, rtol=1e-5)
    assert max(float(tensor.abs().max()) for tensor in found.values()) > 1e-3


def request_for(name: str = EDGES, rows: int = 2, **changes: Any) -> ResidualStreamRequest:
    adapter = read_adapters(REGISTRY)[name].adapter
    request = ResidualStreamRequest(
        attempt=Attempt("request", 1, 7, "frontdoor", 1, "tenant"),
        controlnet=ControlNetSelection(name, condition(), digest=adapter.digest),
        base_model_digest=adapter.base_digest,
        base_model_family="stable_diffusion",
        width_px=SIDE_PX,
        height_px=SIDE_PX,
        step_count=10,
        latent_dims=LATENT_DIMS,
        states=outgoing_tensor(states(rows), UNBOUND),
    )
    return replace(request, **changes)


def tensors_of(received: ReceivedTensors) -> dict[str, torch.Tensor]:
    return {wire.binding.layer: tensor_over(wire).clone() for wire in received.tensors}


@dataclass(frozen=True)
class Service:
    """Hold a serving process, its address, its shared memory's folder, and a client of it."""

    process: ControlNetProcess
    address: str
    directory: RegionDirectory
    client: ControlNetClient


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short enough for a socket, which pytest's own tmp_path may not be; in memory, as regions are."""
    with tempfile.TemporaryDirectory(prefix="pmt-", dir="/dev/shm") as path:
        yield Path(path)


@pytest.fixture
def overrides() -> dict[str, Any]:
    """Return the service's settings; a test may override them by a parameter."""
    return {}


@asynccontextmanager
async def serve(folder: Path, **settings: Any) -> AsyncIterator[Service]:
    address, shared = f"unix:{folder / 's'}", folder / "shared"
    shared.mkdir(mode=0o700)
    rpc, channels = RpcServerSettings(listen=(address,)), RpcChannelSettings()
    own = {"controlnets": REGISTRY, "device": DeviceChoice.CPU, "shared_memory_dir": str(shared), **settings}
    process = wire(ControlNetSettings(rpc, channels, **own))
    with pytest.MonkeyPatch.context() as patch:
        be_patient(patch)
        await process.server.start()
        await process.warm()
        process.server.set_serving()
        directory = RegionDirectory(shared)
        async with open_channel(address, RpcChannelSettings()) as channel:
            yield Service(process, address, directory, ControlNetClient(channel, directory))
    await process.drain()
    await process.server.stop()
    await process.close()


@pytest.fixture
async def service(folder: Path, overrides: dict[str, Any]) -> AsyncIterator[Service]:
    async with serve(folder, **overrides) as served:
        yield served


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_service() -> AsyncIterator[Service]:
    """Share one service among a module's tests, which share a loop and leave no stream."""
    with tempfile.TemporaryDirectory(prefix="pmt-", dir="/dev/shm") as folder:
        async with serve(Path(folder)) as served:
            yield served
