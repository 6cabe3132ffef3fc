"""Test weights in the kernels' layout on a GPU: a removed LoRA leaves no trace, and graphs use the changed weights."""

from pathlib import Path

import pytest
import torch

from lab.fixtures.checkpoints import write_checkpoint, write_xl_checkpoint
from lab.fixtures.lora_files import EVERYWHERE, random_factors, write_diffusers_lora
from pentimento.devices.choices import CompileMode
from pentimento.diffusion.engine import CompiledDenoiser, cuda_recorder, replaying
from pentimento.diffusion.engine.probe import example_input
from pentimento.diffusion.families import BatchKey, load_model
from pentimento.diffusion.images import encode_pixels
from pentimento.diffusion.kernels import fuse, kernels_for, runs_kernels
from pentimento.diffusion.loras import WeightedLora, layers_of, read_lora
from pentimento.diffusion.loras.patching import WeightPatch

pytestmark = pytest.mark.gpu

KEY = BatchKey(32, 32, guided=True)


def test_kernels_run_by_default() -> None:
    assert runs_kernels(torch.device("cuda"))


@torch.inference_mode()
def test_a_recorded_pass_sees_a_lora_in_the_weights_and_its_going(tmp_path: Path) -> None:
    device = torch.device("cuda")
    model = load_model(write_checkpoint(tmp_path / "model"), device, torch.float16)
    kernels = kernels_for(device)
    fuse(model.denoiser, kernels)
    base = layers_of(model.info.family, {"unet": model.denoiser})
    file = write_diffusers_lora(tmp_path / "lora", random_factors(base, rank=3, ends=EVERYWHERE, size=0.1), alpha=5.0)
    chosen = (WeightedLora(read_lora(file, base, torch.float16)),)
    patch = WeightPatch(model.denoiser, "unet", model.forget_time_terms)
    denoiser = CompiledDenoiser(model, CompileMode.CAPTURE, replaying(cuda_recorder(device)), halves=True)
    denoiser.warm(KEY, (1,))
    inputs = example_input(model, KEY, 2)
    weights = {name: value.clone() for name, value in model.denoiser.state_dict().items()}
    plain = denoiser.predict(inputs)

    patch.hold(chosen)
    patched, wanted = denoiser.predict(inputs), model.predict(inputs)
    for _ in range(50):
        patch.hold(())
        patch.hold(chosen)
    patch.hold(())

    assert torch.equal(patched, wanted)
    assert not torch.allclose(patched, plain, atol=1e-2)
    assert torch.equal(denoiser.predict(inputs), plain)
    assert all(torch.equal(weights[name], value) for name, value in model.denoiser.state_dict().items())


@torch.inference_mode()
def test_lora_weights_on_gpu_equal_cpu(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "model")
    models = [load_model(checkpoint, torch.device(device), torch.float32) for device in ("cpu", "cuda")]
    base = layers_of(models[0].info.family, {"unet": models[0].denoiser})
    file = write_diffusers_lora(tmp_path / "lora", random_factors(base, rank=3, ends=EVERYWHERE, size=0.1), alpha=5.0)
    chosen = (WeightedLora(read_lora(file, base, torch.float32), 0.7),)

    for model in models:
        WeightPatch(model.denoiser, "unet").hold(chosen)

    on_cpu, on_gpu = (model.denoiser.state_dict() for model in models)
    for name, value in on_cpu.items():
        torch.testing.assert_close(on_gpu[name].cpu(), value, rtol=1e-5, atol=1e-5)


@torch.inference_mode()
def test_a_decoder_with_kernels_makes_the_pixels_that_it_makes_without(tmp_path: Path) -> None:
    """At 512 pixels an image has more tiles than are merged together."""
    model = load_model(write_xl_checkpoint(tmp_path / "model"), torch.device("cuda"), torch.float32)
    latent = torch.randn(model.latent_shape(512, 520), generator=torch.Generator().manual_seed(1)).to("cuda")
    plain = model.decode_latent(latent)
    kernels = kernels_for(torch.device("cuda"))

    replaced = fuse(model.picture_decoder, kernels)

    assert len(replaced) > 0
    torch.testing.assert_close(model.decode_latent(latent), plain, rtol=1e-3, atol=1e-3)


def test_a_file_made_of_pixels_on_a_gpu_is_the_one_made_of_them_on_a_cpu() -> None:
    pixels = torch.randn(1, 3, 130, 70, generator=torch.Generator().manual_seed(1))

    assert encode_pixels(pixels.to("cuda"), "png") == encode_pixels(pixels, "png")
