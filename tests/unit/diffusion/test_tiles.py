"""Decoding in tiles against diffusers' tiled decoder."""

from pathlib import Path

import pytest
import torch
from diffusers import AutoencoderKL

from lab.fixtures.checkpoints import write_checkpoint
from tests.unit.diffusion.specs import load


@torch.inference_mode()
def test_tiled_pixels_equal_diffusers(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "model", vae="kl")
    model, reference = load(checkpoint), AutoencoderKL.from_pretrained(checkpoint / "vae")
    latent = torch.randn(1, 4, 12, 19, generator=torch.Generator().manual_seed(1))
    whole = model.decode_latent(latent)
    reference.enable_tiling()
    reference.tile_latent_min_size, reference.tile_sample_min_size = 8, 32

    model.tile_decoder(35)
    tiled = model.decode_latent(latent)

    expected = reference.decode(latent / reference.config.scaling_factor).sample
    torch.testing.assert_close(tiled, expected, rtol=0, atol=1e-5)
    assert (tiled - whole).abs().max() > 1e-3
    small = latent[..., :8, :8]
    torch.testing.assert_close(model.decode_latent(small), reference.decode(small / 0.18215).sample, rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match="a tile has at least 16 pixels a side"):
        model.tile_decoder(15)
