"""What is measured of reuse: who is whose donor, and what a picture is compared with."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from lab.fixtures.checkpoints import write_checkpoint
from pentimento.diffusion.engine import EagerDenoiser
from pentimento.diffusion.families import DiffusionModel, load_model
from pentimento.diffusion.images import decode_pixels
from pentimento.diffusion.painting import ImageStart, LatentStart, NoiseStart, PaintingRequest
from pentimento.diffusion.reuse_painting import ReusePainter, StudiedPicture
from pentimento.domain.errors import PentimentoError
from pentimento.domain.generation import GenerationSpec, Scheduler
from services.unet_worker.profiling.inputs import Vectors
from services.unet_worker.profiling.reuse_study import ReusePair, ReuseStudy, StudyModel, nearest_before

PROMPTS = ("a red circle", "a red square", "a red circle", "a blue star")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> DiffusionModel:
    folder = write_checkpoint(tmp_path_factory.mktemp("checkpoints") / "tiny", prediction_type="v_prediction")
    return load_model(folder, torch.device("cpu"), torch.float32)


def study_model(model: DiffusionModel, step_count: int = 8) -> StudyModel:
    spec = GenerationSpec("", "", "tiny", 32, 32, step_count, 2.0, Scheduler.DDIM, 0)
    return StudyModel(ReusePainter(model, EagerDenoiser(model), 3), spec)


class ColourEncoder:
    """Texts by their words, pictures by their mean colour: unit vectors of three numbers."""

    def embed_texts(self, texts: Sequence[str]) -> Vectors:
        words = ("red", "circle", "blue")
        return unit(np.array([[1.0 + 3.0 * (word in text) for word in words] for text in texts], np.float32))

    def embed_pictures(self, pictures: Sequence[bytes]) -> Vectors:
        found = [decode_pixels(data, "image", 32, 32)[0].mean(dim=(1, 2)).numpy() + 1.0 for data in pictures]
        return unit(np.array(found, np.float32))


def unit(rows: Vectors) -> Vectors:
    found: Vectors = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return found


@pytest.fixture(scope="module")
def study(model: DiffusionModel) -> ReuseStudy:
    return ReuseStudy(study_model(model), ColourEncoder(), PROMPTS, (2, 4), first_seed=7)


def picture(
    model: StudyModel, prompt: str, seed: int, start: "NoiseStart | LatentStart | ImageStart"
) -> StudiedPicture:
    (painted,) = model.painter.paint([model.request(prompt, seed, start)])
    return painted


def test_a_donor_is_the_nearest_before_and_repeats_are_no_pairs() -> None:
    vectors = unit(np.array([[1, 0], [0, 1], [1, 0.1], [1, 0], [0.1, 1]], np.float32))
    found = nearest_before(vectors, vectors, ["a", "b", "c", "a", "d"], 0.5)
    assert [(pair.receiver, pair.donor) for pair in found] == [(2, 0), (4, 1)]
    assert found[0].similarity == pytest.approx(1 / np.sqrt(1.01))


def test_pairs_below_the_least_similarity_are_left_out() -> None:
    vectors = unit(np.array([[1, 0], [1, 1]], np.float32))
    assert nearest_before(vectors, vectors, ["a", "b"], 0.71) == ()
    assert len(nearest_before(vectors, vectors, ["a", "b"], 0.70)) == 1


def test_a_picture_that_resumes_its_own_latent_has_the_quality_from_scratch(study: ReuseStudy) -> None:
    own = [ReusePair(row, row, 1.0) for row in range(3)]
    outcomes = list(study.reuse_latents(own, (2, 4)))
    assert [outcome.skipped_steps for outcome in outcomes] == [2, 2, 2, 4, 4, 4]
    for outcome in outcomes:
        assert outcome.quality == pytest.approx(outcome.scratch_quality, abs=1e-6)


def test_another_prompts_latent_is_resumed_under_the_own_prompt_and_seed(study: ReuseStudy) -> None:
    pair = ReusePair(receiver=3, donor=1, similarity=0.5)
    (outcome,) = study.reuse_latents([pair], (4,))
    large = study.large
    (donor,) = large.painter.paint([replace(large.request(PROMPTS[1], 8, NoiseStart()), capture_steps=frozenset({4}))])
    resumed = picture(large, PROMPTS[3], 10, LatentStart(donor.latents[4], 4))
    encoder = ColourEncoder()
    expected = float(encoder.embed_pictures([resumed.png])[0] @ encoder.embed_texts([PROMPTS[3]])[0])
    assert outcome.quality == pytest.approx(expected, abs=1e-6)
    assert outcome.pair is pair


def test_images_skip_the_same_share_of_the_small_models_steps(study: ReuseStudy, model: DiffusionModel) -> None:
    seen: list[int] = []

    class Watched(ReusePainter):
        def paint(self, requests: Sequence[PaintingRequest]) -> Iterator[StudiedPicture]:
            seen.extend(request.start.first_step for request in requests)
            return super().paint(requests)

    small = StudyModel(Watched(model, EagerDenoiser(model), 3), study_model(model, step_count=4).spec)
    outcomes = list(study.reuse_images(small, [ReusePair(1, 0, 0.9)], (5, 13, 25, 30), 50))
    # Of four steps 5/50 leaves none to skip.
    assert [outcome.skipped_steps for outcome in outcomes] == [13, 25, 30]
    assert seen == [1, 2, 2]
    assert {outcome.skipped_steps for outcome in outcomes} == {13, 25, 30}


def test_what_cannot_be_painted_is_raised(model: DiffusionModel) -> None:
    usual = study_model(model)
    wrong = usual.request("a", 0, LatentStart(torch.zeros(1, 1, 1, 1), 2))
    with pytest.raises(PentimentoError):
        list(usual.painter.paint([wrong]))


@pytest.mark.parametrize(("eta", "differs"), [(0.0, False), (1.0, True)])
def test_another_seed_changes_a_resumed_picture_only_where_the_sampler_draws_noise(
    study: ReuseStudy, eta: float, differs: bool
) -> None:
    # NIRVANA's appendix C reseeds for diversity: with a deterministic sampler that changes nothing.
    usual = study.large
    drawing = StudyModel(usual.painter, replace(usual.spec, eta=eta))
    (donor,) = usual.painter.paint([replace(usual.request("a", 1, NoiseStart()), capture_steps=frozenset({2}))])

    one, other = (picture(drawing, "a", seed, LatentStart(donor.latents[2], 2)).png for seed in (5, 6))

    assert (one != other) is differs


def test_another_seed_changes_a_picture_from_an_image(study: ReuseStudy) -> None:
    donor = picture(study.large, "a", 1, NoiseStart())
    pixels = decode_pixels(donor.png, "image", 32, 32)

    one, other = (picture(study.large, "a", seed, ImageStart(pixels, 2)).png for seed in (5, 6))

    assert one != other
