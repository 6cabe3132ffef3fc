"""The discriminator: its data, training and calibration, and the exported classifier."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoImageProcessor, AutoModelForImageClassification

from pentimento.diffusion.discriminators.calibration import Calibration, auroc, calibration_error, fit_calibration
from pentimento.domain.errors import FailedPrecondition
from zoo.drawing.dataset import as_pixels
from zoo.drawing.tokenizer import build_tokenizer
from zoo.evaluate.calibration import confidence, margins
from zoo.export.discriminator import export_discriminator, measure, write_discriminator
from zoo.train import discriminator
from zoo.train.discriminator import DiscriminatorPart, TrainingImages, make_discriminator, training_images
from zoo.train.loop import TrainingPlan, TrainingRun
from zoo.train.parts import part_and_plan

pytestmark = pytest.mark.training

COUNT, BATCH = 24, 8
PLAN = TrainingPlan(steps=3, peak_rate=1e-3, warmup=1)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a work folder with one training step of each generating part, and images of one step."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("zoo-work")
    build_tokenizer(folder / "tokenizer", count=100, merges=20)
    for name in ("autoencoder", "dual-encoder", "heavy", "light"):
        make_part, _ = part_and_plan(name)
        TrainingRun(make_part(folder, count=8, batch=4), TrainingPlan(steps=1, peak_rate=1e-3), folder / name).train()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(discriminator, "LIGHT_STEPS", 1)
        patch.setattr(discriminator, "HEAVY_STEPS", 1)
        yield folder
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def trained(work: Path) -> Path:
    TrainingRun(DiscriminatorPart(work, count=COUNT, batch=BATCH), PLAN, work / "discriminator").train()
    return work


def test_untrained_network_is_small_and_depends_on_input() -> None:
    pixels = torch.stack([torch.full((3, 64, 64), -1.0), torch.randn(3, 64, 64)])

    black, noise = make_discriminator().train()(pixels).logits

    assert (black - noise).abs().max() > 1e-3
    assert sum(value.numel() for value in make_discriminator().state_dict().values()) < 400_000


def test_training_images_are_generated_once(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = training_images(work, COUNT)
    monkeypatch.setattr(discriminator, "generate", None)

    again = training_images(work, COUNT)

    assert torch.equal(first.light, again.light)
    assert len(first.heavy) == COUNT / 3


def test_all_images_of_scene_are_in_one_fold(work: Path) -> None:
    numbered = torch.arange(48)
    images = numbered[:, None, None, None].to(torch.uint8)
    pictures = TrainingImages(images, images, images, images[::3], numbered[::3], numbered[:, None])

    folds = [pictures.fold(number) for number in range(8)]

    assert sorted(torch.cat([fold.light for fold in folds]).flatten().tolist()) == numbered.tolist()
    for fold in folds:
        assert torch.equal(fold.light[fold.heavy_rows], fold.heavy)
        assert torch.equal(fold.asked[:, 0].to(torch.uint8), fold.drawn.flatten())


def test_a_stock_classifier_loads_it_with_its_calibration(trained: Path, tmp_path: Path) -> None:
    export_discriminator(trained, tmp_path, COUNT)

    model, loading = AutoModelForImageClassification.from_pretrained(tmp_path, output_loading_info=True)

    record = json.loads((tmp_path / "config.json").read_text())["pentimento_calibration"]
    pixels = as_pixels(training_images(trained, COUNT).light)
    own = Calibration(record["slope"], record["intercept"]).confidence(margins(model, pixels))
    assert not any(loading.values())
    assert model.dtype == torch.float32
    assert (tmp_path / "model.safetensors").stat().st_size < 800_000
    assert torch.equal(confidence(model, pixels), own)


def test_the_stock_processor_gives_the_pixels_it_was_trained_on(tmp_path: Path) -> None:
    write_discriminator(make_discriminator(), tmp_path)
    images = torch.randint(256, (2, 3, 64, 64), dtype=torch.uint8)

    processor = AutoImageProcessor.from_pretrained(tmp_path)
    pixels = processor(images=[image.permute(1, 2, 0).numpy() for image in images], return_tensors="pt")["pixel_values"]

    assert torch.allclose(pixels, as_pixels(images), atol=1e-6)


def test_without_calibration_the_confidence_is_the_softmax_of_real() -> None:
    model, pixels = make_discriminator().eval(), torch.randn(3, 3, 64, 64)

    found = confidence(model, pixels)

    assert torch.allclose(found.float(), model(pixels).logits.softmax(dim=1)[:, 1], atol=1e-6)


def test_confidence_names_wrong_labels_and_calibration() -> None:
    for slope in ("steep", float("nan"), None, True):
        model = make_discriminator()
        model.config.pentimento_calibration = {"slope": slope}
        with pytest.raises(FailedPrecondition, match=r"pentimento_calibration\.slope"):
            confidence(model, torch.zeros(1, 3, 64, 64))

    model = make_discriminator()
    model.config.label2id = {"cat": 0, "dog": 1}
    with pytest.raises(FailedPrecondition, match=r"label2id.*cat, dog"):
        confidence(model, torch.zeros(1, 3, 64, 64))


def test_the_figures_tell_ranks_and_calibration(trained: Path) -> None:
    figures = measure(make_discriminator().eval(), Calibration(), training_images(trained, COUNT).fold(7))

    assert all(0.0 <= value <= 1.0 for value in figures.values())


def test_auroc_counts_pairs_and_half_of_the_ties() -> None:
    assert auroc(torch.tensor([3.0, 2.0]), torch.tensor([1.0, 2.0])) == pytest.approx(3.5 / 4)


def test_fitted_calibration_inverts_distorted_margins() -> None:
    generator = torch.Generator().manual_seed(0)
    honest = 2.0 * torch.randn(20_000, generator=generator)
    real = torch.rand(20_000, generator=generator) < torch.sigmoid(honest)
    weights = torch.ones(20_000)

    found = fit_calibration(3.0 * honest - 1.0, real, weights)

    assert found.slope == pytest.approx(1 / 3, rel=0.05)
    assert found.intercept == pytest.approx(1 / 3, rel=0.2)
    assert calibration_error(found.confidence(3.0 * honest - 1.0), real, weights) < 0.01
    assert calibration_error(torch.sigmoid(3.0 * honest - 1.0), real, weights) > 0.05


def test_fit_calibration_takes_classes_apart_and_not_one_alone() -> None:
    found = fit_calibration(torch.tensor([5.0, 4.0, -4.0]), torch.tensor([True, True, False]), torch.ones(3))

    assert 0.0 < found.slope < 10.0
    with pytest.raises(ValueError, match="2 real, 0 generated"):
        fit_calibration(torch.zeros(2), torch.tensor([True, True]), torch.ones(2))
