"""Serve FLUX.2 (Black Forest Labs 2025): a transformer over patches of latents and the states of a language model's
middle layers, trained by flow matching.

FLUX.2 [klein] has Qwen3 as its language model. It is distilled to four steps: one row gives an image, and the guidance
scale has no effect. Its base is not distilled: guidance takes two rows. FLUX.2 [dev] has Mistral Small 3, and takes the
guidance scale as an input.

A latent has the form of the network's tokens: patches of 2x2 cells of the autoencoder's latent, normalised by the
statistics of its BatchNorm layer."""

from typing import Any, ClassVar

import torch
from diffusers.pipelines.flux2.system_messages import SYSTEM_MESSAGE
from torch import Tensor
from torch.nn.functional import pixel_shuffle, pixel_unshuffle

from pentimento.diffusion.allow_list import family_of
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
from pentimento.diffusion.families.model import Conditioning, DenoiserInput, LoadedModelInfo, PromptStates
from pentimento.diffusion.families.packing import CELLS_OF_TOKEN, PACKED_SIDE, image_positions
from pentimento.diffusion.families.row_kernels import RowKernels
from pentimento.diffusion.families.texts import PromptTokenizer
from pentimento.diffusion.schedulers import FLOW_SCHEDULERS
from pentimento.diffusion.weights import load_components

# Tokens of a prompt in diffusers' pipelines; padding counts, the network sees it.
_TEXT_TOKENS = 512
# The network takes times between 0 and 1, for any number of training timesteps.
_TIME_UNIT = 1000
# A position is a number of the image, its row, its column, and the number of a text token.
_AXIS_COUNT = 4


class Flux2(FlowFamily):
    """Adapt diffusers' modules of this family to the engine. Prompts have `token_limit` tokens; the states of `layers`
    of the language model are the text. A subclass states the chat `template` of its tokenizer, written out: templates
    of a checkpoint are programs, which are not run."""

    template: ClassVar[str]
    takes_scale: ClassVar[bool] = False

    def __init__(self, checkpoint: Checkpoint, digests: DigestsLater, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(device, dtype)
        self._schedulers = with_even_levels(load_schedulers(checkpoint, FLOW_SCHEDULERS), shifts_by_steps=True)
        _check_sizes(checkpoint)
        parts = load_components(checkpoint, device, dtype)
        self._tokenizer = PromptTokenizer(parts["tokenizer"])
        self._encoder: Any = parts["text_encoder"]
        self.layers = family_of(checkpoint).text_layers
        self.token_limit = int(checkpoint.settings.get("max_sequence_length", _TEXT_TOKENS))
        self._hold_parts(parts, "transformer")
        self._check_shapes(checkpoint)
        self._kernels = RowKernels(self.denoiser)
        self._decode_with(PatchAutoencoder(parts["vae"], device, dtype))
        self._autoencoder.check_channels(checkpoint.directory, self.denoiser.config)
        self.info = self._describe(checkpoint, digests)

    def _describe(self, checkpoint: Checkpoint, later: DigestsLater) -> LoadedModelInfo:
        multiple = self._autoencoder.factor
        size_px = stated_size_px(checkpoint, multiple // PACKED_SIDE, multiple)
        distilled = self.takes_scale or bool(checkpoint.settings.get("is_distilled"))
        return self._described("flux_2", size_px, multiple, later, guidance_distilled=distilled, computes_alone=True)

    def _check_shapes(self, checkpoint: Checkpoint) -> None:
        """Raise BadCheckpoint for a transformer of other positions, text widths or guidance, or a language model with
        too few layers."""
        config, encoder = self.denoiser.config, self._encoder.config
        path = checkpoint.component_directory("transformer") / "config.json"
        axes, head = config.axes_dims_rope, config.attention_head_dim
        if len(axes) != _AXIS_COUNT or any(axis % 2 for axis in axes) or sum(axes) != head:
            stated = f"axes_dims_rope={list(axes)[:8]}"
            raise BadCheckpoint(f"{path}: {stated} must be four even numbers that sum to attention_head_dim={head}")
        if bool(config.guidance_embeds) is not self.takes_scale:
            raise BadCheckpoint(
                f"{path}: guidance_embeds={config.guidance_embeds} does not suit {checkpoint.pipeline_class}"
            )
        if encoder.num_hidden_layers < self.layers[-1]:
            path = checkpoint.component_directory("text_encoder") / "config.json"
            stated = f"num_hidden_layers={encoder.num_hidden_layers}"
            raise BadCheckpoint(f"{path}: {stated} must be at least {self.layers[-1]}")
        made = len(self.layers) * encoder.hidden_size
        check_width(checkpoint, "transformer", "text states", config.joint_attention_dim, made)

    def _text(self, prompt: str) -> str:
        return self.template.format(prompt=prompt)

    def encode_prompt(self, prompt: str, *, negative: bool = False, clip_skip: int = 0) -> PromptStates:
        refuse_skip(clip_skip)
        tokens, truncated = self._tokenizer.padded(self._text(prompt), self.token_limit, adds_ends=False)
        output = self._encoder(
            input_ids=tokens.input_ids.to(self.device),
            attention_mask=tokens.attention_mask.to(self.device),
            output_hidden_states=True,
            use_cache=False,
        )
        states = torch.cat([output.hidden_states[layer] for layer in self.layers], dim=-1)
        return PromptStates(Conditioning(states.to(self.dtype)), truncated)

    def conditioning(
        self, prompt: PromptStates, width_px: int, height_px: int, guidance_scale: float = 1.0
    ) -> Conditioning:
        return self._guided(prompt.conditioning, guidance_scale) if self.takes_scale else prompt.conditioning

    def predict(self, inputs: DenoiserInput) -> Tensor:
        """Return the prediction of every row, shaped as the latents."""
        texts = inputs.conditioning
        row_count, _, height, width = inputs.latents.shape
        with self._kernels.held(inputs), adapted(self.denoiser, inputs.adapters):
            tokens: Tensor = self.denoiser(
                hidden_states=inputs.latents.flatten(2).transpose(1, 2),
                timestep=inputs.timesteps.expand(row_count).to(self.dtype) / _TIME_UNIT,
                guidance=texts.guidance,
                encoder_hidden_states=texts.states,
                txt_ids=_text_positions(texts.states.shape[1], self.device),
                img_ids=image_positions(height, width, _AXIS_COUNT, self.device),
                return_dict=False,
            )[0]
        return tokens.transpose(1, 2).reshape(inputs.latents.shape)


class Flux2Klein(Flux2):
    """Serve FLUX.2 [klein] and its base."""

    # Without a thought.
    template = "<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


class Flux2Dev(Flux2):
    """Serve FLUX.2 [dev]."""

    template = f"<s>[SYSTEM_PROMPT]{SYSTEM_MESSAGE}[/SYSTEM_PROMPT][INST]{{prompt}}[/INST]"
    takes_scale = True

    def _text(self, prompt: str) -> str:
        # The tokenizer's mark of an image, which diffusers removes too.
        return super()._text(prompt.replace("[IMG]", ""))


class PatchAutoencoder(Autoencoder):
    """Wrap an AutoencoderKLFlux2: a cell of its latents here is a patch of 2x2 cells there. Raises BadCheckpoint for
    statistics that are no numbers."""

    def __init__(self, module: Any, device: torch.device, dtype: torch.dtype) -> None:
        shape = (1, -1, 1, 1)
        deviation = torch.sqrt(module.bn.running_var.view(shape) + module.config.batch_norm_eps)
        scale = LatentScale(1.0, module.bn.running_mean.view(shape).to(dtype), deviation.to(dtype))
        for name, values in (("running_mean", scale.shift), ("running_var", scale.deviation)):
            assert isinstance(values, Tensor)
            if not values.isfinite().all():
                raise BadCheckpoint(f"vae: bn.{name} has a value that is no number")
        super().__init__(module, scale, device, dtype)
        self.factor *= PACKED_SIDE
        self._latent_channels *= CELLS_OF_TOKEN

    def _drawn(self, encoded: Any, generator: torch.Generator) -> Tensor:
        # diffusers' pipelines of this family take the mode and draw nothing.
        return pixel_unshuffle(encoded.latent_dist.mode(), PACKED_SIDE)

    def _taken(self, latent: Tensor) -> Tensor:
        return pixel_shuffle(latent, PACKED_SIDE)


def _text_positions(count: int, device: torch.device) -> Tensor:
    """Return the positions of text tokens, (count, 4). Computed on the device: a recorded pass must not copy from the
    host."""
    places = torch.zeros(count, _AXIS_COUNT, device=device)
    places[:, 3] += torch.arange(count, device=device)
    return places


def _check_sizes(checkpoint: Checkpoint) -> None:
    """Raise BadCheckpoint for prompts without a token, or other patches. Before loading: an autoencoder has memory for
    the statistics of every cell of a patch."""
    if checkpoint.settings.get("max_sequence_length") == 0:
        raise BadCheckpoint(
            f"{checkpoint.directory / 'model_index.json'}: max_sequence_length must be at least 1, got 0"
        )
    for component, wanted in (("transformer", 1), ("vae", [PACKED_SIDE, PACKED_SIDE])):
        found = checkpoint.config(component).get("patch_size", wanted)
        if found != wanted:
            path = checkpoint.component_directory(component) / "config.json"
            raise BadCheckpoint(f"{path}: patch_size must be {wanted}, got {str(found)[:60]}")
