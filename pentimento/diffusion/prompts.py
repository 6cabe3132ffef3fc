"""Encode prompts to text states, memoised: users try a prompt with many seeds, and guided requests share the empty
one."""

from collections import OrderedDict
from contextlib import ExitStack

from pentimento.diffusion.families.model import DiffusionModel, PromptStates
from pentimento.diffusion.loras.lora import AdapterSet, set_key
from pentimento.diffusion.loras.patching import patched_copies

_Key = tuple[str, bool, int, tuple[tuple[tuple[str, float], ...], ...]]


KEPT_PROMPTS = 256


class PromptMemo:
    """Cache encoded prompts; the least recently used are evicted first. One thread only."""

    def __init__(self, model: DiffusionModel, capacity: int = KEPT_PROMPTS) -> None:
        self._model = model
        self._capacity = capacity
        self._states: OrderedDict[_Key, PromptStates] = OrderedDict()

    def encode(
        self, prompt: str, *, negative: bool = False, clip_skip: int = 0, adapters: AdapterSet = ()
    ) -> PromptStates:
        """Return the prompt's states, cached if it was encoded recently by the same layers of the text encoders with
        the same LoRAs. Raises InvalidArgument for a `clip_skip` of more layers than there are."""
        encoders = list(self._model.adaptable)[1:] if adapters else []
        keys = tuple(set_key(adapters, encoder) for encoder in encoders)
        changed = keys if any(keys) else ()
        key = (prompt, negative and not prompt, clip_skip, changed)  # only an empty prompt may differ as a negative
        states = self._states.pop(key, None) or self._encode(prompt, negative, clip_skip, adapters, encoders)
        self._states[key] = states
        while len(self._states) > self._capacity:
            self._states.popitem(last=False)
        return states

    def _encode(
        self, prompt: str, negative: bool, clip_skip: int, adapters: AdapterSet, encoders: list[str]
    ) -> PromptStates:
        with ExitStack() as changes:
            for encoder in encoders:
                changes.enter_context(patched_copies(self._model.adaptable[encoder], encoder, adapters))
            return self._model.encode_prompt(prompt, negative=negative, clip_skip=clip_skip)
