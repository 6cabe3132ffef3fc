"""Train the denoisers, heavy and light: two sizes of one UNet over the same latents and the same text states.

v-prediction on a squared-cosine schedule, with the caption dropped one time in ten for guidance's unconditional half.
Latents and text states are computed once and cached in the work folder.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

import torch
from diffusers import DDIMScheduler, UNet2DConditionModel
from torch import Tensor
from torch.nn import functional

from zoo.devices import device, half_precision
from zoo.drawing.captions import ATTRIBUTES
from zoo.drawing.dataset import TRAIN_COUNT, TRAIN_SEED, cached_drawings, tokenise
from zoo.drawing.tokenizer import load_tokenizer
from zoo.files import cached_tensors, file_digest
from zoo.train.autoencoder import DOWNSCALE, LATENT_CHANNELS, encode_all, make_autoencoder
from zoo.train.dual_encoder import WIDTH, TowersAndHeads
from zoo.train.loop import CHECKPOINT, TrainingPlan, load_trained

HEAVY_PLAN = TrainingPlan(steps=6000, peak_rate=1.5e-3, warmup=150, cooldown=0.39, ema_decay=0.998)
LIGHT_PLAN = TrainingPlan(steps=5000, peak_rate=2.0e-3, warmup=150, ema_decay=0.998)
# How much more often light sees a drawing of one object, of two, of three. It is too small to learn all well,
# and a cascade cannot use a light model that is a little worse at everything: it needs easy queries.
LIGHT_ODDS = (6.0, 2.0, 1.0)
LATENT_SIZE = 16
BATCH = 64
CAPTION_DROPOUT = 0.1
COUNT_COLUMN = tuple(ATTRIBUTES).index("count")
FOREGROUND_WEIGHT = 2.0


def make_heavy() -> UNet2DConditionModel:
    return _make_unet((32, 64, 96))


def make_light() -> UNet2DConditionModel:
    return _make_unet((16, 32, 48))


def _make_unet(channels: tuple[int, int, int]) -> UNet2DConditionModel:
    return UNet2DConditionModel(
        sample_size=LATENT_SIZE,
        in_channels=LATENT_CHANNELS,
        out_channels=LATENT_CHANNELS,
        layers_per_block=1,
        block_out_channels=channels,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=WIDTH,
        attention_head_dim=4,
        norm_num_groups=8,
    )


def make_scheduler() -> DDIMScheduler:
    """Return the schedule of both denoisers' training and sampling; its last step is noise within 1e-9."""
    return DDIMScheduler(
        beta_schedule="squaredcos_cap_v2",
        prediction_type="v_prediction",
        timestep_spacing="trailing",
        steps_offset=1,  # unused by trailing spacing; a StableDiffusionPipeline requires it
        clip_sample=False,
        set_alpha_to_one=True,
    )


@dataclass(frozen=True)
class EncodedDrawings:
    """Hold a denoiser's training data: `states[i]` describes `latents[i]`; `empty` is the state of no caption."""

    latents: Tensor
    weights: Tensor
    states: Tensor
    empty: Tensor


@torch.no_grad()
def _encode_texts(towers: TowersAndHeads, tokens: Tensor, batch: int = 512) -> Tensor:
    where = next(towers.parameters()).device
    chunks = [towers.clip.text_model(input_ids=part.to(where)).last_hidden_state for part in tokens.split(batch)]
    return torch.cat([chunk.to(torch.bfloat16).cpu() for chunk in chunks])


def encode_drawings(work: Path, count: int, seed: int = TRAIN_SEED, treatment: str | None = None) -> EncodedDrawings:
    """Return a set of drawings encoded by the trained autoencoder and text tower."""
    name = "-".join(["encoded", str(seed), str(count), *([treatment] if treatment else [])])
    path = work / f"{name}.safetensors"
    # another autoencoder or text tower makes another data set
    parents = "".join(file_digest(work / part / CHECKPOINT) for part in ("autoencoder", "dual-encoder"))
    names = [field.name for field in fields(EncodedDrawings)]
    what = f"{count} encoded drawings"
    return EncodedDrawings(**cached_tensors(path, what, names, lambda: _encode(work, count, seed, treatment), parents))


def _encode(work: Path, count: int, seed: int, treatment: str | None) -> dict[str, Tensor]:
    tokenizer = load_tokenizer(work / "tokenizer")
    drawings = cached_drawings(work, seed, count, tokenizer, treatment=treatment)
    autoencoder = load_trained(make_autoencoder(), work / "autoencoder").to(device())
    towers = load_trained(TowersAndHeads(tokenizer), work / "dual-encoder").to(device())
    coverage = functional.avg_pool2d(drawings.coverage[:, None].float() / 255.0, DOWNSCALE)
    weights = 1.0 + FOREGROUND_WEIGHT * (coverage > 0).float()
    return {
        "latents": encode_all(autoencoder, drawings.images),
        "weights": weights / weights.mean(),
        "states": _encode_texts(towers, drawings.tokens),
        "empty": _encode_texts(towers, tokenise(tokenizer, [""])),
    }


class DenoiserPart:
    name: str
    caption_dropout = CAPTION_DROPOUT

    def __init__(
        self, unet: UNet2DConditionModel, encoded: EncodedDrawings, batch: int = BATCH, odds: Tensor | None = None
    ) -> None:
        """Train on the drawings; `odds` (drawings,) are their relative frequencies, equal without."""
        self.module = unet.to(device())
        self.encoded, self.batch, self.odds = encoded, batch, odds
        self.alphas = make_scheduler().alphas_cumprod

    def loss(self, generator: torch.Generator) -> tuple[Tensor, dict[str, float]]:
        data, size = self.encoded, self.batch
        rows = self._rows(generator)
        clean = data.latents[rows]
        dropped = torch.rand((size, 1, 1), generator=generator) < self.caption_dropout
        states = torch.where(dropped, data.empty, data.states[rows]).float()
        # one timestep from each of `size` equal stretches: less noise in the loss than independent ones
        stretches = torch.arange(size) + torch.rand(size, generator=generator)
        timesteps = (stretches / size * len(self.alphas)).long().clamp(max=len(self.alphas) - 1)
        signal = self.alphas[timesteps].sqrt()[:, None, None, None]
        spread = (1.0 - self.alphas[timesteps]).sqrt()[:, None, None, None]
        noise = torch.randn(clean.shape, generator=generator)
        noisy, wanted = signal * clean + spread * noise, signal * noise - spread * clean
        where = device()
        with half_precision():
            found = self._predict(noisy.to(where), timesteps.to(where), states.to(where), rows)
        squared = (found.float() - wanted.to(where)).square() * data.weights[rows].to(where)
        middle = squared.detach().mean(dim=(1, 2, 3))
        third = size // 3
        figures = {"clean_third": middle[:third].mean(), "noisy_third": middle[-third:].mean()}
        return squared.mean(), {name: float(value) for name, value in figures.items()}

    def _rows(self, generator: torch.Generator) -> Tensor:
        """Return the drawings of a batch."""
        if self.odds is None:
            return torch.randint(len(self.encoded.latents), (self.batch,), generator=generator)
        return torch.multinomial(self.odds, self.batch, replacement=True, generator=generator)

    def _predict(self, noisy: Tensor, timesteps: Tensor, states: Tensor, rows: Tensor) -> Tensor:
        """Return the predicted velocity; `rows` are the batch's drawings."""
        return self.module(noisy, timesteps, states, return_dict=False)[0]


class HeavyPart(DenoiserPart):
    name = "heavy"

    def __init__(self, work: Path, seed: int = 0, count: int = TRAIN_COUNT, batch: int = BATCH) -> None:
        torch.manual_seed(seed)
        super().__init__(make_heavy(), encode_drawings(work, count), batch)


class LightPart(DenoiserPart):
    name = "light"

    def __init__(self, work: Path, seed: int = 0, count: int = TRAIN_COUNT, batch: int = BATCH) -> None:
        torch.manual_seed(seed)
        drawings = cached_drawings(work, TRAIN_SEED, count, load_tokenizer(work / "tokenizer"))
        odds = torch.tensor(LIGHT_ODDS)[drawings.image_labels[:, COUNT_COLUMN]]
        super().__init__(make_light(), encode_drawings(work, count), batch, odds)
