"""Share the code of all families: checks of configurations, schedulers, the autoencoder, the prompt encoders."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from pentimento.diffusion.checkpoint import BadCheckpoint, Checkpoint, CheckpointDigests
from pentimento.diffusion.families.autoencoder import Autoencoder
from pentimento.diffusion.families.model import Conditioning, DiffusionModel, LoadedModelInfo, PromptStates
from pentimento.diffusion.families.texts import ClipText
from pentimento.diffusion.schedulers import (
    FlowConfig,
    SchedulerConfig,
    UnsupportedConfig,
    load_samplers,
    sampler_of,
    scheduler_configs,
)
from pentimento.diffusion.schedulers.keys import WITHOUT_EFFECT, acted_on
from pentimento.diffusion.weight_memory import component_weights, networks_of
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import NoiseForm, Scheduler
from pentimento.domain.prompt_syntax import WeightedPrompt

logger = logging.getLogger(__name__)

# Cells of a latent's side in the training of transformers without a stated size.
_USUAL_SAMPLE_SIZE = 128

# Hashing a checkpoint takes seconds and runs during its loading; called when the digests are needed.
DigestsLater = Callable[[], CheckpointDigests]


class DiffusersFamily(DiffusionModel):
    """Serve a family with diffusers' modules. A subclass loads them in its constructor, and sets the attributes. It
    raises BadCheckpoint if the family does not support a configuration or weight file."""

    _schedulers: dict[Scheduler, SchedulerConfig]
    _texts: Sequence[ClipText]
    _autoencoder: Autoencoder

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype
        self._texts = ()

    def _hold_parts(self, parts: Mapping[str, Any], *adaptable: str) -> None:
        """Set the networks; LoRAs may change the `adaptable` ones, the denoiser first."""
        self.denoiser: Any = parts[adaptable[0]]
        self.networks = networks_of(parts)
        self.weights = component_weights(self.networks)
        self.adaptable = {name: parts[name] for name in adaptable if name in parts}

    def _decode_with(self, autoencoder: Autoencoder) -> None:
        self._autoencoder, self.picture_decoder = autoencoder, autoencoder.decoder

    def scheduler_config(self, scheduler: Scheduler) -> SchedulerConfig:
        return self._schedulers[scheduler]

    def latent_shape(self, width_px: int, height_px: int) -> tuple[int, int, int, int]:
        return self._autoencoder.latent_shape(width_px, height_px)

    def record_texts(self, compiler: Callable[..., Any]) -> None:
        for text in self._texts:
            text.record(compiler)

    def chunk_count(self, prompt: WeightedPrompt) -> int:
        if not self.chunk_tokens:
            return super().chunk_count(prompt)
        return max(text.chunk_count(prompt) for text in self._texts)

    def forget_time_terms(self) -> None:
        """Do nothing: no terms are stored."""

    def encode_image(self, pixels: Tensor, generator: torch.Generator) -> Tensor:
        return self._autoencoder.encode(pixels, generator)

    def decode_latent(self, latent: Tensor) -> Tensor:
        return self._autoencoder.decode(latent)

    def tile_decoder(self, side_px: int) -> None:
        self._autoencoder.tile(side_px)


class FlowFamily(DiffusersFamily):
    """Serve a transformer that was trained by flow matching."""

    def image_tokens(self, width_px: int, height_px: int) -> int:
        """Return the number of tokens of an image."""
        multiple = self.info.size_multiple_px
        return (height_px // multiple) * (width_px // multiple)

    def _padded(self, states: Tensor, token_count: int, *, truncated: bool) -> PromptStates:
        """Return a prompt's states (1, tokens, width), padded with zeros to `token_count` tokens."""
        count = torch.tensor([states.shape[1]], device=self.device)
        padded = pad(states, (0, 0, 0, token_count - states.shape[1]))
        return PromptStates(Conditioning(padded, token_counts=count), truncated)

    def _guided(self, conditioning: Conditioning, guidance_scale: float) -> Conditioning:
        """Return the conditioning of a network that takes the guidance scale as an input."""
        scale = torch.full((1,), guidance_scale, dtype=torch.float32, device=self.device)
        return replace(conditioning, guidance=scale)

    def _described(
        self, family: str, size_px: tuple[int, int], size_multiple_px: int, later: DigestsLater, **others: Any
    ) -> LoadedModelInfo:
        """Return the model's description, with its default width and height; `others` are fields of it."""
        own = next(iter(self._schedulers.values()))
        assert isinstance(own, FlowConfig)
        digests = later()
        return LoadedModelInfo(
            family=family,
            model_digest=digests.model,
            vae_digest=digests.components["vae"],
            scheduler_digest=digests.components["scheduler"],
            prediction_type="flow",
            noise_form=NoiseForm.FLOW_MATCHING,
            default_width_px=size_px[0],
            default_height_px=size_px[1],
            size_multiple_px=size_multiple_px,
            schedulers=tuple(self._schedulers),
            train_step_count=own.num_train_timesteps,
            **others,
        )


def refuse_skip(clip_skip: int) -> None:
    """Raise InvalidArgument for a request that skips layers of CLIP, in a family with other text states."""
    if clip_skip:
        raise InvalidArgument.of("clip_skip", f"must be 0 with this model, got {clip_skip}")


def refuse_keys(
    checkpoint: Checkpoint, component: str, keys: Iterable[str], switches: Iterable[str] = ()
) -> dict[str, Any]:
    """Return the component's configuration. Raises BadCheckpoint if it sets a key, or turns on a switch, of another
    kind of model."""
    path, config = checkpoint.component_directory(component) / "config.json", checkpoint.config(component)
    foreign = [key for key in keys if config.get(key) is not None] + [key for key in switches if config.get(key)]
    for key in foreign:
        raise BadCheckpoint(f"{path}: {key}={config[key]!r} is not supported")
    return config


def load_schedulers(
    checkpoint: Checkpoint, supported: tuple[Scheduler, ...], overrides: Mapping[str, Any] | None = None
) -> dict[Scheduler, SchedulerConfig]:
    """Return the schedulers that can sample the checkpoint, its own first; `overrides` are set by the family's
    pipelines. Raises BadCheckpoint for an unsupported configuration."""
    path = checkpoint.component_directory("scheduler") / "scheduler_config.json"
    stored = checkpoint.config("scheduler", path.name)
    # If the two disagree, the index wins, as in diffusers; a file that names an unknown class is rejected.
    stated = stored.get("_class_name", checkpoint.components["scheduler"].name)
    try:
        sampler_of(stated, stored, supported)
        found = scheduler_configs(checkpoint.components["scheduler"].name, {**stored, **(overrides or {})}, supported)
        taken = acted_on(next(iter(found))).union(WITHOUT_EFFECT)
        if unread := sorted(key[:80] for key in stored if not key.startswith("_") and key not in taken):
            logger.info("%s: keys unknown to the scheduler are ignored: %s", path.name, ", ".join(unread[:20]))
        load_samplers(found)
        return found
    except UnsupportedConfig as error:
        raise BadCheckpoint(f"{path}: {error}") from None


def default_size_px(sample_size: Any, factor: int, least: int = 0) -> tuple[int, int]:
    """Return width and height of the images that a denoiser was trained on; a side below `least` is raised to it.
    Raises BadCheckpoint for a `sample_size` that is neither a number nor height and width."""
    if sample_size is None:
        raise BadCheckpoint("the denoiser's configuration has no sample_size")
    sides = list(sample_size) if isinstance(sample_size, list | tuple) else [sample_size, sample_size]
    if len(sides) != 2 or not all(type(side) is int and side > 0 for side in sides):
        raise BadCheckpoint(f"the denoiser's sample_size={str(sample_size)[:60]!s} is no size")
    height, width = (max(side, least) * factor for side in sides)
    return width, height


def stated_size_px(checkpoint: Checkpoint, factor: int, multiple: int) -> tuple[int, int]:
    """Return the default width and height of a transformer that takes any size, multiples of `multiple`: 128 cells of a
    latent, unless the transformer's config.json states `sample_size`. Raises BadCheckpoint as `default_size_px`."""
    config = checkpoint.config("transformer")
    width, height = default_size_px(config.get("sample_size", _USUAL_SAMPLE_SIZE), factor)
    return max(width - width % multiple, multiple), max(height - height % multiple, multiple)


def with_even_levels(
    configs: Mapping[Scheduler, SchedulerConfig], *, shifts_by_steps: bool = False
) -> dict[Scheduler, SchedulerConfig]:
    """Return the schedulers with levels that a pipeline passes: evenly from 1 to 1/steps, before any shift."""
    flows = {name: config for name, config in configs.items() if isinstance(config, FlowConfig)}
    return {name: replace(config, even_levels=True, shifts_by_steps=shifts_by_steps) for name, config in flows.items()}


def check_width(checkpoint: Checkpoint, denoiser: str, what: str, taken: int, made: int) -> None:
    """Raise BadCheckpoint if the text encoders return another width of `what` than the denoiser takes: the parts may
    come from different models."""
    if taken != made:
        message = f"{denoiser} takes {what} of {taken} values, the text encoders make {made}"
        raise BadCheckpoint(f"{checkpoint.directory}: {message}")


def check_token_limits(checkpoint: Checkpoint, parts: Mapping[str, Any], names: Iterable[str]) -> None:
    """Raise BadCheckpoint if a tokenizer of `names` returns more tokens than its encoder has positions for, or if the
    tokenizers differ in their number of tokens: their states are concatenated."""
    limits = {name: parts[name].model_max_length for name in names}
    first = next(iter(limits.values()))
    for name, limit in limits.items():
        positions = parts[name.replace("tokenizer", "text_encoder")].config.max_position_embeddings
        wanted = f"at most {positions}, its encoder's positions" if limit > positions else f"{first}, as tokenizer's"
        if limit > positions or limit != first:
            path = checkpoint.component_directory(name)
            raise BadCheckpoint(f"{path}: model_max_length={limit} must be {wanted}")
