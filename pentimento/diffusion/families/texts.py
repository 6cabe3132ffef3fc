"""Encode prompts to a fixed number of tokens: with CLIP, the last or the penultimate hidden states, and with T5 as SD3
uses it."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count, takewhile
from typing import Any

import torch
from torch import Tensor, nn

from pentimento.diffusion.clip_encoder import text_ends
from pentimento.diffusion.kernels.layers import is_listened_to
from pentimento.domain.errors import InvalidArgument


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

    def last_states(self, prompt: str, skip: int = 0) -> EncodedText:
        """Return the last hidden states, as Stable Diffusion 1.x and 2.x want them: normalised, of the layer before
        the last `skip` ones. Raises InvalidArgument if there are fewer layers."""
        tokens, truncated = self._tokenizer.padded(prompt, self.token_limit)
        masked = getattr(self._encoder.config, "use_attention_mask", False)
        mask = tokens.attention_mask.to(self._device) if masked else None
        if skip:
            states = self._skipped(tokens.input_ids.to(self._device), mask, skip, 0)[1]
            norm = getattr(self._encoder, "text_model", self._encoder).final_layer_norm
            return EncodedText(norm(states), None, truncated)
        return EncodedText(self._encoded(tokens.input_ids, mask)[0], None, truncated)

    def penultimate_states(self, prompt: str, token_limit: int, skip: int = 0) -> EncodedText:
        """Return the hidden states before the last layer, or before `skip` more, and the projection of an encoder that
        has one, as SDXL and SD3 want them. Raises InvalidArgument if there are fewer layers."""
        tokens, truncated = self._tokenizer.padded(prompt, token_limit)
        if skip:
            result, states = self._skipped(tokens.input_ids.to(self._device), None, skip, 1)
        else:
            result, states = self._encoded(tokens.input_ids)
        return EncodedText(states, result if result.ndim == 2 else None, truncated)

    def pooled_states(self, prompt: str) -> EncodedText:
        """Return the last hidden states, with the state of the end token as `pooled`, as FLUX wants it."""
        tokens, truncated = self._tokenizer.padded(prompt, self.token_limit)
        states = self._encoded(tokens.input_ids)[0]
        end = int(text_ends(tokens.input_ids, self._encoder.config.eos_token_id))
        return EncodedText(states, states[:, end], truncated)

    def _skipped(self, ids: Tensor, mask: Tensor | None, skip: int, before: int) -> tuple[Tensor, Tensor]:
        """Return the encoder's result, and the states before its last `skip + before` layers."""
        most = self._encoder.config.num_hidden_layers - before
        if skip > most:
            raise InvalidArgument.of("clip_skip", f"must be at most {most} with this model, got {skip}")
        output = self._encoder(ids, attention_mask=mask, output_hidden_states=True)
        return output[0], output.hidden_states[-(skip + before + 1)]

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
