"""What is measured of a late LoRA: against the same picture with it from the start and without it."""

import pytest
import torch

from lab.fixtures.checkpoints import write_checkpoint
from lab.fixtures.lora_files import random_factors, write_diffusers_lora
from lab.fixtures.lora_reference import ReadyLoras, latents_of_engine
from pentimento.diffusion.engine import EagerDenoiser
from pentimento.diffusion.families import DiffusionModel, load_model
from pentimento.diffusion.loras import Lora, WeightedLora, layers_of, read_lora
from pentimento.diffusion.painting import NoiseStart, PaintingRequest
from pentimento.diffusion.reuse_painting import ReusePainter
from pentimento.domain.generation import GenerationSpec, Scheduler
from pentimento.profiles.rules import LateSample
from services.unet_worker.profiling.lateness_study import LatenessStudy, steps_to_try
from services.unet_worker.profiling.reuse_study import StudyModel

PROMPTS = ("a red circle", "a blue star", "two squares")
STEPS = (1, 4, 7)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> DiffusionModel:
    folder = write_checkpoint(tmp_path_factory.mktemp("checkpoints") / "tiny", prediction_type="v_prediction")
    return load_model(folder, torch.device("cpu"), torch.float32)


@pytest.fixture(scope="module")
def lora(model: DiffusionModel, tmp_path_factory: pytest.TempPathFactory) -> Lora:
    base = layers_of(model.info.family, model.adaptable)
    path = write_diffusers_lora(tmp_path_factory.mktemp("lora"), random_factors(base, seed=1), alpha=2.0)
    return read_lora(path, base, model.dtype)


def study_of(model: DiffusionModel) -> LatenessStudy:
    spec = GenerationSpec("", "", "tiny", 32, 32, 8, 2.0, Scheduler.DDIM, 0)
    painter = ReusePainter(model, EagerDenoiser(model), 3)
    return LatenessStudy.begin(StudyModel(painter, spec), PROMPTS, STEPS, first_seed=7)


@pytest.fixture(scope="module")
def found(model: DiffusionModel, lora: Lora) -> dict[int, list[LateSample]]:
    return {steps: list(samples) for steps, samples in study_of(model).lateness("it", lora)}


def test_samples_are_of_each_prompt_and_step(found: dict[int, list[LateSample]]) -> None:
    assert {steps: len(samples) for steps, samples in found.items()} == dict.fromkeys(STEPS, len(PROMPTS))


def test_they_are_what_the_latents_say(model: DiffusionModel, lora: Lora, found: dict[int, list[LateSample]]) -> None:
    specs = [
        GenerationSpec(prompt, "", "tiny", 32, 32, 8, 2.0, Scheduler.DDIM, 7 + row)
        for row, prompt in enumerate(PROMPTS)
    ]
    adapters = (WeightedLora(lora),)
    without = latents_of_engine(model, specs, [()] * 3)
    on_time = latents_of_engine(model, specs, [adapters] * 3)
    late = latents_of_engine(model, specs, [ReadyLoras(adapters, 4)] * 3)

    for row, sample in enumerate(found[4]):
        one, other, plain = late[row].flatten(), on_time[row].flatten(), without[row].flatten()
        cosine = float(one @ other / (one.norm() * other.norm()))
        strength = float((one - plain) @ (other - plain) / (other - plain).norm() ** 2)
        assert (sample.cosine, sample.strength) == pytest.approx((cosine, strength), abs=1e-4)


def test_the_latents_on_the_way_part_step_by_step(found: dict[int, list[LateSample]]) -> None:
    for row in range(len(PROMPTS)):
        alike = [found[steps][row].alike for steps in STEPS]
        assert 1.0 > alike[0] > alike[1] > alike[2]


def test_of_a_lora_that_changes_nothing_nothing_is_lost(model: DiffusionModel, lora: Lora) -> None:
    nothing = Lora("sha256:nothing", 0, {})

    _, samples = next(iter(study_of(model).lateness("nothing", nothing)))

    assert [(round(one.cosine, 6), one.strength) for one in samples] == [(1.0, 1.0)] * len(PROMPTS)


def test_a_study_leaves_the_model_as_it_was(model: DiffusionModel, lora: Lora) -> None:
    before = {name: value.clone() for name, value in model.denoiser.state_dict().items()}
    study = study_of(model)
    list(study.lateness("it", lora))

    again = list(study.model.painter.paint([_request(study, 0)]))

    assert torch.equal(again[0].final, study.without[0].final)
    assert all(torch.equal(value, before[name]) for name, value in model.denoiser.state_dict().items())


def _request(study: LatenessStudy, row: int) -> PaintingRequest:
    return study.model.request(PROMPTS[row], 7 + row, NoiseStart())


def test_steps_that_a_schedule_does_not_have_are_not_tried() -> None:
    assert steps_to_try(8, (25, 4, 1, 8, 4)) == (1, 4)
