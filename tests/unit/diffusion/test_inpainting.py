"""Keep the pixels outside a mask to the last step and generate the rest, in any batch."""

from dataclasses import replace

import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate

from pentimento.diffusion.denoising import Denoising, DenoisingRequest, ImageStart, model_input, prepare, take_step
from pentimento.diffusion.families import Conditioning, DenoiserInput, DiffusionModel
from pentimento.diffusion.images import decode_mask, decode_pixels, decode_pixels_and_mask
from pentimento.diffusion.inpainting import cells_of
from pentimento.diffusion.prompts import PromptMemo
from pentimento.domain.errors import InvalidArgument
from tests.support.images import png_of
from tests.unit.diffusion.specs import denoise, run_steps, spec_with

PIXELS = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(3)) * 2 - 1
LEFT = torch.zeros(1, 1, 32, 32)
LEFT[..., :16] = 1.0


def clean_latent(model: DiffusionModel, seed: int) -> Tensor:
    with torch.inference_mode():
        return model.encode_image(PIXELS, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("from_noise", [False, True])
def test_masked_image_keeps_its_latent_outside_the_mask(any_model: DiffusionModel, from_noise: bool) -> None:
    for scheduler in any_model.info.schedulers:
        spec = spec_with(scheduler=scheduler)
        first_step = 0 if from_noise else 4

        latent = denoise(any_model, DenoisingRequest(spec, ImageStart(PIXELS, first_step, LEFT, from_noise)))

        clean, half = clean_latent(any_model, spec.seed), latent.shape[-1] // 2
        assert torch.equal(latent[..., half:], clean[..., half:])
        assert (latent[..., :half] - clean[..., :half]).abs().mean() > 0.01


def test_kept_area_is_noised_to_level_of_next_step(any_model: DiffusionModel) -> None:
    spec = spec_with(scheduler=any_model.info.schedulers[0])
    denoising = prepare(any_model, PromptMemo(any_model, 8), DenoisingRequest(spec, ImageStart(PIXELS, 2, LEFT)))
    assert denoising.known is not None

    run_steps(any_model, denoising, until=5)

    clean, half = clean_latent(any_model, spec.seed), denoising.state.latent.shape[-1] // 2
    expected = denoising.schedule.noised_latent(clean, denoising.known.noise, 5)
    assert torch.equal(denoising.state.latent[..., half:], expected[..., half:])
    assert denoising.predicted_clean is not None
    assert torch.equal(denoising.predicted_clean[..., half:], clean[..., half:])


def test_masked_image_in_batch_equals_single_run(model: DiffusionModel) -> None:
    """A masked and an unmasked image share a forward pass: each takes its step from its own rows."""
    masked = DenoisingRequest(spec_with(guidance_scale=1.0), ImageStart(PIXELS, 4, LEFT))
    other = DenoisingRequest(spec_with(guidance_scale=1.0, seed=9), ImageStart(PIXELS, 4))
    prompts = PromptMemo(model, 8)
    alone = [denoise(model, request) for request in (masked, other)]

    denoisings = [prepare(model, prompts, request) for request in (masked, other)]
    with torch.inference_mode():
        while not denoisings[0].done:
            predictions = model.predict(_batch(model, denoisings)).chunk(2)
            for denoising, prediction in zip(denoisings, predictions, strict=True):
                take_step(model, denoising, prediction)

    for denoising, expected in zip(denoisings, alone, strict=True):
        assert (denoising.state.latent - expected).abs().max() <= 1e-5


def _batch(model: DiffusionModel, denoisings: list[Denoising]) -> DenoiserInput:
    inputs = [model_input(model, denoising) for denoising in denoisings]
    return replace(
        inputs[0],
        latents=torch.cat([one.latents for one in inputs]),
        timesteps=torch.cat([one.timesteps for one in inputs]),
        conditioning=Conditioning.concatenate([one.conditioning for one in inputs]),
        time_terms=None,
    )


def grey(levels: list[list[int]]) -> bytes:
    image = Image.new("L", (len(levels[0]), len(levels)))
    image.putdata([level for row in levels for level in row])
    return png_of(image)


def palette() -> bytes:
    """Return a white pixel and one of a colour that is transparent."""
    image = Image.new("P", (2, 1))
    image.putpalette([255, 255, 255, 0, 0, 0])
    image.putdata([0, 1])
    return png_of(image, transparency=1)


def rgba(*pixels: tuple[int, int, int, int]) -> bytes:
    image = Image.new("RGBA", (len(pixels), 1))
    image.putdata(pixels)
    return png_of(image)


@pytest.mark.parametrize(
    ("data", "mask"),
    [
        (grey([[0, 127, 128, 255]]), [0.0, 0.0, 1.0, 1.0]),
        # As masks for OpenAI's API: an image with holes, in any colours.
        (rgba((255, 255, 255, 255), (0, 0, 0, 0), (9, 9, 9, 127), (9, 9, 9, 128)), [0.0, 1.0, 1.0, 0.0]),
        (rgba((255, 255, 255, 255), (0, 0, 0, 255)), [1.0, 0.0]),
        (palette(), [0.0, 1.0]),
        (grey([[255, 128]]), None),
        (rgba((255, 255, 255, 255), (255, 255, 255, 255)), None),
        (rgba((0, 0, 0, 0), (9, 9, 9, 100)), None),
    ],
    ids=["grey", "transparent", "opaque", "palette", "all white", "white and opaque", "all transparent"],
)
def test_decode_mask_is_one_where_white_or_transparent(data: bytes, mask: list[float] | None) -> None:
    found = decode_mask(data, "mask", 2 if mask is None else len(mask), 1)

    assert (None if found is None else found.tolist()) == (None if mask is None else [[[mask]]])


def test_decode_mask_resizes_and_keeps_spots() -> None:
    larger = decode_mask(grey([[0, 255], [0, 255]]), "mask", 8, 8)
    levels = [[0] * 64 for _ in range(64)]
    levels[40][3] = 255
    smaller = decode_mask(grey(levels), "mask", 8, 8)

    assert larger is not None and larger.shape == (1, 1, 8, 8)
    assert larger[..., 0].max() == 0.0 and larger[..., -1].min() == 1.0
    assert smaller is not None and smaller.nonzero().tolist() == [[0, 0, 5, 0]]


@pytest.mark.parametrize(
    ("mask", "limit"),
    [
        (grey([[0, 127]]), "mask: must be white somewhere, where the image may change; it is all black"),
        (rgba((0, 0, 0, 255), (9, 9, 9, 255)), "mask: must be white somewhere"),
        (rgba((255, 255, 255, 255), (255, 255, 255, 200)), "mask: must be transparent somewhere"),
    ],
    ids=["black", "black and opaque", "hardly transparent"],
)
def test_mask_by_which_nothing_changes_is_refused(mask: bytes, limit: str) -> None:
    with pytest.raises(InvalidArgument, match=limit):
        decode_mask(mask, "mask", 2, 1)


def spot(colour: float) -> Tensor:
    """Return a mask with one pixel of that colour, off the upper left corner of every latent cell."""
    mask = torch.full((1, 1, 32, 32), 1.0 - colour)
    mask[..., 1, 9] = colour
    return mask


def test_cells_of_mask_keep_spots_and_equal_diffusers() -> None:
    for colour in (1.0, 0.0):
        assert (cells_of(spot(colour), (1, 4, 4, 4)) == colour).nonzero().tolist() == [[0, 0, 0, 1]]

    # `torch.nn.functional.interpolate`, with a spot next to pixels that survive anyway.
    mask = spot(1.0)
    mask[..., 16:, :] = 1.0
    assert torch.equal(cells_of(mask, (1, 4, 4, 4)), interpolate(mask, size=(4, 4)))


@pytest.mark.parametrize(
    ("pixels", "mask"),
    [
        (((1, 2, 3, 255), (1, 2, 3, 0)), [0.0, 1.0]),
        (((1, 2, 3, 255), (1, 2, 3, 255)), None),
        (((1, 2, 3, 200), (1, 2, 3, 255)), None),
        (((1, 2, 3, 0), (1, 2, 3, 0)), None),
    ],
    ids=["a hole", "opaque", "a soft edge", "transparent"],
)
def test_transparent_parts_of_an_image_are_its_mask(
    pixels: tuple[tuple[int, int, int, int], ...], mask: list[float] | None
) -> None:
    data = rgba(*pixels)

    shown, own = decode_pixels_and_mask(data, "image", 2, 1)

    assert torch.equal(shown, decode_pixels(data, "image", 2, 1))
    assert (None if own is None else own.flatten().tolist()) == mask
