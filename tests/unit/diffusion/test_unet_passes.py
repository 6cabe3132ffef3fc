"""The passes that are written out, against diffusers' own forward of the same network."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from pentimento.diffusion.families import DiffusionModel
from pentimento.diffusion.families.model import ControlResiduals, DenoiserInput
from pentimento.diffusion.families.unet_passes import AttendedTexts, UNetPasses, covers
from tests.unit.diffusion.specs import rows_of


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


def inputs_of(model: DiffusionModel, side_px: int, **more: Any) -> DenoiserInput:
    return rows_of(model, ("a red circle", "a ring"), torch.tensor([900.0, 100.0]), side_px, **more)


def by_diffusers(model: DiffusionModel, inputs: DenoiserInput) -> Tensor:
    texts, residuals = inputs.conditioning, inputs.residuals
    added = None if texts.sizes is None else {"text_embeds": texts.pooled, "time_ids": texts.sizes}
    prediction: Tensor = model.denoiser(
        inputs.latents,
        inputs.timesteps,
        encoder_hidden_states=texts.states,
        added_cond_kwargs=added,
        down_block_additional_residuals=residuals.down_block_residuals if residuals else None,
        mid_block_additional_residual=residuals.mid_block_residual if residuals else None,
        return_dict=False,
    )[0]
    return prediction


def skips_of(model: DiffusionModel, inputs: DenoiserInput) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return shapes of the mid block's output and of the skip connections, by hooks on diffusers' blocks."""
    kept: list[tuple[Tensor, ...]] = []
    blocks: Any = model.denoiser.down_blocks
    hooks = [block.register_forward_hook(lambda _, __, output: kept.append(output[1])) for block in blocks]
    first = model.denoiser.conv_in.register_forward_hook(lambda _, __, output: kept.insert(0, (output,)))
    by_diffusers(model, inputs)
    for hook in [*hooks, first]:
        hook.remove()
    skips = tuple(tensor for part in kept for tensor in part)
    return skips[-1], skips


@pytest.mark.parametrize("side_px", [32, 24, 40])
def test_a_prediction_has_the_bits_of_diffusers_own(unet_model: DiffusionModel, side_px: int) -> None:
    inputs = inputs_of(unet_model, side_px)

    assert torch.equal(unet_model.predict(inputs), by_diffusers(unet_model, inputs))


def test_residuals_are_added_where_diffusers_adds_them(unet_model: DiffusionModel) -> None:
    plain = inputs_of(unet_model, 32)
    middle, skips = skips_of(unet_model, plain)
    residuals = ControlResiduals(tuple(torch.randn_like(skip) for skip in skips), torch.randn_like(middle))
    controlled = inputs_of(unet_model, 32, residuals=residuals)

    prediction = unet_model.predict(controlled)

    assert torch.equal(prediction, by_diffusers(unet_model, controlled))
    assert not torch.equal(prediction, unet_model.predict(plain))


def test_precomputed_terms_change_no_bit(model: DiffusionModel) -> None:
    """Both rows of a guided image have one timestep."""
    plain = inputs_of(model, 32)
    alike = DenoiserInput(plain.latents, torch.tensor([500.0, 500.0]), plain.conditioning)

    prepared = DenoiserInput(
        plain.latents, alike.timesteps, model.project(plain.conditioning), time_terms=model.time_terms(500.0, 2)
    )

    assert torch.equal(model.predict(prepared), model.predict(alike))


def test_terms_of_a_timestep_are_kept_by_timestep_and_rows(model: DiffusionModel) -> None:
    first, other = model.time_terms(500.0, 2), model.time_terms(501.0, 2)

    assert model.time_terms(500.0, 2) is first
    assert first is not None and other is not None and not torch.equal(first, other)
    assert model.time_terms(500.0, 1) is not first


def test_network_with_unknown_option_runs_in_diffusers(model: DiffusionModel) -> None:
    unet: Any = model.denoiser
    resnet = unet.mid_block.resnets[0]
    assert covers(unet)

    resnet.time_embedding_norm = "scale_shift"
    try:
        assert not covers(unet)
    finally:
        resnet.time_embedding_norm = "default"


def test_the_halves_meet_in_the_middle(model: DiffusionModel) -> None:
    """The encoder's half returns all inputs of the decoder's half."""
    inputs = inputs_of(model, 32)
    passes = UNetPasses(model.denoiser)
    texts = AttendedTexts(passes.project_text(inputs.conditioning.states))
    terms = passes.time_terms(inputs.timesteps, model.dtype)
    middle, skips = skips_of(model, inputs)

    encoded = passes.encode(inputs.latents, texts, terms)

    assert encoded.hidden.shape == middle.shape
    assert all(torch.equal(one, other) for one, other in zip(encoded.skips, skips, strict=True))
    assert torch.equal(passes.decode(encoded, texts, terms), by_diffusers(model, inputs))
