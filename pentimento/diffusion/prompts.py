"""Prompts to text states, memoised: users try a prompt with many seeds, and guided ones share the empty one."""

from collections import OrderedDict

from pentimento.diffusion.families.model import DiffusionModel, PromptStates


class PromptMemo:
    """Least recently used prompts go first. One thread only."""

    def __init__(self, model: DiffusionModel, capacity: int) -> None:
        self._model = model
        self._capacity = capacity
        self._states: OrderedDict[str, PromptStates] = OrderedDict()

    def encode(self, prompt: str) -> PromptStates:
        states = self._states.pop(prompt, None) or self._model.encode_prompt(prompt)
        self._states[prompt] = states
        while len(self._states) > self._capacity:
            self._states.popitem(last=False)
        return states
