"""End requests without an image: cancels, deadlines and failures."""

from pentimento.dataplane.cascade import stand_in, stand_in_pool
from pentimento.dataplane.commits import commit_picture, enter_end, fall_back, release_picture, stop_attempts
from pentimento.dataplane.effects import DeliverEnd, DeliverRecorded, Effect, End, PersistEnd
from pentimento.dataplane.events import CancelRequested, EndPersisted
from pentimento.dataplane.predictions import learn_slowness, retry_after_ms
from pentimento.dataplane.requests import Phase, Request
from pentimento.dataplane.state import State
from pentimento.domain.errors import DEADLINE_PASSED
from pentimento.domain.reasons import Reason

# The image exists or the end is decided: too late to change anything.
_SETTLED = frozenset({Phase.COMMITTING, Phase.ENDING})


def on_cancel_requested(state: State, now: float, event: CancelRequested) -> list[Effect]:
    """End the request as cancelled and stop its attempts; a request that has ended stays unchanged."""
    request = state.requests.get(event.request_id)
    if request is None:
        return []
    if event.client_left:
        return stop_request(state, request, End.CANCELLED, Reason.CLIENT_LEFT, "cancelled because its client went away")
    return stop_request(state, request, End.CANCELLED, "CANCELLED", "cancelled by the client")


def on_deadline(state: State, now: float, request: Request) -> list[Effect]:
    """End the request as expired, or fall back to an earlier stage's image. Queued work never starts, running work
    stops."""
    if request.phase is Phase.RUNNING:
        learn_slowness(state, request, now - request.started_at)
    if request.phase is Phase.SCORING and state.settings.fall_back:
        return commit_picture(state, request, request.picture_token, "UNSCORED")
    if request.fallback_token and request.phase not in _SETTLED:
        return fall_back(state, request, "DEADLINE_EXCEEDED")
    return stop_request(state, request, End.EXPIRED, "DEADLINE_EXCEEDED", DEADLINE_PASSED)


def drop_late(state: State, now: float, request: Request, wait_s: float) -> list[Effect]:
    """End a queued request now if it would miss its deadline, before it costs more (DiffServe, section 4.1); or answer
    with an earlier stage's image, or let another stage stand in."""
    if request.fallback_token:
        return fall_back(state, request, Reason.PREDICTED_LATE)
    if stand_in_pool(state, request):
        return stand_in(state, request)
    left_s = max(request.deadline - now, 0.0)
    message = f"predicted to take {wait_s:.3g} s from now, {left_s:.3g} s were left"
    request.retry_after_ms = retry_after_ms(state, now, request.pool, wait_s - left_s)
    return [enter_end(state, request, End.DROPPED, Reason.PREDICTED_LATE, message)]


def stop_request(state: State, request: Request, end: End, reason: str, message: str) -> list[Effect]:
    """End a request unless it has ended; during its acceptance the end waits for the journal."""
    if request.phase in _SETTLED or request.ending is not None:
        return []
    if request.phase is Phase.ACCEPTING:
        request.ending = PersistEnd(request.request_id, end, reason, message)
        return []
    return journal_end(state, request, end, reason, message)


def end_request(state: State, request: Request, end: End, reason: str, message: str) -> list[Effect]:
    """End a request that can no longer be generated, or fall back to an earlier stage's image."""
    if request.fallback_token and end is End.FAILED:
        return fall_back(state, request, reason)
    return journal_end(state, request, end, reason, message)


def journal_end(state: State, request: Request, end: End, reason: str, message: str) -> list[Effect]:
    """Stop the attempts of a request and journal its end."""
    effects = [*stop_attempts(state, request), *release_picture(request)]
    return [*effects, enter_end(state, request, end, reason, message)]


def on_end_persisted(state: State, now: float, event: EndPersisted) -> list[Effect]:
    """Deliver the journalled end; if the request had ended already, deliver the journal's result."""
    request = state.requests.get(event.request_id)
    if request is None or request.phase is not Phase.ENDING or request.ending is None:
        return []
    if not event.won:
        state.remove(request)
        return [DeliverRecorded(request.request_id)]
    return deliver_end(state, request, request.ending)


def deliver_end(state: State, request: Request, ending: PersistEnd) -> list[Effect]:
    """Forget a request that has ended and answer its client."""
    state.remove(request)
    _count_end(state, request.pool, ending.end)
    return [DeliverEnd(request.request_id, ending.end, ending.reason, ending.message, request.retry_after_ms)]


def _count_end(state: State, pool_name: str, end: End) -> None:
    counters = state.counters
    if end is End.CANCELLED:
        counters.cancelled += 1
        return
    state.pool(pool_name).dropped_count += 1
    match end:
        case End.EXPIRED:
            counters.expired += 1
        case End.DROPPED:
            counters.dropped += 1
        case _:
            counters.failed += 1
