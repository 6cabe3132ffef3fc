"""Read only the last event of a call."""

from collections.abc import AsyncIterator

from pentimento.domain.execution import AttemptResult, ExecuteEvent
from pentimento.domain.image_request import Completed, GenerateEvent


async def last_completed(events: AsyncIterator[GenerateEvent]) -> Completed:
    """Return the last event of a call, which must be a completed image."""
    *_, last = [event async for event in events]
    assert isinstance(last, Completed)
    return last


async def result_of(events: AsyncIterator[ExecuteEvent]) -> AttemptResult:
    """Return the last event of an attempt, which must be its result."""
    *_, last = [event async for event in events]
    assert isinstance(last, AttemptResult)
    return last
