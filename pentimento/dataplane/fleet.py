"""Update workers by their reports and silences, adopt plans and speed profiles, and recover requests of an earlier
frontdoor: attach to their running attempts, queue the rest again."""

from collections.abc import Iterable
from dataclasses import fields

from pentimento.dataplane.attempts import lose_attempt
from pentimento.dataplane.cascade import go_on, is_deserted
from pentimento.dataplane.credits import count, give_back_peer, refresh, take
from pentimento.dataplane.effects import Attach, Effect, PrepareRoute, ResolveRoute, StopAttempt
from pentimento.dataplane.events import (
    AttemptKey,
    PlanReceived,
    ProfilesReceived,
    Recovered,
    RecoveredRequest,
    TookOver,
    WorkerLost,
    WorkerReported,
)
from pentimento.dataplane.pools import Worker
from pentimento.dataplane.predictions import expected_service_s
from pentimento.dataplane.requests import LaneKey, Phase, Request
from pentimento.dataplane.speed import Speed, is_sane
from pentimento.dataplane.state import State, TimerKind
from pentimento.domain.errors import InvalidArgument
from pentimento.policies.adapter_needs import NO_HOLDINGS
from pentimento.policies.plan.entry import PlanIndex
from pentimento.policies.plan_checks import check_plan

# More credits than any real worker has.
_MAX_CREDITS = 4096
# Time after which a lost worker is forgotten.
FORGET_WORKER_S = 30.0


def on_worker_reported(state: State, now: float, event: WorkerReported) -> list[Effect]:
    """Update the worker from its report, which is authoritative, and dispatch. Another generation of the same name is
    another process: the attempts of the old one are lost."""
    effects: list[Effect] = []
    worker = state.workers.get(event.worker_id)
    if worker is not None and worker.connected and event.worker_generation < worker.worker_generation:
        # Two processes under one name: the later start wins.
        return []
    if worker is not None and worker.worker_generation != event.worker_generation:
        effects = _lose_worker(state, now, worker)
        worker.abandoned, worker.holdings = frozenset(), NO_HOLDINGS
    if worker is None:
        worker = state.workers[event.worker_id] = Worker(event.worker_id, event.model, "", 0, 0, connected=False)
    useless = _given_up(state, worker, event)
    if not worker.connected:
        effects += [StopAttempt(*key, worker.worker_id) for key in sorted(useless)]
    worker.abandoned = useless
    _update(state, worker, event)
    return effects + attach_orphans(state, now, worker)


def on_worker_lost(state: State, now: float, event: WorkerLost) -> list[Effect]:
    """Take the worker out of its pools, and run its attempts again elsewhere."""
    worker = state.workers.get(event.worker_id)
    if worker is None or not worker.connected or worker.worker_generation != event.worker_generation:
        return []
    worker.forget_at = now + FORGET_WORKER_S
    state.set_timer(worker.forget_at, TimerKind.FORGET_WORKER, worker.worker_id)
    return _lose_worker(state, now, worker)


def on_plan_received(state: State, now: float, event: PlanReceived) -> list[Effect]:
    """Adopt a newer plan; ignore an older, repeated or invalid one."""
    if state.plan is not None and event.plan.version <= state.plan.version:
        return []
    try:
        check_plan(event.plan)
    except InvalidArgument:
        state.counters.refused_plans += 1
        return []
    index = state.index = PlanIndex(event.plan)
    state.dirty |= {key: None for key in state.lanes if key[0] in index.unstaffed}
    for name in index.thinned | state.pools.keys():
        state.pool(name).thins = name in index.thinned
    # Another stage still stands in for requests that were accepted under such a plan. Scores no longer count without a
    # planned threshold: the next stage may have no workers left.
    used = {request.cascade_name for request in state.requests.values()}
    before = {name: scored for name, scored in state.thresholds.items() if name in used and not scored}
    state.thresholds = {**before, **index.thresholds}
    _set_speeds(state)
    for worker in state.workers.values():
        _place(state, worker, worker.model, worker.model_digest)
        refresh(state, worker)
    return _leave_unrouted(state)


def _leave_unrouted(state: State) -> list[Effect]:
    """Send on requests in routing if their pool has no workers: their routing may be waiting for its model."""
    routing = [request for request in state.requests.values() if request.phase is Phase.ROUTING]
    return [effect for one in routing if is_deserted(state, one.pool) for effect in go_on(state, one)]


def on_profiles_received(state: State, now: float, event: ProfilesReceived) -> list[Effect]:
    """Start predictions from the profiles; invalid ones are skipped."""
    state.profiles |= {profile.name: profile for profile in event.profiles if is_sane(profile)}
    _set_speeds(state)
    return []


def _set_speeds(state: State) -> None:
    """Give pools the profile of their own name, or of their model in the plan."""
    models = state.index.models
    for name in [*models, *state.profiles]:
        pool = state.pool(name)
        profile = state.profiles.get(name) or state.profiles.get(models.get(name, ""))
        if profile is not None and profile != pool.speed.profile:
            pool.speed = Speed(profile)
            for worker in pool.workers.values():
                worker.slowdown = None
                count(state, worker)
                refresh(state, worker)


def forget_worker(state: State, now: float, worker_id: str) -> None:
    """Forget a worker that stayed away. A worker that returned and left again has a later timer."""
    worker = state.workers.get(worker_id)
    if worker is not None and not worker.connected and now >= worker.forget_at:
        del state.workers[worker_id]


def _given_up(state: State, worker: Worker, event: WorkerReported) -> frozenset[AttemptKey]:
    """Return the reported attempts that no request needs: abandoned during the worker's silence, or of an earlier
    frontdoor and run elsewhere since. Of a connected worker, an attempt of this epoch that is not in flight has ended
    since its report."""
    return frozenset(
        key
        for key in event.running
        if key in worker.abandoned
        or (
            (not worker.connected or key[1] < state.first_token)
            and key not in worker.in_flight
            and not is_orphan(state, key)
        )
    )


def _update(state: State, worker: Worker, event: WorkerReported) -> None:
    worker.worker_generation = event.worker_generation
    worker.credit_count = min(max(event.credit_count, 0), _MAX_CREDITS)
    worker.reserve_count = min(max(event.reserve_count, 0), _MAX_CREDITS)
    worker.preparing_count = min(max(event.preparing_count, 0), _MAX_CREDITS)
    worker.draining = event.draining
    worker.pinned = event.pinned
    worker.pairable = event.pairable
    worker.holdings = worker.holdings if event.holdings is None else event.holdings
    worker.connected = worker.confirmed = True
    worker.lost_begun = False
    _place(state, worker, event.model, event.model_digest)
    refresh(state, worker)


def _place(state: State, worker: Worker, model: str, model_digest: str) -> None:
    """Add the worker to the pools and lanes of its model, and remove it from earlier ones."""
    # A worker with another digest than the registered one would generate another model's images.
    is_known = state.index.registered.get(model, model_digest) == model_digest
    pools = state.index.pools_of(worker.worker_id, model) if is_known else ()
    if (pools, model_digest) != (worker.pools, worker.model_digest):
        _withdraw(state, worker)
        if model_digest != worker.model_digest:
            worker.slowdown = None
        worker.model, worker.model_digest, worker.pools = model, model_digest, pools
        worker.lane_keys = tuple((pool, model_digest) for pool in pools)
    if worker.connected:
        for key in worker.lane_keys:
            _join(state, worker, key)
    count(state, worker)


def _join(state: State, worker: Worker, key: LaneKey) -> None:
    workers = state.pool(key[0]).workers
    state.lane(key)
    if worker.worker_id not in workers:
        _doubt(state, (other for other in state.lanes if other[0] == key[0] and other != key))
    workers[worker.worker_id] = worker


def _doubt(state: State, lanes: Iterable[LaneKey]) -> None:
    """Have dispatch check whether any worker still holds the weights of each lane."""
    for key in lanes:
        state.unheld.add(key)
        state.dirty[key] = None


def _withdraw(state: State, worker: Worker) -> None:
    for key in worker.lane_keys:
        state.lane(key).withdraw(worker.worker_id)
        state.pool(key[0]).workers.pop(worker.worker_id, None)
    # Requests that wait there may move to another stage.
    _doubt(state, worker.lane_keys)


def _lose_worker(state: State, now: float, worker: Worker) -> list[Effect]:
    """Run all its attempts elsewhere. Stop them as well, since the worker may only have been silent."""
    worker.connected = False
    _withdraw(state, worker)
    count(state, worker)
    for key in tuple(worker.in_flight):
        if state.peers.get(key) == worker.worker_id:
            give_back_peer(state, key)
    lost = tuple(worker.in_flight)
    effects: list[Effect] = [StopAttempt(*key, worker.worker_id) for key in lost]
    # Begun attempts first: they take the blame from attempts that waited after them.
    for key in sorted(lost, key=lambda key: key not in worker.begun):
        effects += lose_attempt(state, now, key)
    worker.abandoned |= frozenset(lost)
    return effects


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
