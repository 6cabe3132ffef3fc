"""A stream whose image is preprocessed has the residuals of the preprocessed image."""

import tempfile
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
import torch

from lab.fixtures.checkpoints import write_depth_model
from lab.fixtures.step_streams import answer_to
from pentimento.diffusion.controlnets.depth import load_depth_model
from pentimento.diffusion.controlnets.edges import edges
from pentimento.diffusion.images import pixel_image
from pentimento.domain.errors import FailedPrecondition
from pentimento.domain.generation import ControlNetSelection, Preprocessor
from pentimento.tensors.device import outgoing_tensor
from pentimento.wire.tensors import UNBOUND
from tests.integration.controlnet_svc.conftest import Service, condition, latents, request_for, serve, tensors_of
from tests.integration.controlnet_svc.test_streams import OPEN_S, assert_equal, pixels
from tests.support.images import png_of

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service() -> AsyncIterator[Service]:
    """One with a depth model."""
    with tempfile.TemporaryDirectory(prefix="pmt-", dir="/dev/shm") as folder:
        async with serve(Path(folder), depth_model=write_depth_model(Path(folder) / "depth")) as served:
            yield served


async def residuals(service: Service, controlnet: ControlNetSelection) -> dict[str, torch.Tensor]:
    stream = await service.client.open_stream(request_for(controlnet=controlnet), 1, OPEN_S)
    found = tensors_of(await answer_to(stream, 0, 501.0, outgoing_tensor(latents(), UNBOUND)))
    stream.close()
    return found


async def test_residuals_are_those_of_the_preprocessed_image(service: Service) -> None:
    asked = request_for().controlnet
    depth = load_depth_model(service.process.settings.depth_model, torch.device("cpu"), torch.float32)
    conditions = {Preprocessor.EDGES: edges(pixels()), Preprocessor.DEPTH: depth.depth(pixels())}

    plain = await residuals(service, asked)
    for preprocessor, wanted in conditions.items():
        image = png_of(pixel_image(wanted))
        found = await residuals(service, replace(asked, preprocessor=preprocessor))

        assert image != condition()
        assert_equal(found, await residuals(service, replace(asked, conditioning_image=image)))
        assert float((found["mid_block"] - plain["mid_block"]).abs().max()) > 1e-3


async def test_depth_model_is_told_and_another_is_refused(service: Service) -> None:
    (first, *_) = service.process.controlnets.shelf.adapters
    asked = replace(request_for().controlnet, preprocessor=Preprocessor.DEPTH)
    other = replace(asked, preprocessor_digest="sha256:" + "0" * 64)

    assert first.depth_digest.startswith("sha256:")
    await residuals(service, replace(asked, preprocessor_digest=first.depth_digest))
    with pytest.raises(FailedPrecondition) as caught:
        await residuals(service, other)
    assert caught.value.reason == "DEPTH_MODEL_MISMATCH"
