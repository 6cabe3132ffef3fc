r"""Fit a prompt head to a discriminator, for its pair of models: `pentimento zoo prompt-head`.

    pentimento zoo prompt-head --work WORK --scorer SCORERS --out zoo/weights/tiny-router
    pentimento zoo prompt-head --cascade LIGHT,HEAVY --scales S S --discriminator DIR --encoder DIR --work WORK \
        --scorer SCORERS --out DIR

The scenes are new, without a held-out combination, and their seeds are no examination's. Both models generate each; the
attribute scorer says whether light's image shows as many requested attributes as heavy's. Images are cached in WORK.
OUT is the discriminator's directory with a head added.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from pentimento.diffusion.checkpoint import digest_directory
from pentimento.diffusion.discriminator_files import HEAD_FILE, HEAD_WEIGHTS
from pentimento.diffusion.discriminators import PictureDiscriminator, open_discriminator
from pentimento.diffusion.discriminators.prompt_heads import HeadNetwork, HeadRecord
from zoo.command import finite, positive, run
from zoo.drawing.dataset import as_pixels
from zoo.drawing.prompts import Prompts, examination_prompts
from zoo.evaluate.calibration import auroc, fit_calibration
from zoo.evaluate.examination import BATCH, Examiner, read_attributes
from zoo.export.directories import save_half, write_json
from zoo.painting.pairs import ImageSource
from zoo.registry import WEIGHTS, entry_of, write_registry
from zoo.train.judge import AttributeReader
from zoo.train.parts import WORK
from zoo.train.prompt_head import HIDDEN_WIDTH, HeadData, train_head

SCENES_SEED, COUNT = 8, 1_600
FIRST_NOISE = 1 << 40  # far above the seeds of any examination
HEAVY_STEPS = 10  # fewer than served: the attribute scorer sees no difference beyond these
SURE = 0.05  # allowed error for prompts that are hard or easy without an image
POINTS = 51


@dataclass(frozen=True)
class CascadePair:
    """Hold both models, and their discriminator, which gets the head."""

    light: ImageSource
    heavy: ImageSource
    discriminator: Path


def shipped_pair(light: str, heavy: str, discriminator: Path, weights: Path = WEIGHTS) -> CascadePair:
    """Return two of the registry's models, light as served. Raises NotFound."""
    entries = [entry_of(name, weights) for name in (light, heavy)]
    scales = [float(entry["default_guidance_scale"]) for entry in entries]
    return CascadePair(
        ImageSource(weights / light, int(entries[0]["default_steps"]), scales[0]),
        ImageSource(weights / heavy, HEAVY_STEPS, scales[1]),
        discriminator,
    )


@torch.no_grad()
def share_right(reader: AttributeReader, images: Tensor, asked: Tensor) -> Tensor:
    """Return how many requested attributes the scorer sees in uint8 images (n, 3, height, width): (n,)."""
    parts = zip(images.split(BATCH), asked.split(BATCH), strict=True)
    return torch.cat([read_attributes(reader(as_pixels(part)), wanted)[0].sum(dim=1) for part, wanted in parts])


@torch.no_grad()
def features_of(discriminator: PictureDiscriminator, images: Tensor) -> Tensor:
    """Return the pooled features (n, width) of uint8 images, for networks of this zoo, which take -1 to 1."""
    return torch.cat([discriminator.network.features(as_pixels(part)) for part in images.split(BATCH)])


def training_prompts(count: int) -> tuple[Prompts, list[int]]:
    """Return the training scenes and the seeds of their noise."""
    return examination_prompts(count, held_out=False, seed=SCENES_SEED), [FIRST_NOISE + row for row in range(count)]


def head_data(pair: CascadePair, encoder: Path, scorers: Path, work: Path, count: int = COUNT) -> HeadData:
    """Return the head's data, generating images that are missing from the work folder."""
    prompts, seeds = training_prompts(count)
    captions = list(prompts.captions)
    light, heavy = (image_source.generate(work, captions, seeds) for image_source in (pair.light, pair.heavy))
    examiner = Examiner(encoder.parent, scorers)
    right = [share_right(examiner.reader, images, prompts.asked) for images in (light, heavy)]
    features = features_of(open_discriminator(pair.discriminator), light)
    return HeadData(features, examiner.embed_texts(captions), right[0] >= right[1])


@torch.no_grad()
def calibrated(network: HeadNetwork, data: HeadData, record: HeadRecord) -> HeadRecord:
    """Return the record with Platt's lines of both answers, the bounds for sure prompts, and f(t)."""
    found = network(data.features, data.prompts), network.foresee(data.prompts)
    lines = [fit_calibration(logits, data.as_good, torch.ones(len(logits))) for logits in found]
    confidences = lines[0].confidence(found[0])
    thresholds = [index / (POINTS - 1) for index in range(POINTS)]
    return replace(
        record,
        slope=lines[0].slope,
        intercept=lines[0].intercept,
        prompt_slope=lines[1].slope,
        prompt_intercept=lines[1].intercept,
        hard_below=SURE,
        easy_above=1.0 - SURE,
        deferral=tuple((at, float((confidences <= at).double().mean())) for at in thresholds),
    )


def write_head(network: HeadNetwork, record: HeadRecord, discriminator: Path, folder: Path) -> None:
    """Write a discriminator's directory again, with a head added."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "model.safetensors", "preprocessor_config.json"):
        shutil.copyfile(discriminator / name, folder / name)
    # The record has the weights' stored precision: the stored head is calibrated.
    save_half(network.state_dict(), folder / HEAD_WEIGHTS)
    write_json(folder / HEAD_FILE, record.as_json())


def fit(
    pair: CascadePair, encoder: Path, scorers: Path, work: Path, folder: Path, count: int = COUNT
) -> dict[str, float]:
    """Train, calibrate and write a head; return its figures on its calibration prompts."""
    data = head_data(pair, encoder, scorers, work, count)
    learnt, kept = data.fold(calibrating=False), data.fold(calibrating=True)
    network = train_head(learnt)
    network.load_state_dict({name: tensor.half().float() for name, tensor in network.state_dict().items()})
    record = HeadRecord(data.features.shape[1], data.prompts.shape[1], HIDDEN_WIDTH, digest_directory(encoder))
    write_head(network, calibrated(network, kept, record), pair.discriminator, folder)
    with torch.no_grad():
        answers = {"together": network(kept.features, kept.prompts), "by the prompt": network.foresee(kept.prompts)}
    shares = {"share as good": float(data.as_good.float().mean())}
    return shares | {
        f"AUROC {name}": auroc(logits[kept.as_good], logits[~kept.as_good]) for name, logits in answers.items()
    }


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="pentimento zoo prompt-head", description=__doc__)
    parser.add_argument("--cascade", default="tiny-light,tiny-heavy", metavar="LIGHT,HEAVY", help="names or folders")
    parser.add_argument("--discriminator", type=Path, default=WEIGHTS / "tiny-discriminator", metavar="DIR")
    parser.add_argument(
        "--encoder", type=Path, default=WEIGHTS / "tiny-clip", metavar="DIR", help="the suite's encoder"
    )
    parser.add_argument("--scorer", type=Path, default=WORK, metavar="DIR", help="work folder of the attribute scorer")
    parser.add_argument("--work", type=Path, default=WORK, help="folder that caches generated images [%(default)s]")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--count", type=positive, default=COUNT, help="number of scenes [%(default)s]")
    parser.add_argument("--steps", type=positive, nargs=2, metavar=("LIGHT", "HEAVY"), help="[as light is served; 10]")
    parser.add_argument("--scales", type=finite, nargs=2, metavar=("LIGHT", "HEAVY"), help="of guidance, of folders")
    parser.add_argument("--threads", type=positive, default=1)
    arguments = parser.parse_args(given)
    torch.set_num_threads(arguments.threads)
    pair = _pair(arguments)
    figures = fit(pair, arguments.encoder, arguments.scorer, arguments.work, arguments.out, arguments.count)
    for name, value in figures.items():
        print(f"{name}: {value:.4f}")
    if arguments.out.parent.resolve() == WEIGHTS.resolve():
        write_registry()


def _pair(arguments: argparse.Namespace) -> CascadePair:
    names = arguments.cascade.split(",")
    if len(names) != 2:
        raise SystemExit(f"--cascade must be LIGHT,HEAVY, got {arguments.cascade!r}")
    if arguments.scales is None:
        pair = shipped_pair(names[0], names[1], arguments.discriminator)
    else:
        named = zip(names, arguments.scales, strict=True)
        folders = [ImageSource(Path(name), HEAVY_STEPS, scale) for name, scale in named]
        pair = CascadePair(folders[0], folders[1], arguments.discriminator)
    if arguments.steps is None:
        return pair
    light, heavy = arguments.steps
    return replace(pair, light=replace(pair.light, steps=light), heavy=replace(pair.heavy, steps=heavy))


if __name__ == "__main__":
    run(main)
