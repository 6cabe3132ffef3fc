"""T5's encoder as SD3 uses it, and the zeros that stand in for it."""

from typing import Any

import torch

from pentimento.diffusion.families.clip_text import EncodedText
from pentimento.diffusion.families.prompt_tokens import PromptTokenizer


class T5Text:
    """A tokenizer with its encoder."""

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
    """Return what SD3 sees of a checkpoint without T5; nothing was read, so CLIP alone decides what was cut off."""
    return EncodedText(torch.zeros(1, token_count, width), None, truncated=True)
