"""Residuals of a preprocessed image equal those of the image that was preprocessed before; a ControlNet-Union uses its
kind."""

import asyncio
import json
import shutil
import tempfile
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
import torch
from click.testing import CliRunner

from lab.fixtures.checkpoints import write_controlnet, write_depth_model
from lab.fixtures.step_streams import answer_to
from pentimento.cli.adapters import adapters
from pentimento.diffusion.checkpoint import digest_directory
from pentimento.diffusion.controlnets import ControlSetting, ControlStep, load_controlnet
from pentimento.diffusion.controlnets.depth import load_depth_model
from pentimento.diffusion.controlnets.edges import edges
from pentimento.diffusion.families.model import Conditioning, DenoiserInput
from pentimento.diffusion.images import pixel_image
from pentimento.domain.errors import FailedPrecondition
from pentimento.domain.generation import ControlKind, ControlNetSelection, Preprocessor
from pentimento.files.adapter_registry import RegisteredDepthModel, read_depth_model
from pentimento.tensors.cuda import outgoing_tensor
from pentimento.wire.tensors import UNBOUND
from services.controlnet_svc.streams import named_tensors
from tests.integration.controlnet_svc.conftest import (
    REGISTRY,
    Service,
    condition,
    latents,
    pixels,
    request_for,
    serve,
    tensors_of,
)
from tests.integration.controlnet_svc.test_streams import OPEN_S, assert_equal
from tests.support.images import png_of

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service() -> AsyncIterator[Service]:
    """Serve preprocessors with a depth model."""
    with tempfile.TemporaryDirectory(prefix="pmt-", dir="/dev/shm") as folder:
        registry = registry_with_depth(Path(folder))
        async with serve(Path(folder), controlnets=registry) as served:
            yield served


def registry_with_depth(folder: Path) -> Path:
    """Write a registry with the tiny ControlNets and a depth model."""
    entries = json.loads(REGISTRY.read_text())["models"]
    served = [entry for entry in entries if entry["kind"] == "controlnet"]
    for entry in served:
        shutil.copytree(REGISTRY.parent / entry["path"], folder / entry["path"])
    digest = digest_directory(write_depth_model(folder / "depth"))
    served.append({"name": "depth", "kind": "depth_model", "path": "depth", "digest": digest})
    (folder / "registry.json").write_text(json.dumps({"models": served}))
    return folder / "registry.json"


async def residuals(service: Service, controlnet: ControlNetSelection) -> dict[str, torch.Tensor]:
    stream = await service.client.open_stream(request_for(controlnet=controlnet), 1, OPEN_S)
    found = tensors_of(await answer_to(stream, 0, 501.0, outgoing_tensor(latents(), UNBOUND)))
    stream.close()
    return found


async def test_residuals_are_those_of_the_preprocessed_image(service: Service) -> None:
    asked = request_for().controlnet
    depth = load_depth_model(service.process.settings.controlnets.parent / "depth", torch.device("cpu"), torch.float32)
    conditions = {Preprocessor.EDGES: edges(pixels()), Preprocessor.DEPTH: depth.depth(pixels())}

    plain = await residuals(service, asked)
    for preprocessor, wanted in conditions.items():
        image = png_of(pixel_image(wanted))
        found = await residuals(service, replace(asked, preprocessor=preprocessor))

        assert image != condition()
        assert_equal(found, await residuals(service, replace(asked, conditioning_image=image)))
        assert float((found["mid_block"] - plain["mid_block"]).abs().max()) > 1e-3


async def test_depth_model_is_advertised_and_other_digest_refused(service: Service) -> None:
    (first, *_) = service.process.controlnets.shelf.adapters
    asked = replace(request_for().controlnet, preprocessor=Preprocessor.DEPTH)
    other = replace(asked, preprocessor_digest="sha256:" + "0" * 64)

    assert first.depth_digest.startswith("sha256:")
    await residuals(service, replace(asked, preprocessor_digest=first.depth_digest))
    with pytest.raises(FailedPrecondition) as caught:
        await residuals(service, other)
    assert caught.value.reason == "DEPTH_MODEL_MISMATCH"


async def test_registered_depth_model_has_the_digest_that_is_served(tmp_path: Path) -> None:
    depth = write_depth_model(tmp_path / "depth-tiny")

    done = await asyncio.to_thread(CliRunner().invoke, adapters, ["register", str(depth), "--licence", "cc0"])

    assert read_depth_model(tmp_path / "registry.json") == RegisteredDepthModel(depth, digest_directory(depth))
    assert f"depth-tiny: depth_model, {digest_directory(depth)}" in done.output
    assert f"`pentimento up --controlnets {tmp_path}/registry.json` serves it" in done.output


async def test_depth_model_of_other_digest_ends_the_start(tmp_path: Path) -> None:
    registry = registry_with_depth(tmp_path)
    document = json.loads(registry.read_text())
    document["models"][-1]["digest"] = "sha256:" + "0" * 64
    registry.write_text(json.dumps(document))

    with pytest.raises(FailedPrecondition, match="its entry in the registry has sha256:0000") as caught:
        async with serve(tmp_path, controlnets=registry):
            pass
    assert caught.value.reason == "MODEL_DIGEST_MISMATCH"


async def test_stream_of_union_has_residuals_of_its_kind(tmp_path: Path) -> None:
    directory = write_controlnet(tmp_path / "union", xl=True, union=True)
    digest = digest_directory(directory)
    entry = {"name": "union", "kind": "controlnet", "family": "sdxl", "path": "union", "digest": digest}
    (tmp_path / "registry.json").write_text(json.dumps({"models": [entry]}))
    generator = torch.Generator().manual_seed(5)
    shapes = {"states": (2, 16, 40), "pooled": (2, 20), "sizes": (2, 6)}
    texts = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    rows = torch.randn(2, 4, 16, 16, generator=generator)

    with tempfile.TemporaryDirectory(prefix="pmt-", dir="/dev/shm") as folder:
        async with serve(Path(folder), controlnets=tmp_path / "registry.json") as service:
            (adapter,) = service.process.controlnets.shelf.adapters
            stream = await service.client.open_stream(
                replace(
                    request_for(),
                    controlnet=ControlNetSelection("union", condition(), digest=digest, kind=ControlKind.LINES),
                    base_model_family="stable_diffusion_xl",
                    latent_dims=(4, 16, 16),
                    **{name: outgoing_tensor(tensor, UNBOUND) for name, tensor in texts.items()},
                ),
                1,
                OPEN_S,
            )
            found = tensors_of(await answer_to(stream, 0, 501.0, outgoing_tensor(rows, UNBOUND)))
            stream.close()

    network = load_controlnet(directory, torch.device("cpu"), torch.float32)
    asked = DenoiserInput(rows, torch.full((2,), 501.0), Conditioning(*texts.values()))
    wanted = network.residuals([ControlStep(asked, network.embed(pixels(), 2), ControlSetting(), kind=3)])[0]
    assert adapter.control_kind_count == 6
    assert_equal(found, dict(named_tensors(wanted)))
