"""ControlNets change nothing before they have learnt, never change the heavy denoiser, and load in stock diffusers."""

import json
from pathlib import Path

import pytest
import torch
from diffusers import ControlNetModel, StableDiffusionControlNetPipeline, StableDiffusionPipeline
from safetensors.torch import load_file
from torch import Tensor
from transformers import CLIPTextModel

from zoo.drawing.scenes import IMAGE_SIZE
from zoo.drawing.tokenizer import MAX_TOKENS, build_tokenizer
from zoo.export.controlnet import export_controlnet
from zoo.export.directories import save_diffusers_model
from zoo.painting.controlnet import add_control, adjacent_cosines, generate_controlled, recorded_residuals
from zoo.painting.pipeline import generate, load_pipeline
from zoo.train import controlnet
from zoo.train.autoencoder import LATENT_CHANNELS, make_autoencoder
from zoo.train.controlnet import ControlNetPart, EdgesPart, LayoutPart, copy_encoder, make_controlnet
from zoo.train.denoiser import LATENT_SIZE, DenoiserPart, EncodedDrawings, make_heavy, make_scheduler
from zoo.train.dual_encoder import WIDTH, make_dual_encoder
from zoo.train.finder import Finder, find_things
from zoo.train.loop import TrainingPlan, TrainingRun

pytestmark = pytest.mark.training

COUNT, BATCH, STEPS = 12, 4, 2
PROMPTS, SEEDS = ["a red circle", "a blue star", "a ring"], [1, 2, 3]


@pytest.fixture(scope="module")
def heavy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a heavy pipeline with random weights."""
    folder = tmp_path_factory.mktemp("heavy")
    tokenizer = build_tokenizer(folder / "tokenizer-of-its-own", count=200, merges=50)
    torch.manual_seed(0)
    StableDiffusionPipeline(
        vae=make_autoencoder(),
        text_encoder=CLIPTextModel(make_dual_encoder(tokenizer).config.text_config),
        tokenizer=tokenizer,
        unet=make_heavy(),
        scheduler=make_scheduler(),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    ).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def untrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("controlnet")
    save_diffusers_model(make_controlnet(make_heavy()), folder)
    return folder


@pytest.fixture(scope="module")
def plain(heavy: Path) -> StableDiffusionPipeline:
    return load_pipeline(heavy)


@pytest.fixture(scope="module")
def controlled(plain: StableDiffusionPipeline, untrained: Path) -> StableDiffusionControlNetPipeline:
    """Return a pipeline with a ControlNet of random weights, all nonzero."""
    pipeline = add_control(plain, untrained)
    torch.manual_seed(6)
    with torch.no_grad():
        for parameter in pipeline.controlnet.parameters():
            parameter.normal_(std=0.2)
    return pipeline


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a work folder of drawings; the heavy denoiser and its training data are random."""
    noise = torch.Generator().manual_seed(0)
    encoded = EncodedDrawings(
        torch.randn(COUNT, LATENT_CHANNELS, LATENT_SIZE, LATENT_SIZE, generator=noise),
        torch.ones(COUNT, 1, LATENT_SIZE, LATENT_SIZE),
        torch.randn(COUNT, MAX_TOKENS, WIDTH, generator=noise),
        torch.zeros(1, MAX_TOKENS, WIDTH),
    )
    monkeypatch.setattr(controlnet, "encode_drawings", lambda work, count: encoded)
    monkeypatch.setattr(controlnet, "load_trained", lambda module, folder: module.eval().requires_grad_(False))
    build_tokenizer(tmp_path / "tokenizer", count=50, merges=5)
    return tmp_path


def random_conditions() -> Tensor:
    return (torch.rand((3, 1, IMAGE_SIZE, IMAGE_SIZE), generator=torch.Generator().manual_seed(5)) < 0.1).float()


def test_controlnet_is_small_and_begins_as_copy_of_encoder() -> None:
    unet = make_heavy()
    controlnet = make_controlnet(unet)

    copy_encoder(unet, controlnet)

    own, theirs = controlnet.state_dict(), unet.state_dict()
    copied = [name for name in own if name in theirs and torch.equal(own[name], theirs[name])]
    assert sum(parameter.numel() for parameter in controlnet.parameters()) <= 750_000
    assert {"conv_in.weight", "time_embedding.linear_1.weight"} <= set(copied)
    assert {name for name in own if ".resnets." in name} <= set(copied)


@pytest.mark.parametrize("make_part", [EdgesPart, LayoutPart])
def test_before_it_has_learnt_the_loss_is_the_heavy_denoisers_own(make_part: type[ControlNetPart], work: Path) -> None:
    part = make_part(work, count=COUNT, batch=BATCH)
    alone = DenoiserPart(part.unet, part.encoded, BATCH)
    alone.caption_dropout = part.caption_dropout

    losses = [float(one.loss(torch.Generator().manual_seed(3))[0].detach()) for one in (part, alone)]

    assert losses[0] == losses[1]


@pytest.mark.parametrize("make_part", [EdgesPart, LayoutPart])
def test_training_moves_the_controlnet_and_never_the_heavy_denoiser(
    make_part: type[ControlNetPart], work: Path
) -> None:
    part = make_part(work, count=COUNT, batch=BATCH)
    before = {name: value.clone() for name, value in part.unet.state_dict().items()}

    TrainingRun(part, TrainingPlan(steps=3, peak_rate=1e-2, warmup=1), work / part.name).train()

    assert all(torch.equal(before[name], value) for name, value in part.unet.state_dict().items())
    assert all(parameter.grad is None for parameter in part.unet.parameters())
    assert part.module.controlnet_mid_block.weight.abs().max() > 0
    assert part.module.controlnet_cond_embedding.conv_out.weight.abs().max() > 0


def test_conditions_of_batch_follow_its_drawings(work: Path) -> None:
    sketched, placed = EdgesPart(work, count=COUNT, batch=BATCH), LayoutPart(work, count=COUNT, batch=BATCH)
    rows = torch.tensor([7, 2])

    outline, places = sketched.conditions(rows), placed.conditions(rows)

    assert outline.shape == places.shape == (2, 1, IMAGE_SIZE, IMAGE_SIZE)
    assert torch.equal(outline[1:], sketched.conditions(torch.tensor([2])))
    drawings = controlnet.cached_drawings(work, controlnet.TRAIN_SEED, COUNT, None)  # type: ignore[arg-type]
    covered = drawings.coverage[rows] > 127
    assert (covered & (places[:, 0] > 0)).sum() > 0.9 * covered.sum()


def test_an_exported_controlnet_is_halves_that_load_whole(work: Path, tmp_path: Path) -> None:
    part = LayoutPart(work, count=COUNT, batch=BATCH)
    TrainingRun(part, TrainingPlan(steps=1, peak_rate=1e-3), work / part.name).train()

    export_controlnet(work, part.name, tmp_path / "exported")

    stored = load_file(tmp_path / "exported" / "diffusion_pytorch_model.safetensors")
    loaded = ControlNetModel.from_pretrained(tmp_path / "exported").state_dict()
    config = json.loads((tmp_path / "exported" / "config.json").read_text(encoding="utf-8"))
    assert {path.name for path in (tmp_path / "exported").iterdir()} == {
        "config.json",
        "diffusion_pytorch_model.safetensors",
    }
    assert config["_class_name"] == "ControlNetModel"
    assert {tensor.dtype for tensor in stored.values()} == {torch.float16}
    assert stored.keys() == loaded.keys()
    assert all(torch.equal(stored[name].float(), loaded[name]) for name in stored)


def test_untrained_controlnet_does_not_change_image_of_stock_pipeline(
    heavy: Path, untrained: Path, plain: StableDiffusionPipeline
) -> None:
    controlnet = ControlNetModel.from_pretrained(untrained)
    stock = StableDiffusionControlNetPipeline.from_pretrained(heavy, controlnet=controlnet)

    found = generate_controlled(stock, PROMPTS, SEEDS, random_conditions(), STEPS, 3.0)

    assert found.shape == (3, 3, IMAGE_SIZE, IMAGE_SIZE)
    assert torch.equal(found, generate(plain, PROMPTS, SEEDS, STEPS, 3.0))


def test_images_of_several_batches_follow_their_conditions(
    controlled: StableDiffusionControlNetPipeline,
) -> None:
    whole = generate_controlled(controlled, PROMPTS, SEEDS, random_conditions(), STEPS, 3.0)
    parts = generate_controlled(controlled, PROMPTS, SEEDS, random_conditions(), STEPS, 3.0, batch=2)
    swapped = generate_controlled(controlled, PROMPTS, SEEDS, random_conditions().flip(0), STEPS, 3.0)

    torch.testing.assert_close(parts, whole, atol=1e-3, rtol=0.0)
    torch.testing.assert_close(swapped[1], whole[1], atol=1e-3, rtol=0.0)
    assert (swapped[0] - whole[0]).abs().max() > 1e-2


def test_a_scale_of_zero_is_no_control(
    plain: StableDiffusionPipeline, controlled: StableDiffusionControlNetPipeline
) -> None:
    found = generate_controlled(controlled, PROMPTS, SEEDS, random_conditions(), STEPS, 3.0, control_scale=0.0)

    assert torch.equal(found, generate(plain, PROMPTS, SEEDS, STEPS, 3.0))


def test_residuals_are_recorded_for_every_step_inside_context(
    controlled: StableDiffusionControlNetPipeline,
) -> None:
    with recorded_residuals(controlled.controlnet) as residuals:
        generate_controlled(controlled, PROMPTS, SEEDS, random_conditions(), 3, 3.0)
    generate_controlled(controlled, PROMPTS, SEEDS, random_conditions(), 1, 3.0)

    assert len(residuals) == 3
    assert all(one.shape == residuals[0].shape and len(one) == 2 * len(PROMPTS) for one in residuals)
    assert adjacent_cosines(residuals).shape == (2, 6)
    assert adjacent_cosines([residuals[0], residuals[0]]).numpy() == pytest.approx(1.0, abs=1e-5)


def test_finder_scores_every_pixel_of_every_image() -> None:
    found = find_things(Finder(), torch.rand(5, 3, IMAGE_SIZE, IMAGE_SIZE), batch=2)

    assert found.shape == (5, IMAGE_SIZE, IMAGE_SIZE)
    assert found.min() >= 0.0
    assert found.max() <= 1.0
