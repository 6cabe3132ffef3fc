"""Cancels, deadlines and failures: how a request ends without a picture."""

from pentimento.dataplane.effects import DeliverEnd, DeliverRecorded, Effect, End, PersistEnd, StopAttempt
from pentimento.dataplane.events import CancelRequested, EndPersisted
from pentimento.dataplane.state import Phase, Request, State

# The picture is there or the end is decided: too late to change anything.
_SETTLED = frozenset({Phase.COMMITTING, Phase.ENDING})


def on_cancel_requested(state: State, now: float, event: CancelRequested) -> list[Effect]:
    request = state.requests.get(event.request_id)
    if request is None:
        return []
    if event.client_left:
        return stop_request(state, request, End.CANCELLED, "CLIENT_LEFT", "cancelled because its client went away")
    return stop_request(state, request, End.CANCELLED, "CANCELLED", "cancelled by the client")


def on_deadline(state: State, request: Request) -> list[Effect]:
    """Queued work is never started, running work stops."""
    message = "the deadline passed before the picture was done"
    return stop_request(state, request, End.EXPIRED, "DEADLINE_EXCEEDED", message)


def stop_request(state: State, request: Request, end: End, reason: str, message: str) -> list[Effect]:
    """End it unless it has ended; while it is being accepted the end waits for the journal."""
    if request.phase in _SETTLED or request.end is not None:
        return []
    if request.phase is Phase.ACCEPTING:
        request.end, request.end_reason, request.end_message = end, reason, message
        return []
    return end_request(state, request, end, reason, message)


def end_request(state: State, request: Request, end: End, reason: str, message: str) -> list[Effect]:
    """Stop its attempt, if it has one, and journal the end. The credit comes back when the attempt's stream ends."""
    effects: list[Effect] = []
    if request.phase in (Phase.RUNNING, Phase.ORPHANED) and request.worker_id:
        effects.append(StopAttempt(request.request_id, request.fencing_token, request.worker_id))
    state.enter(request, Phase.ENDING)
    request.end, request.end_reason, request.end_message = end, reason, message
    effects.append(PersistEnd(request.request_id, end, reason, message))
    return effects


def on_end_persisted(state: State, now: float, event: EndPersisted) -> list[Effect]:
    request = state.requests.get(event.request_id)
    if request is None or request.phase is not Phase.ENDING or request.end is None:
        return []
    state.remove(request)
    if not event.won:
        return [DeliverRecorded(request.request_id)]
    _count_end(state, request.pool, request.end)
    return [DeliverEnd(request.request_id, request.end, request.end_reason, request.end_message)]


def _count_end(state: State, pool_name: str, end: End) -> None:
    counters = state.counters
    if end is End.CANCELLED:
        counters.cancelled += 1
        return
    state.pool(pool_name).dropped_count += 1
    if end is End.EXPIRED:
        counters.expired += 1
    else:
        counters.failed += 1
