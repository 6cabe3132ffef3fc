"""The discriminator of a cascade: tells real pictures from generated ones, without their prompts (DiffServe, 3.2).

As in the paper, generated are pictures of the light and of the heavy model, and real is the ground truth. Here that is
drawings, most of them as the autoencoder renders them: it leaves its own traces in every picture that is painted, and
against drawings alone these would be all there is to learn, so that light and heavy would look alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from diffusers import AutoencoderTiny, StableDiffusionPipeline
from torch import Tensor, nn
from torch.nn import functional
from transformers import EfficientNetConfig, EfficientNetForImageClassification

from zoo.devices import device, half_precision
from zoo.drawing.dataset import as_pixels
from zoo.drawing.prompts import examination_prompts
from zoo.drawing.scenes import IMAGE_SIZE
from zoo.drawing.tokenizer import load_tokenizer
from zoo.painting.pipeline import paint
from zoo.painting.store import PaintedPictures, weights_digest
from zoo.registry import MODELS
from zoo.train.augmentation import noisy
from zoo.train.autoencoder import make_autoencoder
from zoo.train.denoiser import make_heavy, make_light, make_scheduler
from zoo.train.dual_encoder import TowersAndHeads
from zoo.train.loop import TrainingPlan, load_trained

PLAN = TrainingPlan(steps=2000, peak_rate=2.0e-3, ema_decay=0.99, weight_decay=0.05)
SEED, COUNT = 5, 3_000  # of scenes: each is drawn, rendered and painted by light, one in HEAVY_EVERY by heavy
HEAVY_EVERY = 3
BATCH = 64
LIGHT_STEPS = MODELS["tiny-light"].steps
HEAVY_STEPS = 20  # fewer than it is served with: its pictures differ little after these
KINDS = ("drawn", "rendered", "light", "heavy")
MIX = (0.125, 0.375, 0.375, 0.125)  # of a batch: even odds of real and generated
LABELS = ("generated", "real")
FOLDS = 8  # one of them calibrates the confidence, another measures it, the rest is trained on
CALIBRATING, MEASURING = FOLDS - 2, FOLDS - 1
SHIFT_PX = 3
PIXEL_NOISE = 0.03


def make_discriminator(image_size: int = IMAGE_SIZE) -> EfficientNetForImageClassification:
    """The first five of EfficientNet's seven stages, at half of B0's depth and three quarters of its width."""
    config = EfficientNetConfig(
        image_size=image_size,
        width_coefficient=0.75,
        depth_coefficient=0.5,
        depth_divisor=4,
        kernel_sizes=(3, 3, 5, 3, 5),
        in_channels=(32, 16, 24, 40, 80),
        out_channels=(16, 24, 40, 80, 112),
        strides=(1, 2, 2, 2, 1),
        num_block_repeats=(1, 2, 2, 3, 3),
        expand_ratios=(1, 4, 4, 4, 4),
        hidden_dim=960,  # 1280 by the width
        batch_norm_momentum=0.1,  # the library's default of 0.99 is TensorFlow's, and forgets all but the last batch
        dropout_rate=0.2,
        drop_connect_rate=0.1,
        id2label=dict(enumerate(LABELS)),
        label2id={label: number for number, label in enumerate(LABELS)},
    )
    model = EfficientNetForImageClassification(config)
    for module in model.modules():
        # The library draws the norms' scales around 0, which silences a network that is not loaded but trained.
        if isinstance(module, nn.Conv2d | nn.BatchNorm2d | nn.Linear):
            module.reset_parameters()
    return model


@dataclass(frozen=True)
class TrainingPictures:
    """Pictures of the same scenes, uint8 (n, 3, size, size) each; heavy painted the scenes `heavy_rows` alone."""

    drawn: Tensor
    rendered: Tensor
    light: Tensor
    heavy: Tensor
    heavy_rows: Tensor
    asked: Tensor  # int64 (n, attributes): what the captions say, as in `Prompts`

    def fold(self, *numbers: int) -> TrainingPictures:
        """The scenes of some of the FOLDS; every picture of a scene is in the same fold."""
        chosen = torch.isin(torch.arange(len(self.drawn)) // HEAVY_EVERY % FOLDS, torch.tensor(numbers))
        heavy = chosen[self.heavy_rows]
        rows = torch.cumsum(chosen, 0)[self.heavy_rows[heavy]] - 1
        return TrainingPictures(
            self.drawn[chosen], self.rendered[chosen], self.light[chosen], self.heavy[heavy], rows, self.asked[chosen]
        )


def paint_pictures(work: Path, count: int) -> TrainingPictures:
    """The discriminator's data, painted by the trained parts of the work folder or found there from an earlier run."""
    prompts = examination_prompts(count, held_out=False, seed=SEED)
    captions, rows = list(prompts.captions), list(range(count))
    autoencoder = load_trained(make_autoencoder(), work / "autoencoder").to(device())
    rendering: dict[str, object] = {"rendered": weights_digest(work / "autoencoder")}
    rendered = PaintedPictures(work, rendering).get(
        captions, rows, lambda part: render(autoencoder, prompts.drawn[part])
    )
    heavy_rows = rows[::HEAVY_EVERY]
    chosen = [captions[row] for row in heavy_rows]
    return TrainingPictures(
        prompts.drawn,
        rendered,
        _paint_part(work, "light", captions, rows, LIGHT_STEPS),
        _paint_part(work, "heavy", chosen, heavy_rows, HEAVY_STEPS),
        torch.tensor(heavy_rows),
        prompts.asked,
    )


@torch.no_grad()
def render(autoencoder: AutoencoderTiny, images: Tensor) -> Tensor:
    """uint8 pictures to the autoencoder's latents and back: floats in 0..1."""
    latents = autoencoder.encoder(as_pixels(images).to(device()))
    return (autoencoder.decoder(latents).float().cpu() * 0.5 + 0.5).clamp(0.0, 1.0)


def _paint_part(work: Path, part: str, captions: list[str], seeds: list[int], steps: int) -> Tensor:
    folders = [work / name for name in (part, "autoencoder", "dual-encoder")]
    scale = MODELS[f"tiny-{part}"].guidance_scale  # as it is served
    manner: dict[str, object] = {"weights": weights_digest(*folders), "steps": steps, "scale": scale}
    pipeline = cache(lambda: trained_pipeline(work, part))  # needed where something is not painted yet

    def painted(rows: list[int]) -> Tensor:
        return paint(pipeline(), [captions[row] for row in rows], [seeds[row] for row in rows], steps, scale)

    return PaintedPictures(work, manner).get(captions, seeds, painted)


def trained_pipeline(work: Path, part: str) -> StableDiffusionPipeline:
    """What will be exported of `part`, heavy or light, put together from the work folder."""
    tokenizer = load_tokenizer(work / "tokenizer")
    unet = {"heavy": make_heavy, "light": make_light}[part]()
    pipeline = StableDiffusionPipeline(
        vae=load_trained(make_autoencoder(), work / "autoencoder"),
        text_encoder=load_trained(TowersAndHeads(tokenizer), work / "dual-encoder").clip.text_model,
        tokenizer=tokenizer,
        unet=load_trained(unet, work / part),
        scheduler=make_scheduler(),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline.to(device())


class DiscriminatorPart:
    name = "discriminator"

    def __init__(self, work: Path, seed: int = 0, count: int = COUNT, batch: int = BATCH) -> None:
        torch.manual_seed(seed)
        self.module = make_discriminator().to(device(), memory_format=torch.channels_last)
        self.batch = batch
        pictures = paint_pictures(work, count).fold(*range(CALIBRATING))
        kinds = [getattr(pictures, kind) for kind in KINDS]
        self.images = torch.cat(kinds)
        self.sizes = torch.tensor([len(images) for images in kinds])
        self.starts = self.sizes.cumsum(0) - self.sizes

    def loss(self, generator: torch.Generator) -> tuple[Tensor, dict[str, float]]:
        kinds = torch.multinomial(torch.tensor(MIX), self.batch, replacement=True, generator=generator)
        within = torch.rand(self.batch, generator=generator) * self.sizes[kinds]
        images = self.images[self.starts[kinds] + within.long()]
        return loss_of(self.module, images, kinds < KINDS.index("light"), generator)


def loss_of(
    module: EfficientNetForImageClassification, images: Tensor, real: Tensor, generator: torch.Generator
) -> tuple[Tensor, dict[str, float]]:
    """The loss of uint8 images (n, 3, size, size), which are `real` (n,) or generated, and the share told right."""
    pixels = _blurred(as_pixels(images), generator)
    # Dropout draws from torch's own generator, which a run that is resumed has not advanced.
    torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
    with half_precision():
        logits = module(pixels.to(device(), memory_format=torch.channels_last)).logits.float()
    wanted = real.long().to(logits.device)  # an index into LABELS
    right = (logits.detach().argmax(dim=1) == wanted).float()
    return functional.cross_entropy(logits, wanted), {"right": float(right.mean())}


def _blurred(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Moved by a few pixels and a little noisy, so that no picture is learnt by heart."""
    down, across = torch.randint(2 * SHIFT_PX + 1, (2,), generator=generator).tolist()
    wide = functional.pad(pixels, (SHIFT_PX,) * 4, mode="replicate")
    moved = wide[..., down : down + pixels.shape[-2], across : across + pixels.shape[-1]]
    return noisy(moved, PIXEL_NOISE, generator)
