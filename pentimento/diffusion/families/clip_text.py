"""CLIP text encoders as the families use them: a fixed number of tokens, the last or the last but one hidden states."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pentimento.diffusion.families.prompt_tokens import PromptTokenizer


@dataclass(frozen=True)
class EncodedText:
    """An encoded prompt, one row: `states` (1, tokens, width); `pooled` (1, width) where the encoder projects one."""

    states: Tensor
    pooled: Tensor | None
    truncated: bool


class ClipText:
    """A tokenizer with its encoder."""

    def __init__(self, tokenizer: Any, encoder: Any, device: torch.device) -> None:
        self._tokenizer = PromptTokenizer(tokenizer)
        self._encoder = encoder
        self._device = device
        self.token_limit = self._tokenizer.limit

    def last_states(self, prompt: str) -> EncodedText:
        """Return the last hidden states, as Stable Diffusion 1.x and 2.x want them."""
        tokens, truncated = self._tokenizer.padded(prompt, self.token_limit)
        masked = getattr(self._encoder.config, "use_attention_mask", False)
        mask = tokens.attention_mask.to(self._device) if masked else None
        states = self._encoder(tokens.input_ids.to(self._device), attention_mask=mask)[0]
        return EncodedText(states, None, truncated)

    def penultimate_states(self, prompt: str, token_limit: int) -> EncodedText:
        """Return the hidden states before the last layer, and the projection of an encoder that has one, as SDXL and
        SD3 want them."""
        tokens, truncated = self._tokenizer.padded(prompt, token_limit)
        output = self._encoder(tokens.input_ids.to(self._device), output_hidden_states=True)
        pooled = output[0] if output[0].ndim == 2 else None
        return EncodedText(output.hidden_states[-2], pooled, truncated)
