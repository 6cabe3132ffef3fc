"""Fit a discriminator to a user's cascade, from folders of images: `pentimento zoo discriminator`.

    pentimento zoo discriminator --real REAL --generated LIGHT --out DIR --cascade my-light,my-heavy
    pentimento zoo discriminator --real REAL --generated LIGHT --heavy HEAVY --architecture efficientnet_v2_s --out DIR

The second is DiffServe's recipe (section 3.2): torchvision's network at 224 px, real images against both models'.
REAL has images that are good enough (real ones, or the heavy model's), LIGHT the light model's, both as PNG, JPEG or
WebP and of the same size: otherwise it learns to distinguish formats. OUT is the argument of `pentimento up
--discriminator`. With --cascade the file OUT-cascade.json is the input of `pentimento models add-cascade`: the digest,
and f(t) of images that neither trained nor calibrated it. A stopped run continues when started again.
"""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import EfficientNetForImageClassification

from pentimento.diffusion.discriminator_files import discriminator_files
from pentimento.diffusion.discriminators.calibration import auroc, calibration_error, fit_calibration
from pentimento.diffusion.discriminators.scoring_network import MAX_IMAGE_SIZE_PX
from pentimento.diffusion.discriminators.torchvision_networks import ARCHITECTURES, NARROW, named_efficientnet
from pentimento.diffusion.discriminators.writing import write_torchvision
from pentimento.domain.errors import InvalidArgument
from zoo.command import positive, run
from zoo.devices import DEVICES, choose_device
from zoo.export.directories import write_json
from zoo.export.discriminator import real_margins, write_discriminator
from zoo.train.discriminator import BATCH, CALIBRATING, LABELS, MEASURING, PLAN, make_discriminator
from zoo.train.loop import TrainingPlan, TrainingRun, load_trained
from zoo.train.picture_folders import FolderDiscriminatorPart, FolderImages, begun_from, read_folders

SIZE_PX, POINTS = 224, 51


@dataclass(frozen=True)
class Examined:
    """Hold a discriminator's figures on its reserved fold, and its confidences (n,) in the light images."""

    figures: dict[str, float]
    light: Tensor


def fit(
    part: FolderDiscriminatorPart,
    pictures: FolderImages,
    plan: TrainingPlan,
    work: Path,
    folder: Path,
    architecture: str | None = None,
) -> Examined:
    """Train to the plan's end, calibrate and write; `architecture` names a network of torchvision's."""
    TrainingRun(part, plan, work).train()
    model = load_trained(part.module, work).cpu()
    calibration = fit_calibration(*_even_odds(model, *pictures.fold(CALIBRATING)))
    found, real, weights = _even_odds(model, *pictures.fold(MEASURING))
    figures = {
        "AUROC": auroc(found[real], found[~real]),
        "calibration error": calibration_error(calibration.confidence(found), real, weights),
    }
    record: dict[str, object] = asdict(calibration) | {"method": "platt", "measured_on": len(found)}
    folder.mkdir(parents=True, exist_ok=True)
    record |= {"calibration_error": round(figures["calibration error"], 4)}
    if isinstance(model, EfficientNetForImageClassification):
        write_discriminator(model, folder, record)
    else:
        write_torchvision(model, folder, record, {"architecture": architecture}, pictures.real.shape[-1])
    return Examined(figures, calibration.confidence(found[~real]))


def _even_odds(model: nn.Module, real: Tensor, generated: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return margins, which are real, and weights: both kinds count equally."""
    kinds = [real_margins(model, images) for images in (real, generated)]
    weights = torch.cat([torch.full((len(kind),), 0.5 / len(kind)) for kind in kinds])
    return torch.cat(kinds), torch.arange(len(weights)) < len(kinds[0]), weights


def cascade_of(models: Sequence[str], folder: Path, light: Tensor) -> dict[str, object]:
    """Return the cascade's registration: the digest of the discriminator in `folder`, and f(t) by its confidences (n,)
    in light images."""
    thresholds = [index / (POINTS - 1) for index in range(POINTS)]
    handover = {
        "discriminator": ">".join(models),
        "discriminator_digest": discriminator_files(folder, accept_other_digest=True).digest,
        "thresholds": thresholds,
        "shares": [float((light <= at).double().mean()) for at in thresholds],
    }
    return {"models": list(models), "handovers": [handover]}


def main(given: Sequence[str] | None = None) -> None:
    arguments = _parser().parse_args(given)
    torch.set_num_threads(arguments.threads)
    choose_device(arguments.device)
    if arguments.start and arguments.architecture:
        raise InvalidArgument.of("--start", "must be left out with --architecture, which names a network to begin with")
    pictures = read_folders(arguments.real, arguments.generated, arguments.size, arguments.heavy)
    torch.manual_seed(0)
    part = FolderDiscriminatorPart(_begun(arguments), pictures, arguments.batch)
    work = arguments.out.with_name(f"{arguments.out.name}-training")
    plan = replace(PLAN, steps=arguments.steps)
    examined = fit(part, pictures, plan, work, arguments.out, arguments.architecture)
    for name, value in examined.figures.items():
        print(f"{name}: {value:.4f}")
    if arguments.cascade:
        path = arguments.out.with_name(f"{arguments.out.name}-cascade.json")
        write_json(path, cascade_of(arguments.cascade, arguments.out, examined.light))
    shutil.rmtree(work)


def _begun(arguments: argparse.Namespace) -> nn.Module:
    if arguments.architecture:
        network: nn.Module = named_efficientnet(arguments.architecture, len(LABELS))
        return network
    return begun_from(arguments.start, arguments.size) if arguments.start else make_discriminator(arguments.size)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pentimento zoo discriminator", description=__doc__)
    parser.add_argument("--real", type=Path, required=True, metavar="DIR", help="folder of images that are good enough")
    parser.add_argument(
        "--generated", type=Path, required=True, metavar="DIR", help="folder of the light model's images"
    )
    parser.add_argument(
        "--heavy",
        type=Path,
        metavar="DIR",
        help="folder of the heavy model's images, generated as well [none]",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--cascade", type=_pair, metavar="LIGHT,HEAVY", help="also write the cascade's registration")
    parser.add_argument("--start", type=Path, metavar="DIR", help="EfficientNet of transformers to start from [none]")
    named = [name for name in ARCHITECTURES if name != NARROW]
    parser.add_argument(
        "--architecture", choices=named, help="network of torchvision, untrained [a narrow one of transformers]"
    )
    parser.add_argument("--size", type=_side, default=SIZE_PX, help="side of its input in pixels [%(default)s]")
    parser.add_argument("--steps", type=positive, default=PLAN.steps, help="[%(default)s]")
    parser.add_argument("--batch", type=_batch, default=BATCH, help="images per step [%(default)s]")
    parser.add_argument("--threads", type=positive, default=os.cpu_count() or 1)
    parser.add_argument("--device", choices=DEVICES, default="auto", help="device [a GPU if there is one]")
    return parser


def _pair(text: str) -> list[str]:
    models = text.split(",")
    if len(models) != 2 or not all(models):
        raise argparse.ArgumentTypeError(f"must be LIGHT,HEAVY, got {text!r}")
    return models


def _batch(text: str) -> int:
    if positive(text) < 2:
        raise argparse.ArgumentTypeError("must be at least 2, one of each kind")
    return int(text)


def _side(text: str) -> int:
    number = positive(text)
    if not 32 <= number <= MAX_IMAGE_SIZE_PX:
        raise argparse.ArgumentTypeError(f"must be between 32 and {MAX_IMAGE_SIZE_PX}, got {text}")
    return number


if __name__ == "__main__":
    run(main)
