"""Tries at a request: how one starts, what its end leads to, and who may have another."""

from pentimento.dataplane.credits import give_back, refresh, take
from pentimento.dataplane.effects import (
    CommitCacheEntries,
    CommitResult,
    Deliver,
    DeliverRecorded,
    Effect,
    End,
    Execute,
    PersistAttempt,
    ReleaseGrant,
)
from pentimento.dataplane.endings import end_request, on_deadline
from pentimento.dataplane.events import (
    AttemptFailed,
    AttemptFinished,
    AttemptKey,
    AttemptPersisted,
    AttemptStarted,
    CommitFailed,
    FailureKind,
    ResultCommitted,
)
from pentimento.dataplane.state import Phase, Request, State, TimerKind, Worker

# Share of the newest attempt in the moving average of a pool's speed.
_SPEED_WEIGHT = 0.2
_UNCOUNTED = frozenset({FailureKind.NOT_HELD, FailureKind.NO_CREDIT, FailureKind.GONE})
# What we believed of the worker was stale: nothing more goes there before its next word.
_DOUBTFUL = frozenset({FailureKind.NOT_HELD, FailureKind.NO_CREDIT, FailureKind.WORKER_LOST})


def start_attempt(state: State, now: float, request: Request, worker: Worker) -> PersistAttempt:
    """Bind a queued request to a free credit; it runs once the attempt is journalled."""
    state.enter(request, Phase.STARTING)
    request.attempt_number += 1
    request.fencing_token = max(request.fencing_token + 1, state.first_token)
    request.worker_id = worker.worker_id
    state.unpersisted[request.attempt_key] = None
    take(state, worker, request.attempt_key)
    return PersistAttempt(request.request_id, request.attempt_number, request.fencing_token, worker.worker_id)


def on_attempt_persisted(state: State, now: float, event: AttemptPersisted) -> list[Effect]:
    """Run it, unless its worker went or its request ended while the journal wrote."""
    key = (event.request_id, event.fencing_token)
    if key not in state.unpersisted:
        return []
    del state.unpersisted[key]
    request = _current(state, *key, Phase.STARTING)
    if request is None or not event.won:
        give_back(state, key)
        return [ReleaseGrant(*key), *_leave_to_others(state, request)]
    worker = state.workers[request.worker_id]
    state.enter(request, Phase.RUNNING)
    request.started_at = now
    number, token, generation = request.attempt_number, request.fencing_token, worker.worker_generation
    return [Execute(request.request_id, number, token, worker.worker_id, generation, request.deadline)]


def _leave_to_others(state: State, request: Request | None) -> list[Effect]:
    """Somebody else has ended this request, or runs it under a newer token."""
    if request is None:
        return []
    state.remove(request)
    return [DeliverRecorded(request.request_id)]


def on_attempt_started(state: State, now: float, event: AttemptStarted) -> list[Effect]:
    key = (event.request_id, event.fencing_token)
    worker_id = state.attempt_workers.get(key)
    if worker_id is not None:
        state.workers[worker_id].begun[key] = None
    return []


def on_attempt_finished(state: State, now: float, event: AttemptFinished) -> list[Effect]:
    """Only the newest attempt of a running request may be committed."""
    held = give_back(state, (event.request_id, event.fencing_token))
    request = _current(state, event.request_id, event.fencing_token, Phase.RUNNING)
    if request is None or held is None:
        return [ReleaseGrant(event.request_id, event.fencing_token)] if held else []
    _learn_speed(state, request, now - request.started_at)
    state.enter(request, Phase.COMMITTING)
    return [CommitResult(request.request_id, request.attempt_number, request.fencing_token, request.fencing_token)]


def on_attempt_failed(state: State, now: float, event: AttemptFailed) -> list[Effect]:
    key = (event.request_id, event.fencing_token)
    to_blame = _is_to_blame(state, key)
    worker = give_back(state, key)
    if worker is None:
        return []
    if event.kind in _DOUBTFUL:
        worker.confirmed = False
        refresh(state, worker)
    release: list[Effect] = [ReleaseGrant(*key)]
    request = _current(state, *key, Phase.RUNNING)
    if request is None:
        return release
    return release + _after_failure(state, now, request, worker, event, to_blame)


def on_result_committed(state: State, now: float, event: ResultCommitted) -> list[Effect]:
    request = _current(state, event.request_id, event.fencing_token, Phase.COMMITTING)
    if request is None:
        return []
    state.remove(request)
    if not event.won:
        return [ReleaseGrant(*request.attempt_key), DeliverRecorded(request.request_id)]
    state.counters.completed += 1
    pool = state.pool(request.pool)
    pool.completed_count += 1
    pool.late_count += now > request.deadline
    return [Deliver(*request.attempt_key, request.fencing_token), CommitCacheEntries(*request.attempt_key)]


def on_commit_failed(state: State, now: float, event: CommitFailed) -> list[Effect]:
    request = _current(state, event.request_id, event.fencing_token, Phase.COMMITTING)
    if request is None:
        return []
    release: list[Effect] = [ReleaseGrant(*request.attempt_key)]
    return release + end_request(state, request, End.FAILED, event.reason, event.message)


def lose_attempt(state: State, now: float, key: AttemptKey) -> list[Effect]:
    """The worker is gone, and its credit with it. What it had not begun with does not count as a loss."""
    to_blame = _is_to_blame(state, key)
    worker = give_back(state, key)
    request = state.requests.get(key[0])
    # While the journal writes, the grant may not be there yet: AttemptPersisted gives it back.
    release: list[Effect] = [] if key in state.unpersisted else [ReleaseGrant(*key)]
    if worker is None or request is None or request.attempt_key != key:
        return release
    if request.phase is Phase.STARTING:
        state.enqueue(request, rerun=True)
    elif request.phase is Phase.RUNNING:
        return release + _rerun_elsewhere(state, now, request, worker, to_blame)
    return release


def _is_to_blame(state: State, key: AttemptKey) -> bool:
    """Whether this attempt may have brought its worker down: it was begun with, or nothing else was."""
    worker = state.workers.get(state.attempt_workers.get(key, ""))
    if worker is None or key in worker.begun:
        return True
    return not worker.begun and not worker.lost_begun


def _after_failure(
    state: State, now: float, request: Request, worker: Worker, event: AttemptFailed, to_blame: bool
) -> list[Effect]:
    kind = event.kind
    if kind in _UNCOUNTED:
        state.enqueue(request, rerun=True)
        return []
    if kind is FailureKind.FATAL:
        return end_request(state, request, End.FAILED, event.reason, event.message)
    if kind is FailureKind.DEADLINE:
        return on_deadline(state, request)
    # A stop that nobody here asked for is a worker on its way out.
    return _rerun_elsewhere(state, now, request, worker, to_blame)


def _rerun_elsewhere(state: State, now: float, request: Request, worker: Worker, to_blame: bool) -> list[Effect]:
    """Again with the same seed and route, at most `max_reruns` times, and not where it was lost."""
    if to_blame:
        worker.lost_begun = True
        request.losses += 1
        request.excluded |= {(worker.worker_id, worker.worker_generation)}
    if request.losses > state.settings.max_reruns:
        message = f"{request.losses} workers were lost while they ran this request"
        return end_request(state, request, End.FAILED, "WORKER_LOST", message)
    state.counters.rerun += 1
    if request.losses >= state.settings.suspect_losses:
        request.suspect_until = now + state.settings.suspect_wait_s
        state.set_timer(request.suspect_until, TimerKind.SUSPECT_WAIT, request.request_id)
    state.enqueue(request, rerun=True)
    return []


def _current(state: State, request_id: str, fencing_token: int, phase: Phase) -> Request | None:
    """The request, if this is its newest attempt and it is in that phase."""
    request = state.requests.get(request_id)
    if request is None or request.fencing_token != fencing_token or request.phase is not phase:
        return None
    return request


def _learn_speed(state: State, request: Request, seconds: float) -> None:
    pool = state.pool(request.pool)
    measured = seconds / request.work if request.work > 0 else 0.0
    before = pool.seconds_per_work
    pool.seconds_per_work = measured if before is None else before + _SPEED_WEIGHT * (measured - before)
