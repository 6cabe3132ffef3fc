"""Test the context of a call outside one."""

import asyncio
import contextvars

import pytest

from pentimento.domain.tenants import OPEN_CALLER
from pentimento.rpc import context
from pentimento.telemetry.tracing import request_id


def test_outside_of_a_call_there_is_no_caller() -> None:
    with pytest.raises(LookupError, match="no call is being served"):
        contextvars.Context().run(context.current_caller)
    assert contextvars.Context().run(context.remaining_s) is None


async def test_a_task_inherits_the_call_and_detached_work_keeps_its_id_alone() -> None:
    async def seen() -> tuple[object, object, str]:
        return context.caller.get(), context.deadline.get(), context.current_request_id()

    context.caller.set(OPEN_CALLER)
    context.deadline.set(1.0)
    request_id.set("req-1")

    assert await asyncio.create_task(seen()) == (OPEN_CALLER, 1.0, "req-1")
    assert await context.spawn_detached(seen(), "detached") == (None, None, "req-1")


def test_a_passed_deadline_leaves_no_time() -> None:
    before = context.deadline.set(0.0)
    try:
        assert context.remaining_s() == 0.0
    finally:
        context.deadline.reset(before)


def test_remaining_time_ends_at_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context.time, "monotonic", lambda: 10.0)
    before = context.deadline.set(12.5)
    try:
        assert context.remaining_s() == 2.5
    finally:
        context.deadline.reset(before)


def test_without_a_deadline_there_is_no_end() -> None:
    assert context.remaining_s() is None
