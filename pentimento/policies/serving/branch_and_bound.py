"""Branch and bound over one linear program that the solver keeps: bounds change, and it goes on from its last basis.

HiGHS's own search takes milliseconds to set up whatever the size of the program; programs of a fleet have relaxations
that are nearly whole, and end after a few of them. A search ends by the gap or by relaxations solved, never by a clock:
equal programs give equal values.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import highspy
    import numpy as np

# How far from a whole number a value counts as whole.
_WHOLE = 1e-6
_OPTIONS: dict[str, bool | int | str] = {"output_flag": False, "threads": 1, "presolve": "off", "solver": "simplex"}

Bounds = tuple[tuple[float, float], ...]
"""The least and the largest value of each whole variable, in their order."""


@dataclass(frozen=True)
class SearchedProgram:
    """The best values that were found (all variables; empty: none above what was asked for) and their objective.
    `is_proven`: nothing is better by more than the gap. `relaxation_count`: linear programs that were solved."""

    values: tuple[float, ...]
    objective: float
    is_proven: bool
    relaxation_count: int


@dataclass(frozen=True, order=True)
class _Node:
    """A part of the search, the most promising first: `worst` is minus what nothing in it exceeds."""

    worst: float
    number: int
    bounds: Bounds


class BranchAndBound:
    """A program that is maximised. Its variables of `whole` take whole numbers; `model` says nothing of that."""

    def __init__(self, model: "highspy.HighsLp", whole: Sequence[int]) -> None:
        import highspy
        import numpy as np

        self._highs = highspy.Highs()  # type: ignore[no-untyped-call]
        for option, value in _OPTIONS.items():
            self._highs.setOptionValue(option, value)
        self._optimal = highspy.HighsModelStatus.kOptimal
        self._whole = np.array(whole, dtype=np.int32)
        self._root: Bounds = tuple((float(model.col_lower_[one]), float(model.col_upper_[one])) for one in whole)
        self._highs.passModel(model)

    def bound(self, columns: Sequence[int], highs: Sequence[float]) -> None:
        """Let these variables, none of them whole, be 0 up to `highs`. Changes the program."""
        import numpy as np

        lows = np.zeros(len(columns))
        self._highs.changeColsBounds(len(columns), np.array(columns, dtype=np.int32), lows, np.array(highs))

    def search(self, gap: float, most_relaxations: int, above: float = -math.inf) -> SearchedProgram:
        """Return values within the share `gap` of the best, and more than `above`. `most_relaxations` end the search
        at the best that is known."""
        search = _Search(self, gap, above)
        while search.count < most_relaxations and (node := search.next()) is not None:
            search.visit(node)
        return SearchedProgram(search.values, search.objective, search.next() is None, search.count)

    @property
    def root(self) -> Bounds:
        """Return the bounds of the whole variables as the model has them."""
        return self._root

    def relaxed(self, bounds: Bounds) -> "tuple[float, np.ndarray] | None":
        """Return the objective and the values of all variables where none has to be whole; None where no values keep
        all constraints."""
        import numpy as np

        table = np.array(bounds, dtype=np.double).reshape(-1, 2)
        self._highs.changeColsBounds(len(bounds), self._whole, table[:, 0].copy(), table[:, 1].copy())
        self._highs.run()
        if self._highs.getModelStatus() != self._optimal:
            return None
        return self._highs.getInfo().objective_function_value, np.array(self._highs.getSolution().col_value)

    def split(self, values: "np.ndarray", is_first: bool) -> int | None:
        """Return which whole variable to branch on, by its place; None where all are whole. On the way to a first
        solution the one that is nearest to whole, later the one that is furthest from it."""
        import numpy as np

        own = values[self._whole]
        off = np.abs(own - np.round(own))
        open_ = np.flatnonzero(off > _WHOLE)
        if not len(open_):
            return None
        chosen = np.argmin(off[open_]) if is_first else np.argmax(off[open_])
        return int(open_[chosen])

    def value(self, values: "np.ndarray", place: int) -> float:
        """Return the value of a whole variable."""
        return float(values[self._whole[place]])


class _Search:
    """The open parts of one search, and the best that is known."""

    def __init__(self, program: BranchAndBound, gap: float, above: float) -> None:
        self._program, self._gap, self._enough = program, gap, above
        self._open: list[_Node] = []
        self._dive: _Node | None = _Node(-math.inf, 0, program.root)
        self.values: tuple[float, ...] = ()
        self.objective = -math.inf
        self.count = 0

    def next(self) -> _Node | None:
        """Return the part to look at next, which stays open; None where nothing can be better."""
        if self._dive is not None:
            return self._dive
        return self._open[0] if self._open and -self._open[0].worst > self._enough else None

    def visit(self, node: _Node) -> None:
        """Close a part: its best values are known, or it is split in two. Changes state."""
        if node is self._dive:
            self._dive = None
        else:
            heapq.heappop(self._open)
        self.count += 1
        found = self._program.relaxed(node.bounds)
        if found is None or found[0] <= self._enough:
            return
        objective, values = found
        place = self._program.split(values, not self.values)
        if place is None:
            self.values, self.objective = tuple(values.tolist()), objective
            self._enough = objective + self._gap * abs(objective)
            return
        self._branch(node, objective, place, self._program.value(values, place))

    def _branch(self, node: _Node, objective: float, place: int, value: float) -> None:
        low, high = node.bounds[place]
        halves = [(low, math.floor(value)), (math.ceil(value), high)]
        if value - math.floor(value) > 0.5:
            halves.reverse()
        near, far = (
            _Node(-objective, 2 * self.count + side, (*node.bounds[:place], half, *node.bounds[place + 1 :]))
            for side, half in enumerate(halves)
        )
        self._dive = near
        heapq.heappush(self._open, far)
