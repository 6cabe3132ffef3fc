"""One LoRA in three formats is the same to stock loaders, and acts at its weight from its step."""

from pathlib import Path

import pytest
import torch
from diffusers import StableDiffusionPipeline, UNet2DConditionModel
from peft import PeftModel
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import CLIPTextModel, CLIPTokenizer

from zoo.drawing.tokenizer import MAX_TOKENS, build_tokenizer
from zoo.export.lora import write_kohya, write_lora, write_peft
from zoo.painting.lora import StyledImages, add_style, generate_styled, latent_cosines
from zoo.train.autoencoder import LATENT_CHANNELS, make_autoencoder
from zoo.train.denoiser import LATENT_SIZE, make_heavy, make_scheduler
from zoo.train.dual_encoder import WIDTH, make_dual_encoder
from zoo.train.lora import ALPHA, RANK, StyledUNet
from zoo.train.style_judge import CLASSES, StyleClassifier, style_scores

pytestmark = pytest.mark.training

STEPS = 3


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> CLIPTokenizer:
    return build_tokenizer(tmp_path_factory.mktemp("tokenizer"), count=200, merges=50)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write one LoRA of random weights in every format."""
    where = tmp_path_factory.mktemp("lora")
    styled = StyledUNet(base())
    scramble(styled)
    write_lora(styled, where)
    write_kohya(styled, where / "kohya" / "lora.safetensors")
    write_peft(styled, where / "peft")
    return where


@pytest.fixture
def pipeline(tokenizer: CLIPTokenizer) -> StableDiffusionPipeline:
    made = StableDiffusionPipeline(
        vae=make_autoencoder(),
        text_encoder=CLIPTextModel(make_dual_encoder(tokenizer).config.text_config),
        tokenizer=tokenizer,
        unet=base(),
        scheduler=make_scheduler(),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    made.set_progress_bar_config(disable=True)
    return made


def base() -> UNet2DConditionModel:
    """Return the heavy model before training, with the same weights each time."""
    torch.manual_seed(5)
    return make_heavy().eval()


def scramble(styled: StyledUNet) -> None:
    """Randomise both halves of a LoRA: the initial second half is zero."""
    generator = torch.Generator().manual_seed(6)
    with torch.no_grad():
        for parameter in styled.parameters():
            if parameter.requires_grad:
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))


@torch.no_grad()
def found(unet: nn.Module) -> Tensor:
    generator = torch.Generator().manual_seed(7)
    noisy = torch.randn((2, LATENT_CHANNELS, LATENT_SIZE, LATENT_SIZE), generator=generator)
    states = torch.randn((2, MAX_TOKENS, WIDTH), generator=generator)
    return unet(noisy, torch.tensor([300, 700]), states, return_dict=False)[0]


@torch.no_grad()
def patched(folder: Path) -> UNet2DConditionModel:
    """Return the base plus alpha / rank times the product of the file's halves, without a loader."""
    unet = base()
    tensors = load_file(folder / "pytorch_lora_weights.safetensors")
    for name in [name for name in tensors if name.endswith("lora_A.weight")]:
        down, up = tensors[name].float(), tensors[name.replace("lora_A", "lora_B")].float()
        weight = unet.get_submodule(name.removeprefix("unet.").removesuffix(".lora_A.weight")).weight
        weight += ALPHA / RANK * (up.flatten(1) @ down.flatten(1)).view_as(weight)
    return unet


def test_stock_loaders_of_three_formats_agree(folder: Path, pipeline: StableDiffusionPipeline) -> None:
    plain, expected = found(base()), found(patched(folder))

    pipeline.load_lora_weights(folder, adapter_name="diffusers", weight_name="pytorch_lora_weights.safetensors")
    by_diffusers = found(pipeline.unet)
    pipeline.unload_lora_weights()
    pipeline.load_lora_weights(folder / "kohya", adapter_name="kohya", weight_name="lora.safetensors")
    by_kohya = found(pipeline.unet)
    by_peft = found(PeftModel.from_pretrained(base(), folder / "peft").eval())

    assert (expected - plain).abs().max() > 0.1
    for one in (by_diffusers, by_kohya, by_peft):
        assert (one - expected).abs().max() < 1e-5


def test_weight_zero_leaves_base_unchanged(folder: Path, pipeline: StableDiffusionPipeline) -> None:
    add_style(pipeline, folder, "neon")

    pipeline.set_adapters("neon", 0.0)

    assert torch.equal(found(pipeline.unet), found(base()))


def test_an_exported_lora_is_small_and_nothing_but_halves(folder: Path) -> None:
    path = folder / "pytorch_lora_weights.safetensors"

    tensors = load_file(path)

    assert path.stat().st_size <= 250_000
    assert {value.dtype for value in tensors.values()} == {torch.float16}
    assert all(name.endswith((".lora_A.weight", ".lora_B.weight")) for name in tensors)


def test_export_twice_gives_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    styled = StyledUNet(base())
    scramble(styled)

    write_lora(styled, tmp_path)
    write_peft(styled, tmp_path / "peft")

    for name in ("pytorch_lora_weights.safetensors", "peft/adapter_config.json", "peft/adapter_model.safetensors"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes(), name


def test_only_the_lora_trains_and_is_kept() -> None:
    styled = StyledUNet(base())

    trained = {name for name, parameter in styled.named_parameters() if parameter.requires_grad}

    assert all(".lora_" in name for name in styled.state_dict())
    assert len(trained) == len(styled.state_dict())


def test_a_lora_of_other_modules_is_refused() -> None:
    styled = StyledUNet(base())
    state = styled.state_dict()
    name, value = state.popitem()

    with pytest.raises(RuntimeError, match=r"missing .*lora_"):
        styled.load_state_dict(state | {f"another.{name}": value})


def generated(pipeline: StableDiffusionPipeline, **options: float) -> StyledImages:
    return generate_styled(pipeline, "neon", ["a red circle", "a blue ring"], [1, 2], STEPS, 2.0, **options)  # type: ignore[arg-type]


def test_a_style_takes_effect_after_the_steps_without_it(folder: Path, pipeline: StableDiffusionPipeline) -> None:
    add_style(pipeline, folder, "neon")

    always, late, never = (generated(pipeline, steps_without=steps) for steps in (0, 1, STEPS))
    nothing = generated(pipeline, weight=0.0)

    assert always.pixels.shape == (2, 3, 64, 64)
    assert torch.equal(never.latents, nothing.latents)
    assert torch.equal(late.latents[0], never.latents[0])
    assert not torch.equal(late.latents[1], never.latents[1])
    cosines = latent_cosines(late.latents, never.latents)
    assert cosines.shape == (STEPS, 2)
    assert cosines[0].min() > 1.0 - 1e-5
    assert cosines[1:].max() < cosines[0].min()


def test_style_scores_are_probabilities_of_every_class() -> None:
    pixels = torch.zeros((3, 3, 64, 64))

    scores = style_scores(StyleClassifier().eval(), pixels)

    assert scores.shape == (3, len(CLASSES))
    assert scores.sum(dim=1) == pytest.approx(torch.ones(3))
