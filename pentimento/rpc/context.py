"""What a call carries along: who is calling, its request id, and how long it may still take.

All three live in context variables, so that handlers see them without passing them on and calls made on behalf of a
call inherit its id and deadline. A task that is started in a call inherits them too; work that shall outlive the call
is started with `spawn_detached`.
"""

import asyncio
import contextvars
import time
from collections.abc import Coroutine
from contextvars import ContextVar
from typing import Any, TypeVar

from pentimento.domain.identity import Caller
from pentimento.telemetry.request_id import current_request_id

__all__ = ["current_caller", "current_request_id", "remaining_s", "spawn_detached"]

T = TypeVar("T")

caller: ContextVar[Caller | None] = ContextVar("pentimento_caller", default=None)
# Monotonic seconds at which the call being served ends; None when it may take for ever.
deadline: ContextVar[float | None] = ContextVar("pentimento_deadline", default=None)


def current_caller() -> Caller:
    """Who makes the call being served. LookupError outside of a call: nobody is no caller."""
    found = caller.get()
    if found is None:
        raise LookupError("no call is being served in this context")
    return found


def remaining_s() -> float | None:
    """Seconds until the deadline of the call being served, at least 0; None without one."""
    end = deadline.get()
    return None if end is None else max(end - time.monotonic(), 0.0)


def spawn_detached(work: Coroutine[Any, Any, T], name: str) -> "asyncio.Task[T]":
    """A task that keeps the request id but neither the deadline nor the caller of the call it was started in."""
    return asyncio.get_running_loop().create_task(work, name=name, context=detached_context())


def detached_context() -> contextvars.Context:
    """Return a copy of the context, without the deadline and the caller of the call that it is of."""
    context = contextvars.copy_context()
    context.run(deadline.set, None)
    context.run(caller.set, None)
    return context
