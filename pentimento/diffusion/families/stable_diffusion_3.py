"""Serve Stable Diffusion 3 (Esser et al. 2024): a transformer over latents and text trained by flow matching, two CLIP
text encoders, and T5 if the checkpoint has it."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from pentimento.diffusion.checkpoint import BadCheckpoint, Checkpoint
from pentimento.diffusion.families.adapters import adapted
from pentimento.diffusion.families.autoencoder import Autoencoder, LatentScale
from pentimento.diffusion.families.base import (
    DigestsLater,
    FlowFamily,
    check_token_limits,
    check_width,
    default_size_px,
    load_schedulers,
)
from pentimento.diffusion.families.lean_attention import skip_signature_checks
from pentimento.diffusion.families.model import (
    Conditioning,
    DenoiserEncoding,
    DenoiserInput,
    LoadedModelInfo,
    PromptStates,
)
from pentimento.diffusion.families.row_kernels import RowKernels
from pentimento.diffusion.families.texts import ClipText, EncodedText, T5Text, absent_t5
from pentimento.diffusion.families.transformer_passes import TransformerPasses, covers_transformer
from pentimento.diffusion.families.weighted_texts import WeightedText, emphasised
from pentimento.diffusion.schedulers import FLOW_SCHEDULERS
from pentimento.diffusion.weights import load_components
from pentimento.domain.prompt_syntax import WeightedPrompt

# T5's tokens of a prompt in diffusers' pipeline; a checkpoint without T5 gets zeros of that length. A checkpoint that
# was trained with another number states it as "max_sequence_length" in its model_index.json.
_DEFAULT_T5_TOKENS = 256


class StableDiffusion3(FlowFamily):
    """Adapt diffusers' modules of this family to the engine. `t5_token_count` rows of T5 follow CLIP's text states."""

    def __init__(self, checkpoint: Checkpoint, digests: DigestsLater, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(device, dtype)
        if ("text_encoder_3" in checkpoint.components) != ("tokenizer_3" in checkpoint.components):
            message = "text_encoder_3 and tokenizer_3 must both be there, or neither"
            raise BadCheckpoint(f"{checkpoint.directory}: {message}")
        self.t5_token_count = int(checkpoint.settings.get("max_sequence_length", _DEFAULT_T5_TOKENS))
        self._schedulers = load_schedulers(checkpoint, FLOW_SCHEDULERS)
        parts = load_components(checkpoint, device, dtype)
        check_token_limits(checkpoint, parts, ["tokenizer"])
        self._texts = (
            ClipText(parts["tokenizer"], parts["text_encoder"], device),
            ClipText(parts["tokenizer_2"], parts["text_encoder_2"], device),
        )
        self.chunk_tokens = self._texts[0].token_limit
        self.usual_tokens = self.chunk_tokens + self.t5_token_count
        self._t5 = T5Text(parts["tokenizer_3"], parts["text_encoder_3"], device) if "tokenizer_3" in parts else None
        self._hold_parts(parts, "transformer", "text_encoder", "text_encoder_2", "text_encoder_3")
        _check_widths(checkpoint, parts)
        skip_signature_checks(self.denoiser)
        self._kernels = RowKernels(self.denoiser)
        self._passes = TransformerPasses(self.denoiser) if covers_transformer(self.denoiser) else None
        scale = LatentScale.of(parts["vae"].config, shifted=True)
        self._decode_with(Autoencoder(parts["vae"], scale, device, dtype))
        self._autoencoder.check_channels(checkpoint.directory, self.denoiser.config)
        self.info = self._describe(digests)

    def _describe(self, later: DigestsLater) -> LoadedModelInfo:
        config, factor = self.denoiser.config, self._autoencoder.factor
        multiple = factor * config.patch_size
        size_px, longest = default_size_px(config.sample_size, factor), config.pos_embed_max_size * multiple
        return self._described("stable_diffusion_3", size_px, multiple, later, longest_side_px=longest)

    def encode_prompt(self, prompt: str, *, negative: bool = False, clip_skip: int = 0) -> PromptStates:
        limit = self._texts[0].token_limit
        first, second = (clip.penultimate_states(prompt, limit, clip_skip) for clip in self._texts)
        t5 = self._t5.states(prompt, self.t5_token_count) if self._t5 else self._absent_t5()
        conditioning = self._conditioning_of(torch.cat([first.states, second.states], dim=-1), (first, second), t5)
        return PromptStates(conditioning, first.truncated and second.truncated and t5.truncated)

    def encode_weighted(
        self, prompt: WeightedPrompt, chunk_count: int, *, negative: bool = False, clip_skip: int = 0
    ) -> PromptStates:
        """Return the states as the base class says. The chunks are those of the CLIP encoders; T5 has one text of
        `t5_token_count` tokens, its states multiplied by the weights."""
        clips = [clip.weighted(prompt, chunk_count, clip_skip, penultimate=True) for clip in self._texts]
        t5 = self._t5.weighted(prompt, self.t5_token_count) if self._t5 else self._absent_t5()
        return PromptStates(self._conditioning_of(emphasised(clips), clips, t5), truncated=False)

    def _absent_t5(self) -> EncodedText:
        return absent_t5(self.t5_token_count, self.denoiser.config.joint_attention_dim)

    def _conditioning_of(
        self, clip_states: Tensor, clips: Sequence[EncodedText | WeightedText], t5: EncodedText
    ) -> Conditioning:
        """Return the states of the CLIP encoders, widened by zeros to T5's width, followed by T5's."""
        width = self.denoiser.config.joint_attention_dim
        clip_states = pad(clip_states, (0, width - clip_states.shape[-1])).to(self.dtype)
        states = torch.cat([clip_states, t5.states.to(self.device, self.dtype)], dim=-2)
        pooled = torch.cat([clip.pooled for clip in clips if clip.pooled is not None], dim=-1).to(self.dtype)
        return Conditioning(states, pooled)

    def predict(self, inputs: DenoiserInput) -> Tensor:
        """Return the prediction of every row, shaped as the latents."""
        residuals = inputs.residuals
        with self._kernels.held(inputs), adapted(self.denoiser, inputs.adapters):
            prediction: Tensor = self.denoiser(
                hidden_states=inputs.latents,
                timestep=inputs.timesteps.expand(inputs.latents.shape[0]),
                encoder_hidden_states=inputs.conditioning.states,
                pooled_projections=inputs.conditioning.pooled,
                block_controlnet_hidden_states=(list(residuals.block_residuals) or None) if residuals else None,
                return_dict=False,
            )[0]
        return prediction

    def predict_and_keep(self, inputs: DenoiserInput) -> tuple[Tensor, Tensor | None]:
        if self._passes is None:
            return self.predict(inputs), None
        with self._kernels.held(inputs, "all blocks"), adapted(self.denoiser, inputs.adapters):
            return self._passes.decode_and_keep(inputs, self._passes.encode(inputs))

    def predict_from(self, inputs: DenoiserInput, features: Tensor) -> Tensor:
        assert self._passes is not None
        with self._kernels.held(inputs, "first block"), adapted(self.denoiser, inputs.adapters):
            return self._passes.decode_from(inputs, self._passes.encode(inputs), features)

    def encode(self, inputs: DenoiserInput) -> DenoiserEncoding:
        if self._passes is None:
            return DenoiserEncoding()
        with self._kernels.held(inputs, "encoder"), adapted(self.denoiser, inputs.adapters):
            return self._passes.encode(inputs)

    def advance(self, inputs: DenoiserInput, encoding: DenoiserEncoding, blocks_done: int) -> DenoiserEncoding:
        if self._passes is None or not encoding.tensors:
            return encoding
        part = f"blocks {encoding.blocks_done} to {blocks_done}"
        with self._kernels.held(inputs, part), adapted(self.denoiser, inputs.adapters):
            return self._passes.advance(inputs, encoding, blocks_done)

    def decode(self, inputs: DenoiserInput, encoding: DenoiserEncoding) -> Tensor:
        if self._passes is None or not encoding.tensors:
            return self.predict(inputs)
        part = f"decoder from {encoding.blocks_done}"
        with self._kernels.held(inputs, part), adapted(self.denoiser, inputs.adapters):
            return self._passes.decode(inputs, encoding)

    def condition(self, pixels: Tensor, row_count: int, generator: torch.Generator, *, unshifted: bool) -> Tensor:
        """Return latents (rows, channels, height, width) of pixels in 0..1, each with separate noise, as diffusers
        draws it."""
        rows = (2.0 * pixels - 1.0).expand(row_count, -1, -1, -1)
        return self._autoencoder.encode(rows, generator, unshifted=unshifted)


def _check_widths(checkpoint: Checkpoint, parts: Mapping[str, Any]) -> None:
    """Raise BadCheckpoint for a transformer with other text widths. CLIP's states are zero-padded to T5's width."""
    config, clips = parts["transformer"].config, [parts[name].config for name in ("text_encoder", "text_encoder_2")]
    pooled = sum(clip.projection_dim for clip in clips)
    check_width(checkpoint, "transformer", "pooled text", config.pooled_projection_dim, pooled)
    width = config.joint_attention_dim
    check_width(checkpoint, "transformer", "text states", width, max(width, sum(clip.hidden_size for clip in clips)))
    if "text_encoder_3" in parts:
        check_width(checkpoint, "transformer", "text states", width, parts["text_encoder_3"].config.d_model)
