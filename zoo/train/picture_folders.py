"""Train a discriminator for a user's cascade from folders of real images and of both models'."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from transformers import EfficientNetForImageClassification

from pentimento.domain.errors import InvalidArgument
from pentimento.images.decoding import decode, resized
from zoo.devices import device
from zoo.train.discriminator import CALIBRATING, FOLDS, LABELS, loss_of

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")
LEAST = 2 * FOLDS  # images of a folder, so that every fold has some


@dataclass(frozen=True)
class FolderImages:
    """Hold uint8 (n, 3, size, size) images of each kind, and each one's fold (n,). The heavy model's only train."""

    real: Tensor
    generated: Tensor
    real_folds: Tensor
    generated_folds: Tensor
    heavy: Tensor | None = None

    def fold(self, *numbers: int) -> tuple[Tensor, Tensor]:
        """Return the real and the generated images of some folds."""
        wanted = torch.tensor(numbers)
        return (
            self.real[torch.isin(self.real_folds, wanted)],
            self.generated[torch.isin(self.generated_folds, wanted)],
        )


def read_folders(real: Path, generated: Path, size_px: int, heavy: Path | None = None) -> FolderImages:
    """Return the images of two folders, squeezed into squares as served, and those of a third that train as generated.

    Images of the same name, such as those of one prompt, are in the same fold. Raises InvalidArgument for a folder with
    too few, and for a file that is no image.
    """
    files = [_files(option, folder) for option, folder in (("--real", real), ("--generated", generated))]
    names = sorted({file.stem for found in files for file in found})
    number = {name: index % FOLDS for index, name in enumerate(names)}
    folds = [torch.tensor([number[file.stem] for file in found]) for found in files]
    for option, found in zip(("--real", "--generated"), folds, strict=True):
        if len(found.unique()) < FOLDS:
            raise InvalidArgument.of(option, "must have images for each fold: use the same names in both folders")
    if heavy is not None:
        files.append([file for file in _files("--heavy", heavy) if number.get(file.stem, 0) < CALIBRATING])
    images = [torch.stack([_read(file, size_px) for file in found]) for found in files]
    return FolderImages(images[0], images[1], folds[0], folds[1], *images[2:])


def _files(option: str, folder: Path) -> list[Path]:
    found = sorted(file for file in folder.iterdir() if file.suffix.lower() in SUFFIXES)
    if len(found) < LEAST:
        raise InvalidArgument.of(option, f"must be a folder of at least {LEAST} images, {folder} has {len(found)}")
    return found


def _read(file: Path, size_px: int) -> Tensor:
    def pixels(image: Image.Image) -> Tensor:
        small = resized(image, (size_px, size_px), Image.Resampling.BICUBIC)
        return torch.from_numpy(np.array(small)).permute(2, 0, 1).contiguous()

    return decode(file.read_bytes(), str(file), pixels)


def begun_from(directory: Path, size_px: int) -> EfficientNetForImageClassification:
    """Return a classifier of two labels that begins with another EfficientNet's weights, in transformers' layout,
    safetensors only.

    Its head is learnt again if it has more labels. Raises InvalidArgument for another directory.
    """
    try:
        return EfficientNetForImageClassification.from_pretrained(
            directory.resolve(strict=True),
            local_files_only=True,
            use_safetensors=True,
            ignore_mismatched_sizes=True,
            dtype=torch.float32,
            image_size=size_px,
            batch_norm_momentum=0.1,  # as in `make_discriminator`
            id2label=dict(enumerate(LABELS)),
            label2id={label: number for number, label in enumerate(LABELS)},
        )
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InvalidArgument.of("--start", f"must be an EfficientNet's directory of transformers: {reason}") from None


class FolderDiscriminatorPart:
    name = "discriminator"

    def __init__(self, module: nn.Module, pictures: FolderImages, batch: int) -> None:
        self.module = module.to(device(), memory_format=torch.channels_last)
        self.batch = batch
        self.real, generated = pictures.fold(*range(CALIBRATING))
        self.generated = generated if pictures.heavy is None else torch.cat([generated, pictures.heavy])

    def loss(self, generator: torch.Generator) -> tuple[Tensor, dict[str, float]]:
        """Return the loss of a batch, half of each kind."""
        drawn = [
            images[torch.randint(len(images), (count,), generator=generator)]
            for images, count in ((self.real, self.batch - self.batch // 2), (self.generated, self.batch // 2))
        ]
        real = torch.arange(self.batch) < len(drawn[0])
        return loss_of(self.module, torch.cat(drawn), real, generator)
