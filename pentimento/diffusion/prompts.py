"""Encode prompts to text states, memoised: users try a prompt with many seeds, and guided requests share the empty
one.

The word of an inversion in a LoRA's file (`bundle_emb`) means its vectors in requests with that LoRA alone. So the text
encoders get the vectors under another token, which replaces the word in the prompts of requests with the LoRA.
"""

import hashlib
import re
from collections import OrderedDict
from contextlib import ExitStack
from dataclasses import replace
from weakref import WeakKeyDictionary

from pentimento.diffusion.families.model import DiffusionModel, PromptStates
from pentimento.diffusion.inversions import Inversion
from pentimento.diffusion.loras.lora import AdapterSet, set_key
from pentimento.diffusion.loras.patching import patched_copies
from pentimento.domain.errors import InvalidArgument, ResourceExhausted
from pentimento.domain.generation import GenerationSpec
from pentimento.domain.prompt_syntax import MAX_PROMPT_CHUNKS, WeightedPrompt, parse_prompt

# A prompt, or one with weights.
Text = str | WeightedPrompt
_Key = tuple[Text, int, bool, int, tuple[tuple[tuple[str, float], ...], ...]]

KEPT_PROMPTS = 256
# Words of all LoRAs that one process has read: each takes rows of the text encoders' tables.
MAX_WORDS = 1024


def read_prompts(model: DiffusionModel, spec: GenerationSpec, *, guided: bool) -> tuple[Text, Text, int]:
    """Return prompt and negative prompt in the form for encoding, and the number of chunks of tokens of each. Raises
    InvalidArgument for more chunks than MAX_PROMPT_CHUNKS, and as `parse_prompt`."""
    if spec.prompt_syntax is None:
        return spec.prompt, spec.negative_prompt, 1
    prompt = parse_prompt(spec.prompt, spec.prompt_syntax)
    negative = parse_prompt(spec.negative_prompt, spec.prompt_syntax, "negative_prompt")
    counts = {"prompt": model.chunk_count(prompt)}
    if guided:
        counts["negative_prompt"] = model.chunk_count(negative)
    for field, count in counts.items():
        if count > MAX_PROMPT_CHUNKS:
            limit = f"must have at most {MAX_PROMPT_CHUNKS} chunks of {model.chunk_tokens - 2} tokens"
            raise InvalidArgument.of(field, f"{limit}, got {count}")
    return prompt, negative, max(counts.values())


class PromptMemo:
    """Cache encoded prompts; the least recently used are evicted first. One thread only."""

    def __init__(self, model: DiffusionModel, capacity: int = KEPT_PROMPTS) -> None:
        self._model = model
        self._capacity = capacity
        self._states: OrderedDict[_Key, PromptStates] = OrderedDict()
        self._words = LoraWords(model)

    def with_words(self, spec: GenerationSpec, adapters: AdapterSet) -> GenerationSpec:
        """Return the request with the words of its LoRAs' embeddings replaced by the tokens of their vectors."""
        return self._words.replaced(spec, adapters)

    def encode(
        self,
        prompt: Text,
        *,
        negative: bool = False,
        clip_skip: int = 0,
        chunk_count: int = 1,
        adapters: AdapterSet = (),
    ) -> PromptStates:
        """Return the prompt's states, cached if it was encoded recently by the same layers of the text encoders with
        the same LoRAs; a prompt with weights is filled up to `chunk_count`. Raises InvalidArgument for a `clip_skip` of
        more layers than there are, and as `encode_weighted`."""
        encoders = list(self._model.adaptable)[1:] if adapters else []
        keys = tuple(set_key(adapters, encoder) for encoder in encoders)
        changed = keys if any(keys) else ()
        text = prompt if isinstance(prompt, str) else prompt.plain
        key = (prompt, chunk_count, negative and not text, clip_skip, changed)  # only an empty one may differ so
        states = self._states.pop(key, None)
        if states is None:
            with ExitStack() as changes:
                for encoder in encoders:
                    changes.enter_context(patched_copies(self._model.adaptable[encoder], encoder, adapters))
                states = self._encode(prompt, chunk_count, negative=negative, clip_skip=clip_skip)
        self._states[key] = states
        while len(self._states) > self._capacity:
            self._states.popitem(last=False)
        return states

    def _encode(self, prompt: Text, chunk_count: int, *, negative: bool, clip_skip: int) -> PromptStates:
        if isinstance(prompt, str):
            return self._model.encode_prompt(prompt, negative=negative, clip_skip=clip_skip)
        return self._model.encode_weighted(prompt, chunk_count, negative=negative, clip_skip=clip_skip)


# For each model the token that stands for a word, by the LoRA's digest and the word.
_TOKENS: "WeakKeyDictionary[DiffusionModel, dict[tuple[str, str], str]]" = WeakKeyDictionary()


class LoraWords:
    """Add the inversions of LoRAs to a model as requests need them. One thread only."""

    def __init__(self, model: DiffusionModel) -> None:
        self._model = model
        self._tokens = _TOKENS.setdefault(model, {})

    def replaced(self, spec: GenerationSpec, adapters: AdapterSet) -> GenerationSpec:
        """Return the request with the words of its LoRAs replaced in both prompts. Where two LoRAs have one word, the
        first wins. Raises ResourceExhausted for more words than a process holds."""
        for one in adapters:
            for inversion in one.lora.words if one.weight else ():
                # A word, not a part of a longer one.
                word = re.compile(rf"(?<!\w){re.escape(inversion.word)}(?!\w)")
                if word.search(spec.prompt) or word.search(spec.negative_prompt):
                    token = self._token(one.lora.digest, inversion)
                    prompts = (word.sub(token, prompt) for prompt in (spec.prompt, spec.negative_prompt))
                    spec = replace(spec, prompt=next(prompts), negative_prompt=next(prompts))
        return spec

    def _token(self, digest: str, inversion: Inversion) -> str:
        key = (digest, inversion.word)
        if key not in self._tokens:
            if len(self._tokens) >= MAX_WORDS:
                message = f"this worker holds {MAX_WORDS} embeddings of LoRAs, its most, until it restarts"
                raise ResourceExhausted("TOO_MANY_EMBEDDINGS", message)
            token = "lora" + hashlib.sha256(f"{digest} {inversion.word}".encode()).hexdigest()[:16]
            self._model.add_inversion(replace(inversion, word=token))
            self._tokens[key] = token
        return self._tokens[key]
