"""Tokenize prompts to a fixed number of tokens, from any thread."""

import threading
from itertools import count, takewhile
from typing import Any


class PromptTokenizer:
    """Wrap a transformers tokenizer for use by several threads.

    The fast tokenizers store padding and truncation as state: one thread's call would change another's tokens.
    """

    def __init__(self, tokenizer: Any, *, expands_inversions: bool = False) -> None:
        """Wrap a tokenizer. With `expands_inversions` a token of textual inversion is replaced by the tokens of all its
        saved vectors, as in diffusers' pipelines of Stable Diffusion and SDXL."""
        self._tokenizer = tokenizer
        self._asking = threading.Lock()
        self._inversions = _saved_inversions(tokenizer) if expands_inversions else {}
        self.limit: int = tokenizer.model_max_length

    def padded(self, prompt: str, token_count: int) -> tuple[Any, bool]:
        """Return `token_count` tokens, (1, token_count) with their attention mask, and whether the prompt has more."""
        with self._asking:
            prompt = self._expanded(prompt) if self._inversions else prompt
            whole = len(self._tokenizer(prompt, verbose=False).input_ids)
            tokens = self._tokenizer(
                prompt, padding="max_length", max_length=token_count, truncation=True, return_tensors="pt"
            )
        return tokens, whole > token_count

    def _expanded(self, prompt: str) -> str:
        """Replace each inversion's first token by the tokens of all its vectors, as diffusers' `maybe_convert_prompt`
        does."""
        for token in dict.fromkeys(self._tokenizer.tokenize(prompt)):
            prompt = prompt.replace(token, self._inversions.get(token, token))
        return prompt


def _saved_inversions(tokenizer: Any) -> dict[str, str]:
    """Return the added tokens with several vectors, each with the text of all: "<cat>" maps to
    "<cat> <cat>_1 <cat>_2"."""
    added = tokenizer.added_tokens_encoder
    found = {}
    for token in added:
        further = takewhile(added.__contains__, (f"{token}_{number}" for number in count(1)))
        found[token] = " ".join([token, *further])
    return {token: text for token, text in found.items() if text != token}
