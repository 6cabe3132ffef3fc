"""Runs an allocator beside the event loop: while it decides, and if it never ends, the controller serves on."""

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress

from pentimento.policies.plan.inputs import Decision, PlanInput, Policy
from pentimento.rpc import run_service

_THREAD_NAME = "allocator"
# Calls that did not end in time go on in their threads; no more are started while so many do.
MAX_STUCK = 4


class AllocatorStuck(Exception):
    """An allocator that did not decide in time, or was not asked because too many earlier calls have not ended."""


class AllocatorThreads:
    """Runs each call in a thread of its own, which nobody waits for at the end: `run_beside_allocators`."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._stuck: set[threading.Thread] = set()

    async def decide(self, allocator: Policy, context: PlanInput) -> Decision:
        """Return what it decides within the limit. Raises AllocatorStuck, and what the allocator itself raises."""
        self._stuck = {thread for thread in self._stuck if thread.is_alive()}
        if len(self._stuck) >= MAX_STUCK:
            raise AllocatorStuck(f"{MAX_STUCK} calls have not ended")
        loop = asyncio.get_running_loop()
        decided: asyncio.Future[Decision] = loop.create_future()
        thread = threading.Thread(target=_run, args=(allocator, context, loop, decided), name=_THREAD_NAME, daemon=True)
        thread.start()
        try:
            async with asyncio.timeout(self.limit_s):
                return await decided
        except TimeoutError:
            if not decided.cancelled():
                raise  # the allocator's own
            self._stuck.add(thread)
            raise AllocatorStuck(f"no decision after {self.limit_s:g} s") from None


def run_beside_allocators(main: Callable[[list[str]], Awaitable[None]]) -> None:
    """Run `main(argv)` as `run_service` does, and end the process with its exit code. Where an allocator is still
    deciding the process ends at once: an interpreter that is taken down under a solver's C++ aborts."""
    code = 0
    try:
        run_service(main)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    if any(thread.name == _THREAD_NAME for thread in threading.enumerate()):
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _run(
    allocator: Policy,
    context: PlanInput,
    loop: asyncio.AbstractEventLoop,
    decided: "asyncio.Future[Decision]",
) -> None:
    decision, error = None, None
    try:
        decision = allocator(context)
    except Exception as raised:  # told to whoever waits
        error = raised
    # The loop may have ended meanwhile.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(_settle, decided, decision, error)


def _settle(decided: "asyncio.Future[Decision]", decision: Decision | None, error: Exception | None) -> None:
    if decided.done():
        return
    if error is not None:
        decided.set_exception(error)
    elif decision is not None:
        decided.set_result(decision)
    else:
        decided.set_exception(TypeError("an allocator decided None"))
