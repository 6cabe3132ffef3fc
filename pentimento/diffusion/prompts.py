"""Prompts to text states, memoised: users try a prompt with many seeds, and guided ones share the empty one."""

from collections import OrderedDict

from pentimento.diffusion.families.model import DiffusionModel, PromptStates


class PromptMemo:
    """Encoded prompts, of which the least recently used go first. One thread only."""

    def __init__(self, model: DiffusionModel, capacity: int) -> None:
        self._model = model
        self._capacity = capacity
        self._states: OrderedDict[tuple[str, bool], PromptStates] = OrderedDict()

    def encode(self, prompt: str, *, negative: bool = False) -> PromptStates:
        """Return the prompt's states, from memory where it was encoded lately."""
        key = (prompt, negative and not prompt)  # only an empty prompt may mean something else as a negative one
        states = self._states.pop(key, None) or self._model.encode_prompt(prompt, negative=negative)
        self._states[key] = states
        while len(self._states) > self._capacity:
            self._states.popitem(last=False)
        return states
