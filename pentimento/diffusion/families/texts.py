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
from pentimento.diffusion.families.weighted_texts import (
    TokenChunk,
    WeightedText,
    between,
    blended,
    chunks_of,
    empty_chunk,
    multiplied,
)
from pentimento.diffusion.inversions import BadInversion
from pentimento.diffusion.kernels.layers import is_listened_to
from pentimento.diffusion.weight_memory import is_in_host_memory
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.prompt_syntax import PromptSyntax, WeightedPrompt


class PromptTokenizer:
    """Wrap a transformers tokenizer for use by several threads.

    The fast tokenizers store padding and truncation as state: one thread's call would change another's tokens.
    """

    def __init__(self, tokenizer: Any, *, expands_inversions: bool = False) -> None:
        """Wrap a tokenizer. With `expands_inversions` a token of textual inversion is replaced by the tokens of all its
        saved vectors, as in diffusers' pipelines of Stable Diffusion and SDXL."""
        self._tokenizer = tokenizer
        self._asking = threading.Lock()
        self._expands_inversions = expands_inversions
        self._read_inversions()
        self.limit: int = tokenizer.model_max_length

    def _read_inversions(self) -> None:
        self._inversions = _saved_inversions(self._tokenizer) if self._expands_inversions else {}
        further = [word for text in self._inversions.values() for word in text.split(" ")[1:]]
        self._further = frozenset(self._tokenizer.convert_tokens_to_ids(further))

    def taken(self, word: str, vector_count: int) -> str | None:
        """Return the token that keeps a word of `vector_count` vectors from being added; None if it is free."""
        known = self._tokenizer.get_vocab()
        base, _, number = word.rpartition("_")
        if number.isdigit() and base in self._tokenizer.added_tokens_encoder:
            return base
        # One more than its own vectors would count as a further one.
        return next(
            (token for token in (*_tokens_of(word, vector_count), f"{word}_{vector_count}") if token in known), None
        )

    def add(self, word: str, vector_count: int) -> list[int]:
        """Add a word of `vector_count` vectors, and return their token ids."""
        tokens = _tokens_of(word, vector_count)
        with self._asking:
            self._tokenizer.add_tokens(tokens)
            self._read_inversions()
            ids: list[int] = self._tokenizer.convert_tokens_to_ids(tokens)
        return ids

    def padded(self, prompt: str, token_count: int, *, adds_ends: bool = True) -> tuple[Any, bool]:
        """Return `token_count` tokens, (1, token_count) with their attention mask, and whether the prompt has more.
        Without `adds_ends` the prompt has its start and end tokens."""
        filled = {"padding": "max_length", "max_length": token_count, "truncation": True, "return_tensors": "pt"}
        with self._asking:
            prompt = self._expanded(prompt) if self._inversions else prompt
            whole = len(self._tokenizer(prompt, add_special_tokens=adds_ends, verbose=False).input_ids)
            tokens = self._tokenizer(prompt, add_special_tokens=adds_ends, **filled)
        return tokens, whole > token_count

    def words(self, text: str) -> list[tuple[int, ...]]:
        """Return the token ids of a text without its ends; the vectors of one inversion stay together."""
        with self._asking:
            text = self._expanded(text) if self._inversions else text
            ids: list[int] = self._tokenizer(text, add_special_tokens=False, verbose=False).input_ids
        words: list[tuple[int, ...]] = []
        for token in ids:
            if words and token in self._further:
                words[-1] = (*words[-1], token)
            else:
                words.append((token,))
        return words

    def ends(self) -> tuple[int | None, int, int]:
        """Return the ids of the start token, of the end token, and of padding; T5 has no start token."""
        return self._tokenizer.bos_token_id, self._tokenizer.eos_token_id, self._tokenizer.pad_token_id

    def unpadded(self, prompt: str, most: int) -> tuple[Tensor, bool]:
        """Return the prompt's tokens (1, tokens), at most `most`, and whether it has more."""
        with self._asking:
            ids = self._tokenizer(prompt, verbose=False, return_tensors="pt").input_ids
        return ids[:, :most], ids.shape[1] > most

    def count(self, text: str) -> int:
        """Return the number of a text's tokens, with the start token."""
        with self._asking:
            return len(self._tokenizer(text, verbose=False).input_ids)

    def _expanded(self, prompt: str) -> str:
        """Replace each inversion's first token by the tokens of all its vectors, as diffusers' `maybe_convert_prompt`
        does."""
        for token in dict.fromkeys(self._tokenizer.tokenize(prompt)):
            prompt = prompt.replace(token, self._inversions.get(token, token))
        return prompt


def _tokens_of(word: str, vector_count: int) -> list[str]:
    return [word, *(f"{word}_{number}" for number in range(1, vector_count))]


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
        self.is_masked = bool(getattr(encoder.config, "use_attention_mask", False))

    def check_word(self, word: str, vectors: Tensor, where: str) -> None:
        """Raise BadInversion, which begins with `where`, for vectors (vectors, width) of another width than the
        encoder's, and for a word that its tokenizer has."""
        width = self._embedding.weight.shape[1]
        if vectors.shape[1] != width:
            raise BadInversion(f"{where}: its vectors have {vectors.shape[1]} values, the text encoder takes {width}")
        if taken := self._tokenizer.taken(word, len(vectors)):
            raise BadInversion(f"{where}: the word {word!r} is taken by {taken!r} of the tokenizer; rename it")

    @torch.no_grad()
    def add_word(self, word: str, vectors: Tensor) -> None:
        """Let a word stand for vectors (vectors, width) that were checked."""
        ids, weight = self._tokenizer.add(word, len(vectors)), self._embedding.weight
        missing = max(ids) + 1 - weight.shape[0]
        rows = torch.cat([weight, weight.new_zeros(max(missing, 0), weight.shape[1])])
        rows[ids] = vectors.to(rows)
        self._embedding.weight = nn.Parameter(rows, requires_grad=False)
        # Recorded passes read the table that was replaced.
        if (forget := getattr(self._recorded, "forget", None)) is not None:
            forget()

    @property
    def _embedding(self) -> nn.Embedding:
        found: nn.Embedding = getattr(self._encoder, "text_model", self._encoder).embeddings.token_embedding
        return found

    def record(self, compiler: Callable[..., Any]) -> None:
        """Compile the encoder with `compiler`, as `CompiledDenoiser` does with the denoiser's pass: a GPU waits longer
        for an encoder's launches than it computes. Not one in host memory: its weights have no fixed address."""
        if not is_in_host_memory(self._encoder):
            self._recorded = compiler(self._outputs)

    def last_states(self, prompt: str, skip: int = 0) -> EncodedText:
        """Return the last hidden states, as Stable Diffusion 1.x and 2.x want them: normalised, of the layer before
        the last `skip` ones. Raises InvalidArgument if there are fewer layers."""
        tokens, truncated = self._tokenizer.padded(prompt, self.token_limit)
        mask = tokens.attention_mask.to(self._device) if self.is_masked else None
        return EncodedText(self._last(tokens.input_ids, mask, skip), None, truncated)

    def penultimate_states(self, prompt: str, token_limit: int, skip: int = 0) -> EncodedText:
        """Return the hidden states before the last layer, or before `skip` more, and the projection of an encoder that
        has one, as SDXL and SD3 want them. Raises InvalidArgument if there are fewer layers."""
        tokens, truncated = self._tokenizer.padded(prompt, token_limit)
        states, pooled = self._penultimate(tokens.input_ids, None, skip)
        return EncodedText(states, pooled, truncated)

    def chunk_count(self, prompt: WeightedPrompt) -> int:
        """Return the number of chunks of a prompt's tokens."""
        return len(chunks_of(self._tokenizer, prompt))

    def weighted(self, prompt: WeightedPrompt, chunk_count: int, skip: int, *, penultimate: bool) -> WeightedText:
        """Return the states of each chunk of a prompt's tokens, filled up with empty ones to `chunk_count`, and the
        projection of the first one: of the layer before the last one if `penultimate`. Raises as `last_states`."""
        chunks, pooled = chunks_of(self._tokenizer, prompt, chunk_count), []

        def encode(chunk: TokenChunk, hidden: int | None) -> Tensor:
            mask = self._mask(chunk, hidden, seen=not self.is_masked or penultimate)
            if not penultimate:
                return self._last(torch.tensor([chunk.ids]), mask, skip)
            states, projected = self._penultimate(torch.tensor([chunk.ids]), mask, skip)
            pooled.append(projected)
            return states

        if prompt.syntax is PromptSyntax.COMPEL:
            states = blended(encode, chunks, empty_chunk(self._tokenizer))
            weights = states.new_ones(states.shape[:2])
        else:
            states = torch.cat([encode(chunk, None) for chunk in chunks])
            weights = torch.tensor([chunk.weights for chunk in chunks], device=self._device)
        return WeightedText(states, weights, next(iter(pooled), None))

    def _mask(self, chunk: TokenChunk, hidden: int | None, *, seen: bool) -> Tensor | None:
        """Return the attention mask that hides a fragment's tokens, and padding unless it is `seen`; None if all tokens
        are seen."""
        if hidden is None and seen:
            return None
        tokens = zip(chunk.mask, chunk.fragments, strict=True)
        mask = [int((seen or real == 1) and (hidden is None or fragment != hidden)) for real, fragment in tokens]
        return torch.tensor([mask], device=self._device)

    def _last(self, ids: Tensor, mask: Tensor | None, skip: int) -> Tensor:
        if not skip:
            return self._encoded(ids, mask)[0]
        norm = getattr(self._encoder, "text_model", self._encoder).final_layer_norm
        states: Tensor = norm(self._skipped(ids.to(self._device), mask, skip, 0)[1])
        return states

    def _penultimate(self, ids: Tensor, mask: Tensor | None, skip: int) -> tuple[Tensor, Tensor | None]:
        """Return the states, and the projection if the encoder has one."""
        result, states = self._skipped(ids.to(self._device), mask, skip, 1) if skip else self._encoded(ids, mask)
        return states, result if result.ndim == 2 else None

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

    def weighted(self, prompt: WeightedPrompt, token_count: int) -> EncodedText:
        """Return the hidden states as `states` does, each token's multiplied by its weight; with compel's syntax by its
        weight between that of the empty prompt and its own."""
        _, end, padding = self._tokenizer.ends()
        fragments = [fragment for section in prompt.sections for fragment in section]
        tokens = [
            (token, fragment.weight)
            for fragment in fragments
            for word in self._tokenizer.words(fragment.text)
            for token in word
        ]
        kept = [*tokens[: max(token_count - 1, 0)], (end, 1.0)][:token_count]
        kept += [(padding, 1.0)] * (token_count - len(kept))
        ids = torch.tensor([[token for token, _ in kept]], dtype=torch.long)
        states = self._encoder(ids.to(self._device))[0]
        weights = torch.tensor([[weight for _, weight in kept]], device=states.device)
        if (weights != 1.0).any():
            base = self.states("", token_count).states if prompt.syntax is PromptSyntax.COMPEL else None
            states = multiplied(states, weights) if base is None else between(base, states, weights)
        return EncodedText(states, None, len(tokens) + 1 > token_count)


def absent_t5(token_count: int, width: int) -> EncodedText:
    """Return SD3's zero states for a checkpoint without T5; marked truncated, so that only CLIP decides on
    truncation."""
    return EncodedText(torch.zeros(1, token_count, width), None, truncated=True)
