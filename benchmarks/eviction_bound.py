"""Bound the steps that any eviction rule can save, even with knowledge of the future: a linear program and its dual.

The program relaxes the cache of `eviction_replay` in five ways that only let it save more:

1. a latent may be held in part, and serves in part; 2. everything captured before the scored requests may be held at
their beginning, up to the capacity; 3. a request takes any held latent that its similarity allows, not only one of the
nearest entries'; 4. it may take less than the best, if that is better later; 5. the capacity holds between requests
only.

Variables: h(i, K, j), the part of latent K of request i that is held until its j-th possible use, never rising; y(t,
K), the part of request t that starts at K; o(t), the amount held between requests. Maximise the sum of K * y(t, K)
under y(t, K) <= the held parts that allow it, the sum over K of y(t, K) <= 1, o(t) <= capacity, and h(t, K, 1) <= 1 -
the part of t that did not capture K: all hits if only misses add, starts at K or later if all add.

The returned value is not the solver's. It is computed from the multipliers as a Lagrangian dual: for *any* multipliers
with the right signs that is at least the optimum (weak duality), so no tolerance makes it too low.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog
from scipy.sparse import csr_array

from benchmarks.eviction_replay import CAPTURED, Regime, ReuseLog

Term = tuple[int, float]
"""A variable's number and its coefficient."""


@dataclass
class _Rows:
    """Hold rows of a sparse matrix, each with its right side."""

    limits: list[float] = field(default_factory=list)
    starts: list[int] = field(default_factory=lambda: [0])
    variables: list[int] = field(default_factory=list)
    factors: list[float] = field(default_factory=list)

    def add(self, terms: Iterable[Term], limit: float) -> None:
        for variable, factor in terms:
            self.variables.append(variable)
            self.factors.append(factor)
        self.starts.append(len(self.variables))
        self.limits.append(limit)

    def matrix(self, column_count: int) -> csr_array:
        shape = (len(self.limits), column_count)
        return csr_array((np.array(self.factors), np.array(self.variables), np.array(self.starts)), shape=shape)


@dataclass
class _Program:
    """Maximise `gains` x variables under `at_most` and `equal`, each variable between 0 and its upper bound."""

    gains: list[float] = field(default_factory=list)
    tops: list[float] = field(default_factory=list)
    at_most: _Rows = field(default_factory=_Rows)
    equal: _Rows = field(default_factory=_Rows)

    def variable(self, top: float, gain: float = 0.0) -> int:
        self.gains.append(gain)
        self.tops.append(top)
        return len(self.gains) - 1


def offline_bound(log: ReuseLog, begin: int, capacity_count: int, regime: Regime) -> float:
    """Return the most steps that requests from `begin` on can save together in a cache of `capacity_count` latents."""
    return _dual_value(_program(log, begin, capacity_count, regime))


def _program(log: ReuseLog, begin: int, capacity_count: int, regime: Regime) -> _Program:
    program = _Program()
    scored = range(begin, len(log))
    starts = {(row, step): program.variable(1.0, float(step)) for row in scored for step in CAPTURED}
    # held between requests: room[j] just before request begin + j
    room = [program.variable(float(capacity_count)) for _ in range(len(scored) + 1)]
    changes: list[list[Term]] = [[(room[0], 1.0)]]
    changes += [[(after, 1.0), (before, -1.0)] for before, after in pairwise(room)]
    serving: defaultdict[tuple[int, int], list[Term]] = defaultdict(list)
    for (row, step), uses in _possible_uses(log, begin).items():
        parts = [program.variable(1.0) for _ in uses]
        changes[max(row + 1 - begin, 0)].append((parts[0], -1.0))
        for use, part, later in zip(uses, parts, [*parts[1:], None], strict=True):
            serving[use, step].append((part, -1.0))
            changes[use + 1 - begin].append((part, 1.0))
            if later is not None:
                changes[use + 1 - begin].append((later, -1.0))
                program.at_most.add([(later, 1.0), (part, -1.0)], 0.0)
        if row >= begin:
            lost = [(starts[row, at], 1.0) for at in CAPTURED if not regime.hits_add or at >= step]
            program.at_most.add([(parts[0], 1.0), *lost], 1.0)
    for terms in changes:
        program.equal.add(terms, 0.0)
    for row in scored:
        program.at_most.add([(starts[row, step], 1.0) for step in CAPTURED], 1.0)
        for step in CAPTURED:
            program.at_most.add([(starts[row, step], 1.0), *serving[row, step]], 0.0)
    return program


def _possible_uses(log: ReuseLog, begin: int) -> dict[tuple[int, int], list[int]]:
    """Return for each latent the scored requests that could start from it, in order."""
    uses: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for row in range(begin, len(log)):
        for donor, allowed in log.donors[row]:
            for step in CAPTURED:
                if step <= allowed:
                    uses[donor, step].append(row)
    return uses


def _dual_value(program: _Program) -> float:
    count = len(program.gains)
    gains, tops = np.array(program.gains), np.array(program.tops)
    at_most, equal = program.at_most.matrix(count), program.equal.matrix(count)
    solved = linprog(
        -gains,
        A_ub=at_most,
        b_ub=np.array(program.at_most.limits),
        A_eq=equal,
        b_eq=np.array(program.equal.limits),
        bounds=np.column_stack([np.zeros(count), tops]),
        method="highs-ipm",
    )
    if solved.status != 0:
        raise RuntimeError(f"the program was not solved: {solved.message}")
    prices: npt.NDArray[np.float64] = np.maximum(-solved.ineqlin.marginals, 0.0)
    shifts: npt.NDArray[np.float64] = -solved.eqlin.marginals
    reduced = gains - at_most.T @ prices - equal.T @ shifts
    limits = np.array(program.at_most.limits) @ prices + np.array(program.equal.limits) @ shifts
    return float(limits + np.maximum(reduced, 0.0) @ tops)
