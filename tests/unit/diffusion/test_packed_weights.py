"""Weights in eight bits: their values, the images that they make, LoRAs next to them, and files that are in FP8."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from lab.fixtures.lycoris_files import write_lycoris
from pentimento.devices.choices import WeightStorage
from pentimento.diffusion.denoising import DenoisingRequest, NoiseStart
from pentimento.diffusion.families import DiffusionModel, load_model
from pentimento.diffusion.loras import BadLora, WeightedLora, layers_of, read_lora
from pentimento.diffusion.packed_weights import PackedWeight, is_packed, pack
from pentimento.diffusion.weight_memory import weight_bytes
from tests.unit.diffusion.engine.loops import Loop
from tests.unit.diffusion.engine.test_batches import request
from tests.unit.diffusion.engine.test_loras import Late
from tests.unit.diffusion.loras.made_loras import made_lora
from tests.unit.diffusion.specs import denoise, spec_with

PACKED = (WeightStorage.INT8, WeightStorage.FP8)
ENDS = ("conv_in", "conv_out", "pos_embed.proj", "x_embedder", "proj_out")
UNET = "unet/diffusion_pytorch_model.safetensors"


def loaded(checkpoint: Path, storage: WeightStorage) -> DiffusionModel:
    return load_model(checkpoint, torch.device("cpu"), torch.float32, storage)


def rounded(weight: Tensor, storage: WeightStorage) -> Tensor:
    """Return a weight as eight bits for each output channel hold it, one channel after the other."""
    channels = []
    for channel in weight:
        largest = float(channel.abs().max())
        if storage is WeightStorage.INT8:
            scale = torch.tensor(max(largest / 127, 1e-37))
            channels.append((channel / scale).round() * scale)
        else:
            scale = 1.0
            while largest / scale > 448:
                scale *= 2
            while largest / scale * 2 <= 448 and largest:
                scale /= 2
            channels.append((channel / scale).to(torch.float8_e4m3fn).float() * scale)
    return torch.stack(channels)


def with_rounded_weights(checkpoint: Path, storage: WeightStorage) -> DiffusionModel:
    """Return the model in full precision, with the weights of the packed one."""
    model = loaded(checkpoint, WeightStorage.FULL)
    for network in model.adaptable.values():
        for name, layer in network.named_modules():
            if isinstance(layer, nn.Linear | nn.Conv2d) and name not in (
                "conv_in",
                "conv_out",
                "pos_embed.proj",
                "proj_out",
            ):
                layer.weight.copy_(rounded(layer.weight, storage))
    return model


@pytest.mark.parametrize("storage", PACKED)
@pytest.mark.parametrize("family", ["checkpoint", "xl_checkpoint", "flow_checkpoint"])
def test_image_of_packed_model_equals_image_of_rounded_weights(
    family: str, storage: WeightStorage, request: pytest.FixtureRequest
) -> None:
    directory: Path = request.getfixturevalue(family)
    packed, reference = loaded(directory, storage), with_rounded_weights(directory, storage)
    asked = DenoisingRequest(spec_with(scheduler=packed.info.schedulers[0]), NoiseStart())

    torch.testing.assert_close(denoise(packed, asked), denoise(reference, asked), rtol=0, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_channels_of_zeros_and_tiny_ones_stay_finite(dtype: torch.dtype) -> None:
    weight = torch.tensor([[0.0, 0.0], [1e-7, -1e-7], [60000.0, 1.0]], dtype=dtype)

    for stored in (torch.int8, torch.float8_e4m3fn):
        packing = PackedWeight(stored)
        found = packing(*packing.right_inverse(weight))
        assert found.dtype == dtype
        assert torch.isfinite(found).all()
        assert torch.equal(found[0], weight[0])
        torch.testing.assert_close(found[2, 0], weight[2, 0], rtol=0.04, atol=0)


@pytest.mark.parametrize("storage", PACKED)
def test_packed_denoiser_takes_a_quarter_of_single_precision(xl_checkpoint: Path, storage: WeightStorage) -> None:
    packed, full = loaded(xl_checkpoint, storage).denoiser, loaded(xl_checkpoint, WeightStorage.FULL).denoiser
    scales = sum(layer.out_features for layer in full.modules() if isinstance(layer, nn.Linear))
    scales += sum(layer.out_channels for layer in full.modules() if isinstance(layer, nn.Conv2d))

    assert weight_bytes(packed) < weight_bytes(full) / 4 + 4 * scales + 0.03 * weight_bytes(full)
    assert is_packed(packed)
    assert not is_packed(full)


def test_lora_on_packed_weights_equals_a_patch_of_rounded_ones(checkpoint: Path) -> None:
    packed, reference = (loaded(checkpoint, WeightStorage.INT8), with_rounded_weights(checkpoint, WeightStorage.INT8))
    adapters = (WeightedLora(made_lora(layers_of(packed.info.family, packed.adaptable), 1), 0.7),)
    before = {name: tensor.clone() for name, tensor in packed.denoiser.state_dict().items()}
    latents = []
    for model in (packed, reference):
        loop = Loop(model)
        added = loop.add(replace(request(3), loras=Late(adapters)))
        loop.run()
        latents.append(added.finished.latent)

    torch.testing.assert_close(*latents, rtol=0, atol=1e-4)
    assert all(torch.equal(tensor, before[name]) for name, tensor in packed.denoiser.state_dict().items())


@pytest.mark.parametrize(("dora", "form"), [("", "LoHa"), ("out", "DoRA")])
def test_lora_without_small_factors_is_refused_on_packed_weights(
    checkpoint: Path, tmp_path: Path, dora: str, form: str
) -> None:
    packed = loaded(checkpoint, WeightStorage.FP8)
    base = layers_of(packed.info.family, packed.adaptable)
    file = write_lycoris(tmp_path / "mine.safetensors", base, "loha", ("to_q",), dora=dora).path

    with pytest.raises(
        BadLora, match=rf"mine\.safetensors: a {form} changes weights, which are in eight bits"
    ) as refused:
        read_lora(file, base, torch.float32)
    assert refused.value.reason == "UNSUPPORTED_LORA"


def test_files_in_fp8_stay_in_fp8_without_loss(checkpoint: Path, tmp_path: Path) -> None:
    stored = shutil.copytree(checkpoint, tmp_path / "stored")
    tensors = load_file(stored / UNET)
    save_file({name: tensor.to(torch.float8_e4m3fn) for name, tensor in tensors.items()}, stored / UNET)

    packed, full = loaded(stored, WeightStorage.AUTO), loaded(stored, WeightStorage.FULL)

    assert is_packed(packed.denoiser)
    assert not is_packed(packed.adaptable["text_encoder"])
    for name, layer in full.denoiser.named_modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            assert torch.equal(packed.denoiser.get_submodule(name).weight, layer.weight)


def test_pack_in_full_changes_nothing() -> None:
    layer = nn.Linear(2, 2)

    pack(nn.Sequential(layer), WeightStorage.FULL)

    assert not is_packed(layer)
