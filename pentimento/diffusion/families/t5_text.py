"""Encode prompts with T5 as SD3 uses it, or return zeros for checkpoints without T5."""

from typing import Any

import torch

from pentimento.diffusion.families.clip_text import EncodedText
from pentimento.diffusion.families.prompt_tokens import PromptTokenizer


class T5Text:
    """Hold a tokenizer with its encoder."""

    def __init__(self, tokenizer: Any, encoder: Any, device: torch.device) -> None:
        self._tokenizer = PromptTokenizer(tokenizer)
        self._encoder = encoder
        self._device = device

    def states(self, prompt: str, token_count: int) -> EncodedText:
        """Return the hidden states, (1, token_count, width)."""
        tokens, truncated = self._tokenizer.padded(prompt, token_count)
        states = self._encoder(tokens.input_ids.to(self._device))[0]
        return EncodedText(states, None, truncated)


def absent_t5(token_count: int, width: int) -> EncodedText:
    """Return SD3's zero states for a checkpoint without T5; marked truncated, so that only CLIP decides on
    truncation."""
    return EncodedText(torch.zeros(1, token_count, width), None, truncated=True)
