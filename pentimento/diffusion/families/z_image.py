"""Serve Z-Image (Alibaba 2025): a transformer over one sequence of image and text, trained by flow matching, with the
states of a language model (Qwen3) as text.

Captions have different lengths: their states are padded to one shape, and `Conditioning.token_counts` holds the
lengths. A batch computes as many tokens as its longest caption has."""

from collections.abc import Mapping
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
    check_width,
    load_schedulers,
    refuse_skip,
    stated_size_px,
    with_even_levels,
)
from pentimento.diffusion.families.lean_attention import skip_signature_checks
from pentimento.diffusion.families.model import Conditioning, DenoiserInput, LoadedModelInfo, PromptStates
from pentimento.diffusion.families.texts import PromptTokenizer
from pentimento.diffusion.schedulers import FLOW_SCHEDULERS
from pentimento.diffusion.weights import load_components

# Tokens of a caption in diffusers' pipeline.
_TEXT_TOKENS = 512
# The chat template of the model's tokenizer, written out: templates of a checkpoint are programs, which are not run.
_TEMPLATE = "<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"
_PATCH_SIDE = 2
_PATCHES = "2-1"
# The lengths of captions and images are padded to multiples of it, with learned tokens that are not masked.
_LENGTH_MULTIPLE = 32
# The network's time runs from 0 for noise to 1, for any number of training timesteps.
_TIME_UNIT = 1000


class ZImage(FlowFamily):
    """Adapt diffusers' modules of this family to the engine."""

    def __init__(self, checkpoint: Checkpoint, digests: DigestsLater, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(device, dtype)
        self._schedulers = with_even_levels(load_schedulers(checkpoint, FLOW_SCHEDULERS))
        parts = load_components(checkpoint, device, dtype)
        self._tokenizer = PromptTokenizer(parts["tokenizer"])
        self._encoder: Any = parts["text_encoder"]
        self._token_limit = int(checkpoint.settings.get("max_sequence_length", _TEXT_TOKENS))
        self._hold_parts(parts, "transformer")
        _check_shapes(checkpoint, parts, self._token_limit)
        skip_signature_checks(self.denoiser)
        scale = LatentScale.of(parts["vae"].config, shifted=True)
        self._decode_with(Autoencoder(parts["vae"], scale, device, dtype))
        self.info = self._describe(checkpoint, digests)

    def _describe(self, checkpoint: Checkpoint, later: DigestsLater) -> LoadedModelInfo:
        multiple = _PATCH_SIDE * self._autoencoder.factor
        size_px = stated_size_px(checkpoint, self._autoencoder.factor, multiple)
        longest = min(self.denoiser.config.axes_lens[1:]) * multiple
        return self._described(
            "z_image", size_px, multiple, later, longest_side_px=longest, guidance_offset=1.0, computes_alone=True
        )

    def encode_prompt(self, prompt: str, *, negative: bool = False, clip_skip: int = 0) -> PromptStates:
        refuse_skip(clip_skip)
        ids, truncated = self._tokenizer.unpadded(_TEMPLATE.format(prompt=prompt), self._token_limit)
        output = self._encoder(input_ids=ids.to(self.device), output_hidden_states=True)
        states = output.hidden_states[-2].to(self.dtype)
        return self._padded(states, _rounded_up(self._token_limit), truncated=truncated)

    def predict(self, inputs: DenoiserInput) -> Tensor:
        """Return the prediction of every row, shaped as the latents."""
        times = (_TIME_UNIT - inputs.timesteps.expand(inputs.latents.shape[0])) / _TIME_UNIT
        with adapted(self.denoiser, inputs.adapters):
            return -self._velocity(inputs.latents, times, inputs.conditioning)

    def _velocity(self, latents: Tensor, times: Tensor, texts: Conditioning) -> Tensor:
        """Run diffusers' pass for rows of one image size: the same layers, without its lists of rows."""
        network = self.denoiser
        assert texts.token_counts is not None
        lengths = _rounded_up(texts.token_counts)
        # One wait for the device: a pass with a fixed number of tokens would compute all padding.
        shortest, longest = torch.stack(lengths.aminmax()).tolist()
        embedding = network.t_embedder(times * network.t_scale).type_as(latents)
        height, width = (side // _PATCH_SIDE for side in latents.shape[-2:])
        image = self._embedded_image(latents)
        image_places = self._turns(_image_positions(lengths, height, width))
        for layer in network.noise_refiner:
            image = layer(image, None, image_places, embedding)
        places = torch.arange(longest, device=latents.device)
        text = network.cap_embedder(texts.states[:, :longest])
        text = torch.where((places >= texts.token_counts[:, None])[..., None], network.cap_pad_token, text)
        text_places = self._turns(_text_positions(longest, latents))
        seen = None if shortest == longest else places < lengths[:, None]
        for layer in network.context_refiner:
            text = layer(text, seen, text_places)
        hidden = torch.cat([image, text], dim=1)
        turns = torch.cat([image_places, text_places.expand(len(latents), -1, -1)], dim=1)
        seen = None if seen is None else pad(seen, (image.shape[1], 0), value=True)
        for layer in network.layers:
            hidden = layer(hidden, seen, turns, embedding)
        hidden = network.all_final_layer[_PATCHES](hidden, c=embedding)
        patches = hidden[:, : height * width].unflatten(1, (height, width))
        cells = patches.unflatten(-1, (_PATCH_SIDE, _PATCH_SIDE, -1))
        return torch.einsum("nhwpqc->nchpwq", cells).reshape(latents.shape)

    def _embedded_image(self, latents: Tensor) -> Tensor:
        """Return the image's tokens, (rows, tokens, width), padded."""
        rows, channels = latents.shape[:2]
        cells = latents.unflatten(-1, (-1, _PATCH_SIDE)).unflatten(2, (-1, _PATCH_SIDE))
        patches = torch.einsum("nchpwq->nhwpqc", cells).reshape(rows, -1, _PATCH_SIDE**2 * channels)
        tokens = self.denoiser.all_x_embedder[_PATCHES](patches)
        missing = -tokens.shape[1] % _LENGTH_MULTIPLE
        return torch.cat([tokens, self.denoiser.x_pad_token.expand(rows, missing, -1)], dim=1)

    def _turns(self, positions: Tensor) -> Tensor:
        """Return the rotations of positions (rows, tokens, 3) as complex numbers."""
        turns: Tensor = self.denoiser.rope_embedder(positions.flatten(0, 1)).unflatten(0, positions.shape[:2])
        return turns


def _rounded_up(length: Any) -> Any:
    return length + -length % _LENGTH_MULTIPLE


def _text_positions(count: int, latents: Tensor) -> Tensor:
    """Return the positions of text tokens, (1, count, 3): numbered from 1 on the first axis."""
    places = torch.arange(1, count + 1, device=latents.device)
    return pad(places[None, :, None], (0, 2))


def _image_positions(lengths: Tensor, height: int, width: int) -> Tensor:
    """Return the positions of image tokens, (rows, tokens, 3): after the row's text on the first axis; zeros for
    padding."""
    rows, columns = (torch.arange(side, device=lengths.device) for side in (height, width))
    first = (lengths + 1)[:, None, None]
    axes = torch.broadcast_tensors(first, rows[None, :, None], columns[None, None, :])
    positions = torch.stack(axes, dim=-1).flatten(1, 2)
    return pad(positions, (0, 0, 0, -positions.shape[1] % _LENGTH_MULTIPLE))


def _check_shapes(checkpoint: Checkpoint, parts: Mapping[str, Any], token_limit: int) -> None:
    """Raise BadCheckpoint for a transformer of other patches or text widths, or of too few text positions."""
    config = parts["transformer"].config
    path = checkpoint.component_directory("transformer") / "config.json"
    if list(config.all_patch_size) != [_PATCH_SIDE] or list(config.all_f_patch_size) != [1]:
        raise BadCheckpoint(f"{path}: all_patch_size and all_f_patch_size must be [{_PATCH_SIDE}] and [1]")
    if config.siglip_feat_dim is not None:
        raise BadCheckpoint(f"{path}: siglip_feat_dim={config.siglip_feat_dim} is not supported")
    if config.axes_lens[0] <= (least := _rounded_up(token_limit) + 1):
        raise BadCheckpoint(f"{path}: axes_lens must begin with more than {least}, got {config.axes_lens[0]}")
    taken = parts["vae"].config.latent_channels
    if config.in_channels != taken:
        raise BadCheckpoint(f"{path}: the denoiser takes {config.in_channels} channels, the autoencoder makes {taken}")
    made = parts["text_encoder"].config.hidden_size
    check_width(checkpoint, "transformer", "text states", config.cap_feat_dim, made)
