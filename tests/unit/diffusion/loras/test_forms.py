"""LoHa, LoKr, Tucker and DoRA: the weights that files make, against PEFT's own layers and LyCORIS' formulas."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoHaConfig, LoKrConfig, LoraConfig, PeftConfig, get_peft_model_state_dict, inject_adapter_in_model
from torch import Tensor, nn

from lab.fixtures.lora_files import write_tensors
from lab.fixtures.lycoris_files import FORMS, LycorisMaker, write_lycoris
from pentimento.diffusion.families import DiffusionModel
from pentimento.diffusion.loras import AdapterSet, BaseLayers, LowRankFactors, WeightedLora, read_lora
from pentimento.diffusion.loras.lora import DecomposedFactors, difference
from pentimento.diffusion.loras.patching import WeightPatch, patched_copies
from pentimento.files.lora_headers import judge_lora
from tests.unit.diffusion.loras.made_loras import made_lora

F32 = torch.float32
SHARED = {"target_modules": ["to_q", "conv1", "proj_in"], "r": 3}

PEFT: dict[str, Callable[[], PeftConfig]] = {
    "LoHa": lambda: LoHaConfig(**SHARED, alpha=5, init_weights=False),
    "LoHa, Tucker": lambda: LoHaConfig(**SHARED, alpha=5, init_weights=False, use_effective_conv2d=True),
    "LoKr": lambda: LoKrConfig(**SHARED, alpha=5, init_weights=False, decompose_factor=4),
    "LoKr, Tucker": lambda: LoKrConfig(
        **SHARED, alpha=5, init_weights=False, use_effective_conv2d=True, decompose_factor=2
    ),
    "LoKr, both low-rank": lambda: LoKrConfig(**{**SHARED, "r": 1}, alpha=5, init_weights=False, decompose_both=True),
    "LoKr, both whole": lambda: LoKrConfig(**{**SHARED, "r": 64}, alpha=5, init_weights=False),
    "DoRA": lambda: LoraConfig(**SHARED, lora_alpha=5, init_lora_weights=False, use_dora=True),
}


@pytest.fixture
def network(checkpoint: Path) -> nn.Module:
    from diffusers import UNet2DConditionModel

    loaded: nn.Module = UNet2DConditionModel.from_pretrained(checkpoint / "unet")
    return loaded


def plain_weights(network: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in network.state_dict().items() if name.endswith(".weight")}


@torch.no_grad()
def with_adapter(config: PeftConfig, network: nn.Module) -> nn.Module:
    """Add the adapter `style` with random parameters."""
    changed: nn.Module = inject_adapter_in_model(config, network, adapter_name="style")
    generator = torch.Generator().manual_seed(3)
    for name, parameter in changed.named_parameters():
        if "magnitude" in name:
            parameter.mul_(torch.rand(parameter.shape, generator=generator) + 0.5)
        elif "style" in name:
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.4)
    return changed


@torch.no_grad()
def merged_weights(network: nn.Module, strength: float) -> dict[str, Tensor]:
    """Return the weights of PEFT's layers after their merge at a strength."""
    merged = {}
    for name, layer in network.named_modules():
        if hasattr(layer, "base_layer"):
            layer.set_scale("style", strength)  # type: ignore[operator]
            layer.merge()  # type: ignore[operator]
            merged[f"{name}.weight"] = layer.base_layer.weight.detach()  # type: ignore[union-attr]
    return merged


def patched_weights(model: DiffusionModel, adapters: AdapterSet) -> dict[str, Tensor]:
    patch = WeightPatch(model.denoiser, "unet")
    before = plain_weights(model.denoiser)
    patch.hold(adapters)
    after = plain_weights(model.denoiser)
    patch.hold(())
    restored = plain_weights(model.denoiser)
    assert all(torch.equal(restored[name], before[name]) for name in before)
    return {name: value for name, value in after.items() if not torch.equal(value, before[name])}


@pytest.mark.parametrize("named", [False, True], ids=["saved", "named"])
@pytest.mark.parametrize("form", PEFT)
def test_a_peft_file_makes_the_weights_that_peft_merges(
    form: str, named: bool, model: DiffusionModel, base: BaseLayers, network: nn.Module, tmp_path: Path
) -> None:
    """Keys are as `save_pretrained` writes them, and with the adapter's name, as in the modules."""
    config = PEFT[form]()
    changed = with_adapter(config, network)
    if named:
        state = {name: value for name, value in changed.state_dict().items() if ".style" in name}
    else:
        state = get_peft_model_state_dict(changed, adapter_name="style")
    tensors = {f"base_model.model.{name}": value for name, value in state.items()}
    file = write_tensors(tmp_path / "adapter_model.safetensors", tensors)
    config.save_pretrained(str(tmp_path))

    judge_lora(file.read_bytes(), "file")
    patched = patched_weights(model, (WeightedLora(read_lora(file, base, F32), 0.7),))

    wanted = merged_weights(changed, 0.7)
    assert {len(value.shape) for value in patched.values()} == {2, 4}
    assert patched.keys() == wanted.keys()
    for name, value in patched.items():
        torch.testing.assert_close(value, wanted[name], rtol=1e-5, atol=1e-5, msg=name)


@pytest.mark.parametrize("dora", ["", "out", "in"])
@pytest.mark.parametrize("form", FORMS)
def test_a_lycoris_file_makes_the_weights_of_its_formulas(
    form: str, dora: str, model: DiffusionModel, base: BaseLayers, tmp_path: Path
) -> None:
    written = write_lycoris(tmp_path / "it.safetensors", base, form, ("to_k", "conv2", "conv_shortcut"), dora=dora)
    before = plain_weights(model.denoiser)

    judge_lora(written.path.read_bytes(), "file")
    patched = patched_weights(model, (WeightedLora(read_lora(written.path, base, F32), 0.6),))

    assert patched.keys() == {f"{name}.weight" for name in written.layers}
    for name, layer in written.layers.items():
        wanted = layer.merged(before[f"{name}.weight"], 0.6).float()
        torch.testing.assert_close(patched[f"{name}.weight"], wanted, rtol=1e-5, atol=1e-5, msg=name)


def test_a_tucker_core_is_a_convolution_between_two(model: DiffusionModel, base: BaseLayers) -> None:
    """LyCORIS trains a 1x1 convolution, the core, and a 1x1 convolution."""
    from torch.nn.functional import conv2d

    layer = LycorisMaker(seed=1).layer("tucker", (6, 4, 3, 3))
    pixels = torch.randn(1, 4, 8, 8)
    down, mid, up = (layer.tensors[f"lora_{part}.weight"] for part in ("down", "mid", "up"))

    trained = 1.5 * conv2d(conv2d(conv2d(pixels, down), mid, padding=1), up)

    torch.testing.assert_close(conv2d(pixels, layer.change.float(), padding=1), trained)


def test_several_doras_change_the_same_weight_each(model: DiffusionModel, base: BaseLayers, tmp_path: Path) -> None:
    """The order and a LoRA next to them do not matter: PEFT's layers compute each from the original weight."""
    first = write_lycoris(tmp_path / "a.safetensors", base, "lora", ("to_q",), seed=1, dora="out")
    second = write_lycoris(tmp_path / "b.safetensors", base, "loha", ("to_q",), seed=2, dora="out")
    plain = made_lora(base, 3, ends=("to_q",), components=["unet"])
    loras = [WeightedLora(read_lora(one.path, base, F32), weight) for one, weight in ((first, 0.5), (second, -0.8))]
    before = plain_weights(model.denoiser)

    one_way = patched_weights(model, (loras[0], WeightedLora(plain), loras[1]))
    other_way = patched_weights(model, (WeightedLora(plain), loras[1], loras[0]))

    for name, layer in first.layers.items():
        weight, factors = before[f"{name}.weight"], plain.components["unet"][name]
        changes = [layer.merged(weight, 0.5) - weight, second.layers[name].merged(weight, -0.8) - weight]
        wanted = weight + sum(changes) + factors.scale * factors.matrix(lambda tensor: tensor)  # type: ignore[union-attr]
        for patched in (one_way, other_way):
            torch.testing.assert_close(patched[f"{name}.weight"].double(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", ["loha", "lokr"])
@torch.inference_mode()
def test_text_encoders_run_with_every_form(form: str, model: DiffusionModel, base: BaseLayers, tmp_path: Path) -> None:
    encoder: Any = model.adaptable["text_encoder"]
    written = write_lycoris(
        tmp_path / "it.safetensors", base, form, ("fc1",), component="text_encoder", prefix="lora_te1_", dora="out"
    )
    lora = read_lora(written.path, base, F32)
    name, layer = next(iter(written.layers.items()))
    module = encoder.get_submodule(name)
    inputs = torch.randn(3, module.in_features)

    with patched_copies(encoder, "text_encoder", (WeightedLora(lora, 0.5),)):
        changed = module(inputs)

    wanted = nn.functional.linear(inputs, layer.merged(module.weight, 0.5).float(), module.bias)
    torch.testing.assert_close(changed, wanted)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float16], ids=str)
def test_forms_are_read_from_short_numbers(
    dtype: torch.dtype, model: DiffusionModel, base: BaseLayers, tmp_path: Path
) -> None:
    written = write_lycoris(tmp_path / "it.safetensors", base, "lokr", ("to_k",))
    name, layer = next(iter(written.layers.items()))
    tensors = {end: tensor.to(dtype) for end, tensor in layer.tensors.items()}
    stem = f"lycoris_{name.replace('.', '_')}"
    file = write_tensors(tmp_path / "short.safetensors", {f"{stem}.{end}": one for end, one in tensors.items()})

    patched = patched_weights(model, (WeightedLora(read_lora(file, base, F32)),))[f"{name}.weight"]

    first, left, right = (tensors[end].double() for end in ("lokr_w1", "lokr_w2_a", "lokr_w2_b"))
    wanted = model.denoiser.get_submodule(name).weight.double() + 1.5 * torch.kron(first, left @ right)
    torch.testing.assert_close(patched.double(), wanted, rtol=1e-5, atol=1e-5)


def test_a_row_of_zeros_with_a_magnitude_stays_zero() -> None:
    factors = LowRankFactors(torch.zeros(1, 4), torch.zeros(3, 1), 1.0)

    change = difference(DecomposedFactors(factors, torch.ones(3, 1)), 1.0, torch.zeros(3, 4), lambda tensor: tensor)

    assert torch.equal(change, torch.zeros(3, 4))
