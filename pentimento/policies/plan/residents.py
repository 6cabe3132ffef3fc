"""Solve the part of the allocation problem with ControlNets and LoRAs: the residents of each replica.

A *holder* is a replica with memory for components: a ControlNet service, or a worker for the LoRAs of its model. A
*combination* is what requests use together: a ControlNet, or all LoRAs of a request. Requests go to the holder of their
components while it has capacity, and wait for the loads of the others.

    max  sum_kh y_kh * (load seconds of the components of k that h holds) - load seconds of components that are new at h
                                                                  k: combinations; h: holders; R_h: what h holds
    uses      sum_h y_kh <= uses of k
    capacity  sum_k y_kh <= capacity of h
    memory    sum of the bytes of R_h <= memory of h

Uses are those within the memory of the demand, so that a load pays if more than one use is expected without it. The
model's devices come first: a load of a component takes no device, since steps run meanwhile (Katz, section 6).

The solution is the better of two greedy ones: the most seconds a byte first, and the most seconds first. On small
problems it is within a few percent of the best one in the mean (`tests/unit/policies/plan/test_residents.py` tries
all), and equal problems give equal solutions.
"""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from pentimento.policies.plan.component_placement import Combination, ResidencyProblem

# Gain of a resident over one that is not planned yet, so that a plan does not change with every sample of the demand.
STAYS = 2.0


@dataclass
class _State:
    """Hold the unfinished solution. Arrays are by component, or by component and holder."""

    left: np.ndarray
    """Uses of a component that no holder serves yet."""
    served: np.ndarray
    """Uses of a component at a holder, whether it is resident there or not."""
    uses: dict[Combination, float]
    """Uses of a combination that no holder serves yet."""
    room_bytes: np.ndarray
    room_uses: np.ndarray
    is_resident: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.is_resident = np.zeros(self.served.shape, bool)


class _Greedy:
    """Solve a problem, by the gain a byte or by the whole gain. `gained_s` is that of the solution."""

    def __init__(self, problem: ResidencyProblem, *, by_byte: bool) -> None:
        self._holders = problem.holders
        self._by_byte = by_byte
        self.gained_s = 0.0
        able = {name for holder in problem.holders for name in holder.loads_s}
        held = {name for holder in problem.holders for name in holder.held}
        used = Counter[str]()
        for names, count in problem.uses.items():
            used.update(dict.fromkeys(names, count))
        # A load for a single use spares nothing.
        self._names = sorted(name for name in able if used[name] > (0.0 if name in held else 1.0))
        place = {name: number for number, name in enumerate(self._names)}
        shape = len(self._names), len(problem.holders)
        self._loads_s, self._is_able = np.zeros(shape), np.zeros(shape, bool)
        self._is_held, self._stays = np.zeros(shape, bool), np.ones(shape)
        for at, holder in enumerate(problem.holders):
            for name, load_s in holder.loads_s.items():
                if name in place:
                    self._loads_s[place[name], at], self._is_able[place[name], at] = load_s, True
                    self._is_held[place[name], at] = name in holder.held
                    self._stays[place[name], at] = STAYS if name in holder.planned else 1.0
        self._sizes = np.array([max(problem.sizes.get(name, 0.0), 1.0) for name in self._names], float)
        # Combinations of each component, by their known components.
        self._of: list[list[Combination]] = [[] for _ in self._names]
        uses: dict[Combination, float] = {}
        for names, count in sorted(problem.uses.items()):
            known = tuple(name for name in names if name in place)
            if known:
                uses[known] = uses.get(known, 0.0) + count
        left = np.zeros(len(self._names))
        for names, count in uses.items():
            for name in names:
                left[place[name]] += count
                self._of[place[name]].append(names)
        self._place = place
        room_bytes = np.array([holder.memory_bytes for holder in problem.holders], float)
        room_uses = np.array([holder.capacity for holder in problem.holders], float)
        self._state = _State(left, np.zeros(shape), uses, room_bytes, room_uses)

    def solve(self) -> dict[str, tuple[str, ...]]:
        """Return the residents of each holder that has any, in the order of their gain. Called once."""
        found: dict[str, list[str]] = {}
        while self._names and (best := self._best()) is not None:
            component, holder = best
            self.gained_s += self._gain()[best]
            found.setdefault(self._holders[holder].name, []).append(self._names[component])
            self._add(component, holder)
        return {name: tuple(residents) for name, residents in found.items()}

    def _best(self) -> tuple[int, int] | None:
        """Return the component and holder of the most gain; None if none gains."""
        gain = self._gain() / (self._sizes[:, None] if self._by_byte else 1.0)
        # Equal gains: a held component first, since there is nothing to load, then the holder with the most room.
        room = self._state.room_bytes
        most_room = min(float(room.max()), 1e18) or 1.0
        order = 1e-8 * self._is_held + 1e-9 * np.minimum(room / most_room, 1.0)[None, :]
        best = int(np.argmax(gain * (1.0 + order)))
        component, holder = divmod(best, len(self._holders))
        return (component, holder) if gain[component, holder] > 0.0 else None

    def _gain(self) -> np.ndarray:
        """Return the seconds that each further resident spares; 0 where there is none."""
        state = self._state
        served = state.served + np.minimum(state.left[:, None], state.room_uses[None, :])
        gain: np.ndarray = self._loads_s * (served * self._stays - ~self._is_held)
        fits = self._sizes[:, None] <= state.room_bytes[None, :]
        gain[~(self._is_able & fits) | state.is_resident | (served <= 0.0)] = 0.0
        return gain

    def _add(self, component: int, holder: int) -> None:
        """Hold a component, and serve its uses there while the holder has capacity: first the combinations with the
        most components there."""
        state = self._state
        state.is_resident[component, holder] = True
        state.room_bytes[holder] -= self._sizes[component]

        def resident_count(names: Combination) -> int:
            return sum(bool(state.is_resident[self._place[name], holder]) for name in names)

        for names in sorted(self._of[component], key=lambda names: (-resident_count(names), names)):
            taken = min(state.uses[names], state.room_uses[holder])
            if taken > 0.0:
                state.uses[names] -= taken
                state.room_uses[holder] -= taken
                for name in names:
                    state.left[self._place[name]] -= taken
                    state.served[self._place[name], holder] += taken


def residents_of(problem: ResidencyProblem) -> dict[str, tuple[str, ...]]:
    """Return the components that each holder should hold, in the order of their gain; holders without any are
    skipped."""
    by_byte, by_gain = _Greedy(problem, by_byte=True), _Greedy(problem, by_byte=False)
    first, second = by_byte.solve(), by_gain.solve()
    # Sums in another order may differ by a rounding error.
    return second if by_gain.gained_s > by_byte.gained_s * (1.0 + 1e-9) else first
