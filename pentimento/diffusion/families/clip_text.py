"""Encode prompts with CLIP: a fixed number of tokens, the last or the penultimate hidden states."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pentimento.diffusion.families.prompt_tokens import PromptTokenizer
from pentimento.diffusion.kernels.layers import is_listened_to


@dataclass(frozen=True)
class EncodedText:
    """Hold an encoded prompt, one row: `states` (1, tokens, width); `pooled` (1, width) if the encoder projects one."""

    states: Tensor
    pooled: Tensor | None
    truncated: bool


class ClipText:
    """Hold a tokenizer with its encoder."""

    def __init__(self, tokenizer: Any, encoder: Any, device: torch.device, *, expands_inversions: bool = False) -> None:
        self._tokenizer = PromptTokenizer(tokenizer, expands_inversions=expands_inversions)
        self._encoder = encoder
        self._device = device
        self._recorded: Callable[..., tuple[Tensor, ...]] | None = None
        self._layers = [layer for layer in encoder.modules() if isinstance(layer, nn.Linear)]
        self.token_limit = self._tokenizer.limit

    def record(self, compiler: Callable[..., Any]) -> None:
        """Compile the encoder with `compiler`, as `CompiledDenoiser` does with the denoiser's pass: a GPU waits longer
        for an encoder's launches than it computes."""
        self._recorded = compiler(self._outputs)

    def last_states(self, prompt: str) -> EncodedText:
        """Return the last hidden states, as Stable Diffusion 1.x and 2.x want them."""
        tokens, truncated = self._tokenizer.padded(prompt, self.token_limit)
        masked = getattr(self._encoder.config, "use_attention_mask", False)
        mask = tokens.attention_mask.to(self._device) if masked else None
        return EncodedText(self._encoded(tokens.input_ids, mask)[0], None, truncated)

    def penultimate_states(self, prompt: str, token_limit: int) -> EncodedText:
        """Return the hidden states before the last layer, and the projection of an encoder that has one, as SDXL and
        SD3 want them."""
        tokens, truncated = self._tokenizer.padded(prompt, token_limit)
        result, states = self._encoded(tokens.input_ids)
        return EncodedText(states, result if result.ndim == 2 else None, truncated)

    def _encoded(self, ids: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the encoder's result, and the states before its last layer."""
        # Without waiting for other work of the device, such as the decoder of another image.
        there = ids.to(self._device, non_blocking=True)
        if self._recorded is None or mask is not None or any(map(is_listened_to, self._layers)):
            return self._outputs(there, mask)
        # The next replay overwrites the same memory.
        result, states = (part.clone() for part in self._recorded(there))
        return result, states

    def _outputs(self, ids: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        output = self._encoder(ids, attention_mask=mask, output_hidden_states=True)
        return output[0], output.hidden_states[-2]
