"""Branch and bound over one linear program that the solver keeps: bounds change, and it goes on from its last basis.

HiGHS's own search takes milliseconds to set up whatever the size of the program; programs of a fleet have relaxations
that are nearly whole, and end after a few of them. Whole values come from rounding: the bound is good from the start,
and what a search lacks is values that are near to it. A search ends by the gap or by relaxations solved, never by a
clock: equal programs give equal values.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pentimento.policies.serving.whole_rounding import Bounds, Budget, moves, rounded
from pentimento.policies.serving.worth_cuts import WorthCuts

if TYPE_CHECKING:
    import highspy
    import numpy as np

# How far from a whole number a value counts as whole.
_WHOLE = 1e-6
_OPTIONS: dict[str, bool | int | str] = {"output_flag": False, "threads": 1, "presolve": "off", "solver": "simplex"}
# Units that a rounding may move, each at the cost of a relaxation.
_MOST_MOVES = 10


@dataclass(frozen=True)
class Relaxed:
    """The best values where none has to be whole, and what one more of each variable would be worth."""

    objective: float
    values: "np.ndarray"
    worths: "np.ndarray"


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

    def search(
        self,
        gap: float,
        most_relaxations: int,
        budgets: Sequence[Budget] = (),
        above: float = -math.inf,
        known: Sequence[Budget] = (),
    ) -> SearchedProgram:
        """Return values within the share `gap` of the best, and more than `above`. After `most_relaxations`,
        or a few more where values are just being rounded, the search ends at the best that is known.

        What is rounded keeps `budgets`; that is of no use where the program bounds whole variables together in other
        ways. Values that keep all of `known` are known to be worth no more than `above`: none are rounded to."""
        search = _Search(self, gap, budgets, above, known)
        while search.count < most_relaxations and (node := search.next()) is not None:
            search.visit(node)
        return SearchedProgram(search.values, search.objective, search.next() is None, search.count)

    @property
    def root(self) -> Bounds:
        """Return the bounds of the whole variables as the model has them."""
        return self._root

    def relaxed(self, bounds: Bounds) -> Relaxed | None:
        """Return the best values of all variables where none has to be whole; None where no values keep all
        constraints."""
        import numpy as np

        table = np.array(bounds, dtype=np.double).reshape(-1, 2)
        self._highs.changeColsBounds(len(bounds), self._whole, table[:, 0].copy(), table[:, 1].copy())
        self._highs.run()
        if self._highs.getModelStatus() != self._optimal:
            return None
        solution = self._highs.getSolution()
        objective = self._highs.getInfo().objective_function_value
        return Relaxed(objective, np.array(solution.col_value), np.array(solution.col_dual))

    def of_whole(self, found: Relaxed) -> "tuple[np.ndarray, np.ndarray]":
        """Return the values and worths of the whole variables."""
        return found.values[self._whole], found.worths[self._whole]

    def own(self, of_all: "np.ndarray") -> list[float]:
        """Return what is said of the whole variables, of what is said of all."""
        return list(of_all[self._whole].tolist())

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


class _Search:
    """The open parts of one search, and the best that is known."""

    def __init__(
        self, program: BranchAndBound, gap: float, budgets: Sequence[Budget], above: float, known: Sequence[Budget]
    ) -> None:
        self._program, self._gap = program, gap
        self._budgets, self._known = budgets, known
        self._least = self._enough = above
        self._open: list[_Node] = []
        self._dive: _Node | None = _Node(-math.inf, 0, program.root)
        self._cuts = WorthCuts(len(program.root))
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
        is_dive = node is self._dive
        if is_dive:
            self._dive = None
        else:
            heapq.heappop(self._open)
        if not self._cuts.let(node.bounds, self._enough):
            return
        found = self._relaxed(node.bounds)
        if found is None or found.objective <= self._enough:
            return
        place = self._program.split(found.values, not self.values)
        if place is None:
            return self._keep(found)
        if node.number == 0 or not is_dive:
            self._round(node.bounds, found)
        if found.objective > self._enough:
            self._branch(node, found.objective, place, self._program.own(found.values)[place])

    def _relaxed(self, bounds: Bounds) -> Relaxed | None:
        self.count += 1
        found = self._program.relaxed(bounds)
        if found is not None:
            self._cuts.add(found.objective, *self._program.of_whole(found))
        return found

    def _keep(self, found: Relaxed) -> None:
        """Changes state: nothing that is not better by more than the gap is looked at from here on."""
        if found.objective > max(self.objective, self._least):
            self.values, self.objective = tuple(found.values.tolist()), found.objective
            self._enough = found.objective + self._gap * abs(found.objective)

    def _round(self, bounds: Bounds, part: Relaxed) -> None:
        """Keep the best whole values that are found near to a part's: units are moved, one at a time, to where they are
        worth more, while that gains. Changes state."""
        budgets, own = self._budgets, self._program.own
        units = rounded(budgets, bounds, own(part.values))
        best = self._fixed(units) if self._may_be_better(units) else None
        if best is None:
            return
        promising = filter(self._may_be_better, moves(budgets, bounds, units, own(best.worths)))
        for _ in range(_MOST_MOVES):
            if part.objective <= self._enough or (moved := next(promising, None)) is None:
                return
            found = self._fixed(moved)
            if found is not None and found.objective > best.objective:
                best, promising = found, filter(self._may_be_better, moves(budgets, bounds, moved, own(found.worths)))

    def _may_be_better(self, units: Sequence[int]) -> bool:
        """Whether whole values may be the best yet, by what was searched and solved before."""
        if self._known and all(budget.left(units) >= 0 for budget in self._known):
            return False
        return self._cuts.let_units(units, max(self.objective, self._least))

    def _fixed(self, units: Sequence[int]) -> Relaxed | None:
        """Return the best values with these of the whole variables, which are kept where they are the best yet."""
        found = self._relaxed(tuple((float(one), float(one)) for one in units))
        if found is not None:
            self._keep(found)
        return found

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
