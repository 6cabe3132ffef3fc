"""Build UNets of served sizes with random weights, with the interface that the engine expects of a model."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from diffusers import ControlNetModel, UNet2DConditionModel
from torch import Tensor

from pentimento.diffusion.controlnets import PLAIN, ControlNetForm, ControlNetInfo, ControlSetting, ControlStep
from pentimento.diffusion.controlnets.unet_controlnet import UNetControlNet
from pentimento.diffusion.families.model import (
    Conditioning,
    ControlResiduals,
    DenoiserInput,
    PromptStates,
)
from pentimento.diffusion.families.unet import UNetFamily
from pentimento.diffusion.kernels import fuse

_SDXL_BLOCKS = {
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
}
_TINY_BLOCKS = {
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
    "layers_per_block": 1,
}


@dataclass(frozen=True)
class NetworkSize:
    """Describe a network by its configuration; `side_px` is its images' side, `pooled_width` 0 means no pooled text."""

    name: str
    config: dict[str, Any]
    side_px: int
    pooled_width: int = 0


SD15 = NetworkSize(
    "SD 1.5",
    {"block_out_channels": (320, 640, 1280, 1280), "cross_attention_dim": 768, "attention_head_dim": 8},
    512,
)
SDXL = NetworkSize(
    "SDXL",
    {
        **_SDXL_BLOCKS,
        "block_out_channels": (320, 640, 1280),
        "transformer_layers_per_block": (1, 2, 10),
        "attention_head_dim": (5, 10, 20),
        "cross_attention_dim": 2048,
        "addition_time_embed_dim": 256,
        "projection_class_embeddings_input_dim": 2816,
    },
    1024,
    1280,
)
TINY_SD15 = NetworkSize(
    "tiny SD 1.5",
    {**_TINY_BLOCKS, "block_out_channels": (32, 64), "cross_attention_dim": 16, "attention_head_dim": 4},
    64,
)
TINY_SDXL = NetworkSize(
    "tiny SDXL",
    {
        **_SDXL_BLOCKS,
        "layers_per_block": 1,
        "block_out_channels": (32, 32, 64),
        "transformer_layers_per_block": (1, 1, 2),
        "attention_head_dim": (2, 2, 4),
        "cross_attention_dim": 16,
        "addition_time_embed_dim": 8,
        "projection_class_embeddings_input_dim": 6 * 8 + 16,
    },
    64,
    16,
)
SIZES = {("sd15", False): SD15, ("sdxl", False): SDXL, ("sd15", True): TINY_SD15, ("sdxl", True): TINY_SDXL}
_TOKENS = 77


class RandomUNet(UNetFamily):
    """Provide what `CompiledDenoiser` and `example_input` use of a `DiffusionModel`."""

    def __init__(
        self, size: NetworkSize, device: torch.device, dtype: torch.dtype, weights: dict[str, Tensor] | None = None
    ) -> None:
        """Use random weights, or share another network's."""
        self.size, self.device, self.dtype = size, device, dtype
        torch.manual_seed(0)
        with device if weights is None else torch.device("meta"):
            unet: Any = UNet2DConditionModel(**size.config)
        if weights is None:
            unet.to(dtype)
        else:
            unet.load_state_dict(weights, assign=True)
        self.denoiser = unet.eval().requires_grad_(False)
        self._hold(unet)
        self.info: Any = SimpleNamespace(train_step_count=1000, sees_mask=False)

    def twin(self) -> "RandomUNet":
        """Return another network over the same weights, with layers that may be replaced."""
        return RandomUNet(self.size, self.device, self.dtype, self.denoiser.state_dict())

    @property
    def weight_bytes(self) -> int:
        return sum(weight.nbytes for weight in self.denoiser.parameters())

    def latent_shape(self, width_px: int, height_px: int) -> tuple[int, int, int, int]:
        return (1, 4, height_px // 8, width_px // 8)

    def encode_prompt(self, prompt: str, *, negative: bool = False, clip_skip: int = 0) -> PromptStates:
        pooled = self._random(1, self.size.pooled_width) if self.size.pooled_width else None
        states = self._random(1, _TOKENS, self.size.config["cross_attention_dim"])
        return PromptStates(Conditioning(states, pooled), truncated=False)

    def conditioning(
        self, prompt: PromptStates, width_px: int, height_px: int, guidance_scale: float = 1.0
    ) -> Conditioning:
        texts = prompt.conditioning
        if texts.pooled is None:
            return texts
        sizes = torch.tensor([[height_px, width_px, 0, 0, height_px, width_px]], dtype=self.dtype, device=self.device)
        return Conditioning(texts.states, texts.pooled, sizes)

    def time_terms(self, timestep: float, row_count: int) -> Tensor | None:
        return None if self.size.pooled_width else super().time_terms(timestep, row_count)

    def _random(self, *shape: int) -> Tensor:
        return torch.randn(shape, device=self.device).to(self.dtype)


class RandomControlNet:
    """Build a ControlNet of a UNet's size, as the service runs it; its condition is embedded once."""

    def __init__(self, model: RandomUNet, form: ControlNetForm = PLAIN) -> None:
        with model.device:
            network: Any = ControlNetModel.from_unet(model.denoiser)
        network.to(model.dtype).eval().requires_grad_(False)
        if form.kernels is not None:
            fuse(network, form.kernels)
        family = "stable_diffusion_xl" if model.size.pooled_width else "stable_diffusion"
        info = ControlNetInfo(family, "", "", 4, 3, takes_latents=False, unshifted=False)
        self._network = UNetControlNet(network, info, model.device, model.dtype, form.compiler)
        side = model.size.side_px
        self._embedded = self._network.embed(torch.zeros(1, 3, side, side), 2)

    def residuals(self, inputs: DenoiserInput) -> ControlResiduals:
        """Return the residuals of one guided image."""
        return self._network.residuals([ControlStep(inputs, self._embedded, ControlSetting())])[0]
