"""Recover unfinished requests of an earlier frontdoor: attach to their running attempts, queue the rest again."""

from dataclasses import fields

from pentimento.dataplane.cascade import go_on, is_deserted
from pentimento.dataplane.credits import take
from pentimento.dataplane.effects import Attach, Effect, PrepareRoute, ResolveRoute
from pentimento.dataplane.events import AttemptKey, Recovered, RecoveredRequest, TookOver
from pentimento.dataplane.pools import Worker
from pentimento.dataplane.predictions import expected_service_s
from pentimento.dataplane.requests import Phase, Request
from pentimento.dataplane.state import State, TimerKind


def on_took_over(state: State, now: float, event: TookOver) -> list[Effect]:
    """Make a standby the active dataplane; ignore an epoch that is not newer."""
    state.epoch = max(state.epoch, event.epoch)
    return []


def on_recovered(state: State, now: float, event: Recovered) -> list[Effect]:
    """Take over accepted requests, beyond the queue's limit if necessary."""
    effects: list[Effect] = []
    for recovered in event.requests:
        if recovered.request_id not in state.requests:
            effects += _take_over(state, now, recovered)
    return effects


def attach_orphans(state: State, now: float, worker: Worker) -> list[Effect]:
    """Attach to the orphaned attempts of a worker that is back, regardless of its credits. They count as its load."""
    effects: list[Effect] = []
    for request_id in state.orphans.pop(worker.worker_id, {}):
        request = state.requests.get(request_id)
        if request is None or request.phase is not Phase.ORPHANED:
            continue
        expected_s = expected_service_s(state.pool(request.pool), worker, request.work)
        request.started_at, request.ends_at = now, now + expected_s
        state.enter(request, Phase.RUNNING)
        take(state, worker, request.attempt_key)
        number, token, stage = request.attempt_number, request.fencing_token, request.cascade_stage
        effects.append(Attach(request_id, number, token, worker.worker_id, stage))
    return effects


def is_orphan(state: State, key: AttemptKey) -> bool:
    """Return whether the attempt waits for its worker, to be attached to."""
    request = state.requests.get(key[0])
    return request is not None and request.phase is Phase.ORPHANED and request.attempt_key == key


def on_orphan_wait_over(state: State, request: Request) -> None:
    """Run the request again under a newer token, which fences off a late result: its worker did not return."""
    if request.phase is not Phase.ORPHANED:
        return
    waiting = state.orphans.get(request.worker_id, {})
    waiting.pop(request.request_id, None)
    if not waiting:
        state.orphans.pop(request.worker_id, None)
    state.enqueue(request, rerun=True)


def _take_over(state: State, now: float, recovered: RecoveredRequest) -> list[Effect]:
    known = {one.name: getattr(recovered, one.name) for one in fields(recovered)}
    request = Request(**known, phase=Phase.ORPHANED)
    state.add(request)
    if not recovered.route_pinned:
        state.enter(request, Phase.ROUTING)
        sent_on = go_on(state, request) if is_deserted(state, request.pool) else []
        return [
            PrepareRoute(request.request_id),
            *(sent_on or [ResolveRoute(request.request_id, request.cascade_stage)]),
        ]
    if not recovered.worker_id:
        state.enqueue(request, rerun=False)
        return []
    return _await_worker(state, now, request)


def _await_worker(state: State, now: float, request: Request) -> list[Effect]:
    state.orphans.setdefault(request.worker_id, {})[request.request_id] = None
    state.set_timer(now + state.settings.orphan_wait_s, TimerKind.ORPHAN_WAIT, request.request_id)
    worker = state.workers.get(request.worker_id)
    if worker is None or not worker.connected:
        return []
    return attach_orphans(state, now, worker)
