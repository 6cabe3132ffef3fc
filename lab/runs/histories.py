"""Check that a history of concurrent operations on one object is linearisable (Wing and Gong 1993, Lowe 2017).

write, read = Operation("write", 1, called_s=0.0, returned_s=2.0), Operation("read", 1, called_s=1.0, returned_s=3.0)
is_linearisable([write, read], 0, step_of_register)
"""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TypeVar

State = TypeVar("State", bound=Hashable)


@dataclass(frozen=True)
class Operation:
    """Describe one call and its answer, by one clock in seconds. A call without an answer never returned: it took
    effect at any time after the call, or has none."""

    name: str
    value: Hashable
    called_s: float
    returned_s: float = math.inf


# Returns the state after an operation, or None if the object cannot give this answer in this state.
Step = Callable[[State, Operation], State | None]


def is_linearisable(history: Sequence[Operation], initial: State, step: Step[State]) -> bool:
    """Return whether some order explains every answer: each operation takes effect at one instant between its call and
    its answer. Takes exponential time in the number of operations that overlap."""
    operations = sorted(history, key=lambda operation: operation.called_s)
    answered = sum(1 << index for index, one in enumerate(operations) if math.isfinite(one.returned_s))
    # A bit for each operation in the order so far, and the state after them; a pair need not be tried twice.
    waiting = [(0, initial)]
    seen = set(waiting)
    while waiting:
        done, state = waiting.pop()
        if done & answered == answered:
            return True
        left = [index for index in range(len(operations)) if not done >> index & 1]
        # An operation that was called later than another one returned cannot come before it.
        limit_s = min(operations[index].returned_s for index in left)
        for index in left:
            if operations[index].called_s > limit_s:
                break
            after = step(state, operations[index])
            if after is not None and (found := (done | 1 << index, after)) not in seen:
                seen.add(found)
                waiting.append(found)
    return False
