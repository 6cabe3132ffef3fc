"""Prompts as a fixed number of tokens, from any thread."""

import threading
from typing import Any


class PromptTokenizer:
    """A transformers tokenizer that several threads may ask at once.

    The fast tokenizers keep padding and truncation as state: what one thread asks for would change another's tokens.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._asking = threading.Lock()
        self.limit: int = tokenizer.model_max_length

    def padded(self, prompt: str, count: int) -> tuple[Any, bool]:
        """Return `count` tokens, (1, count) with their attention mask, and whether the prompt has more."""
        with self._asking:
            whole = len(self._tokenizer(prompt, verbose=False).input_ids)
            tokens = self._tokenizer(
                prompt, padding="max_length", max_length=count, truncation=True, return_tensors="pt"
            )
        return tokens, whole > count
