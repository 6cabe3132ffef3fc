"""Serve Qwen-Image (Alibaba 2025): a transformer over packed latents and text, trained by flow matching, with the
states of a vision-language model (Qwen2.5-VL) as text.

Guidance takes two rows, and keeps the length of every token of the conditional prediction. Captions have different
lengths: their states are padded to one shape, and `Conditioning.token_counts` holds the lengths. A batch computes as
many tokens as its longest caption has."""

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
    check_width,
    load_schedulers,
    refuse_keys,
    refuse_skip,
    stated_size_px,
    with_even_levels,
)
from pentimento.diffusion.families.lean_attention import skip_signature_checks
from pentimento.diffusion.families.model import DenoiserInput, LoadedModelInfo, PromptStates
from pentimento.diffusion.families.packing import CELLS_OF_TOKEN, PACKED_SIDE, packed, unpacked
from pentimento.diffusion.families.texts import PromptTokenizer
from pentimento.diffusion.schedulers import FLOW_SCHEDULERS
from pentimento.diffusion.weights import load_components

# Tokens of a caption in diffusers' pipeline.
_TEXT_TOKENS = 512
_TEMPLATE = (
    "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, quantity, text, spatial "
    "relationships of the objects and background:<|im_end|>\n<|im_start|>user\n{prompt}<|im_end|>\n"
    "<|im_start|>assistant\n"
)
# The template's tokens before the prompt, which are dropped from the states.
_DROPPED_TOKENS = 34
# The network takes times between 0 and 1, for any number of training timesteps.
_TIME_UNIT = 1000
# Switches of networks for edited images and layers.
_OF_OTHERS = ("guidance_embeds", "zero_cond_t", "use_additional_t_cond", "use_layer3d_rope")


class QwenImage(FlowFamily):
    """Adapt diffusers' modules of this family to the engine. Prompts have at most `token_limit` tokens."""

    def __init__(self, checkpoint: Checkpoint, digests: DigestsLater, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(device, dtype)
        self._schedulers = with_even_levels(load_schedulers(checkpoint, FLOW_SCHEDULERS))
        refuse_keys(checkpoint, "transformer", (), _OF_OTHERS)
        parts = load_components(checkpoint, device, dtype)
        self._tokenizer = PromptTokenizer(parts["tokenizer"])
        # Without the tower for images, and the layer that predicts words.
        self._encoder: Any = parts["text_encoder"].model.language_model
        self.token_limit = int(checkpoint.settings.get("max_sequence_length", _TEXT_TOKENS))
        self._hold_parts(parts, "transformer")
        _check_shapes(checkpoint, parts)
        skip_signature_checks(self.denoiser)
        scale = LatentScale(1.0).by_channel(parts["vae"].config, device, dtype)
        self._decode_with(Autoencoder(parts["vae"], scale, device, dtype))
        self.info = self._describe(checkpoint, digests)

    def _describe(self, checkpoint: Checkpoint, later: DigestsLater) -> LoadedModelInfo:
        multiple = PACKED_SIDE * self._autoencoder.factor
        size_px = stated_size_px(checkpoint, self._autoencoder.factor, multiple)
        return self._described("qwen_image", size_px, multiple, later, computes_alone=True)

    def encode_prompt(self, prompt: str, *, negative: bool = False, clip_skip: int = 0) -> PromptStates:
        refuse_skip(clip_skip)
        whole = _TEMPLATE.format(prompt=prompt)
        ids, truncated = self._tokenizer.unpadded(whole, _DROPPED_TOKENS + self.token_limit)
        output = self._encoder(input_ids=ids.to(self.device))
        states = output.last_hidden_state[:, _DROPPED_TOKENS:].to(self.dtype)
        return self._padded(states, self.token_limit, truncated=truncated)

    def guided(self, unconditional: Tensor, conditional: Tensor, scale: float) -> Tensor:
        rows = (super().guided(unconditional, conditional, scale), conditional)
        combined, alone = (packed(row) for row in rows)
        rescaled = combined * (alone.norm(dim=-1, keepdim=True) / combined.norm(dim=-1, keepdim=True))
        return unpacked(rescaled, *conditional.shape[-2:])

    def predict(self, inputs: DenoiserInput) -> Tensor:
        """Return the prediction of every row, shaped as the latents."""
        texts = inputs.conditioning
        assert texts.token_counts is not None
        row_count, _, height, width = inputs.latents.shape
        # One wait for the device: a pass with a fixed number of tokens would compute all padding.
        shortest, longest = torch.stack(texts.token_counts.aminmax()).tolist()
        places = torch.arange(longest, device=self.device)
        with adapted(self.denoiser, inputs.adapters):
            tokens: Tensor = self.denoiser(
                hidden_states=packed(inputs.latents),
                timestep=inputs.timesteps.expand(row_count).to(self.dtype) / _TIME_UNIT,
                encoder_hidden_states=texts.states[:, :longest],
                encoder_hidden_states_mask=None if shortest == longest else places < texts.token_counts[:, None],
                img_shapes=[[(1, height // PACKED_SIDE, width // PACKED_SIDE)]] * row_count,
                return_dict=False,
            )[0]
        return unpacked(tokens, height, width)


def _check_shapes(checkpoint: Checkpoint, parts: Mapping[str, Any]) -> None:
    """Raise BadCheckpoint for a transformer of other patches, channels or text widths."""
    config, channels = parts["transformer"].config, parts["vae"].config.z_dim
    path = checkpoint.component_directory("transformer") / "config.json"
    if config.patch_size != PACKED_SIDE:
        raise BadCheckpoint(f"{path}: patch_size must be {PACKED_SIDE}, got {config.patch_size}")
    found = (config.in_channels, config.out_channels)
    if found != (channels * CELLS_OF_TOKEN, channels):
        wanted = f"{channels * CELLS_OF_TOKEN} and {channels}, of an autoencoder with {channels} channels"
        raise BadCheckpoint(f"{path}: in_channels and out_channels are {found[0]} and {found[1]}, wanted {wanted}")
    made = parts["text_encoder"].config.text_config.hidden_size
    check_width(checkpoint, "transformer", "text states", config.joint_attention_dim, made)
