"""Names of PEFT, LyCORIS, ComfyUI and kohya's trainer for SD3, against the layers that diffusers' converter finds."""

from pathlib import Path

import pytest
import torch
from diffusers.loaders.single_file_utils import (
    convert_flux2_transformer_checkpoint_to_diffusers,
    convert_flux_transformer_checkpoint_to_diffusers,
    convert_sd3_transformer_checkpoint_to_diffusers,
)
from torch import Tensor

from lab.fixtures.checkpoints import write_flow_checkpoint
from lab.fixtures.lora_files import random_factors, write_original_lora, write_tensors
from lab.fixtures.lycoris_files import LycorisMaker
from pentimento.diffusion.families import DiffusionModel, load_model
from pentimento.diffusion.loras import BadLora, BaseLayers, WeightedLora, layers_of, read_lora
from pentimento.diffusion.loras.key_names import original_names
from pentimento.diffusion.loras.patching import WeightPatch
from pentimento.diffusion.prompts import PromptMemo
from tests.unit.diffusion.loras.made_loras import LAYER, pair
from tests.unit.diffusion.loras.test_reading import assert_same_deltas, deltas, product
from tests.unit.diffusion.specs import load

F32 = torch.float32
QKV = "joint_blocks.0.x_block.attn.qkv"


@pytest.mark.parametrize("prefix", ["lora_unet_", "diffusion_model."])
def test_names_of_sd3s_release_are_the_layers_of_diffusers_converter(
    prefix: str, flow_base: BaseLayers, flow_model: DiffusionModel, tmp_path: Path
) -> None:
    file, weights = write_original_lora(tmp_path / "it.safetensors", flow_base, prefix)
    weights |= {"pos_embed": torch.zeros(1)}

    converted = convert_sd3_transformer_checkpoint_to_diffusers(with_norms(weights, flow_model))

    names = flow_base.shapes["transformer"]
    wanted = {f"transformer.{name}": converted[f"{name}.weight"].flatten(1) for name in names}
    assert_same_deltas(deltas(read_lora(file, flow_base, F32)), wanted)


def test_names_of_fluxs_release_are_the_layers_of_diffusers_converter(tmp_path: Path) -> None:
    """Layers have the real width, which the converter assumes, four inputs each, and a block of each kind."""
    embedders = [f"time_text_embed.{one}_embedder" for one in ("timestep", "text", "guidance")]
    modules = {
        "x_embedder": 3072,
        "context_embedder": 3072,
        **{f"{embedder}.linear_{number}": 3072 for embedder in embedders for number in (1, 2)},
        "norm_out.linear": 8,
        "proj_out": 64,
        **{f"transformer_blocks.0.attn.{one}": 3072 for one in ("to_q", "to_k", "to_v", "to_out.0", "to_add_out")},
        **{f"transformer_blocks.0.attn.add_{one}_proj": 3072 for one in "qkv"},
        **{f"transformer_blocks.0.{one}.linear": 18432 for one in ("norm1", "norm1_context")},
        **{f"transformer_blocks.0.{one}.net.0.proj": 12288 for one in ("ff", "ff_context")},
        **{f"transformer_blocks.0.{one}.net.2": 3072 for one in ("ff", "ff_context")},
        **{f"single_transformer_blocks.0.attn.to_{one}": 3072 for one in "qkv"},
        "single_transformer_blocks.0.proj_mlp": 12288,
        "single_transformer_blocks.0.proj_out": 3072,
        "single_transformer_blocks.0.norm.linear": 9216,
    }
    base = BaseLayers("flux", "transformer", {"transformer": {name: (rows, 4) for name, rows in modules.items()}})
    file, weights = write_original_lora(tmp_path / "it.safetensors", base, "lora_unet_")
    for block, norms in (("double_blocks.0.img_attn", 2), ("double_blocks.0.txt_attn", 2), ("single_blocks.0", 2)):
        weights |= {f"{block}.norm.{one}_norm.scale": torch.ones(norms) for one in ("query", "key")}

    converted = convert_flux_transformer_checkpoint_to_diffusers(weights)

    wanted = {f"transformer.{name}": converted[f"{name}.weight"] for name in modules}
    assert_same_deltas(deltas(read_lora(file, base, F32)), wanted)


@pytest.mark.parametrize("prefix", ["lora_unet_", "diffusion_model."])
def test_names_of_flux_2s_release_are_the_layers_of_diffusers_converter(
    prefix: str, klein_checkpoint: Path, tmp_path: Path
) -> None:
    model = load(klein_checkpoint)
    base = layers_of(model.info.family, model.adaptable)
    file, weights = write_original_lora(tmp_path / "it.safetensors", base, prefix)

    converted = convert_flux2_transformer_checkpoint_to_diffusers(weights)

    wanted = {f"transformer.{name}": converted[f"{name}.weight"] for name in base.shapes["transformer"]}
    assert_same_deltas(deltas(read_lora(file, base, F32)), wanted)


def with_norms(weights: dict[str, Tensor], model: DiffusionModel) -> dict[str, Tensor]:
    """Add the norms of queries and keys, which the converter expects if the network has them."""
    norms = [name for name, _ in model.denoiser.named_parameters() if ".norm_q." in name]
    for name in norms:
        block, attention = name.split(".")[1], name.split(".")[2]
        for side in ("x", "context") if attention == "attn" else ("x",):
            weights |= {f"joint_blocks.{block}.{side}_block.{attention}.ln_{one}.weight": torch.ones(1) for one in "qk"}
    return weights


@pytest.mark.parametrize("form", ["lora", "loha", "lokr"])
def test_a_layer_that_is_three_here_changes_each_by_its_rows(
    form: str, flow_base: BaseLayers, flow_model: DiffusionModel, tmp_path: Path
) -> None:
    modules = [f"transformer_blocks.0.attn.{name}" for name in ("to_q", "to_k", "to_v")]
    before = torch.cat([flow_model.denoiser.get_submodule(name).weight.detach() for name in modules])
    layer = LycorisMaker(seed=1, dora="out").layer(form, tuple(before.shape))
    file = write_tensors(
        tmp_path / "it.safetensors", {f"diffusion_model.{QKV}.{end}": one for end, one in layer.tensors.items()}
    )
    patch = WeightPatch(flow_model.denoiser, "transformer")

    patch.hold((WeightedLora(read_lora(file, flow_base, F32), 0.5),))
    after = torch.cat([flow_model.denoiser.get_submodule(name).weight.detach() for name in modules])
    patch.hold(())

    torch.testing.assert_close(after, layer.merged(before, 0.5).float(), rtol=1e-5, atol=1e-5)


def test_a_module_is_changed_once_and_norms_by_input_are_of_whole_layers(flow_base: BaseLayers, tmp_path: Path) -> None:
    width = flow_base.shapes["transformer"]["transformer_blocks.0.attn.to_q"][1]
    whole = {f"diffusion_model.{QKV}.lora_up.weight": torch.ones(3 * width, 1)}
    whole |= {f"diffusion_model.{QKV}.lora_down.weight": torch.ones(1, width)}
    one = {"transformer.transformer_blocks.0.attn.to_k.lora_A.weight": torch.ones(1, width)}
    one |= {"transformer.transformer_blocks.0.attn.to_k.lora_B.weight": torch.ones(width, 1)}
    twice = write_tensors(tmp_path / "twice.safetensors", {**whole, **one})
    by_input = {**whole, f"diffusion_model.{QKV}.dora_scale": torch.ones(1, width)}
    decomposed = write_tensors(tmp_path / "decomposed.safetensors", by_input)

    with pytest.raises(BadLora, match=r"holds two changes of transformer.transformer_blocks.0.attn.to_k"):
        read_lora(twice, flow_base, F32)
    with pytest.raises(BadLora, match="a DoRA by inputs of a layer that is several here is not read") as refused:
        read_lora(decomposed, flow_base, F32)
    assert refused.value.reason == "UNSUPPORTED_LORA"


@pytest.mark.parametrize(
    "stem",
    [
        f"diffusion_model.{LAYER}",
        f"model.diffusion_model.{LAYER}",
        f"diffusion_model.{original_names([LAYER])[LAYER]}",
        f"lycoris_{LAYER.replace('.', '_')}",
    ],
)
def test_stems_of_other_programs_name_the_denoisers_layers(stem: str, base: BaseLayers, tmp_path: Path) -> None:
    halves = dict(zip(("lora_down", "lora_up"), pair(base).values(), strict=True))
    file = write_tensors(tmp_path / "it.safetensors", {f"{stem}.{half}.weight": one for half, one in halves.items()})

    read = deltas(read_lora(file, base, F32))

    assert_same_deltas(read, {f"unet.{LAYER}": product(random_factors(base), "unet", LAYER)})


def test_text_encoders_of_comfyui_map_to_pipeline(xl_base: BaseLayers, tmp_path: Path) -> None:
    components = {"clip_l": "text_encoder", "clip_g": "text_encoder_2"}
    factors = random_factors(xl_base, ends=("fc1",), components=list(components.values()))
    tensors = {}
    for program, component in components.items():
        for module, (down, up) in factors[component].items():
            stem = f"text_encoders.{program}.transformer.text_model.{module.removeprefix('text_model.')}"
            tensors |= {f"{stem}.lora_down.weight": down, f"{stem}.lora_up.weight": up}

    read = deltas(read_lora(write_tensors(tmp_path / "it.safetensors", tensors), xl_base, F32))

    wanted = {f"{part}.{name}": product(factors, part, name) for part in factors for name in factors[part]}
    assert_same_deltas(read, wanted)


@torch.inference_mode()
def test_kohyas_third_text_encoder_is_t5(tmp_path: Path) -> None:
    model = load_model(write_flow_checkpoint(tmp_path / "model", t5=True), torch.device("cpu"), F32)
    base = layers_of(model.info.family, model.adaptable)
    encoder = model.adaptable["text_encoder_3"]
    name = next(name for name in base.shapes["text_encoder_3"] if name.endswith("SelfAttention.q"))
    layer = LycorisMaker(seed=1).layer("loha", base.shapes["text_encoder_3"][name])
    stem = f"lora_te3_{name.replace('.', '_')}"
    file = write_tensors(tmp_path / "it.safetensors", {f"{stem}.{end}": one for end, one in layer.tensors.items()})

    adapters = (WeightedLora(read_lora(file, base, F32), 0.5),)
    changed = PromptMemo(model).encode("a red circle", adapters=adapters).conditioning.states
    plain = model.encode_prompt("a red circle").conditioning.states
    weight = encoder.get_submodule(name).weight
    weight.copy_(layer.merged(weight, 0.5))
    wanted = model.encode_prompt("a red circle").conditioning.states

    torch.testing.assert_close(changed, wanted)
    assert not torch.equal(changed, plain)
