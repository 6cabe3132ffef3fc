"""Test histories from the literature, and random ones against every permutation."""

import itertools
import math
import random
from collections.abc import Sequence

from lab.runs.histories import Operation, State, Step, is_linearisable


def step_of_register(value: int, operation: Operation) -> int | None:
    match operation.name, operation.value:
        case "write", int(written):
            return written
        case "read", read:
            return value if value == read else None
    raise ValueError(operation)


def step_of_queue(queue: tuple[str, ...], operation: Operation) -> tuple[str, ...] | None:
    match operation.name, operation.value:
        case "enqueue", str(item):
            return (*queue, item)
        case "dequeue", item:
            return queue[1:] if queue and queue[0] == item else None
    raise ValueError(operation)


QUEUES = {
    # Herlihy and Wing 1990, histories H1 to H4 of a FIFO queue; times are positions of calls and answers.
    "H1": (
        True,
        [
            Operation("enqueue", "x", 1, 4),
            Operation("enqueue", "y", 2, 3),
            Operation("dequeue", "x", 5, 6),
            Operation("dequeue", "y", 7, 8),
            Operation("enqueue", "z", 9),
        ],
    ),
    "H2": (
        False,
        [Operation("enqueue", "x", 1, 2), Operation("enqueue", "y", 3, 5), Operation("dequeue", "y", 4, 6)],
    ),
    "H3": (True, [Operation("enqueue", "x", 1), Operation("dequeue", "x", 2, 3)]),
    "H4": (
        False,
        [
            Operation("enqueue", "x", 1, 3),
            Operation("enqueue", "y", 2, 4),
            Operation("dequeue", "y", 5, 7),
            Operation("dequeue", "y", 6, 8),
        ],
    ),
}
REGISTERS = {
    # The examples of Porcupine's manual: a register that is 0 first.
    "old value before new value": (
        True,
        [Operation("write", 100, 1, 6), Operation("read", 100, 2, 5), Operation("read", 0, 3, 4)],
    ),
    "old value after new value": (
        False,
        [Operation("write", 200, 1, 6), Operation("read", 200, 2, 3), Operation("read", 0, 4, 5)],
    ),
    "write without an answer took effect": (True, [Operation("write", 1, 1), Operation("read", 1, 5, 6)]),
    "write without an answer has no effect": (True, [Operation("write", 1, 1), Operation("read", 0, 5, 6)]),
    "effect before the call": (False, [Operation("read", 1, 1, 2), Operation("write", 1, 3)]),
    "nothing happened": (True, []),
}


def test_queue_histories_of_literature_have_verdicts() -> None:
    found = {name: is_linearisable(history, (), step_of_queue) for name, (_, history) in QUEUES.items()}

    assert found == {name: expected for name, (expected, _) in QUEUES.items()}


def test_register_histories_have_verdicts() -> None:
    found = {name: is_linearisable(history, 0, step_of_register) for name, (_, history) in REGISTERS.items()}

    assert found == {name: expected for name, (expected, _) in REGISTERS.items()}


def by_permutations(history: Sequence[Operation], initial: State, step: Step[State]) -> bool:
    """Apply the definition itself: any order of all answered operations and any of the others."""
    answered = [one for one in history if math.isfinite(one.returned_s)]
    others = [one for one in history if one not in answered]
    for count in range(len(others) + 1):
        for some in itertools.combinations(others, count):
            for order in itertools.permutations([*answered, *some]):
                if keeps_time(order) and explains(order, initial, step):
                    return True
    return False


def keeps_time(order: Sequence[Operation]) -> bool:
    return all(later.returned_s >= earlier.called_s for earlier, later in itertools.combinations(order, 2))


def explains(order: Sequence[Operation], initial: State, step: Step[State]) -> bool:
    state: State | None = initial
    for operation in order:
        if state is not None:
            state = step(state, operation)
    return state is not None


def test_random_histories_have_the_verdict_of_every_permutation() -> None:
    generator, verdicts = random.Random(5), []
    for _ in range(400):
        history = [drawn(generator) for _ in range(generator.randint(2, 6))]
        verdict = by_permutations(history, 0, step_of_register)
        assert is_linearisable(history, 0, step_of_register) is verdict, history
        verdicts.append(verdict)

    assert 100 < sum(verdicts) < 300, "both verdicts occur"


def drawn(generator: random.Random) -> Operation:
    called = generator.randrange(12)
    returned = math.inf if generator.random() < 0.2 else called + generator.randrange(1, 6)
    # Distinct times of calls, so that equal operations differ.
    return Operation(generator.choice(["read", "write"]), generator.randrange(3), called + generator.random(), returned)
