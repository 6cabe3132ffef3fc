"""Whole values near to those of a relaxation: rounded within budgets, then a unit moved to where it is worth more."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

# What is so near below a whole number counts as that number.
_WHOLE = 1e-6
# Variables of a budget that a unit may go to, and come from.
_MOST_ENDS = 3

Bounds = tuple[tuple[float, float], ...]
"""The least and the largest value of each whole variable, in their order."""


@dataclass(frozen=True)
class Budget:
    """Whole variables, by their places, that share `most`: a unit of one takes its cost of it."""

    costs: Mapping[int, int]
    most: int

    def left(self, units: Sequence[int]) -> int:
        """Return what is left of it; below 0 where it is overdrawn."""
        return self.most - sum(cost * units[place] for place, cost in self.costs.items())


def rounded(budgets: Sequence[Budget], bounds: Bounds, values: Sequence[float]) -> list[int]:
    """Return the values rounded down, and of each budget's those with the largest rests rounded up, while there is room
    for them."""
    units = [math.floor(value + _WHOLE) for value in values]
    for budget in budgets:
        left = budget.left(units)
        for place in sorted(budget.costs, key=lambda place: units[place] - values[place]):
            if values[place] - units[place] <= _WHOLE:
                break
            if budget.costs[place] <= left and units[place] + 1 <= bounds[place][1]:
                units[place] += 1
                left -= budget.costs[place]
    return units


def moves(
    budgets: Sequence[Budget], bounds: Bounds, units: Sequence[int], worths: Sequence[float]
) -> Iterator[list[int]]:
    """Yield the units with one of them moved to another variable of its budget, the move that promises most first, by
    what one more of each variable is worth; only moves that promise to gain."""
    found = []
    for budget in budgets:
        left = budget.left(units)
        by_worth = sorted(budget.costs, key=lambda place: worths[place])
        to = [place for place in reversed(by_worth) if units[place] + 1 <= bounds[place][1]][:_MOST_ENDS]
        of = [place for place in by_worth if units[place] - 1 >= bounds[place][0]][:_MOST_ENDS]
        found += [
            (worths[last] - worths[first], first, last)
            for first in of
            for last in to
            if worths[last] > worths[first] and budget.costs[last] <= left + budget.costs[first]
        ]
    for _, first, last in sorted(found, key=lambda move: (-move[0], move[1:])):
        moved = list(units)
        moved[first] -= 1
        moved[last] += 1
        yield moved
