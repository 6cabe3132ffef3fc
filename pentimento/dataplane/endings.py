"""End requests without an image: cancels, deadlines, failures, and effects that raised."""

from pentimento.dataplane.cascade import on_scored, stand_in, stand_in_pool
from pentimento.dataplane.commits import (
    commit_picture,
    enter_end,
    fall_back,
    on_commit_failed,
    release_picture,
    stop_attempts,
)
from pentimento.dataplane.credits import give_back, give_back_peer
from pentimento.dataplane.effects import DeliverEnd, DeliverRecorded, Effect, End, PersistEnd, ReleaseGrant, StopAttempt
from pentimento.dataplane.events import AttemptKey, CancelRequested, CommitFailed, EffectFailed, EndPersisted, Scored
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
    # The counters are named by the ends.
    name = ending.end.value
    setattr(state.counters, name, getattr(state.counters, name) + 1)
    state.pool(request.pool).dropped_count += ending.end is not End.CANCELLED
    return [DeliverEnd(request.request_id, ending.end, ending.reason, ending.message, request.retry_after_ms)]


_MESSAGE = "a defect of the frontdoor ended this request"
# Retries of journalling an end; after them the client is answered without the journal.
MAX_END_RETRIES = 3


def failure_of(effect: Effect) -> EffectFailed:
    """Return the event that answers an effect that raised."""
    request_id, token = getattr(effect, "request_id", ""), getattr(effect, "fencing_token", 0)
    return EffectFailed(request_id, type(effect).__name__, token)


def on_effect_failed(state: State, now: float, event: EffectFailed) -> list[Effect]:
    """Undo the effect's reservations, and end its request as failed: it would get no answer. Effects without a waiting
    request (cache entries, grants, informative messages to a client) change nothing."""
    key = (event.request_id, event.fencing_token)
    request = state.requests.get(event.request_id)
    match event.effect:
        case "PersistAttempt":
            return _never_journalled(state, key, request)
        case "Execute" | "Attach":
            return _never_followed(state, key, request)
        case "ReservePair":
            # The worker runs both halves of the guidance.
            give_back_peer(state, key)
        case "Score":
            return on_scored(state, now, Scored(*key, None))
        case "CommitResult":
            # If the commit succeeded after all, the end loses in the journal and the journalled image is delivered.
            return on_commit_failed(state, now, CommitFailed(*key, Reason.EFFECT_FAILED, _MESSAGE))
        case "Reject" | "Deliver" | "DeliverEnd" if request is None:
            return [DeliverRecorded(event.request_id)]
        case kind if request is not None:
            return _waiting_effect_failed(state, request, kind)
    return []


def _waiting_effect_failed(state: State, request: Request, kind: str) -> list[Effect]:
    match kind, request.phase:
        case "PersistAccepted", Phase.ACCEPTING:
            # The journal may have it: no frontdoor would run it before the next start.
            return journal_end(state, request, End.FAILED, Reason.EFFECT_FAILED, _MESSAGE)
        case "Announce", _:
            return stop_request(state, request, End.FAILED, Reason.EFFECT_FAILED, _MESSAGE)
        case "ResolveRoute", Phase.ROUTING:
            return end_request(state, request, End.FAILED, Reason.EFFECT_FAILED, _MESSAGE)
        case "PersistEnd", Phase.ENDING if request.ending is not None:
            request.end_failures += 1
            if request.end_failures > MAX_END_RETRIES:
                return deliver_end(state, request, request.ending)
            return [request.ending]
    return []


def _never_journalled(state: State, key: AttemptKey, request: Request | None) -> list[Effect]:
    """End the request: the journal may or may not have the attempt, so nothing can be committed under its token."""
    if key not in state.unpersisted:
        return []
    del state.unpersisted[key]
    give_back(state, key)
    release: list[Effect] = [ReleaseGrant(*key)]
    if request is None or request.attempt_key != key or request.phase is Phase.ENDING:
        return release
    return release + journal_end(state, request, End.FAILED, Reason.EFFECT_FAILED, _MESSAGE)


def _never_followed(state: State, key: AttemptKey, request: Request | None) -> list[Effect]:
    """Lose the attempt: it may run, but no event would report its end."""
    worker = give_back(state, key) if key not in state.unpersisted else None
    if worker is None:
        return []
    stop: list[Effect] = [StopAttempt(*key, worker.worker_id), ReleaseGrant(*key)]
    if request is None or request.phase is not Phase.RUNNING:
        return stop
    return stop + end_request(state, request, End.FAILED, Reason.EFFECT_FAILED, _MESSAGE)
