"""T5's encoder as SD3 uses it, and the zeros that stand in for it."""

from typing import Any

import torch

from pentimento.diffusion.families.clip_text import EncodedText


class T5Text:
    """A tokenizer with its encoder."""

    def __init__(self, tokenizer: Any, encoder: Any, device: torch.device) -> None:
        self._tokenizer = tokenizer
        self._encoder = encoder
        self._device = device

    def states(self, prompt: str, token_count: int) -> EncodedText:
        """Return the hidden states, (1, token_count, width)."""
        count = len(self._tokenizer(prompt, verbose=False).input_ids)
        tokens = self._tokenizer(
            prompt, padding="max_length", max_length=token_count, truncation=True, return_tensors="pt"
        )
        states = self._encoder(tokens.input_ids.to(self._device))[0]
        return EncodedText(states, None, count > token_count)


def absent_t5(token_count: int, width: int) -> EncodedText:
    """Return what SD3 sees of a checkpoint without T5; nothing was read, so CLIP alone decides what was cut off."""
    return EncodedText(torch.zeros(1, token_count, width), None, truncated=True)
