"""Train the flow-matching transformer from the stock pipeline, and generate in that pipeline."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from diffusers import StableDiffusion3Pipeline
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import CLIPTextModelWithProjection

from zoo.drawing.captions import natural_caption
from zoo.drawing.dataset import TRAIN_SEED
from zoo.drawing.scenes import IMAGE_SIZE, scene_at
from zoo.drawing.tokenizer import build_tokenizer
from zoo.export.flow import export_flow
from zoo.painting.flow import generate_flow, load_flow_pipeline
from zoo.train.autoencoder import LATENT_CHANNELS
from zoo.train.denoiser import LATENT_SIZE
from zoo.train.dual_encoder import PROJECTION, WIDTH
from zoo.train.flow import (
    ENCODERS,
    MAX_PADDING,
    FlowPart,
    LastTokenRepeated,
    encode_captions,
    make_flow,
    moments,
    padding,
)
from zoo.train.flow_distilled import FlowDistilledPart
from zoo.train.loop import Part, TrainingPlan, TrainingRun
from zoo.train.parts import part_and_plan

pytestmark = pytest.mark.training

COUNT, BATCH = 48, 4


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("zoo-work")
    build_tokenizer(folder / "tokenizer", count=200, merges=50)
    for name in ("autoencoder", "dual-encoder", "heavy", "flow", "flow-distilled", "flow-refined"):
        make_part, _ = part_and_plan(name)
        TrainingRun(
            make_part(folder, count=COUNT, batch=BATCH), TrainingPlan(steps=2, peak_rate=1e-3), folder / name
        ).train()
    return folder


@pytest.fixture(scope="module")
def folder(work: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("zoo-weights") / "tiny-flow"
    export_flow(work, where)
    return where


@pytest.fixture(scope="module")
def pipeline(folder: Path) -> StableDiffusion3Pipeline:
    return load_flow_pipeline(folder)


def test_the_loss_of_a_batch_falls_while_it_is_learnt(
    work: Path, losses_of_one_batch: Callable[[Part], list[float]]
) -> None:
    part = FlowPart(work, count=COUNT, batch=BATCH)

    losses = losses_of_one_batch(part)

    assert losses[-1] < 0.9 * losses[0]


class KnowingTeacher(nn.Module):
    """Return the v-prediction of images with known drawing and noise: v = signal noise - spread drawing."""

    def __init__(self, signal: Tensor, spread: Tensor) -> None:
        super().__init__()
        self.signal, self.spread = signal, spread
        self.clean = self.noise = torch.empty(0)

    def forward(self, point: Tensor, timesteps: Tensor, states: Tensor, return_dict: bool) -> tuple[Tensor]:
        signal, spread = (part[timesteps][:, None, None, None] for part in (self.signal, self.spread))
        torch.testing.assert_close(point, signal * self.clean + spread * self.noise)
        return (signal * self.noise - spread * self.clean,)


def test_prediction_of_teacher_becomes_velocity_of_flow(work: Path) -> None:
    part = FlowDistilledPart(work, count=COUNT, batch=BATCH)
    part.teacher = teacher = KnowingTeacher(part.signal, part.spread)
    timesteps = torch.tensor([0, 300, 700, 998])
    teacher.clean, teacher.noise = torch.randn(2, 4, LATENT_CHANNELS, LATENT_SIZE, LATENT_SIZE)
    noisy = torch.lerp(teacher.clean, teacher.noise, part.times[timesteps][:, None, None, None])

    velocity = part._velocity(noisy, timesteps, part.states[:4])

    torch.testing.assert_close(velocity, teacher.noise - teacher.clean, rtol=1e-4, atol=1e-4)


def test_distilling_starts_from_the_flow_trained_on_drawings_and_changes_it(
    work: Path, losses_of_one_batch: Callable[[Part], list[float]]
) -> None:
    part = FlowDistilledPart(work, count=COUNT, batch=BATCH)

    losses = losses_of_one_batch(part)

    assert losses[-1] < losses[0]
    assert not any(parameter.requires_grad for parameter in part.teacher.parameters())


@pytest.mark.parametrize("count", [0, 1, 9])
def test_repeated_token_equals_that_many_tokens(count: int) -> None:
    torch.manual_seed(0)
    transformer = make_flow()
    for parameter in transformer.parameters():
        nn.init.normal_(parameter, std=0.1)
    latents = torch.randn(2, LATENT_CHANNELS, LATENT_SIZE, LATENT_SIZE)
    states, pooled = torch.randn(2, 5, ENCODERS * WIDTH), torch.randn(2, ENCODERS * PROJECTION)
    when = torch.tensor([100.0, 900.0])

    with torch.no_grad():
        many = transformer(latents, functional.pad(states, (0, 0, 0, count)), pooled, when).sample
        with LastTokenRepeated(torch.full((2,), float(count))):
            repeated = transformer(latents, functional.pad(states, (0, 0, 0, 1)), pooled, when).sample

    torch.testing.assert_close(repeated, many, rtol=1e-4, atol=1e-4)


def test_moments_rise_within_the_flow_about_its_middle() -> None:
    drawn = moments(64, torch.Generator().manual_seed(0))

    assert bool((drawn.diff() > 0).all())
    assert 0.0 < float(drawn[0]) < 0.15
    assert 0.85 < float(drawn[-1]) < 1.0
    assert float(drawn.mean()) == pytest.approx(0.5, abs=0.01)


def test_half_of_a_batch_sees_no_padding_and_the_rest_up_to_the_most() -> None:
    drawn = padding(2000, torch.Generator().manual_seed(0))

    assert float((drawn == 0).float().mean()) == pytest.approx(0.5, abs=0.05)
    assert 1.0 <= float(drawn[drawn > 0].min()) < 1.1
    assert MAX_PADDING / 2 < float(drawn.max()) <= MAX_PADDING


def test_a_caption_is_trained_on_as_the_stock_pipeline_encodes_it(
    work: Path, pipeline: StableDiffusion3Pipeline
) -> None:
    texts = [natural_caption(*scene_at(TRAIN_SEED, index)).text for index in range(3)]
    expected, empty, pooled, empty_pooled = pipeline.encode_prompt(texts, None, None, max_sequence_length=0)

    captions = encode_captions(work, COUNT)
    states, vectors = captions.batch(torch.arange(3), torch.zeros(3, dtype=torch.bool))
    no_states, no_vectors = captions.batch(torch.arange(3), torch.ones(3, dtype=torch.bool))

    for found, wanted in ((states, expected), (vectors, pooled), (no_states, empty), (no_vectors, empty_pooled)):
        torch.testing.assert_close(found, wanted, rtol=0.02, atol=0.02)


def test_stock_pipeline_loads_directory_and_generates_by_its_defaults(folder: Path) -> None:
    stock = StableDiffusion3Pipeline.from_pretrained(folder, text_encoder_3=None, tokenizer_3=None)
    stock.set_progress_bar_config(disable=True)

    images = stock("a red circle", num_inference_steps=1, output_type="pt").images

    assert stock.transformer.dtype == stock.text_encoder.dtype == torch.float32
    assert images.shape == (1, 3, IMAGE_SIZE, IMAGE_SIZE)
    assert bool(torch.isfinite(images).all())


def test_image_depends_on_prompt_and_seed_in_any_batch(pipeline: StableDiffusion3Pipeline) -> None:
    prompts, seeds = ["a red circle", "a blue star", "a green ring"], [3, 4, 5]

    together = generate_flow(pipeline, prompts, seeds, steps=2, scale=2.0)
    apart = generate_flow(pipeline, prompts, seeds, steps=2, scale=2.0, batch=1)

    torch.testing.assert_close(together, apart, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(together[0], together[1], atol=0.05)


def test_both_text_encoders_are_the_text_tower_and_its_projection(work: Path, folder: Path) -> None:
    for name in ("text_encoder", "text_encoder_2"):
        _, loading = CLIPTextModelWithProjection.from_pretrained(folder / name, output_loading_info=True)
        assert not any(loading.values())

    first, second = (
        {p.name: p.read_bytes() for p in (folder / name).iterdir()} for name in ("text_encoder", "text_encoder_2")
    )
    assert first == second
    shards = [load_file(folder / "text_encoder" / f"model-0000{number}-of-00002.safetensors") for number in (1, 2)]
    assert all(name.startswith("text_model.") for name in shards[0])
    assert list(shards[1]) == ["text_projection.weight"]
