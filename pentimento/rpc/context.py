"""Hold a call's context: its caller, its request id, and its remaining time.

All three live in context variables, so that handlers see them without passing them on and calls made on behalf of a
call inherit its id and deadline. A task started in a call inherits them too; `spawn_detached` starts work that must
outlive the call.
"""

import asyncio
import contextvars
import time
from collections.abc import Coroutine
from contextvars import ContextVar
from typing import Any, TypeVar

from pentimento.domain.tenants import Caller
from pentimento.telemetry.tracing import current_request_id

__all__ = ["current_caller", "current_request_id", "remaining_s", "spawn_detached"]

T = TypeVar("T")

caller: ContextVar[Caller | None] = ContextVar("pentimento_caller", default=None)
# Monotonic seconds at which the current call ends; None without a limit.
deadline: ContextVar[float | None] = ContextVar("pentimento_deadline", default=None)


def current_caller() -> Caller:
    """Return the caller of the current call. LookupError outside of a call."""
    found = caller.get()
    if found is None:
        raise LookupError("no call is being served in this context")
    return found


def remaining_s() -> float | None:
    """Return the seconds until the current call's deadline, at least 0; None without one."""
    end = deadline.get()
    return None if end is None else max(end - time.monotonic(), 0.0)


def cancellation_code() -> str:
    """Return the status name of a cancelled call: its deadline passed, or its caller cancelled."""
    return "DEADLINE_EXCEEDED" if remaining_s() == 0 else "CANCELLED"


def spawn_detached(work: Coroutine[Any, Any, T], name: str) -> "asyncio.Task[T]":
    """Start a task that keeps the current call's request id but neither its deadline nor its caller."""
    return asyncio.get_running_loop().create_task(work, name=name, context=detached_context())


def detached_context() -> contextvars.Context:
    """Return a copy of the context, without its call's deadline and caller."""
    context = contextvars.copy_context()
    context.run(deadline.set, None)
    context.run(caller.set, None)
    return context


AUTHORIZATION = "authorization"
BEARER = "Bearer "
REQUEST_ID = "x-request-id"
# Names the client's program. Of an edge's calls it begins with EDGE_AGENT and the edge's instance id.
USER_AGENT, EDGE_AGENT = "user-agent", "pentimento-edge/"
# Binary, as its suffix says; where every gRPC library looks for a google.rpc.Status.
STATUS_DETAILS = "grpc-status-details-bin"
