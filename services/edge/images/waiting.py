"""Pictures whose frontdoor goes away while they are painted: it has them in its journal, and goes on with them."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from pentimento.clients.image import ImageClient
from pentimento.clients.retried_events import StreamCall, retried_events
from pentimento.clients.retries import RetryPolicy
from pentimento.domain.errors import PentimentoError
from pentimento.domain.image_request import Accepted, GenerateEvent


@dataclass(frozen=True)
class AcceptedRetries(RetryPolicy):
    """As for clients of the SDK, but that a request which was not accepted is its caller's to make again."""

    def most_tries(self, error: PentimentoError, *, accepted: bool, late: bool) -> int:
        """Return how often a call that failed so is made at most."""
        return super().most_tries(error, accepted=accepted, late=late) if accepted else 1


RETRIES = AcceptedRetries()


def events_of(
    client: ImageClient, ask: StreamCall, idempotency_key: str = "", deadline_ms: int | None = None
) -> AsyncGenerator[GenerateEvent, None]:
    """Return the events of what `ask` asks for, under the caller's key or none: a key costs the journal a look, and an
    accepted request is found again by its id. One that ended because our connection broke is asked for anew, under a
    key of its own. Closing it cancels the request."""
    ids: dict[str, str] = {}

    async def call(key: str, left_ms: int | None) -> AsyncGenerator[GenerateEvent, None]:
        asked = client.attach(ids[key]) if key in ids else ask(key if ids else idempotency_key, left_ms)
        async with aclosing(asked) as events:
            async for event in events:
                if isinstance(event, Accepted):
                    ids[key] = event.request_id
                yield event

    return retried_events(call, RETRIES, idempotency_key=idempotency_key, deadline_ms=deadline_ms)
