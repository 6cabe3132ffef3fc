"""Choose the image that a request ends with, and commit it once, under the newest token."""

from pentimento.dataplane.effects import (
    CommitCacheEntries,
    CommitResult,
    Deliver,
    DeliverRecorded,
    Effect,
    End,
    PersistEnd,
    ReleaseGrant,
    StopAttempt,
)
from pentimento.dataplane.events import CommitFailed, ResultCommitted
from pentimento.dataplane.requests import Phase, Request
from pentimento.dataplane.state import State


def commit_picture(state: State, request: Request, picture_token: int, degraded: str = "") -> list[Effect]:
    """Stop other attempts and commit; wait first for the journal if it is still writing a newer attempt."""
    effects = stop_attempts(state, request)
    state.enter(request, Phase.COMMITTING)
    request.picture_token, request.degraded = picture_token, degraded
    if request.attempt_key in state.unpersisted:
        return effects
    return effects + resume_commit(request)


def resume_commit(request: Request) -> list[Effect]:
    """Commit the image that waited for the journal to write a newer attempt."""
    number, token = request.attempt_number, request.fencing_token
    return [CommitResult(request.request_id, number, token, request.picture_token, request.degraded)]


def fall_back(state: State, request: Request, reason: str) -> list[Effect]:
    """Commit the image of an earlier stage in place of a later one's; `reason` labels it."""
    state.counters.fallen_back += 1
    return commit_picture(state, request, request.fallback_token, reason or "FAILED")


def stop_attempts(state: State, request: Request) -> list[Effect]:
    """Stop the attempt that runs, or may run unreported. Its credit is freed when its stream ends."""
    if request.phase is Phase.ORPHANED:
        return [StopAttempt(request.request_id, request.fencing_token, request.worker_id)]
    key = request.attempt_key
    worker_id = state.attempt_workers.get(key)
    return [] if worker_id is None or key in state.unpersisted else [StopAttempt(*key, worker_id)]


def on_result_committed(state: State, now: float, event: ResultCommitted) -> list[Effect]:
    """Deliver the committed image; if another attempt or ending won, deliver the journal's result."""
    request = _committing(state, event.request_id, event.fencing_token)
    if request is None:
        return []
    state.remove(request)
    if not event.won:
        return [*release_picture(request), DeliverRecorded(request.request_id)]
    state.counters.completed += 1
    pool = state.pool(request.pool)
    pool.completed_count += 1
    pool.late_count += now > request.deadline
    effects: list[Effect] = [Deliver(*request.attempt_key, request.picture_token)]
    # An image that was scored too low never enters a cache, even when it is delivered.
    if request.picture_token != request.fallback_token:
        effects.append(CommitCacheEntries(request.request_id, request.picture_token))
    return effects


def on_commit_failed(state: State, now: float, event: CommitFailed) -> list[Effect]:
    """End the request as failed: its image could not be stored."""
    request = _committing(state, event.request_id, event.fencing_token)
    if request is None:
        return []
    release = release_picture(request)
    return [*release, enter_end(state, request, End.FAILED, event.reason, event.message)]


def enter_end(state: State, request: Request, end: End, reason: str, message: str) -> PersistEnd:
    """Set how a request ends, and return the effect that journals it."""
    state.enter(request, Phase.ENDING)
    request.ending = PersistEnd(request.request_id, end, reason, message)
    return request.ending


def release_picture(request: Request) -> list[Effect]:
    """Release the grant of an image that awaits its score or its commit, unless it is the fallback image."""
    if request.phase not in (Phase.SCORING, Phase.COMMITTING) or request.picture_token == request.fallback_token:
        return []
    return [ReleaseGrant(request.request_id, request.picture_token)]


def _committing(state: State, request_id: str, fencing_token: int) -> Request | None:
    request = state.requests.get(request_id)
    if request is None or request.fencing_token != fencing_token or request.phase is not Phase.COMMITTING:
        return None
    return request
