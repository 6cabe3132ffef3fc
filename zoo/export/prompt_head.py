r"""Fit a discriminator that reads prompts, for its pair of models: `pentimento zoo prompt-head`.

    pentimento zoo prompt-head --work WORK --scorer SCORERS --out zoo/weights/tiny-router
    pentimento zoo prompt-head --cascade LIGHT,HEAVY --scales S S --discriminator DIR --encoder DIR --work WORK \
        --scorer SCORERS --out DIR

The scenes are new, without a held-out combination, and their seeds are no examination's. Both models generate each; the
attribute scorer says whether light's image shows as many requested attributes as heavy's. Images are cached in WORK.
Without --discriminator a network of torchvision is trained first (`zoo.train.prompt_network`). OUT is the
discriminator's directory with a head added. Its f(t) is of further scenes, which only light generates.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from pentimento.diffusion.checkpoint import digest_directory
from pentimento.diffusion.discriminators import PictureDiscriminator, open_discriminator
from pentimento.diffusion.discriminators.calibration import auroc, fit_calibration
from pentimento.diffusion.discriminators.head_fitting import (
    HIDDEN_WIDTH,
    CaptionedImages,
    HeadData,
    calibrated,
    fit_agreement,
    train_head,
    with_deferral,
)
from pentimento.diffusion.discriminators.network_training import NARROW_ARCHITECTURE
from pentimento.diffusion.discriminators.prompt_heads import HeadRecord
from pentimento.diffusion.discriminators.writing import write_head, write_record, write_torchvision
from zoo.command import finite, positive, run
from zoo.drawing.dataset import as_pixels
from zoo.drawing.prompts import Prompts, examination_prompts
from zoo.drawing.scenes import IMAGE_SIZE
from zoo.evaluate.examination import BATCH, Examiner, read_attributes
from zoo.export.discriminator import real_margins
from zoo.painting.pairs import ImageSource
from zoo.painting.pipeline import load_pipeline
from zoo.painting.store import as_bytes
from zoo.registry import WEIGHTS, entry_of, write_registry
from zoo.train.discriminator import render
from zoo.train.judge import AttributeReader
from zoo.train.loop import TrainingPlan, TrainingRun, load_trained
from zoo.train.parts import WORK
from zoo.train.prompt_network import PLAN, NetworkImages, PromptNetworkPart, is_calibrating

SCENES_SEED, COUNT = 8, 1_600
FIRST_NOISE = 1 << 40  # far above the seeds of any examination
HEAVY_STEPS = 10  # fewer than served: the attribute scorer sees no difference beyond these
DRAWN = 6_400  # further scenes that are drawn only, for the network and for the head's reading of its features
SERVED = 4_800  # further scenes for f(t): then nineteen of twenty curves are within 0.02 of it everywhere


@dataclass(frozen=True)
class CascadePair:
    """Hold both models, and their discriminator, which gets the head; None: one is trained."""

    light: ImageSource
    heavy: ImageSource
    discriminator: Path | None = None


def shipped_pair(light: str, heavy: str, discriminator: Path | None = None, weights: Path = WEIGHTS) -> CascadePair:
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


@dataclass(frozen=True)
class HeadImages:
    """Hold the scenes' images, their captions' embeddings, and the scorer's values of both models' images, (n,)."""

    scenes: NetworkImages
    light: Tensor
    heavy: Tensor


def head_images(pair: CascadePair, encoder: Path, scorers: Path, work: Path, count: int, drawn: int) -> HeadImages:
    """Return the training's images, generating what the work folder lacks."""
    prompts, seeds = training_prompts(count)
    captions = list(prompts.captions)
    light, heavy = (image_source.generate(work, captions, seeds) for image_source in (pair.light, pair.heavy))
    examiner = Examiner(encoder.parent, scorers)
    right = [share_right(examiner.reader, images, prompts.asked) for images in (light, heavy)]
    autoencoder = load_pipeline(pair.heavy.folder).vae
    rendered = torch.cat([as_bytes(render(autoencoder, part)) for part in prompts.drawn.split(BATCH)])
    more = examination_prompts(drawn, first=count, held_out=False, seed=SCENES_SEED)
    texts = torch.cat([examiner.embed_texts(captions), examiner.embed_texts(list(more.captions))])
    scenes = NetworkImages(torch.cat([prompts.drawn, more.drawn]), rendered, light, heavy, texts)
    return HeadImages(scenes, right[0], right[1])


def head_data(found: HeadImages, discriminator: PictureDiscriminator) -> tuple[HeadData, CaptionedImages]:
    """Return the head's data by the discriminator's features."""
    scenes, count = found.scenes, len(found.light)
    data = HeadData(features_of(discriminator, scenes.light), scenes.captions[:count], found.light, found.heavy)
    shown = scenes.rows(~is_calibrating(count))
    return data, CaptionedImages(features_of(discriminator, shown.drawn), shown.captions)


def train_network(scenes: NetworkImages, work: Path, folder: Path, plan: TrainingPlan = PLAN) -> None:
    """Train a network of torchvision on the scenes that do not calibrate, calibrate and write it."""
    part = PromptNetworkPart(scenes.rows(~is_calibrating(len(scenes.light))))
    TrainingRun(part, plan, work / part.name).train()
    network = load_trained(part.module, work / part.name).network
    # The record has the weights' stored precision: the stored network is calibrated.
    network.load_state_dict(
        {n: t.half().float() if t.is_floating_point() else t for n, t in network.state_dict().items()}
    )
    kept = scenes.rows(is_calibrating(len(scenes.light)))
    margins = [real_margins(network, images) for images in (kept.rendered, kept.light)]
    real = torch.cat(
        [torch.full((len(found),), is_real) for found, is_real in zip(margins, (True, False), strict=True)]
    )
    folder.mkdir(parents=True, exist_ok=True)
    calibration = fit_calibration(torch.cat(margins), real, torch.ones(len(real)))
    write_torchvision(network, folder, asdict(calibration), NARROW_ARCHITECTURE, IMAGE_SIZE)


def fit(
    pair: CascadePair,
    encoder: Path,
    scorers: Path,
    work: Path,
    folder: Path,
    count: int = COUNT,
    drawn: int = DRAWN,
    served: int = SERVED,
    plan: TrainingPlan = PLAN,
) -> dict[str, float]:
    """Train, calibrate and write a discriminator that reads prompts; return its figures on its calibration prompts."""
    found = head_images(pair, encoder, scorers, work, count, drawn)
    discriminator = pair.discriminator
    if discriminator is None:
        discriminator = work / "network"
        train_network(found.scenes, work, discriminator, plan)
    data, shown = head_data(found, open_discriminator(discriminator))
    kept_rows = is_calibrating(len(data.light))
    learnt, kept = data.rows(~kept_rows), data.rows(kept_rows)
    network = train_head(learnt, shown)
    fit_agreement(network, kept)
    network.load_state_dict({name: tensor.half().float() for name, tensor in network.state_dict().items()})
    record = HeadRecord(data.features.shape[1], data.prompts.shape[1], HIDDEN_WIDTH, digest_directory(encoder))
    record = calibrated(network, kept, record)
    write_head(network, record, discriminator, folder)
    measure_deferral(folder, pair.light, encoder, work, count + drawn, served)
    with torch.no_grad():
        answers = {"together": network(kept.features, kept.prompts), "by the prompt": network.foresee(kept.prompts)}
    figures = {"share as good": float(data.as_good.float().mean()), "threshold": record.threshold}
    return figures | {
        f"AUROC {name}": auroc(logits[kept.as_good], logits[~kept.as_good]) for name, logits in answers.items()
    }


@torch.no_grad()
def measure_deferral(folder: Path, light: ImageSource, encoder: Path, work: Path, first: int, count: int) -> None:
    """Replace f(t) in a discriminator's directory by that of light images of `count` new scenes from number `first`
    on."""
    discriminator = open_discriminator(folder, accept_other_digest=True)
    assert discriminator.head is not None
    prompts = examination_prompts(count, first=first, held_out=False, seed=SCENES_SEED)
    captions, seeds = list(prompts.captions), [FIRST_NOISE + row for row in range(first, first + count)]
    features = features_of(discriminator, light.generate(work, captions, seeds))
    embedded = list(Examiner(encoder.parent, work).embed_texts(captions).numpy())
    confidences = torch.tensor(discriminator.head.probabilities(features, embedded), dtype=torch.float64)
    foreseen = torch.tensor([told.probability for told in discriminator.head.foresee(embedded)], dtype=torch.float64)
    write_record(with_deferral(discriminator.head.record, confidences, foreseen), folder)


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="pentimento zoo prompt-head", description=__doc__)
    parser.add_argument("--cascade", default="tiny-light,tiny-heavy", metavar="LIGHT,HEAVY", help="names or folders")
    parser.add_argument("--discriminator", type=Path, metavar="DIR", help="gets the head [one is trained]")
    parser.add_argument(
        "--encoder", type=Path, default=WEIGHTS / "tiny-clip", metavar="DIR", help="the suite's encoder"
    )
    parser.add_argument("--scorer", type=Path, default=WORK, metavar="DIR", help="work folder of the attribute scorer")
    parser.add_argument("--work", type=Path, default=WORK, help="folder that caches generated images [%(default)s]")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--count", type=positive, default=COUNT, help="number of scenes [%(default)s]")
    parser.add_argument("--served", type=positive, default=SERVED, help="number of scenes for f(t) [%(default)s]")
    parser.add_argument("--steps", type=positive, nargs=2, metavar=("LIGHT", "HEAVY"), help="[as light is served; 10]")
    parser.add_argument("--scales", type=finite, nargs=2, metavar=("LIGHT", "HEAVY"), help="of guidance, of folders")
    parser.add_argument(
        "--network-steps", type=positive, default=PLAN.steps, help="of the network's training [%(default)s]"
    )
    parser.add_argument("--threads", type=positive, default=1)
    arguments = parser.parse_args(given)
    torch.set_num_threads(arguments.threads)
    pair = _pair(arguments)
    folders = (arguments.encoder, arguments.scorer, arguments.work, arguments.out)
    figures = fit(
        pair, *folders, arguments.count, served=arguments.served, plan=replace(PLAN, steps=arguments.network_steps)
    )
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
