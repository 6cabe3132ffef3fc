"""Serve SANA (Xie et al. 2024), SANA 1.5 and SANA-Sprint (2025): a transformer with linear attention over latents of a
deep-compression autoencoder, trained by flow matching, with the states of a language model (Gemma 2) as text.

SANA-Sprint is distilled: one row gives a guided image, in 1 to 4 steps of the sampler SCM, and the network takes the
guidance scale as an input."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pentimento.diffusion.checkpoint import BadCheckpoint, Checkpoint
from pentimento.diffusion.families.adapters import adapted
from pentimento.diffusion.families.autoencoder import Autoencoder, LatentScale
from pentimento.diffusion.families.base import (
    DigestsLater,
    FlowFamily,
    check_width,
    default_size_px,
    load_schedulers,
    refuse_skip,
)
from pentimento.diffusion.families.lean_attention import skip_signature_checks
from pentimento.diffusion.families.model import Conditioning, DenoiserInput, LoadedModelInfo, PromptStates
from pentimento.diffusion.families.row_kernels import RowKernels
from pentimento.diffusion.families.texts import PromptTokenizer
from pentimento.diffusion.schedulers import FLOW_SAMPLERS
from pentimento.diffusion.weights import load_components
from pentimento.domain.generation import Scheduler

# Tokens of a prompt in diffusers' pipelines.
_TEXT_TOKENS = 300
# The instruction before every prompt, except a negative one, in diffusers' pipelines.
_INSTRUCTION = "\n".join(
    (
        "Given a user prompt, generate an 'Enhanced prompt' that provides detailed visual descriptions suitable for "
        "image generation. Evaluate the level of detail in the user prompt:",
        "- If the prompt is simple, focus on adding specifics about colors, shapes, sizes, textures, and spatial "
        "relationships to create vivid and concrete scenes.",
        "- If the prompt is already detailed, refine and enhance the existing details slightly without "
        "overcomplicating.",
        "Here are examples of how to transform or refine prompts:",
        "- User Prompt: A cat sleeping -> Enhanced: A small, fluffy white cat curled up in a round shape, sleeping "
        "peacefully on a warm sunny windowsill, surrounded by pots of blooming red flowers.",
        "- User Prompt: A busy city street -> Enhanced: A bustling city street scene at dusk, featuring glowing street "
        "lamps, a diverse crowd of people in colorful clothing, and a double-decker bus passing by towering glass "
        "skyscrapers.",
        "Please generate only the enhanced description for the prompt below and avoid including any additional "
        "commentary or evaluations:",
        "User Prompt: ",
    )
)


class Sana(FlowFamily):
    """Adapt diffusers' modules of this family to the engine. Prompts have `token_limit` tokens, padding included."""

    def __init__(self, checkpoint: Checkpoint, digests: DigestsLater, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(device, dtype)
        # Only its own: the others would not read its shift.
        own, *_ = load_schedulers(checkpoint, FLOW_SAMPLERS).items()
        self._schedulers = dict([own])
        parts = load_components(checkpoint, device, dtype)
        self._tokenizer = PromptTokenizer(parts["tokenizer"])
        self._encoder: Any = parts["text_encoder"]
        self.token_limit = int(checkpoint.settings.get("max_sequence_length", _TEXT_TOKENS))
        self._instruction_tokens = self._tokenizer.count(_INSTRUCTION)
        self._hold_parts(parts, "transformer")
        _check_shapes(checkpoint, parts, self.token_limit, is_sprint=Scheduler.SCM in self._schedulers)
        skip_signature_checks(self.denoiser)
        self._kernels = RowKernels(self.denoiser)
        self._decode_with(Autoencoder(parts["vae"], LatentScale.of(parts["vae"].config), device, dtype))
        self._autoencoder.check_channels(checkpoint.directory, self.denoiser.config)
        self.info = self._describe(digests)

    def _describe(self, later: DigestsLater) -> LoadedModelInfo:
        config, factor = self.denoiser.config, self._autoencoder.factor
        size_px = default_size_px(config.sample_size, factor)
        multiple = factor * config.patch_size
        distilled = bool(config.guidance_embeds)
        return self._described("sana", size_px, multiple, later, guidance_distilled=distilled, computes_alone=True)

    def encode_prompt(self, prompt: str, *, negative: bool = False, clip_skip: int = 0) -> PromptStates:
        refuse_skip(clip_skip)
        # The first token, the instruction's last one and the prompt's remain of the states.
        skipped = 0 if negative else self._instruction_tokens - 2
        text = prompt.lower().strip()
        ids, truncated = self._tokenizer.unpadded(text if negative else _INSTRUCTION + text, self.token_limit + skipped)
        # Without the padding that diffusers encodes too: no other token sees it.
        states = self._encoder(input_ids=ids.to(self.device))[0].to(self.dtype)
        states = torch.cat([states[:, :1], states[:, 1 + skipped :]], dim=1)
        return self._padded(states, self.token_limit, truncated=truncated)

    def conditioning(
        self, prompt: PromptStates, width_px: int, height_px: int, guidance_scale: float = 1.0
    ) -> Conditioning:
        if not self.info.guidance_distilled:
            return prompt.conditioning
        scale = torch.full((1,), guidance_scale, dtype=self.dtype, device=self.device)
        return replace(prompt.conditioning, guidance=scale * self.denoiser.config.guidance_embeds_scale)

    def predict(self, inputs: DenoiserInput) -> Tensor:
        """Return the prediction of every row, shaped as the latents."""
        texts = inputs.conditioning
        assert texts.token_counts is not None
        places = torch.arange(self.token_limit, device=self.device)
        with self._kernels.held(inputs), adapted(self.denoiser, inputs.adapters):
            prediction: Tensor = self.denoiser(
                inputs.latents,
                encoder_hidden_states=texts.states,
                encoder_attention_mask=(places < texts.token_counts[:, None]).to(self.dtype),
                timestep=inputs.timesteps.expand(inputs.latents.shape[0]) * self.denoiser.config.timestep_scale,
                guidance=texts.guidance,
                return_dict=False,
            )[0]
        return prediction


def _check_shapes(checkpoint: Checkpoint, parts: Mapping[str, Any], token_limit: int, *, is_sprint: bool) -> None:
    """Raise BadCheckpoint for a transformer of another kind than its scheduler, of other text widths, or for too few
    tokens."""
    config = parts["transformer"].config
    path = checkpoint.component_directory("transformer") / "config.json"
    if bool(config.guidance_embeds) is not is_sprint:
        stated = f"guidance_embeds={config.guidance_embeds}"
        raise BadCheckpoint(f"{path}: {stated} does not suit the scheduler: SANA-Sprint has SCMScheduler, and no other")
    if token_limit < 2:
        index = checkpoint.directory / "model_index.json"
        raise BadCheckpoint(f"{index}: max_sequence_length={token_limit} must be at least 2")
    made = parts["text_encoder"].config.hidden_size
    check_width(checkpoint, "transformer", "text states", config.caption_channels, made)
