"""What ControlNets are told: an encoded image as diffusers' pipelines prepare it, by family."""

import io
from typing import Any

import numpy as np
import pytest
import torch
from diffusers.image_processor import VaeImageProcessor
from PIL import Image

from pentimento.diffusion.controlnets import ControlNet
from pentimento.diffusion.families import DiffusionModel
from pentimento.diffusion.images import decode_condition
from pentimento.domain.errors import InvalidArgument


def picture(width: int, height: int) -> Image.Image:
    values = np.random.default_rng(1).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(values)


def encoded(image: Image.Image, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG", **options)
    return buffer.getvalue()


@pytest.mark.parametrize("size", [(32, 32), (50, 20)])
def test_a_condition_has_the_size_and_range_that_diffusers_gives_it(size: tuple[int, int]) -> None:
    image = picture(*size)
    theirs = VaeImageProcessor(vae_scale_factor=4, do_convert_rgb=True, do_normalize=False)

    told = decode_condition(encoded(image), "conditioning_image", width_px=32, height_px=24)

    assert torch.equal(told, theirs.preprocess(image, height=24, width=32))


def test_a_grey_condition_has_three_channels() -> None:
    told = decode_condition(encoded(picture(32, 32).convert("L")), "conditioning_image", 32, 32)

    assert told.shape == (1, 3, 32, 32)
    assert torch.equal(told[:, 0], told[:, 2])


def test_an_image_that_does_not_decode_is_named() -> None:
    with pytest.raises(InvalidArgument, match=r"controlnets\[0\]\.conditioning_image"):
        decode_condition(encoded(picture(32, 32))[:200], "controlnets[0].conditioning_image", 32, 32)


@pytest.mark.parametrize("family", ["model", "xl_model"])
def test_controlnets_of_unets_are_told_pixels(family: str, request: pytest.FixtureRequest) -> None:
    model: DiffusionModel = request.getfixturevalue(family)
    pixels = torch.rand(1, 3, 32, 32)

    assert torch.equal(model.condition(pixels, 2, torch.Generator(), unshifted=False), pixels)


@torch.inference_mode()
def test_a_flows_are_told_a_latent_a_row_with_noise_of_its_own_and_the_shift_where_it_is_wanted(
    flow_model: DiffusionModel,
) -> None:
    pixels = torch.rand(1, 3, 32, 32)
    with_shift, without = (
        flow_model.condition(pixels, 2, torch.Generator().manual_seed(1), unshifted=unshifted)
        for unshifted in (False, True)
    )

    assert with_shift.shape == (2, 8, 8, 8)
    assert not torch.equal(with_shift[0], with_shift[1])
    torch.testing.assert_close(without - with_shift, torch.full_like(without, 1.5305 * 0.0609))


@torch.inference_mode()
def test_a_condition_is_embedded_for_as_many_rows_as_the_picture_has(
    controlnet: ControlNet, flow_controlnet: ControlNet
) -> None:
    pixels, latents = torch.rand(1, 3, 32, 32), torch.rand(2, 8, 8, 8)

    embedded = controlnet.embed(pixels, row_count=2)

    assert torch.equal(embedded, controlnet.embed(torch.cat([pixels, pixels])))
    assert controlnet.embed(pixels).shape[0] == 1
    assert flow_controlnet.embed(latents, row_count=2).shape == (2, 16, 16)
