"""Serve Stable Diffusion 1.x and 2.x: a CLIP text encoder, a UNet with epsilon, v or sample prediction, an
autoencoder."""

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from pentimento.diffusion.families.model import Conditioning, PromptStates
from pentimento.diffusion.families.unet import UNetFamily
from pentimento.diffusion.families.weighted_texts import emphasised
from pentimento.domain.prompt_syntax import WeightedPrompt

_OLD_SAMPLE_SIZE = 64


class StableDiffusion(UNetFamily):
    """Adapt diffusers' modules of this family to the engine."""

    name = "stable_diffusion"
    encoders = ("text_encoder",)
    foreign_keys = ("addition_embed_type",)
    overrides: ClassVar[Mapping[str, Any]] = {"steps_offset": 1, "clip_sample": False}

    def _least_sample_size(self, config: Mapping[str, Any]) -> int:
        """Return the least sample size: diffusers' pipelines of this family read a smaller one, written by a release
        before 0.9, as 64. Files of Stable Diffusion 1 state 32 and generate 64."""
        version = re.match(r"(\d+)\.(\d+)\.", str(config.get("_diffusers_version", "")))
        return _OLD_SAMPLE_SIZE if version and tuple(map(int, version.groups())) < (0, 9) else 0

    def encode_prompt(self, prompt: str, *, negative: bool = False, clip_skip: int = 0) -> PromptStates:
        encoded = self._texts[0].last_states(prompt, clip_skip)
        return PromptStates(Conditioning(encoded.states.to(self.dtype)), encoded.truncated)

    def encode_weighted(
        self, prompt: WeightedPrompt, chunk_count: int, *, negative: bool = False, clip_skip: int = 0
    ) -> PromptStates:
        text = self._texts[0].weighted(prompt, chunk_count, clip_skip, penultimate=False)
        return PromptStates(Conditioning(emphasised([text]).to(self.dtype)), truncated=False)
