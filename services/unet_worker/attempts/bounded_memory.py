"""Remember past entries, within a bound."""

from collections import OrderedDict
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")

REMEMBERED = 4096


def remember(memory: OrderedDict[K, V], key: K, value: V) -> None:
    """Store the key as the newest one, and remove the oldest ones beyond the bound."""
    memory[key] = value
    memory.move_to_end(key)
    while len(memory) > REMEMBERED:
        memory.popitem(last=False)
