"""Hold the problem of `plan.residents` as values, without the libraries that solve it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Combination = tuple[str, ...]
"""The names of components that a request uses together, in order."""


@dataclass(frozen=True)
class Holder:
    """Describe a replica that can hold components: its memory, the uses that it can serve, and the load seconds of each
    component that it can hold. `held` ones need no load. `planned` ones are residents in the plan in force."""

    name: str
    memory_bytes: float
    capacity: float
    loads_s: Mapping[str, float]
    held: frozenset[str] = frozenset()
    planned: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ResidencyProblem:
    """Hold the numbers of the problem: the uses of each combination, and the bytes of each component."""

    holders: Sequence[Holder]
    uses: Mapping[Combination, float]
    sizes: Mapping[str, float]
