"""Start attempts, handle their ends, and decide which requests run again."""

from pentimento.dataplane.cascade import on_picture
from pentimento.dataplane.commits import release_picture, resume_commit
from pentimento.dataplane.credits import end_preparing, give_back, may_prepare, refresh, take, yield_credit
from pentimento.dataplane.effects import (
    DeliverRecorded,
    Effect,
    End,
    Execute,
    PersistAttempt,
    ReleaseGrant,
    ReservePair,
)
from pentimento.dataplane.endings import end_request, on_deadline
from pentimento.dataplane.events import (
    AttemptFailed,
    AttemptFinished,
    AttemptKey,
    AttemptPersisted,
    AttemptStarted,
    AttemptYielded,
    FailureKind,
)
from pentimento.dataplane.pools import Worker
from pentimento.dataplane.predictions import expected_service_s, learn_speed
from pentimento.dataplane.requests import ATTEMPTED, Phase, Request
from pentimento.dataplane.state import State, TimerKind
from pentimento.dataplane.thinning import settle_thinning
from pentimento.domain.reasons import Reason

# Crashed workers after which a request may itself be the cause.
SUSPECT_LOSSES = 2
_UNCOUNTED = frozenset({FailureKind.NOT_HELD, FailureKind.NO_CREDIT, FailureKind.GONE})
# The recorded state of the worker was stale: it gets no more attempts before its next report.
_DOUBTFUL = frozenset({FailureKind.NOT_HELD, FailureKind.NO_CREDIT, FailureKind.WORKER_LOST})


def start_attempt(state: State, now: float, request: Request, worker: Worker) -> PersistAttempt:
    """Bind a request to a free credit, or to a place to prepare its inputs; it runs once it is journalled."""
    settle_thinning(state, now, request, worker)
    preparing = request.has_inputs and may_prepare(worker)
    state.begin(request, now, None if preparing else _expected_end(state, now, request, worker))
    request.came_early = worker.painting_count >= worker.credit_count
    request.attempt_number += 1
    request.fencing_token = max(request.fencing_token + 1, state.first_token)
    request.worker_id, request.route_pinned = worker.worker_id, True
    state.unpersisted[request.attempt_key] = None
    take(state, worker, request.attempt_key, preparing=preparing)
    number, token = request.attempt_number, request.fencing_token
    stage, option = request.cascade_stage, request.option
    return PersistAttempt(request.request_id, number, token, worker.worker_id, stage, option)


def _expected_end(state: State, now: float, request: Request, worker: Worker) -> float:
    return now + expected_service_s(state.pool(request.pool), worker, request.attempt_work)


def on_attempt_persisted(state: State, now: float, event: AttemptPersisted) -> list[Effect]:
    """Execute the attempt, unless its worker was lost or its request ended during the journal's write."""
    key = event.key
    if key not in state.unpersisted:
        return []
    del state.unpersisted[key]
    request = state.requests.get(event.request_id)
    if request is not None and request.fencing_token != event.fencing_token:
        request = None
    if event.won and request is not None and request.phase in ATTEMPTED:
        return _execute(state, now, request)
    give_back(state, key)
    release: list[Effect] = [ReleaseGrant(*key)]
    if request is None:
        return release
    if not event.won and request.phase in (*ATTEMPTED, Phase.COMMITTING):
        return release + _leave_to_others(state, request)
    return release + resume_commit(request) if request.phase is Phase.COMMITTING else release


def _execute(state: State, now: float, request: Request) -> list[Effect]:
    key, worker = request.attempt_key, state.workers[request.worker_id]
    effects: list[Effect] = []
    request.started_load = worker.used_credits
    if request.phase is Phase.STARTING:
        state.enter(request, Phase.RUNNING)
    if key in state.peers:
        effects.append(ReservePair(*key, worker.worker_id, state.peers[key]))
    number, token, generation = request.attempt_number, request.fencing_token, worker.worker_generation
    steps = request.thinned_steps
    execute = Execute(request.request_id, number, token, worker.worker_id, generation, request.deadline, steps)
    return [*effects, execute]


def _leave_to_others(state: State, request: Request) -> list[Effect]:
    """Forget the request: another frontdoor has ended it, or runs it under a newer token."""
    state.remove(request)
    return [*release_picture(request), DeliverRecorded(request.request_id)]


def on_attempt_started(state: State, now: float, event: AttemptStarted) -> list[Effect]:
    """Note that the worker has begun the attempt: from here on its loss counts, and it holds a credit. Its time starts
    here if it prepared inputs or waited for a batch slot, since neither is part of the worker's speed."""
    key = event.key
    worker_id = state.attempt_workers.get(key)
    if worker_id is None:
        return []
    worker = state.workers[worker_id]
    worker.begun[key] = None
    was_preparing = key in worker.preparing
    if was_preparing:
        end_preparing(state, worker, key)
    request = state.requests.get(event.request_id)
    if request is None or request.attempt_key != key or request.phase is not Phase.RUNNING:
        return []
    if was_preparing or (request.came_early and key not in worker.yielded):
        state.begin(request, now, _expected_end(state, now, request, worker))
        request.started_load = worker.used_credits
    return []


def on_attempt_yielded(state: State, now: float, event: AttemptYielded) -> list[Effect]:
    """Free the attempt's credit shortly before its end, and dispatch."""
    key = event.key
    worker_id = state.attempt_workers.get(key)
    if worker_id is None:
        return []
    yield_credit(state, state.workers[worker_id], key)
    request = state.requests.get(event.request_id)
    if request is not None and request.attempt_key == key and request.phase is Phase.RUNNING:
        state.pool(request.pool).expect_credit(request, None)
    return []


def on_attempt_finished(state: State, now: float, event: AttemptFinished) -> list[Effect]:
    """Score or commit the attempt's image; only a live attempt of a running request has one."""
    key = event.key
    if key in state.unpersisted:
        return []
    paired = key in state.peers
    worker = give_back(state, key)
    if worker is None:
        return []
    request = state.requests.get(event.request_id)
    if request is None or request.phase is not Phase.RUNNING:
        return [ReleaseGrant(*key)]
    # The time of two workers does not give the speed of one.
    if request.worker_id == worker.worker_id and not paired:
        learn_speed(state, request, worker, now - request.started_at, event.painted_work or request.attempt_work)
    return on_picture(state, request, event.fencing_token)


def on_attempt_failed(state: State, now: float, event: AttemptFailed) -> list[Effect]:
    """Free the attempt's credit; run the request again or end it, by the kind of failure."""
    key = event.key
    if key in state.unpersisted:
        return []
    to_blame = _is_to_blame(state, key)
    worker = give_back(state, key)
    if worker is None:
        return []
    if event.kind in _DOUBTFUL:
        worker.confirmed = False
        refresh(state, worker)
    release: list[Effect] = [ReleaseGrant(*key)]
    request = state.requests.get(event.request_id)
    if request is None or request.phase is not Phase.RUNNING:
        return release
    return release + _after_failure(state, now, request, worker, event, to_blame)


def lose_attempt(state: State, now: float, key: AttemptKey) -> list[Effect]:
    """Free the credit of an attempt after the loss of its worker, and run its request again. An attempt that the worker
    had not begun does not count as a loss."""
    to_blame = _is_to_blame(state, key)
    worker = give_back(state, key)
    request = state.requests.get(key[0])
    # While the journal writes, the grant may not exist yet: AttemptPersisted releases it.
    release: list[Effect] = [] if key in state.unpersisted else [ReleaseGrant(*key)]
    if worker is None or request is None:
        return release
    if request.phase is Phase.STARTING:
        state.enqueue(request, rerun=True)
    elif request.phase is Phase.RUNNING:
        return release + _rerun_elsewhere(state, now, request, worker, to_blame)
    return release


def _is_to_blame(state: State, key: AttemptKey) -> bool:
    """Decide whether this attempt may have crashed its worker: the worker had begun it, or had begun no attempt."""
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
        return on_deadline(state, now, request)
    # A stop that this dataplane did not request means that the worker is shutting down.
    return _rerun_elsewhere(state, now, request, worker, to_blame, event)


def _rerun_elsewhere(
    state: State, now: float, request: Request, worker: Worker, to_blame: bool, told: AttemptFailed | None = None
) -> list[Effect]:
    """Run the request again with the same seed and route, at most `max_reruns` times, and not on the worker that was
    lost. The message repeats the cause that a live worker reported, such as an image too large for its memory."""
    if to_blame:
        worker.lost_begun = True
        request.losses += 1
        request.excluded |= {(worker.worker_id, worker.worker_generation)}
    if request.losses > state.settings.max_reruns:
        last = f"; the last said {told.reason}: {told.message}" if told is not None and told.reason else ""
        message = f"{request.losses} workers were lost while they ran this request{last}"
        return end_request(state, request, End.FAILED, Reason.WORKER_LOST, message)
    state.counters.rerun += 1
    if request.losses >= SUSPECT_LOSSES:
        request.suspect_until = now + state.settings.suspect_wait_s
        state.set_timer(request.suspect_until, TimerKind.SUSPECT_WAIT, request.request_id)
    state.enqueue(request, rerun=True)
    return []
