"""Mixed integer linear programs, solved by HiGHS: a list of variables, a list of constraints, the best values."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import highspy
    import numpy as np

# Searches for good values beside the tree cost more time here than they save: half of it.
_NO_HEURISTICS = {"mip_heuristic_effort": 0.0, "mip_heuristic_run_feasibility_jump": False}

Terms = Iterable[tuple[int, float]]
"""A sum of variables, each by its number and with its factor."""


@dataclass(frozen=True)
class Solved:
    """The values of all variables, and what the objective is then. `is_optimal` is False where the time limit ended the
    search at the best that was known."""

    values: tuple[float, ...]
    objective: float
    is_optimal: bool


class LinearProgram:
    """Collects variables and constraints; `solve` maximises the sum of the variables times their weights."""

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

    def choice(self, weight: float = 0.0) -> int:
        """Add a variable that is 0 or 1, and return its number."""
        return self.variable(weight, 1.0, integer=True)

    def require(self, terms: Terms, at_least: float = -math.inf, at_most: float = math.inf) -> None:
        """Add a constraint: the sum of `terms` lies within the two limits."""
        for column, factor in terms:
            self._columns.append(column)
            self._factors.append(factor)
        self._starts.append(len(self._columns))
        self._limits.append((at_least, at_most))

    def solve(self, limit_s: float = math.inf, gap: float = 0.0) -> Solved | None:
        """Return values within the share `gap` of the best objective, found on one thread; None where no values keep
        all constraints, or where none were found within `limit_s`."""
        import highspy  # 40 MB, which a process that plans without it does not need

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

    def relaxation(self) -> "highspy.HighsLp":
        """Return the program for the solver, in which no variable has to be whole."""
        import highspy
        import numpy as np

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


def _columns_of(pairs: list[tuple[float, float]]) -> "tuple[np.ndarray, np.ndarray]":
    import numpy as np

    table = np.array(pairs, dtype=np.double).reshape(-1, 2)
    return np.ascontiguousarray(table[:, 0]), np.ascontiguousarray(table[:, 1])
