"""Follow a request across a restart of its frontdoor, which continues it from the journal."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from pentimento.clients.image import ImageClient
from pentimento.clients.retries import RetryPolicy, StreamCall, retried_events
from pentimento.domain.errors import PentimentoError
from pentimento.domain.image_request import Accepted, GenerateEvent


@dataclass(frozen=True)
class AcceptedRetries(RetryPolicy):
    """Retry like the SDK's clients, but only accepted requests: the caller repeats the others."""

    def most_tries(self, error: PentimentoError, *, accepted: bool, late: bool) -> int:
        """Return the most tries of a call after an error."""
        return super().most_tries(error, accepted=accepted, late=late) if accepted else 1


RETRIES = AcceptedRetries()


def events_of(
    client: ImageClient, ask: StreamCall, idempotency_key: str = "", deadline_ms: int | None = None
) -> AsyncGenerator[GenerateEvent, None]:
    """Return the events of a call of `ask`, under the caller's key or none.

    A key costs the journal a lookup; an accepted request is found again by its id. A request that ended because the
    connection broke is made again under a new key. Closing the generator cancels the request."""
    ids: dict[str, str] = {}

    async def call(key: str, left_ms: int | None) -> AsyncGenerator[GenerateEvent, None]:
        asked = client.attach(ids[key]) if key in ids else ask(key if ids else idempotency_key, left_ms)
        async with aclosing(asked) as events:
            async for event in events:
                if isinstance(event, Accepted):
                    ids[key] = event.request_id
                yield event

    return retried_events(call, RETRIES, idempotency_key=idempotency_key, deadline_ms=deadline_ms)
