"""The distance of patches, and the encoder that no model shares."""

from pathlib import Path
from shutil import copytree

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pentimento.domain.errors import FailedPrecondition, NotFound
from zoo.drawing.dataset import as_pixels, tokenise
from zoo.drawing.prompts import examination_prompts
from zoo.drawing.tokenizer import load_tokenizer
from zoo.evaluate.detail import LEVELS_PX, fine_detail, patch_distance
from zoo.evaluate.encoder_apart import EncoderApart
from zoo.evaluate.examination import Examiner
from zoo.files import write_tensors
from zoo.registry import WEIGHTS
from zoo.train.dual_encoder import TowersAndHeads, make_dual_encoder
from zoo.train.judge import AttributeReader
from zoo.train.loop import CHECKPOINT

COUNT = 4


@pytest.fixture(scope="module")
def drawn() -> Tensor:
    return examination_prompts(COUNT).drawn[:, None]


def softer(pictures: Tensor, radius_px: int) -> Tensor:
    wide = functional.pad(pictures[:, 0].float(), (radius_px,) * 4, mode="replicate")
    return functional.avg_pool2d(wide, 2 * radius_px + 1, 1).to(torch.uint8)[:, None]


@pytest.mark.parametrize("level_px", LEVELS_PX)
def test_distance_of_equal_images_is_zero(drawn: Tensor, level_px: int) -> None:
    assert patch_distance(drawn, drawn, level_px).tolist() == [[0.0]] * COUNT


def test_softer_images_have_larger_distance(drawn: Tensor) -> None:
    little, much = (fine_detail(softer(drawn, radius), drawn) for radius in (1, 2))

    assert (little > 0).all()
    assert (little < much).all()


def test_mirrored_images_have_similar_detail(drawn: Tensor) -> None:
    mirrored = fine_detail(drawn.flip(-1), drawn)

    assert (mirrored < fine_detail(softer(drawn, 1), drawn)).all()


def test_noise_is_seen_at_the_finest_level_most(drawn: Tensor) -> None:
    noise = torch.randint(-20, 21, drawn.shape, generator=torch.Generator().manual_seed(0))
    noisy = (drawn + noise).clamp(0, 255).to(torch.uint8)

    finest, *_, coarsest = (patch_distance(noisy, drawn, level).mean() for level in LEVELS_PX)

    assert finest > 2 * coarsest


def test_one_reference_serves_all_seeds(drawn: Tensor) -> None:
    seeds = torch.cat([drawn, softer(drawn, 1)], dim=1)

    found = patch_distance(seeds, drawn, LEVELS_PX[0])

    assert found.shape == (COUNT, 2)
    np.testing.assert_array_equal(found[:, :1], patch_distance(drawn, drawn, LEVELS_PX[0]))


@pytest.fixture(scope="module")
def work(empty_work: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a work folder of this module."""
    return copytree(empty_work, tmp_path_factory.mktemp("apart") / "work")


@pytest.fixture(scope="module")
def towers(work: Path) -> TowersAndHeads:
    """Write the checkpoint of an untrained dual encoder to the work folder and return it."""
    torch.manual_seed(5)
    towers = TowersAndHeads(load_tokenizer(work / "tokenizer")).eval()
    write_checkpoint(towers, work / "dual-encoder")
    return towers


def write_checkpoint(module: nn.Module, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    write_tensors(folder / CHECKPOINT, {f"average.{name}": value for name, value in module.state_dict().items()}, {})


def test_scores_are_cosines_of_image_and_caption(towers: TowersAndHeads, work: Path) -> None:
    pictures = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    captions = ["a red star at night", "two blue rings"]

    scores = EncoderApart(work).scores(pictures, captions)

    with torch.no_grad():
        texts = towers.text(tokenise(load_tokenizer(work / "tokenizer"), captions))
        images = towers.image(as_pixels(pictures))
    by_hand = [float(t @ i / (t.norm() * i.norm())) for t, i in zip(texts, images, strict=True)]
    assert scores.tolist() == pytest.approx(by_hand, abs=1e-5)
    assert abs(by_hand[0] - by_hand[1]) > 1e-3


@pytest.mark.usefixtures("towers")
def test_examiner_scores_images_by_both_encoders(work: Path) -> None:
    write_checkpoint(AttributeReader(), work / "judge")
    prompts = examination_prompts(2)
    pictures = torch.stack([prompts.drawn, prompts.drawn.flip(0), prompts.drawn], dim=1)

    marks = Examiner(WEIGHTS, work, work).mark(pictures, prompts.captions, prompts.asked)

    assert marks.score_apart is not None
    apart = EncoderApart(work)
    for seed in range(3):
        by_hand = apart.scores(pictures[:, seed], list(prompts.captions)).tolist()
        assert marks.score_apart[:, seed].tolist() == pytest.approx(by_hand, abs=1e-6)
    assert abs(marks.score_apart - marks.clip_score).min() > 1e-3


def test_an_encoder_with_the_models_text_weights_is_refused(towers: TowersAndHeads, work: Path) -> None:
    encoder = EncoderApart(work)
    encoder.check_unshared(make_dual_encoder(load_tokenizer(work / "tokenizer")))

    with pytest.raises(FailedPrecondition, match=r"tiny-clip; train one from another seed: .* --seed 5"):
        encoder.check_unshared(towers.clip)


def test_one_that_was_never_trained_is_named_with_how_to_train_it(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=rf"pentimento zoo train dual-encoder --seed 5 --work {tmp_path}"):
        EncoderApart(tmp_path)
