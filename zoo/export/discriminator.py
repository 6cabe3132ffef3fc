"""Write the discriminator as a stock image classifier, with the calibration of its confidence.

    python -m zoo.export.discriminator    # its figures on images that neither trained nor calibrated it

The directory loads with `AutoModelForImageClassification`, as any classifier with a label called real. Its
configuration has under `pentimento_calibration` the line from a margin to a confidence; without that it is the softmax.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import EfficientNetForImageClassification, PreTrainedModel

from pentimento.diffusion.discriminators.calibration import Calibration, auroc, calibration_error, fit_calibration
from pentimento.diffusion.discriminators.writing import write_preprocessing
from zoo.drawing.dataset import as_pixels
from zoo.evaluate.calibration import CALIBRATION, margins
from zoo.evaluate.examination import BATCH, read_attributes
from zoo.export.directories import save_half, save_transformers_config, write_json
from zoo.train.discriminator import (
    CALIBRATING,
    COUNT,
    LABELS,
    LIGHT_STEPS,
    MEASURING,
    MIX,
    TrainingImages,
    logits_of,
    make_discriminator,
    training_images,
)
from zoo.train.judge import AttributeReader
from zoo.train.loop import CHECKPOINT, load_trained
from zoo.train.parts import WORK

CASCADE = {"light": "tiny-light", "heavy": "tiny-heavy", "light_steps": LIGHT_STEPS}


def export_discriminator(work: Path, folder: Path, count: int = COUNT) -> None:
    """Calibrate the trained discriminator on its reserved fold, and write it."""
    model, pictures = load_discriminator(work), training_images(work, count)
    calibrating = pictures.fold(CALIBRATING)
    calibration = calibrate(model, calibrating)
    measured = measure(model, calibration, pictures.fold(MEASURING))
    record = asdict(calibration) | {
        "method": "platt",
        "cascade": CASCADE,
        "real_against": "light",
        "calibrated_on": len(calibrating.light),
        "measured_on": len(pictures.fold(MEASURING).light),
        "calibration_error": measured["calibration_error"],
    }
    write_discriminator(model, folder, record)


def load_discriminator(work: Path) -> EfficientNetForImageClassification:
    model = load_trained(make_discriminator(), work / "discriminator")
    return model


def write_discriminator(
    model: EfficientNetForImageClassification, folder: Path, calibration: dict[str, object] | None = None
) -> None:
    """Halves on the disk, computed in full."""
    save_transformers_config(model.config, type(model).__name__, folder)
    path = folder / "config.json"
    write_json(path, json.loads(path.read_text(encoding="utf-8")) | {CALIBRATION: calibration or {}})
    save_half(model.state_dict(), folder / "model.safetensors")
    write_preprocessing(folder, model.config.image_size)


@torch.no_grad()
def real_margins(network: nn.Module, images: Tensor) -> Tensor:
    """Return the logit of 'real' less that of 'generated', (n,), of uint8 images by a classifier with LABELS."""
    logits = torch.cat([logits_of(network, as_pixels(part)) for part in images.split(BATCH)]).double()
    return logits[:, LABELS.index("real")] - logits[:, LABELS.index("generated")]


def calibrate(model: PreTrainedModel, pictures: TrainingImages) -> Calibration:
    """Calibrate for a cascade: real images against the light model's, at even odds."""
    return fit_calibration(*_even_odds(model, pictures))


def _even_odds(model: PreTrainedModel, pictures: TrainingImages) -> tuple[Tensor, Tensor, Tensor]:
    """Return margins, which are real, and weights: kinds of real images as in a batch, together equal to light's."""
    kinds = [margins(model, as_pixels(images)) for images in (pictures.drawn, pictures.rendered, pictures.light)]
    shares = (MIX[0], MIX[1], MIX[0] + MIX[1])
    weights = [torch.full((len(kind),), share / len(kind)) for kind, share in zip(kinds, shares, strict=True)]
    real = [torch.full((len(kind),), is_real) for kind, is_real in zip(kinds, (True, True, False), strict=True)]
    return torch.cat(kinds), torch.cat(real), torch.cat(weights)


def measure(model: PreTrainedModel, calibration: Calibration, pictures: TrainingImages) -> dict[str, float]:
    """Measure the confidence's ranking and error on unseen images."""
    found, real, weights = _even_odds(model, pictures)
    of = {kind: margins(model, as_pixels(getattr(pictures, kind))) for kind in ("drawn", "rendered", "light", "heavy")}
    plain = Calibration().confidence(found)
    same_scenes = of["light"][pictures.heavy_rows]
    figures = {
        "auroc_drawn_against_light": auroc(of["drawn"], of["light"]),
        "auroc_rendered_against_light": auroc(of["rendered"], of["light"]),
        "auroc_heavy_against_light": auroc(of["heavy"], of["light"]),
        "heavy_above_light_on_the_same_prompt": float((of["heavy"] > same_scenes).float().mean()),
        "calibration_error": calibration_error(calibration.confidence(found), real, weights),
        "calibration_error_before": calibration_error(plain, real, weights),
    }
    figures |= {f"mean_confidence_{kind}": float(calibration.confidence(of[kind]).mean()) for kind in of}
    return {name: round(value, 4) for name, value in figures.items()}


@torch.no_grad()
def measure_routing(model: PreTrainedModel, reader: AttributeReader, pictures: TrainingImages) -> dict[str, float]:
    """Measure whether light's images that are as good as heavy's of the same prompt, by the attribute scorer, rank
    above the others."""
    rows = pictures.heavy_rows
    right = [
        read_attributes(reader(as_pixels(images)), pictures.asked[rows])[0].sum(dim=1)
        for images in (pictures.light[rows], pictures.heavy)
    ]
    easy = right[0] >= right[1]
    found = margins(model, as_pixels(pictures.light[rows]))
    figures = {"share_light_as_good": float(easy.float().mean())}
    if bool(easy.any()) and not bool(easy.all()):
        figures["auroc_as_good_against_worse"] = auroc(found[easy], found[~easy])
    return {name: round(value, 4) for name, value in figures.items()}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m zoo.export.discriminator", description=__doc__)
    parser.add_argument("--work", type=Path, default=WORK)
    parser.add_argument("--count", type=int, default=COUNT, help="number of training scenes")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    model, pictures = load_discriminator(arguments.work), training_images(arguments.work, arguments.count)
    calibration, kept = calibrate(model, pictures.fold(CALIBRATING)), pictures.fold(MEASURING)
    figures: dict[str, object] = {"scenes": len(kept.light), "scenes_heavy": len(kept.heavy), **asdict(calibration)}
    figures |= measure(model, calibration, kept)
    if (arguments.work / "judge" / CHECKPOINT).exists():
        reader = load_trained(AttributeReader(), arguments.work / "judge")
        figures |= measure_routing(model, reader, kept)
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
