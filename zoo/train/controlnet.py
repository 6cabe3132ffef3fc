"""Train two ControlNets of the heavy denoiser: one follows edges, one a coarse layout.

Each begins as the heavy denoiser's encoder without its attention (a condition gives the places, the text the content)
after convolutions of zeros, and trains on the heavy denoiser's loss, with heavy frozen.
"""

from __future__ import annotations

from pathlib import Path

import torch
from diffusers import ControlNetModel, UNet2DConditionModel
from torch import Tensor

from zoo.devices import device
from zoo.drawing.conditions import as_rgb_condition, ball_table, edges, layout_of_balls
from zoo.drawing.dataset import TRAIN_COUNT, TRAIN_SEED, cached_drawings
from zoo.drawing.scenes import scene_at
from zoo.drawing.tokenizer import load_tokenizer
from zoo.train.denoiser import DenoiserPart, encode_drawings, make_heavy
from zoo.train.loop import TrainingPlan, load_trained

PLAN = TrainingPlan(steps=1800, peak_rate=1.5e-3, warmup=50, ema_decay=0.995)
BATCH = 32
CAPTION_DROPOUT = 0.25  # the condition must replace the caption's omissions
EMBEDDING_CHANNELS = (8, 32, 64)  # from image size down, one stride of 2 between neighbours


def make_controlnet(unet: UNet2DConditionModel) -> ControlNetModel:
    """Return an untrained ControlNet of conditions at image size, with residuals that fit `unet`."""
    return ControlNetModel(
        in_channels=unet.config.in_channels,
        block_out_channels=unet.config.block_out_channels,
        layers_per_block=unet.config.layers_per_block,
        down_block_types=("DownBlock2D",) * len(unet.config.block_out_channels),
        mid_block_type="UNetMidBlock2D",
        norm_num_groups=unet.config.norm_num_groups,
        conditioning_embedding_out_channels=EMBEDDING_CHANNELS,
    )


def copy_encoder(unet: UNet2DConditionModel, controlnet: ControlNetModel) -> None:
    """Copy every weight that a ControlNet shares with the UNet's encoder and middle."""
    own, theirs = controlnet.state_dict(), unet.state_dict()
    own.update({name: theirs[name] for name in own if name in theirs and own[name].shape == theirs[name].shape})
    controlnet.load_state_dict(own)


class ControlNetPart(DenoiserPart):
    caption_dropout = CAPTION_DROPOUT

    def __init__(self, work: Path, seed: int = 0, count: int = TRAIN_COUNT, batch: int = BATCH) -> None:
        torch.manual_seed(seed)
        self.unet = load_trained(make_heavy(), work / "heavy").to(device())
        controlnet = make_controlnet(self.unet)
        copy_encoder(self.unet, controlnet)
        super().__init__(controlnet, encode_drawings(work, count), batch)

    def conditions(self, rows: Tensor) -> Tensor:
        """Return the ControlNet's conditions of the drawings: (n, 1, size, size) in 0..1."""
        raise NotImplementedError

    def _predict(self, noisy: Tensor, timesteps: Tensor, states: Tensor, rows: Tensor) -> Tensor:
        told = as_rgb_condition(self.conditions(rows)).to(noisy)
        down, middle = self.module(noisy, timesteps, states, controlnet_cond=told, return_dict=False)
        return self.unet(
            noisy,
            timesteps,
            states,
            down_block_additional_residuals=down,
            mid_block_additional_residual=middle,
            return_dict=False,
        )[0]


class EdgesPart(ControlNetPart):
    name = "controlnet-edges"

    def __init__(self, work: Path, seed: int = 0, count: int = TRAIN_COUNT, batch: int = BATCH) -> None:
        super().__init__(work, seed, count, batch)
        self.images = cached_drawings(work, TRAIN_SEED, count, load_tokenizer(work / "tokenizer")).images

    def conditions(self, rows: Tensor) -> Tensor:
        return edges(self.images[rows].float() / 255.0)


class LayoutPart(ControlNetPart):
    name = "controlnet-layout"

    def __init__(self, work: Path, seed: int = 0, count: int = TRAIN_COUNT, batch: int = BATCH) -> None:
        super().__init__(work, seed, count, batch)
        self.balls = ball_table([scene_at(TRAIN_SEED, index, held_out=False)[0] for index in range(count)])

    def conditions(self, rows: Tensor) -> Tensor:
        return layout_of_balls(self.balls[rows])
