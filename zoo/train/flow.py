"""Train the second family: a small flow-matching transformer of Stable Diffusion 3's kind over the same latents.

Rectified flow: x_t = (1 - t) x_0 + t noise, and the model predicts the velocity noise - x_0. A caption is encoded as by
stock StableDiffusion3Pipeline with one text tower as both of its CLIP encoders and no T5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, SD3Transformer2DModel
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from transformers import CLIPModel, CLIPTextModelWithProjection

from zoo.devices import device, half_precision
from zoo.drawing.dataset import TRAIN_COUNT, TRAIN_SEED, cached_drawings, tokenise
from zoo.drawing.tokenizer import load_tokenizer
from zoo.files import cached_tensors, file_digest
from zoo.train.autoencoder import LATENT_CHANNELS
from zoo.train.denoiser import CAPTION_DROPOUT, LATENT_SIZE, encode_drawings
from zoo.train.dual_encoder import PROJECTION, WIDTH, TowersAndHeads
from zoo.train.loop import CHECKPOINT, TrainingPlan, load_trained

PLAN = TrainingPlan(steps=6000, peak_rate=2.0e-3, warmup=200, cooldown=0.5, ema_decay=0.998)
BATCH = 32
PATCH = 2
LAYERS, HEADS, HEAD_WIDTH = 4, 4, 24
ENCODERS = 2  # the pipeline's, which hold the same weights here
TIMESTEPS = 1000  # a moment t is TIMESTEPS * t for the transformer
SPREAD = 1.25  # of the moments' logits: broad, since near pure noise the backgrounds are settled
WITHOUT_PADDING = 0.5  # share of a batch without tokens in T5's place; the others have up to MAX_PADDING
MAX_PADDING = 512


def make_flow() -> SD3Transformer2DModel:
    """Return a transformer with blocks that begin as the identity and a velocity that begins at zero."""
    transformer = SD3Transformer2DModel(
        sample_size=LATENT_SIZE,
        patch_size=PATCH,
        in_channels=LATENT_CHANNELS,
        out_channels=LATENT_CHANNELS,
        num_layers=LAYERS,
        num_attention_heads=HEADS,
        attention_head_dim=HEAD_WIDTH,
        joint_attention_dim=ENCODERS * WIDTH,
        caption_projection_dim=HEADS * HEAD_WIDTH,
        pooled_projection_dim=ENCODERS * PROJECTION,
        pos_embed_max_size=LATENT_SIZE // PATCH,
        qk_norm="rms_norm",
    )
    gates = [norm.linear for block in transformer.transformer_blocks for norm in (block.norm1, block.norm1_context)]
    for layer in (*gates, transformer.norm_out.linear, transformer.proj_out):
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
    return transformer


def make_flow_scheduler() -> FlowMatchEulerDiscreteScheduler:
    return FlowMatchEulerDiscreteScheduler(num_train_timesteps=TIMESTEPS, shift=1.0)


def make_text_encoder(clip: CLIPModel) -> CLIPTextModelWithProjection:
    """Return the dual encoder's text half in the pipeline's form."""
    encoder = CLIPTextModelWithProjection(clip.config.text_config)
    found = clip.state_dict()
    encoder.load_state_dict({name: found[name] for name in encoder.state_dict()})
    return encoder.eval().requires_grad_(False)


@dataclass(frozen=True)
class Captions:
    """Hold one encoder's states of captions; the pipeline concatenates both encoders' features."""

    states: Tensor  # bf16 (n, tokens, WIDTH): the text tower's penultimate hidden states
    pooled: Tensor  # bf16 (n, PROJECTION)
    empty_states: Tensor  # the same of no caption, n = 1
    empty_pooled: Tensor

    def batch(self, rows: Tensor, dropped: Tensor) -> tuple[Tensor, Tensor]:
        """Return a batch's hidden states (n, tokens, ENCODERS * WIDTH) and pooled ones (n, ENCODERS * PROJECTION)."""
        states = torch.where(dropped[:, None, None], self.empty_states, self.states[rows]).float()
        pooled = torch.where(dropped[:, None], self.empty_pooled, self.pooled[rows]).float()
        return states.repeat(1, 1, ENCODERS), pooled.repeat(1, ENCODERS)


@torch.no_grad()
def _encode(encoder: CLIPTextModelWithProjection, tokens: Tensor, batch: int = 512) -> tuple[Tensor, Tensor]:
    states, pooled = [], []
    for part in tokens.split(batch):
        found = encoder(part.to(encoder.device), output_hidden_states=True)
        states.append(found.hidden_states[-2].to(torch.bfloat16).cpu())
        pooled.append(found.text_embeds.to(torch.bfloat16).cpu())
    return torch.cat(states), torch.cat(pooled)


def _encode_all(work: Path, count: int, seed: int) -> dict[str, Tensor]:
    tokenizer = load_tokenizer(work / "tokenizer")
    towers = load_trained(TowersAndHeads(tokenizer), work / "dual-encoder")
    encoder = make_text_encoder(towers.clip).to(device())
    states, pooled = _encode(encoder, cached_drawings(work, seed, count, tokenizer).tokens)
    empty_states, empty_pooled = _encode(encoder, tokenise(tokenizer, [""]))
    return {"states": states, "pooled": pooled, "empty_states": empty_states, "empty_pooled": empty_pooled}


def encode_captions(work: Path, count: int, seed: int = TRAIN_SEED) -> Captions:
    """Return the captions of `encode_drawings`'s drawings, in their order."""
    path, what = work / f"captions-{seed}-{count}.safetensors", f"{count} encoded captions"
    names = [field.name for field in fields(Captions)]
    parent = file_digest(work / "dual-encoder" / CHECKPOINT)
    return Captions(**cached_tensors(path, what, names, lambda: _encode_all(work, count, seed), parent))


class LastTokenRepeated(TorchFunctionMode):
    """Let every attention within count its last key `counts` times, not necessarily a whole number.

    Equal tokens stay equal through a joint transformer, so that a weighted one replaces all.
    """

    def __init__(self, counts: Tensor) -> None:
        super().__init__()
        self.bias = counts.log()[:, None, None, None]

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if function is functional.scaled_dot_product_attention:
            query, key = args[:2]
            bias = functional.pad(self.bias, (key.shape[-2] - 1, 0))
            kwargs = kwargs | {"attn_mask": bias.to(query)}
        return function(*args, **kwargs)


def moments(size: int, generator: torch.Generator) -> Tensor:
    """Draw moments of the flow (size,), logit-normal, rising: one from each of `size` equally likely stretches."""
    stretches = (torch.arange(size) + torch.rand(size, generator=generator)) / size
    return torch.sigmoid(SPREAD * torch.special.ndtri(stretches))


def padding(size: int, generator: torch.Generator) -> Tensor:
    """Draw the number of tokens in T5's place (size,): the pipeline appends its caller's number of zeros."""
    without = torch.rand(size, generator=generator) < WITHOUT_PADDING
    return torch.where(without, 0.0, MAX_PADDING ** torch.rand(size, generator=generator))


class FlowPart:
    name = "flow"

    def __init__(self, work: Path, seed: int = 0, count: int = TRAIN_COUNT, batch: int = BATCH) -> None:
        torch.manual_seed(seed)
        self.module = make_flow().to(device())
        self.batch = batch
        encoded = encode_drawings(work, count)
        self.latents, self.weights = encoded.latents, encoded.weights
        self.captions = encode_captions(work, count)

    def loss(self, generator: torch.Generator) -> tuple[Tensor, dict[str, float]]:
        rows = torch.randint(len(self.latents), (self.batch,), generator=generator)
        dropped = torch.rand(self.batch, generator=generator) < CAPTION_DROPOUT
        clean, when = self.latents[rows], moments(self.batch, generator)
        noise = torch.randn(clean.shape, generator=generator)
        noisy = torch.lerp(clean, noise, when[:, None, None, None])
        squared = self.squared_error(noisy, when, rows, dropped, noise - clean, generator)
        return squared.mean(), self.by_third(squared)

    def squared_error(
        self, noisy: Tensor, when: Tensor, rows: Tensor, dropped: Tensor, wanted: Tensor, generator: torch.Generator
    ) -> Tensor:
        """Return the velocity's squared error at `noisy`, weighted by the objects' coverage, in the latents' shape."""
        states, pooled = self.captions.batch(rows, dropped)
        states = functional.pad(states, (0, 0, 0, 1))
        where = device()
        given = [tensor.to(where) for tensor in (noisy, states, pooled, TIMESTEPS * when)]
        with LastTokenRepeated(padding(self.batch, generator).to(where)), half_precision():
            found = self.module(*given, return_dict=False)[0]
        return (found.float() - wanted.to(where)).square() * self.weights[rows].to(where)

    def by_third(self, squared: Tensor) -> dict[str, float]:
        middle, third = squared.detach().mean(dim=(1, 2, 3)), self.batch // 3
        return {"clean_third": float(middle[:third].mean()), "noisy_third": float(middle[-third:].mean())}
