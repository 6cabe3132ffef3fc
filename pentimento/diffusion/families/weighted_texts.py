"""Split prompts with weights into chunks of tokens, and apply the weights to a text encoder's states."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from pentimento.domain.prompt_syntax import Fragment, PromptSyntax, WeightedPrompt

# A chunk that is full ends behind a comma among its last 20 tokens, as in AUTOMATIC1111's web UI.
_COMMA_REACH = 20


class Tokens(Protocol):
    """Tokenize text; see `texts.PromptTokenizer`."""

    limit: int

    def words(self, text: str) -> list[tuple[int, ...]]:
        """Return the token ids of a text without its ends."""

    def ends(self) -> tuple[int | None, int, int]:
        """Return the ids of the start token, of the end token, and of padding."""


@dataclass(frozen=True)
class TokenChunk:
    """Hold as many token ids as the encoder takes, each with its weight and the number of its fragment, -1 for the
    chunk's ends; `mask` is 0 for padding."""

    ids: tuple[int, ...]
    weights: tuple[float, ...]
    fragments: tuple[int, ...]
    mask: tuple[int, ...]


@dataclass(frozen=True)
class WeightedText:
    """Hold an encoded prompt by chunks: `states` (chunks, tokens, width), `weights` (chunks, tokens), and `pooled`
    (1, width) of the first chunk if the encoder projects one."""

    states: Tensor
    weights: Tensor
    pooled: Tensor | None


def chunks_of(tokens: Tokens, prompt: WeightedPrompt, least_count: int = 1) -> list[TokenChunk]:
    """Return a prompt's chunks: each holds two tokens less than the encoder takes, and by AUTOMATIC1111's syntax a full
    one is cut behind a late comma. Empty chunks follow up to `least_count`."""
    numbers = iter(range(sum(map(len, prompt.sections))))
    cut = tokens.words(",") if prompt.syntax is PromptSyntax.A1111 else []
    parts = [
        part for section in prompt.sections for part in _parts(tokens, list(zip(section, numbers, strict=False)), cut)
    ]
    parts += [[]] * (least_count - len(parts))
    return [_chunk(tokens, part) for part in parts]


def empty_chunk(tokens: Tokens) -> TokenChunk:
    """Return the chunk of an empty prompt."""
    return _chunk(tokens, [])


# Token ids that stay together, their weight, and the number of their fragment.
_Word = tuple[tuple[int, ...], float, int]


def _parts(tokens: Tokens, section: Sequence[tuple[Fragment, int]], comma: list[tuple[int, ...]]) -> list[list[_Word]]:
    """Return the words of each chunk of a section. The words of an inversion are never parted."""
    room = tokens.limit - 2
    parts: list[list[_Word]] = [[]]
    for word, weight, number in _words(tokens, section):
        if _length(parts[-1]) + len(word) > room:
            kept = _behind_comma(parts[-1], comma) if [word] != comma else len(parts[-1])
            moved = parts[-1][kept:]
            if _length(moved) + len(word) > room:
                moved, kept = [], len(parts[-1])
            parts[-1:] = [parts[-1][:kept], moved]
        parts[-1].append((word[:room], weight, number))
    return parts


def _words(tokens: Tokens, section: Sequence[tuple[Fragment, int]]) -> Iterator[_Word]:
    for fragment, number in section:
        for word in tokens.words(fragment.text):
            yield word, fragment.weight, number


def _length(part: Sequence[_Word]) -> int:
    return sum(len(word) for word, *_ in part)


def _behind_comma(part: Sequence[_Word], comma: list[tuple[int, ...]]) -> int:
    """Return the number of words that stay in a full chunk: all without a comma near its end."""
    late = [place for place, (word, *_) in enumerate(part) if [word] == comma]
    return late[-1] + 1 if late and _length(part[late[-1] :]) <= _COMMA_REACH else len(part)


def _chunk(tokens: Tokens, part: Sequence[_Word]) -> TokenChunk:
    start, end, padding = tokens.ends()
    assert start is not None
    tokens_of = [(start, 1.0, -1), *((token, *rest) for word, *rest in part for token in word), (end, 1.0, -1)]
    missing = tokens.limit - len(tokens_of)
    ids, weights, fragments = zip(*tokens_of, *[(padding, 1.0, -1)] * missing, strict=True)
    return TokenChunk(ids, weights, fragments, (1,) * len(tokens_of) + (0,) * missing)


def multiplied(states: Tensor, weights: Tensor) -> Tensor:
    """Return states (rows, tokens, width) multiplied by weights (rows, tokens)."""
    return states * weights[..., None].to(states.dtype)


def emphasised(texts: Sequence[WeightedText]) -> Tensor:
    """Return the states of encoders that see one prompt, side by side, as one row (1, tokens, widths): multiplied by
    the weights, then in each chunk scaled so that its mean is that without weights, as in AUTOMATIC1111's web UI."""
    plain = torch.cat([text.states for text in texts], dim=-1)
    if all((text.weights == 1.0).all() for text in texts):
        return plain.flatten(0, 1)[None]
    weighted = torch.cat([multiplied(text.states, text.weights) for text in texts], dim=-1)
    means = [one.mean() / other.mean() for one, other in zip(plain, weighted, strict=True)]
    return (weighted * torch.stack(means)[:, None, None]).flatten(0, 1)[None]


# The states (1, tokens, width) of a chunk, with the tokens of a fragment masked if its number is given.
Encode = Callable[[TokenChunk, int | None], Tensor]
# compel's least weight: below it the blend's share is infinite.
_LEAST_WEIGHT = 1e-5


def blended(encode: Encode, chunks: Sequence[TokenChunk], empty: TokenChunk) -> Tensor:
    """Return the states (chunks, tokens, width) of compel: each token's lies by its weight between that of the empty
    prompt and its own; for a fragment with a weight below 1 they are blended with the states of the prompt with
    that fragment masked, by the tangent of its distance from 1."""
    plain = [encode(chunk, None) for chunk in chunks]
    lacking = {
        number: weight
        for chunk in chunks
        for number, weight in zip(chunk.fragments, chunk.weights, strict=True)
        if weight < 1.0
    }
    if all(weight == 1.0 for chunk in chunks for weight in chunk.weights):
        return torch.cat(plain)
    base = encode(empty, None)
    shares = {number: math.tan((1.0 - max(weight, _LEAST_WEIGHT)) * math.pi / 2) for number, weight in lacking.items()}
    mixed = []
    for chunk, states in zip(chunks, plain, strict=True):
        weights = torch.tensor([chunk.weights], device=states.device)
        seen = between(base, states, weights)
        total = seen
        for number, share in shares.items():
            without = between(base, encode(chunk, number), weights) if number in chunk.fragments else seen
            total = total + share * without
        mixed.append(total / (1.0 + sum(shares.values())))
    return torch.cat(mixed)


def between(base: Tensor, states: Tensor, weights: Tensor) -> Tensor:
    """Return states (rows, tokens, width) that lie by their weights (rows, tokens) between `base` and `states`."""
    return base + multiplied(states - base, weights)
