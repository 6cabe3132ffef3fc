"""Serve FLUX.1 (Black Forest Labs 2024): a transformer over packed latents and T5's states, trained by flow matching.

The models are distilled: one row gives a guided image. The network of FLUX.1 dev takes the guidance scale as an input;
that of schnell takes none, and the scale has no effect."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pentimento.diffusion.checkpoint import BadCheckpoint, Checkpoint
from pentimento.diffusion.families.adapters import adapted
from pentimento.diffusion.families.autoencoder import Autoencoder, LatentScale
from pentimento.diffusion.families.base import (
    DigestsLater,
    FlowFamily,
    check_token_limits,
    check_width,
    load_schedulers,
    refuse_skip,
    stated_size_px,
    with_even_levels,
)
from pentimento.diffusion.families.model import Conditioning, DenoiserInput, LoadedModelInfo, PromptStates
from pentimento.diffusion.families.packing import CELLS_OF_TOKEN, PACKED_SIDE, image_positions, packed, unpacked
from pentimento.diffusion.families.row_kernels import RowKernels
from pentimento.diffusion.families.texts import ClipText, T5Text
from pentimento.diffusion.schedulers import FLOW_SCHEDULERS
from pentimento.diffusion.weights import load_components

# T5's tokens of a prompt, from the model cards of dev and schnell. A checkpoint that was trained with another number
# states it as "max_sequence_length" in its model_index.json.
_DEV_T5_TOKENS, _SCHNELL_T5_TOKENS = 512, 256
# The network takes times between 0 and 1, for any number of training timesteps.
_TIME_UNIT = 1000
# A position is a number of the image, its row and its column; text tokens have zeros.
_AXIS_COUNT = 3


class Flux(FlowFamily):
    """Adapt diffusers' modules of this family to the engine. Prompts have `t5_token_count` tokens."""

    def __init__(self, checkpoint: Checkpoint, digests: DigestsLater, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(device, dtype)
        self._schedulers = with_even_levels(load_schedulers(checkpoint, FLOW_SCHEDULERS))
        parts = load_components(checkpoint, device, dtype)
        check_token_limits(checkpoint, parts, ["tokenizer"])
        self._hold_parts(parts, "transformer", "text_encoder", "text_encoder_2")
        self._takes_scale = bool(self.denoiser.config.guidance_embeds)
        usual_tokens = _DEV_T5_TOKENS if self._takes_scale else _SCHNELL_T5_TOKENS
        self.t5_token_count = int(checkpoint.settings.get("max_sequence_length", usual_tokens))
        self._texts = (ClipText(parts["tokenizer"], parts["text_encoder"], device),)
        self._t5 = T5Text(parts["tokenizer_2"], parts["text_encoder_2"], device)
        _check_shapes(checkpoint, parts)
        self._kernels = RowKernels(self.denoiser)
        scale = LatentScale.of(parts["vae"].config, shifted=True)
        self._decode_with(Autoencoder(parts["vae"], scale, device, dtype))
        self._autoencoder.check_channels(checkpoint.directory, self.denoiser.config, packed=CELLS_OF_TOKEN)
        self.info = self._describe(checkpoint, digests)

    def _describe(self, checkpoint: Checkpoint, later: DigestsLater) -> LoadedModelInfo:
        multiple = PACKED_SIDE * self._autoencoder.factor
        size_px = stated_size_px(checkpoint, self._autoencoder.factor, multiple)
        return self._described("flux", size_px, multiple, later, guidance_distilled=True, computes_alone=True)

    def encode_prompt(self, prompt: str, *, negative: bool = False, clip_skip: int = 0) -> PromptStates:
        refuse_skip(clip_skip)
        clip, t5 = self._texts[0].pooled_states(prompt), self._t5.states(prompt, self.t5_token_count)
        assert clip.pooled is not None
        conditioning = Conditioning(t5.states.to(self.device, self.dtype), clip.pooled.to(self.dtype))
        return PromptStates(conditioning, clip.truncated and t5.truncated)

    def conditioning(
        self, prompt: PromptStates, width_px: int, height_px: int, guidance_scale: float = 1.0
    ) -> Conditioning:
        return self._guided(prompt.conditioning, guidance_scale) if self._takes_scale else prompt.conditioning

    def predict(self, inputs: DenoiserInput) -> Tensor:
        """Return the prediction of every row, shaped as the latents."""
        texts = inputs.conditioning
        row_count, _, height, width = inputs.latents.shape
        with self._kernels.held(inputs), adapted(self.denoiser, inputs.adapters):
            tokens: Tensor = self.denoiser(
                hidden_states=packed(inputs.latents),
                timestep=inputs.timesteps.expand(row_count).to(self.dtype) / _TIME_UNIT,
                guidance=texts.guidance,
                pooled_projections=texts.pooled,
                encoder_hidden_states=texts.states,
                txt_ids=torch.zeros(texts.states.shape[1], _AXIS_COUNT, device=self.device),
                img_ids=image_positions(height // PACKED_SIDE, width // PACKED_SIDE, _AXIS_COUNT, self.device),
                return_dict=False,
            )[0]
        return unpacked(tokens, height, width)


def _check_shapes(checkpoint: Checkpoint, parts: Mapping[str, Any]) -> None:
    """Raise BadCheckpoint for a transformer of other patches, positions or text widths."""
    config = parts["transformer"].config
    path = checkpoint.component_directory("transformer") / "config.json"
    if config.patch_size != 1:
        raise BadCheckpoint(f"{path}: patch_size must be 1, got {config.patch_size}")
    axes, head = config.axes_dims_rope, config.attention_head_dim
    if len(axes) != _AXIS_COUNT or any(axis % 2 for axis in axes) or sum(axes) != head:
        stated = f"axes_dims_rope={list(axes)[:8]}"
        raise BadCheckpoint(f"{path}: {stated} must be three even numbers that sum to attention_head_dim={head}")
    check_width(
        checkpoint, "transformer", "pooled text", config.pooled_projection_dim, parts["text_encoder"].config.hidden_size
    )
    check_width(
        checkpoint, "transformer", "text states", config.joint_attention_dim, parts["text_encoder_2"].config.d_model
    )
