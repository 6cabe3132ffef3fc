"""Solve mixed integer linear programs by branch and bound over one linear program that HiGHS keeps.

HiGHS's own search takes milliseconds to set up. Programs of a fleet have nearly integer relaxations, and need only a
few: bounds change, and the solver continues from its last basis. The bound is good from the start, so integer values
come from rounding. A search ends by the gap or by the number of relaxations, never by a clock: equal programs give
equal values. The module imports HiGHS (40 MB): import it only to solve a problem.
"""

import heapq
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import highspy
import numpy as np

# HiGHS's heuristic searches cost more time than they save here: half of it.
_NO_HEURISTICS = {"mip_heuristic_effort": 0.0, "mip_heuristic_run_feasibility_jump": False}
_OPTIONS: dict[str, bool | int | str] = {"output_flag": False, "threads": 1, "presolve": "off", "solver": "simplex"}
# A value this near to a whole number counts as that number.
_WHOLE = 1e-6
# Relative error of a bound from floating-point solvers.
_ROUNDED = 1e-9
# Moves of a unit that a rounding tries; each costs a relaxation.
_MOST_MOVES = 10
# Variables of a budget that a unit may move to, and from.
_MOST_ENDS = 3
# Sums of products by cut, without BLAS: its threads would wait at full speed for more work.
_BY_CUT = "ij,j->i"

Terms = Iterable[tuple[int, float]]
"""A sum of variables, each by its number and with its factor."""

Bounds = tuple[tuple[float, float], ...]
"""The least and the largest value of each whole variable, in their order."""


@dataclass(frozen=True)
class Solved:
    """Hold the values of all variables and the objective.

    `values` is empty if nothing above the limit was found. `is_optimal`: nothing is better by more than the gap.
    `relaxation_count`: linear programs that the branch and bound solved.
    """

    values: tuple[float, ...]
    objective: float
    is_optimal: bool
    relaxation_count: int = 0


class LinearProgram:
    """Collect variables and constraints; `solve` maximises the sum of the variables times their weights."""

    def __init__(self) -> None:
        self._weights: list[float] = []
        self._bounds: list[tuple[float, float]] = []
        self._integer: list[bool] = []
        self._limits: list[tuple[float, float]] = []
        self._starts = [0]
        self._columns: list[int] = []
        self._factors: list[float] = []

    def variable(self, weight: float = 0.0, high: float = math.inf, integer: bool = False) -> int:
        """Add a variable within 0 and `high`, and return its number."""
        self._weights.append(weight)
        self._bounds.append((0.0, high))
        self._integer.append(integer)
        return len(self._weights) - 1

    def require(self, terms: Terms, at_least: float = -math.inf, at_most: float = math.inf) -> None:
        """Add a constraint: the sum of `terms` lies within the two limits."""
        for column, factor in terms:
            self._columns.append(column)
            self._factors.append(factor)
        self._starts.append(len(self._columns))
        self._limits.append((at_least, at_most))

    def solve(self, limit_s: float = math.inf, gap: float = 0.0) -> Solved | None:
        """Return values within the share `gap` of the best objective, by HiGHS's own search on one thread; None if no
        values keep all constraints, or none were found within `limit_s`."""
        highs = highspy.Highs()  # type: ignore[no-untyped-call]
        options = {"output_flag": False, "threads": 1, "mip_rel_gap": gap, "time_limit": limit_s}
        for option, value in (options | _NO_HEURISTICS).items():
            highs.setOptionValue(option, value)
        model = self.relaxation()
        kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
        model.integrality_ = [kinds[integer] for integer in self._integer]
        highs.passModel(model)
        highs.run()
        status = highs.getModelStatus()
        found = highs.getInfo().primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
        if not found or status == highspy.HighsModelStatus.kInfeasible:
            return None
        values = tuple(highs.getSolution().col_value)
        return Solved(values, highs.getInfo().objective_function_value, status == highspy.HighsModelStatus.kOptimal)

    def relaxation(self) -> highspy.HighsLp:
        """Return the program for the solver, without integer constraints."""
        model = highspy.HighsLp()
        model.num_col_, model.num_row_ = len(self._weights), len(self._limits)
        model.sense_ = highspy.ObjSense.kMaximize
        model.col_cost_ = np.array(self._weights, dtype=np.double)
        model.col_lower_, model.col_upper_ = _columns_of(self._bounds)
        model.row_lower_, model.row_upper_ = _columns_of(self._limits)
        model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        model.a_matrix_.start_ = np.array(self._starts, dtype=np.int32)
        model.a_matrix_.index_ = np.array(self._columns, dtype=np.int32)
        model.a_matrix_.value_ = np.array(self._factors, dtype=np.double)
        return model


def _columns_of(pairs: Sequence[tuple[float, float]]) -> tuple[np.ndarray, np.ndarray]:
    table = np.array(pairs, dtype=np.double).reshape(-1, 2)
    return np.ascontiguousarray(table[:, 0]), np.ascontiguousarray(table[:, 1])


@dataclass(frozen=True)
class Budget:
    """Limit integer variables, given by their places: the sum of their units times `costs` is at most `most`."""

    costs: Mapping[int, int]
    most: int

    def left(self, units: Sequence[int]) -> int:
        """Return the unused part of the budget; below 0 if `units` exceed it."""
        return self.most - sum(cost * units[place] for place, cost in self.costs.items())


def rounded(budgets: Sequence[Budget], bounds: Bounds, values: Sequence[float]) -> list[int]:
    """Return the values rounded down; in each budget the values with the largest remainders are rounded up while there
    is room."""
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
    """Yield the units with one moved to another variable of its budget: only moves that promise a gain by `worths`, the
    worth of one more of each variable, the largest gain first."""
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


class WorthCuts:
    """Bound the objective of integer values by the relaxations that were solved before.

    The best of all other variables is concave in the `count` integer ones, so the worths of any relaxation bound the
    objective of all integer values. (Benders' decomposition calls it an optimality cut.)
    """

    def __init__(self, count: int) -> None:
        self._offsets = np.empty(32)
        # Worth of one more of each variable; its positive part, and its negative part.
        self._worths, self._gains, self._losses = (np.empty((32, count)) for _ in range(3))
        self._count = 0

    def add(self, objective: float, values: np.ndarray, worths: np.ndarray) -> None:
        """Add the cut of a relaxation: its objective at these integer variables, and the worth of one more of each.
        Changes state."""
        if self._count == len(self._offsets):
            self._offsets, self._worths, self._gains, self._losses = (
                np.concatenate((known, np.empty_like(known)))
                for known in (self._offsets, self._worths, self._gains, self._losses)
            )
        self._offsets[self._count] = objective - float((worths * values).sum())
        self._worths[self._count] = worths
        np.maximum(worths, 0.0, out=self._gains[self._count])
        np.minimum(worths, 0.0, out=self._losses[self._count])
        self._count += 1

    def let(self, bounds: Bounds, limit: float) -> bool:
        """Return whether integer values within `bounds` may have an objective above `limit`."""
        if not self._count or limit == -math.inf:
            return True
        least, most = np.array(bounds, dtype=np.double).reshape(-1, 2).T
        gained = np.einsum(_BY_CUT, self._gains[: self._count], most)
        lost = np.einsum(_BY_CUT, self._losses[: self._count], least)
        return self._exceed(gained + lost, limit)

    def let_units(self, units: Sequence[int], limit: float) -> bool:
        """Return whether these integer values may have an objective above `limit`."""
        if not self._count or limit == -math.inf:
            return True
        exact = np.array(units, dtype=np.double)
        return self._exceed(np.einsum(_BY_CUT, self._worths[: self._count], exact), limit)

    def _exceed(self, beyond: np.ndarray, limit: float) -> bool:
        highest = float((self._offsets[: self._count] + beyond).min())
        # A variable without a bound gives NaN here, which must count as above the limit.
        return not highest <= limit + _ROUNDED * abs(limit)


@dataclass(frozen=True)
class Relaxed:
    """Hold the best values of a relaxation, and the worth of one more of each variable."""

    objective: float
    values: np.ndarray
    worths: np.ndarray


class BranchAndBound:
    """Maximise `model` with integer values of the variables `whole`."""

    def __init__(self, model: highspy.HighsLp, whole: Sequence[int]) -> None:
        self._highs = highspy.Highs()  # type: ignore[no-untyped-call]
        for option, value in _OPTIONS.items():
            self._highs.setOptionValue(option, value)
        self._whole = np.array(whole, dtype=np.int32)
        self.root: Bounds = tuple((float(model.col_lower_[one]), float(model.col_upper_[one])) for one in whole)
        self._highs.passModel(model)

    def bound(self, columns: Sequence[int], highs: Sequence[float]) -> None:
        """Limit these variables, which are not integer, to 0 up to `highs`. Changes the program."""
        lows = np.zeros(len(columns))
        self._highs.changeColsBounds(len(columns), np.array(columns, dtype=np.int32), lows, np.array(highs))

    def search(
        self,
        gap: float,
        most_relaxations: int,
        budgets: Sequence[Budget] = (),
        above: float = -math.inf,
        known: Sequence[Budget] = (),
    ) -> Solved:
        """Return values within the share `gap` of the best, with an objective above `above`. After `most_relaxations`,
        or a few more during rounding, the search ends with the best values found.

        Rounding keeps `budgets`; it does not help if the program has other joint bounds of integer variables. Rounding
        skips values that keep all budgets of `known`: their objective is known to be at most `above`.
        """
        search = _Search(self, gap, budgets, above, known)
        while search.count < most_relaxations and (node := search.next()) is not None:
            search.visit(node)
        return Solved(search.values, search.objective, search.next() is None, search.count)

    def relaxed(self, bounds: Bounds) -> Relaxed | None:
        """Return the best values of all variables without integer constraints; None if no values keep all other
        constraints."""
        lows, highs = _columns_of(bounds)
        self._highs.changeColsBounds(len(bounds), self._whole, lows, highs)
        self._highs.run()
        if self._highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return None
        solution = self._highs.getSolution()
        objective = self._highs.getInfo().objective_function_value
        return Relaxed(objective, np.array(solution.col_value), np.array(solution.col_dual))

    def own(self, of_all: np.ndarray) -> np.ndarray:
        """Return the integer variables' part of an array over all variables."""
        return of_all[self._whole]


def split(values: np.ndarray, is_first: bool) -> int | None:
    """Return the place of the variable to branch on; None if all values are integer. On the way to a first solution it
    is the value nearest to an integer, later the value furthest from one."""
    off = np.abs(values - np.round(values))
    open_ = np.flatnonzero(off > _WHOLE)
    if not len(open_):
        return None
    chosen = np.argmin(off[open_]) if is_first else np.argmax(off[open_])
    return int(open_[chosen])


@dataclass(frozen=True, order=True)
class _Node:
    """Describe a part of the search, ordered by the most promising first: `worst` is minus its upper bound."""

    worst: float
    number: int
    bounds: Bounds


class _Search:
    """Hold the open parts of one search, and the best values found."""

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
        """Return the next part to visit, which stays open; None if no part can be better."""
        if self._dive is not None:
            return self._dive
        return self._open[0] if self._open and -self._open[0].worst > self._enough else None

    def visit(self, node: _Node) -> None:
        """Close a part, after solving it or splitting it in two. Changes state."""
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
        values = self._program.own(found.values)
        place = split(values, not self.values)
        if place is None:
            return self._keep(found)
        if node.number == 0 or not is_dive:
            self._round(node.bounds, found)
        if found.objective > self._enough:
            self._branch(node, found.objective, place, float(values[place]))

    def _relaxed(self, bounds: Bounds) -> Relaxed | None:
        self.count += 1
        found = self._program.relaxed(bounds)
        if found is not None:
            self._cuts.add(found.objective, self._program.own(found.values), self._program.own(found.worths))
        return found

    def _keep(self, found: Relaxed) -> None:
        """Keep the best values yet; later parts must be better by more than the gap. Changes state."""
        if found.objective > max(self.objective, self._least):
            self.values, self.objective = tuple(found.values.tolist()), found.objective
            self._enough = found.objective + self._gap * abs(found.objective)

    def _round(self, bounds: Bounds, part: Relaxed) -> None:
        """Keep the best integer values found near a part's values: units move, one at a time, to variables with a
        higher worth, while that gains. Changes state."""
        units = rounded(self._budgets, bounds, self._program.own(part.values).tolist())
        best = self._fixed(units) if self._may_be_better(units) else None
        if best is None:
            return
        promising = self._moves(bounds, units, best)
        for _ in range(_MOST_MOVES):
            if part.objective <= self._enough or (moved := next(promising, None)) is None:
                return
            found = self._fixed(moved)
            if found is not None and found.objective > best.objective:
                best, promising = found, self._moves(bounds, moved, found)

    def _moves(self, bounds: Bounds, units: Sequence[int], at: Relaxed) -> Iterator[list[int]]:
        worths = self._program.own(at.worths).tolist()
        return filter(self._may_be_better, moves(self._budgets, bounds, units, worths))

    def _may_be_better(self, units: Sequence[int]) -> bool:
        """Return whether integer values may be the best yet, by earlier searches and relaxations."""
        if self._known and all(budget.left(units) >= 0 for budget in self._known):
            return False
        return self._cuts.let_units(units, max(self.objective, self._least))

    def _fixed(self, units: Sequence[int]) -> Relaxed | None:
        """Return the best values with these integer variables, and keep them if they are the best yet."""
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
