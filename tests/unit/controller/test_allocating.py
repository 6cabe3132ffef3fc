"""An allocator runs in a thread, up to a time limit."""

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pentimento.policies.plan.inputs import Decision
from services.controller.allocating import MAX_STUCK, AllocatorStuck, AllocatorThreads


async def test_decision_of_allocator_is_returned():
    decided = await AllocatorThreads(60.0).run(lambda: Decision(memory=7.0))

    assert decided.memory == 7.0


async def test_event_loop_runs_while_allocator_decides():
    may_end = threading.Event()

    def waiting() -> Decision:
        may_end.wait(60)
        return Decision()

    async def end_it() -> None:
        may_end.set()

    decided, _ = await asyncio.gather(AllocatorThreads(60.0).run(waiting), end_it())

    assert decided == Decision()


async def test_error_of_allocator_is_raised():
    def late() -> Decision:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        await AllocatorThreads(60.0).run(late)


async def test_hanging_allocator_is_retried_up_to_bound():
    may_end, calls, called = threading.Event(), [], threading.Semaphore(0)

    def hanging() -> Decision:
        calls.append(1)
        called.release()
        may_end.wait(60)
        return Decision()

    threads = AllocatorThreads(0.01)
    for _ in range(MAX_STUCK + 2):
        with pytest.raises(AllocatorStuck):
            await threads.run(hanging)
    for _ in range(MAX_STUCK):  # on a busy machine a thread begins after its time limit
        assert await asyncio.to_thread(called.acquire, timeout=60)
    may_end.set()

    assert len(calls) == MAX_STUCK


async def test_allocator_runs_again_after_hanging_calls_end():
    may_end = threading.Event()

    def hanging() -> Decision:
        may_end.wait(60)
        return Decision()

    threads = AllocatorThreads(0.01)
    for _ in range(MAX_STUCK):
        with pytest.raises(AllocatorStuck):
            await threads.run(hanging)
    may_end.set()
    for thread in threading.enumerate():
        if thread.name == "allocator":
            await asyncio.to_thread(thread.join)

    threads.limit_s = 60.0
    assert await threads.run(Decision) == Decision()


# A market split problem: no solver is through with it in hours.
HUNG = """
import random
from pentimento.domain.errors import Internal
from pentimento.policies.plan.joint.solver import LinearProgram
from services.controller.allocating import AllocatorStuck, AllocatorThreads, run_beside_allocators

def hanging():
    program, source = LinearProgram(), random.Random(1)
    choices = [program.variable(high=1.0, integer=True) for _ in range(60)]
    for _ in range(7):
        factors = [float(source.randint(1, 99)) for _ in choices]
        half = sum(factors) // 2
        program.require(zip(choices, factors), at_least=half, at_most=half)
    program.solve()

async def main(argv):
    try:
        await AllocatorThreads(0.5).run(hanging)
    except AllocatorStuck:
        print("stuck", flush=True)
    if argv:
        raise Internal("BROKEN", argv[0])

run_beside_allocators(main)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "code", "said"), [((), 0, ""), (("the disk is gone",), 1, "the disk is gone\n")])
def test_a_process_ends_as_it_should_while_the_solver_is_still_at_it(
    arguments: tuple[str, ...], code: int, said: str
) -> None:
    root = Path(__file__).parents[3]

    done = subprocess.run(
        [sys.executable, "-c", HUNG, *arguments], cwd=root, capture_output=True, text=True, check=False, timeout=120
    )

    assert (done.returncode, done.stdout, done.stderr) == (code, "stuck\n", said)
