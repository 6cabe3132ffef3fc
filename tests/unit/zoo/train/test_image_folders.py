"""Fit a discriminator to two folders of images, serve it and register it."""

import json
import re
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from pentimento.diffusion.discriminators import open_discriminator
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.models import CascadeVariant
from pentimento.files.json_values import from_json
from services.controller.checks import check_cascade
from zoo.export.picture_folders import main
from zoo.train.picture_folders import read_folders

SIZE_PX, COUNT = 32, 24


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Return folders of smooth and of noisy images under the same names; one image has another format and shape."""
    real, generated = tmp_path / "real", tmp_path / "light"
    for folder in (real, generated):
        folder.mkdir()
    for number in range(COUNT):
        Image.linear_gradient("L").rotate(15 * number).convert("RGB").save(real / f"{number:03}.png")
        Image.effect_noise((40, 40), 80).convert("RGB").save(generated / f"{number:03}.png")
    (real / "000.png").unlink()
    Image.linear_gradient("L").resize((90, 60)).convert("RGB").save(real / "000.jpg")
    (real / "notes.txt").write_text("no picture")
    return real, generated


def arguments(folders: tuple[Path, Path], out: Path, *more: str) -> list[str]:
    real, generated = folders
    flags = {"--real": real, "--generated": generated, "--out": out, "--size": SIZE_PX, "--steps": 4, "--batch": 8}
    return [*(str(part) for flag in flags.items() for part in flag), "--threads", "1", "--device", "cpu", *more]


def test_images_of_one_name_are_in_one_fold(folders: tuple[Path, Path]) -> None:
    pictures = read_folders(*folders, SIZE_PX)

    assert torch.equal(pictures.real_folds, pictures.generated_folds)
    assert pictures.real.shape == pictures.generated.shape == (COUNT, 3, SIZE_PX, SIZE_PX)
    assert [len(pictures.fold(number)[0]) for number in range(8)] == [COUNT // 8] * 8


def test_folder_with_too_few_images_is_named(folders: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "few").mkdir()

    with pytest.raises(InvalidArgument, match=r"--generated: must be a folder of at least 16 images, .*few has 0"):
        read_folders(folders[0], tmp_path / "few", SIZE_PX)


def test_file_that_is_no_image_is_named(folders: tuple[Path, Path]) -> None:
    (folders[1] / "005.png").write_bytes(b"no picture")

    with pytest.raises(InvalidArgument, match=r"light/005\.png"):
        read_folders(*folders, SIZE_PX)


@pytest.mark.training
def test_fitted_discriminator_is_served_and_registered(folders: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "mine"

    main(arguments(folders, out, "--cascade", "my-light,my-heavy"))

    served = open_discriminator(out)
    cascade = from_json(CascadeVariant, json.loads((tmp_path / "mine-cascade.json").read_text()), "cascade")
    check_cascade(cascade)
    record = json.loads((out / "config.json").read_text())["pentimento_calibration"]
    pixels = [served.pixels(Image.open(folders[number] / "001.png").convert("RGB")) for number in range(2)]
    assert all(0.0 <= confidence <= 1.0 for confidence in served.confidences(pixels))
    assert (served.slope, served.intercept) == (record["slope"], record["intercept"])
    assert cascade.name == "my-light>my-heavy"
    assert cascade.handovers[0].discriminator_digest == served.digest
    assert cascade.handovers[0].shares[-1] == 1.0
    assert not (tmp_path / "mine-training").exists()


@pytest.mark.training
def test_torchvision_network_trains_on_both_models_images(folders: tuple[Path, Path], tmp_path: Path) -> None:
    out, network = tmp_path / "mine", ("--architecture", "efficientnet_v2_s")
    heavy = read_folders(*folders, SIZE_PX, heavy=folders[0]).heavy

    main(arguments(folders, out, *network, "--heavy", str(folders[0]), "--steps", "2", "--batch", "4"))

    served = open_discriminator(out)
    pixels = [served.pixels(Image.open(folder / "001.png").convert("RGB")) for folder in folders]
    assert heavy is not None and len(heavy) == COUNT * 6 // 8
    assert json.loads((out / "config.json").read_text())["architecture"] == "efficientnet_v2_s"
    assert all(0.0 <= confidence <= 1.0 for confidence in served.confidences(pixels))
    with pytest.raises(InvalidArgument, match="--start: must be left out with --architecture"):
        main(arguments(folders, tmp_path / "other", *network, "--start", str(out)))


@pytest.mark.training
def test_it_may_begin_with_the_weights_of_another(folders: tuple[Path, Path], tmp_path: Path) -> None:
    """One step at a rate of nearly nothing leaves the weights of the other one."""
    shipped = Path(__file__).parents[4] / "zoo" / "weights" / "tiny-discriminator"

    main(arguments(folders, tmp_path / "mine", "--start", str(shipped), "--steps", "1"))

    mine, theirs = (load_file(folder / "model.safetensors") for folder in (tmp_path / "mine", shipped))
    # Means and variances depend on its own images.
    weights = [name for name in theirs if not re.search("running|num_batches", name)]
    assert mine.keys() == theirs.keys() and len(weights) > 50
    assert max((mine[name].float() - theirs[name].float()).abs().max().item() for name in weights) < 1e-4
    with pytest.raises(InvalidArgument, match="--start: must be an EfficientNet's directory"):
        main(arguments(folders, tmp_path / "other", "--start", str(tmp_path)))
