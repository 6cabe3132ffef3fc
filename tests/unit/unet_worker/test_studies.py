"""Test studies: donors, reused latents and images, late LoRAs, and thinning."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch

from lab.fixtures.lora_files import random_factors, write_diffusers_lora
from lab.fixtures.lora_reference import ReadyLoras, latents_of_engine
from pentimento.diffusion.denoising import DenoisingRequest, ImageStart, LatentStart, NoiseStart
from pentimento.diffusion.engine import Denoiser
from pentimento.diffusion.families import DiffusionModel
from pentimento.diffusion.image_generation import BatchGenerator, StudiedImage
from pentimento.diffusion.images import decode_pixels
from pentimento.diffusion.loras import Lora, WeightedLora, layers_of, read_lora
from pentimento.domain.errors import PentimentoError
from pentimento.domain.generation import GenerationSpec, Scheduler
from pentimento.profiles.rules import LateSample, ThresholdRule
from services.unet_worker.profiling.inputs import Vectors
from services.unet_worker.profiling.lora import LatenessStudy, steps_to_try
from services.unet_worker.profiling.reuse_study import ReusePair, ReuseStudy, StudyModel, nearest_before
from services.unet_worker.profiling.steps_study import ThinningStudy, full_requests, grid, next_place

PROMPTS = ("a red circle", "a red square", "a red circle", "a blue star")


def study_model(model: DiffusionModel, step_count: int = 8) -> StudyModel:
    spec = GenerationSpec("", "", "tiny", 32, 32, step_count, 2.0, Scheduler.DDIM, 0)
    return StudyModel(BatchGenerator(model, Denoiser(model), 3), spec)


class ColourEncoder:
    """Embed texts by their words, images by their mean colour, as unit vectors of three numbers."""

    def embed_texts(self, texts: Sequence[str]) -> Vectors:
        words = ("red", "circle", "blue")
        return unit(np.array([[1.0 + 3.0 * (word in text) for word in words] for text in texts], np.float32))

    def embed_images(self, pictures: Sequence[bytes]) -> Vectors:
        found = [decode_pixels(data, "image", 32, 32)[0].mean(dim=(1, 2)).numpy() + 1.0 for data in pictures]
        return unit(np.array(found, np.float32))


def unit(rows: Vectors) -> Vectors:
    found: Vectors = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return found


@pytest.fixture(scope="module")
def study(model: DiffusionModel) -> ReuseStudy:
    return ReuseStudy(study_model(model), ColourEncoder(), PROMPTS, (2, 4), first_seed=7)


def study_image(
    model: StudyModel, prompt: str, seed: int, start: "NoiseStart | LatentStart | ImageStart"
) -> StudiedImage:
    (generated,) = model.generator.generate([model.request(prompt, seed, start)])
    return generated


def test_a_donor_is_the_nearest_before_and_repeats_are_no_pairs() -> None:
    vectors = unit(np.array([[1, 0], [0, 1], [1, 0.1], [1, 0], [0.1, 1]], np.float32))
    found = nearest_before(vectors, vectors, ["a", "b", "c", "a", "d"], 0.5)
    assert [(pair.receiver, pair.donor) for pair in found] == [(2, 0), (4, 1)]
    assert found[0].similarity == pytest.approx(1 / np.sqrt(1.01))


def test_pairs_below_the_least_similarity_are_left_out() -> None:
    vectors = unit(np.array([[1, 0], [1, 1]], np.float32))
    assert nearest_before(vectors, vectors, ["a", "b"], 0.71) == ()
    assert len(nearest_before(vectors, vectors, ["a", "b"], 0.70)) == 1


def test_image_resumed_from_own_latent_has_full_quality(study: ReuseStudy) -> None:
    own = [ReusePair(row, row, 1.0) for row in range(3)]
    outcomes = list(study.reuse_latents(own, (2, 4)))
    assert [outcome.skipped_steps for outcome in outcomes] == [2, 2, 2, 4, 4, 4]
    for outcome in outcomes:
        assert outcome.quality == pytest.approx(outcome.scratch_quality, abs=1e-6)


def test_latent_of_other_prompt_resumes_with_own_prompt_and_seed(study: ReuseStudy) -> None:
    pair = ReusePair(receiver=3, donor=1, similarity=0.5)
    (outcome,) = study.reuse_latents([pair], (4,))
    large = study.large
    (donor,) = large.generator.generate(
        [replace(large.request(PROMPTS[1], 8, NoiseStart()), capture_steps=frozenset({4}))]
    )
    resumed = study_image(large, PROMPTS[3], 10, LatentStart(donor.latents[4], 4))
    encoder = ColourEncoder()
    expected = float(encoder.embed_images([resumed.png])[0] @ encoder.embed_texts([PROMPTS[3]])[0])
    assert outcome.quality == pytest.approx(expected, abs=1e-6)
    assert outcome.pair is pair


def test_reuse_study_generates_images_of_pairs_once_from_scratch(model: DiffusionModel) -> None:
    seen: list[tuple[int, int]] = []

    class Watched(BatchGenerator):
        def generate(self, requests: Sequence[DenoisingRequest]) -> Iterator[StudiedImage]:
            seen.extend((request.spec.seed, request.start.first_step) for request in requests)
            return super().generate(requests)

    watched = StudyModel(Watched(model, Denoiser(model), 3), study_model(model).spec)
    study = ReuseStudy(watched, ColourEncoder(), PROMPTS, (2, 4), first_seed=7)
    list(study.reuse_latents([ReusePair(3, 1, 0.5)], (2, 4)))

    assert seen == [(8, 0), (10, 0), (10, 2), (10, 4)]


def test_images_skip_the_same_share_of_the_small_models_steps(study: ReuseStudy, model: DiffusionModel) -> None:
    seen: list[int] = []

    class Watched(BatchGenerator):
        def generate(self, requests: Sequence[DenoisingRequest]) -> Iterator[StudiedImage]:
            seen.extend(request.start.first_step for request in requests)
            return super().generate(requests)

    small = StudyModel(Watched(model, Denoiser(model), 3), study_model(model, step_count=4).spec)
    outcomes = list(study.reuse_images(small, [ReusePair(1, 0, 0.9)], (5, 13, 25, 30), 50))
    # With four steps 5/50 skips none.
    assert [outcome.skipped_steps for outcome in outcomes] == [13, 25, 30]
    assert seen == [1, 2, 2]
    assert {outcome.skipped_steps for outcome in outcomes} == {13, 25, 30}


def test_failed_generation_is_raised(model: DiffusionModel) -> None:
    usual = study_model(model)
    wrong = usual.request("a", 0, LatentStart(torch.zeros(1, 1, 1, 1), 2))
    with pytest.raises(PentimentoError):
        list(usual.generator.generate([wrong]))


@pytest.mark.parametrize(("eta", "differs"), [(0.0, False), (1.0, True)])
def test_seed_changes_resumed_image_of_stochastic_sampler_only(study: ReuseStudy, eta: float, differs: bool) -> None:
    # NIRVANA's appendix C reseeds for diversity: with a deterministic sampler that changes nothing.
    usual = study.large
    drawing = StudyModel(usual.generator, replace(usual.spec, eta=eta))
    (donor,) = usual.generator.generate([replace(usual.request("a", 1, NoiseStart()), capture_steps=frozenset({2}))])

    one, other = (study_image(drawing, "a", seed, LatentStart(donor.latents[2], 2)).png for seed in (5, 6))

    assert (one != other) is differs


def test_seed_changes_image_from_image(study: ReuseStudy) -> None:
    donor = study_image(study.large, "a", 1, NoiseStart())
    pixels = decode_pixels(donor.png, "image", 32, 32)

    one, other = (study_image(study.large, "a", seed, ImageStart(pixels, 2)).png for seed in (5, 6))

    assert one != other


LATE_PROMPTS = ("a red circle", "a blue star", "two squares")
LATE_STEPS = (1, 4, 7)


@pytest.fixture(scope="module")
def lora(model: DiffusionModel, tmp_path_factory: pytest.TempPathFactory) -> Lora:
    base = layers_of(model.info.family, model.adaptable)
    path = write_diffusers_lora(tmp_path_factory.mktemp("lora"), random_factors(base, seed=1), alpha=2.0)
    return read_lora(path, base, model.dtype)


def study_of(model: DiffusionModel) -> LatenessStudy:
    spec = GenerationSpec("", "", "tiny", 32, 32, 8, 2.0, Scheduler.DDIM, 0)
    generator = BatchGenerator(model, Denoiser(model), 3)
    return LatenessStudy(StudyModel(generator, spec), LATE_PROMPTS, LATE_STEPS, first_seed=7)


@pytest.fixture(scope="module")
def found(model: DiffusionModel, lora: Lora) -> dict[int, list[LateSample]]:
    study = study_of(model)
    on_time = study.on_time("it", lora)
    return {steps: list(study.lateness("it", lora, steps, on_time)) for steps in LATE_STEPS}


def test_samples_are_of_each_prompt_and_step(found: dict[int, list[LateSample]]) -> None:
    assert {steps: len(samples) for steps, samples in found.items()} == dict.fromkeys(LATE_STEPS, len(LATE_PROMPTS))


def test_late_samples_equal_comparison_of_latents(
    model: DiffusionModel, lora: Lora, found: dict[int, list[LateSample]]
) -> None:
    specs = [
        GenerationSpec(prompt, "", "tiny", 32, 32, 8, 2.0, Scheduler.DDIM, 7 + row)
        for row, prompt in enumerate(LATE_PROMPTS)
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
    for row in range(len(LATE_PROMPTS)):
        alike = [found[steps][row].alike for steps in LATE_STEPS]
        assert 1.0 > alike[0] > alike[1] > alike[2]


def test_of_a_lora_that_changes_nothing_nothing_is_lost(model: DiffusionModel, lora: Lora) -> None:
    nothing = Lora("sha256:nothing", 0, {})

    study = study_of(model)
    samples = study.lateness("nothing", nothing, 1, study.on_time("nothing", nothing))

    assert [(round(one.cosine, 6), one.strength) for one in samples] == [(1.0, 1.0)] * len(LATE_PROMPTS)


def test_a_study_leaves_the_model_as_it_was(model: DiffusionModel, lora: Lora) -> None:
    before = {name: value.clone() for name, value in model.denoiser.state_dict().items()}
    study = study_of(model)
    study.lateness("it", lora, 4, study.on_time("it", lora))

    again = list(study.model.generator.generate([_request(study, 0)]))

    assert torch.equal(again[0].final, study.without[0].final)
    assert all(torch.equal(value, before[name]) for name, value in model.denoiser.state_dict().items())


def _request(study: LatenessStudy, row: int) -> DenoisingRequest:
    return study.model.request(LATE_PROMPTS[row], 7 + row, NoiseStart())


def test_lateness_ends_with_batch_that_settles_rule(model: DiffusionModel, lora: Lora) -> None:
    prompts = [f"{number} squares" for number in range(8)]
    seen: list[tuple[int, int, bool]] = []

    class Watched(BatchGenerator):
        def generate(self, requests: Sequence[DenoisingRequest]) -> Iterator[StudiedImage]:
            seen.extend((one.spec.seed, one.start.first_step, one.loras is not None) for one in requests)
            return super().generate(requests)

    watched = StudyModel(Watched(model, Denoiser(model), 3), study_model(model).spec)
    on_time: list[StudiedImage] = []
    study = LatenessStudy(watched, prompts, (4, 7))
    whole = LatenessStudy(study_model(model), prompts, (4, 7))

    refused = study.lateness("it", lora, 7, on_time, ThresholdRule.MINIMUM)
    again = study.lateness("it", lora, 4, on_time, ThresholdRule.MINIMUM)

    assert (len(refused), len(again), len(on_time)) == (3, 3, 3)
    images = [[(row, first, lora) for row in range(3)] for first, lora in ((0, False), (0, True), (7, True), (4, True))]
    assert seen == [image for part in images for image in part]
    all_late = whole.lateness("it", lora, 7, whole.on_time("it", lora))
    assert len(all_late) == 8
    for one, other in zip(refused, all_late[:3], strict=True):
        assert (one.cosine, one.strength) == pytest.approx((other.cosine, other.strength), abs=1e-4)


def test_steps_that_a_schedule_does_not_have_are_not_tried() -> None:
    assert steps_to_try(8, (25, 4, 1, 8, 4)) == (1, 4)


def test_grid_descends_from_each_first_step_without_repeats() -> None:
    assert list(grid(50, (0.0, 0.2), (0.5, 0.1))) == [(0, [25, 5]), (10, [20, 4])]
    assert list(grid(4, (0.0, 0.1, 0.5), (0.9, 0.5, 0.4, 0.1))) == [(0, [2, 1]), (2, [1])]


@pytest.mark.parametrize("guess", [None, 0, 4, 20])
def test_next_place_finds_last_that_holds(guess: int | None) -> None:
    for last, count in combinations(range(-1, 12), 2):
        if not count:
            continue
        holds: dict[int, bool] = {}
        while (place := next_place(holds, count, guess)) is not None:
            holds[place] = place <= last

        assert max((place for place, held in holds.items() if held), default=-1) == last
        if guess == last:
            assert len(holds) <= 2
        assert len(holds) <= (count if guess is None else 2 + count.bit_length())


class NotedGenerator(BatchGenerator):
    """Give each request's seed, steps and first step as its image, and keep the requests."""

    def __init__(self) -> None:
        self.max_batch = 16
        self.requests: list[DenoisingRequest] = []

    def generate(self, requests: Sequence[DenoisingRequest]) -> Iterator[StudiedImage]:
        for request in requests:
            self.requests.append(request)
            latents = {step: torch.tensor(float(step)) for step in request.capture_steps}
            yield StudiedImage(f"{len(request.thinned_steps)}".encode(), latents, torch.tensor(0.0))


class WorthBySteps:
    """Score thinned images of fewer than four steps 0 and all others 1."""

    name = "steps"

    def qualities(self, pictures: Sequence[bytes], rows: Sequence[int]) -> list[float]:
        return [float(int(image) == 0 or int(image) >= 4) for image in pictures]


@pytest.mark.parametrize(
    ("taken_count", "sample_count", "kept", "full_count"),
    # 80 of 200 images without a failure settle that a row holds; five failures of the first 16 that it does not.
    [(4, 80, 80, 80), (3, 16, 0, 16)],
)
def test_thinning_study_ends_row_once_settled(taken_count: int, sample_count: int, kept: int, full_count: int) -> None:
    generator = NotedGenerator()
    spec = GenerationSpec("", "", "tiny", 32, 32, 8, 2.0, Scheduler.DDIM, 0)
    model = StudyModel(generator, spec)
    study = ThinningStudy(model, [WorthBySteps()], full_requests(model, ["a"] * 200, 0, (2,)))

    samples = study.samples(study.batch, 2, taken_count, alpha=0.95)

    thinned = [request for request in generator.requests if request.thinned_steps]
    assert (len(samples), sum(sample.keeps(0.95) for sample in samples)) == (sample_count, kept)
    assert len(generator.requests) - len(thinned) == full_count
    # Steps 0 and 1 are those of the full run.
    assert {(request.start.first_step, float(request.start.latent)) for request in thinned} == {(2, 2.0)}
    assert len(study.samples(study.batch, 2, taken_count)) == 200


def test_thinning_study_compares_each_row_with_its_own_full_run() -> None:
    spec = GenerationSpec("", "", "tiny", 32, 32, 8, 2.0, Scheduler.DDIM, 0)
    study = ThinningStudy(StudyModel(NotedGenerator(), spec), [WorthBySteps()], [])
    study.worth["steps"] = [1.0, 0.5, 0.25]

    samples = study.samples_of({"steps": [0.9, 0.2]}, [2, 1])

    assert [(sample.quality, sample.full_quality) for sample in samples] == [(0.9, 0.25), (0.2, 0.5)]
