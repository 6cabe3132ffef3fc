"""Serve the families that share a UNet2DConditionModel."""

import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from pentimento.diffusion.checkpoint import Checkpoint
from pentimento.diffusion.families.adapters import adapted
from pentimento.diffusion.families.autoencoder import Autoencoder, LatentScale
from pentimento.diffusion.families.base import (
    DiffusersFamily,
    DigestsLater,
    check_token_limits,
    check_width,
    default_size_px,
    load_schedulers,
    refuse_keys,
)
from pentimento.diffusion.families.lean_attention import skip_signature_checks
from pentimento.diffusion.families.model import (
    Conditioning,
    ControlResiduals,
    DenoiserEncoding,
    DenoiserInput,
    LoadedModelInfo,
)
from pentimento.diffusion.families.row_kernels import RowKernels
from pentimento.diffusion.families.row_updates import PerSampleAdapters
from pentimento.diffusion.families.texts import ClipText
from pentimento.diffusion.families.unet_passes import AttendedTexts, UNetEncoding, UNetPasses, added_conditions, covers
from pentimento.diffusion.inversions import BadInversion, Inversion
from pentimento.diffusion.schedulers import DIFFUSION_SCHEDULERS, DiffusionConfig
from pentimento.diffusion.weights import load_components
from pentimento.domain.generation import NoiseForm

# Settings of other families and conditionings; a checkpoint that sets one would be served wrongly.
_FOREIGN_KEYS = ("class_embed_type", "num_class_embeds", "encoder_hid_dim_type", "time_cond_proj_dim")
# The same for switches, which diffusers writes as False if off.
_FOREIGN_SWITCHES = ("dual_cross_attention",)

# diffusers' pipelines of both families need sides that are multiples of 8, for any factor of the autoencoder.
_PIPELINE_SIZE_MULTIPLE = 8

_TIME_LAYERS = ("time_embedding.", "time_emb_proj", "add_embedding.")
# Timesteps with stored terms: enough for several schedules.
_KEPT_TIMESTEPS = 512


class UNetFamily(DiffusersFamily):
    """Run a UNet with `unet_passes` if they support it, else with diffusers' forward. A subclass names its text
    encoders and the scheduler's settings that diffusers' pipelines override."""

    name: ClassVar[str]
    # Further keys of other families in the UNet's configuration.
    foreign_keys: ClassVar[tuple[str, ...]] = ()
    encoders: ClassVar[tuple[str, ...]]
    # Keys of a textual inversion's vectors, in the order of the encoders.
    inversion_keys: ClassVar[tuple[str, ...]] = ("",)
    overrides: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, checkpoint: Checkpoint, digests: DigestsLater, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(device, dtype)
        config = refuse_keys(checkpoint, "unet", (*_FOREIGN_KEYS, *self.foreign_keys), _FOREIGN_SWITCHES)
        self._take_settings(checkpoint, config)
        self._schedulers = load_schedulers(checkpoint, DIFFUSION_SCHEDULERS, self.overrides)
        parts = load_components(checkpoint, device, dtype)
        tokenizers = [name.replace("text_encoder", "tokenizer") for name in self.encoders]
        check_token_limits(checkpoint, parts, tokenizers)
        _check_texts(checkpoint, parts["unet"], sum(parts[name].config.hidden_size for name in self.encoders))
        self._texts = [
            ClipText(parts[tokenizer], parts[encoder], device, expands_inversions=True)
            for tokenizer, encoder in zip(tokenizers, self.encoders, strict=True)
        ]
        self.usual_tokens = self.chunk_tokens = self._texts[0].token_limit
        self._hold_parts(parts, "unet", *self.encoders)
        self._hold(parts["unet"])
        self._decode_with(self._with_scale(parts["vae"]))
        sees_mask = self._autoencoder.check_channels(checkpoint.directory, self.denoiser.config, may_see_mask=True)
        self._check_widths(checkpoint, parts)
        self.info = self._describe(digests, sees_mask=sees_mask, least_sample_size=self._least_sample_size(config))

    def add_inversion(self, inversion: Inversion) -> None:
        if inversion.vectors.keys() != set(self.inversion_keys):
            keys = " and ".join(key or "one tensor" for key in self.inversion_keys)
            raise BadInversion(f"{inversion.file}: must have {keys} for the family {self.name}")
        parts = [inversion.vectors[key] for key in self.inversion_keys]
        for key, text, vectors in zip(self.inversion_keys, self._texts, parts, strict=True):
            text.check_word(inversion.word, vectors, f"{inversion.file}{f': {key}' if key else ''}")
        for text, vectors in zip(self._texts, parts, strict=True):
            text.add_word(inversion.word, vectors)

    def _take_settings(self, checkpoint: Checkpoint, config: Mapping[str, Any]) -> None:
        """Take settings, `config` of the UNet. Raises BadCheckpoint for those of another kind of model."""

    def _least_sample_size(self, config: Mapping[str, Any]) -> int:
        """Return the least sample size: a smaller one in the UNet's configuration is raised to it."""
        return 0

    def _with_scale(self, vae: Any) -> Autoencoder:
        return Autoencoder(vae, LatentScale.of(vae.config), self.device, self.dtype)

    def _check_widths(self, checkpoint: Checkpoint, parts: Mapping[str, Any]) -> None:
        """Raise BadCheckpoint for parts of different models."""

    def _describe(self, later: DigestsLater, *, sees_mask: bool, least_sample_size: int) -> LoadedModelInfo:
        """Return the model's description; waits for the digests."""
        own, factor = next(iter(self._schedulers.values())), self._autoencoder.factor
        assert isinstance(own, DiffusionConfig)
        digests = later()
        width, height = default_size_px(self.denoiser.config.sample_size, factor, least_sample_size)
        return LoadedModelInfo(
            family=self.name,
            model_digest=digests.model,
            vae_digest=digests.components["vae"],
            scheduler_digest=digests.components["scheduler"],
            prediction_type=own.prediction_type.value,
            noise_form=NoiseForm.VARIANCE_PRESERVING,
            default_width_px=width,
            default_height_px=height,
            size_multiple_px=math.lcm(_PIPELINE_SIZE_MULTIPLE, factor),
            schedulers=tuple(self._schedulers),
            train_step_count=own.num_train_timesteps,
            sees_mask=sees_mask,
        )

    def _hold(self, unet: Any) -> None:
        """Set the passes, and make attention modules skip their signature checks (changes the network)."""
        skip_signature_checks(unet)
        self._kernels = RowKernels(unet)
        self._passes = UNetPasses(unet) if covers(unet) else None
        self._terms: OrderedDict[tuple[float, int], Tensor] = OrderedDict()
        self.cross_attentions = self._passes.cross_attentions if self._passes is not None else ()

    def project(self, conditioning: Conditioning, adapters: PerSampleAdapters | None = None) -> Conditioning:
        if self._passes is None:
            return conditioning
        with adapted(self.denoiser, adapters):
            return replace(conditioning, projected=self._passes.project_text(conditioning.states))

    def forget_time_terms(self) -> None:
        self._terms.clear()

    def time_terms(self, timestep: float, row_count: int) -> Tensor | None:
        """Return the terms of a timestep (rows, widths), cached for recent timesteps. For networks without added
        conditions."""
        if self._passes is None:
            return None
        terms = self._terms.pop((timestep, row_count), None)
        if terms is None:
            timesteps = torch.full((row_count,), timestep, dtype=torch.float32, device=self.device)
            terms = self._passes.time_terms(timesteps, self.dtype)
        self._terms[timestep, row_count] = terms
        while len(self._terms) > _KEPT_TIMESTEPS:
            self._terms.popitem(last=False)
        return terms

    def predict(self, inputs: DenoiserInput) -> Tensor:
        if self._passes is None:
            with self._kernels.held(inputs):
                return predict_with_unet(self.denoiser, inputs)
        with self._kernels.held(inputs), adapted(self.denoiser, inputs.adapters):
            texts, terms = _projected(self._passes, inputs), self._terms_of(self._passes, inputs)
            encoded = self._passes.encode(_seen_latents(inputs), texts, terms)
            return self._passes.decode(encoded, texts, terms, inputs.residuals)

    def predict_and_keep(self, inputs: DenoiserInput) -> tuple[Tensor, Tensor | None]:
        if self._passes is None:
            return self.predict(inputs), None
        with self._kernels.held(inputs), adapted(self.denoiser, inputs.adapters):
            texts, terms = _projected(self._passes, inputs), self._terms_of(self._passes, inputs)
            encoded = self._passes.encode(_seen_latents(inputs), texts, terms).controlled(inputs.residuals)
            features = self._passes.deep(encoded, texts, terms)
            return self._passes.finish(features, encoded.skips, texts, terms), features

    def predict_from(self, inputs: DenoiserInput, features: Tensor) -> Tensor:
        assert self._passes is not None
        with self._kernels.held(inputs, "outer stages"), adapted(self.denoiser, inputs.adapters):
            texts, terms = _projected(self._passes, inputs), self._terms_of(self._passes, inputs)
            skips = self._passes.shallow(_seen_latents(inputs), texts, terms)
            return self._passes.finish(features, skips, texts, terms)

    def encode(self, inputs: DenoiserInput) -> DenoiserEncoding:
        """Return the mid block's output, the skip connections, and the terms of the timesteps if they had to be
        computed. Empty if diffusers' forward runs."""
        if self._passes is None:
            return DenoiserEncoding()
        with self._kernels.held(inputs, "encoder"), adapted(self.denoiser, inputs.adapters):
            terms = self._terms_of(self._passes, inputs)
            encoded = self._passes.encode(_seen_latents(inputs), _projected(self._passes, inputs), terms)
        computed = () if terms is inputs.time_terms else (terms,)
        return DenoiserEncoding((encoded.hidden, *encoded.skips, *computed))

    def decode(self, inputs: DenoiserInput, encoding: DenoiserEncoding) -> Tensor:
        if self._passes is None or not encoding.tensors:
            return self.predict(inputs)
        hidden, *rest = encoding.tensors
        skips, computed = tuple(rest[: self._passes.skip_count]), rest[self._passes.skip_count :]
        with self._kernels.held(inputs, "decoder"), adapted(self.denoiser, inputs.adapters):
            terms = computed[0] if computed else self._terms_of(self._passes, inputs)
            texts = _projected(self._passes, inputs)
            return self._passes.decode(UNetEncoding(hidden, skips), texts, terms, inputs.residuals)

    def example_residuals(self, encoding: DenoiserEncoding) -> ControlResiduals | None:
        """Return zeros shaped as the skip connections and the mid block's output of an encoding."""
        if self._passes is None or not encoding.tensors:
            return None
        hidden, *skips = encoding.tensors[: 1 + self._passes.skip_count]
        return ControlResiduals(tuple(torch.zeros_like(skip) for skip in skips), torch.zeros_like(hidden))

    def _terms_of(self, passes: UNetPasses, inputs: DenoiserInput) -> Tensor:
        if inputs.time_terms is not None and not _changes_time_terms(inputs.adapters):
            return inputs.time_terms
        timesteps = inputs.timesteps.expand(inputs.latents.shape[0])
        return passes.time_terms(timesteps, self.dtype, added_conditions(inputs.conditioning))


def _projected(passes: UNetPasses, inputs: DenoiserInput) -> AttendedTexts:
    texts = inputs.conditioning.projected
    texts = passes.project_text(inputs.conditioning.states) if texts is None else texts
    return AttendedTexts(texts, inputs.image_prompts)


def _changes_time_terms(adapters: PerSampleAdapters | None) -> bool:
    """Return whether the adapters change layers between the timestep and a residual block: cached terms do not
    apply."""
    names = adapters.updates if adapters is not None else ()
    return any(part in name for name in names for part in _TIME_LAYERS)


def _seen_latents(inputs: DenoiserInput) -> Tensor:
    """Return the input of the network's first layer: latents, followed by mask and masked latents if it takes masks."""
    masked = inputs.conditioning.masked
    return inputs.latents if masked is None else torch.cat([inputs.latents, masked], dim=1)


def predict_with_unet(unet: Any, inputs: DenoiserInput) -> Tensor:
    """Return the prediction of diffusers' forward pass."""
    residuals = inputs.residuals
    with adapted(unet, inputs.adapters):
        prediction: Tensor = unet(
            _seen_latents(inputs),
            inputs.timesteps,
            encoder_hidden_states=inputs.conditioning.states,
            added_cond_kwargs=added_conditions(inputs.conditioning),
            down_block_additional_residuals=(residuals.down_block_residuals or None) if residuals else None,
            mid_block_additional_residual=residuals.mid_block_residual if residuals else None,
            return_dict=False,
        )[0]
    return prediction


def _check_texts(checkpoint: Checkpoint, unet: Any, made: int) -> None:
    """Raise BadCheckpoint if a layer of a UNet attends to text states of another width than the encoders return."""
    for name, layer in unet.named_modules():
        if name.endswith("attn2.to_k"):
            check_width(checkpoint, "unet", "text states", layer.in_features, made)
