"""Train the LoRA styles: low-rank updates for the heavy denoiser, for a treatment that no caption names.

Heavy stays frozen; only the LoRA's tensors are trained, averaged and checkpointed, under peft's names.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from diffusers import UNet2DConditionModel
from peft import LoraConfig
from peft.utils import get_peft_model_state_dict, set_peft_model_state_dict
from torch import Tensor, nn

from zoo.drawing.dataset import TREATED_COUNT, TREATED_SEED
from zoo.train.denoiser import DenoiserPart, encode_drawings, make_heavy
from zoo.train.loop import TrainingPlan, load_trained

PLAN = TrainingPlan(steps=480, peak_rate=2.0e-3, warmup=40, ema_decay=0.99, weight_decay=0.0)
BATCH = 32
RANK = 4
ALPHA = 8  # differs from the rank, to reveal a loader that does not scale by alpha / rank
TARGETS = ("to_q", "to_k", "to_v", "to_out.0", "conv1", "conv2")


class StyledUNet(nn.Module):
    """Add a LoRA to a denoiser's attention projections and residual blocks; its state is only the LoRA's."""

    def __init__(self, unet: UNet2DConditionModel) -> None:
        super().__init__()
        self.unet = unet.requires_grad_(False)
        self.unet.add_adapter(LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=list(TARGETS)))

    @property
    def config(self) -> LoraConfig:
        config: LoraConfig = self.unet.peft_config["default"]
        return config

    def forward(self, *arguments: Any, **options: Any) -> Any:
        return self.unet(*arguments, **options)

    def state_dict(self, *arguments: Any, **options: Any) -> dict[str, Tensor]:
        """Return tensors under a PEFT file's names, `down_blocks.0.resnets.0.conv1.lora_A.weight`."""
        state: dict[str, Tensor] = get_peft_model_state_dict(self.unet)
        return state

    def load_state_dict(self, state_dict: Mapping[str, Tensor], strict: bool = True, assign: bool = False) -> None:
        missing = self.state_dict().keys() - state_dict.keys()
        unexpected = set_peft_model_state_dict(self.unet, dict(state_dict)).unexpected_keys
        if missing or unexpected:
            raise RuntimeError(f"not this LoRA: missing {sorted(missing)}, unexpected {sorted(unexpected)}")


class LoraPart(DenoiserPart):
    """Train on heavy's loss with captioned drawings in one treatment."""

    treatment: str

    def __init__(self, work: Path, seed: int = 0, count: int = TREATED_COUNT, batch: int = BATCH) -> None:
        heavy = load_trained(make_heavy(), work / "heavy")
        torch.manual_seed(seed)
        super().__init__(StyledUNet(heavy), encode_drawings(work, count, TREATED_SEED, self.treatment), batch)


class NeonPart(LoraPart):
    name, treatment = "lora-neon", "neon"


class BlueprintPart(LoraPart):
    name, treatment = "lora-blueprint", "blueprint"


class MosaicPart(LoraPart):
    name, treatment = "lora-mosaic", "mosaic"
