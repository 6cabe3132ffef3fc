"""Dispatch requests with late binding: a request leaves the queue only when a worker that holds its model has a free
credit or a place to prepare its inputs, at the lowest cost."""

from pentimento.dataplane.attempts import start_attempt
from pentimento.dataplane.cascade import go_on, is_deserted, reroute, stand_in_pool
from pentimento.dataplane.credits import latest_deadline, take_as_peer
from pentimento.dataplane.effects import Effect
from pentimento.dataplane.endings import drop_late
from pentimento.dataplane.fair_queue import FairQueue
from pentimento.dataplane.pools import Lane, Worker
from pentimento.dataplane.predictions import predicted_service_s, service_s
from pentimento.dataplane.ready import ReadyWorkers
from pentimento.dataplane.requests import LaneKey, Phase, Request
from pentimento.dataplane.state import State
from pentimento.dataplane.thinning import least_work
from pentimento.policies.adapter_needs import AdapterNeeds, can_paint, least_missed, load_count, loading_s
from pentimento.policies.latent_pairing import deadline_gains


def dispatch(state: State, now: float) -> list[Effect]:
    """Pair requests with credits in every lane that has a new request or credit."""
    effects: list[Effect] = []
    while state.dirty:
        key = next(iter(state.dirty))
        del state.dirty[key]
        lane = state.lanes[key]
        if is_deserted(state, key[0]):
            effects += _leave_deserted(state, key, lane)
        if key in state.unheld:
            state.unheld.discard(key)
            effects += _leave_weights(state, key, lane)
        if lane.reruns:
            effects += _dispatch_reruns(state, now, lane)
        if lane.set_aside:
            effects += _dispatch_set_aside(state, now, key, lane, own=True)
        while (queue := _queue_in_turn(state, lane)) is not None:
            effects += _dispatch_next(state, now, key, lane, *queue)
        if lane.set_aside:
            effects += _dispatch_set_aside(state, now, key, lane, own=False)
        while lane.reserve and lane.fresh and (urgent := _dispatch_urgent(state, now, lane)):
            effects.append(urgent)
    return effects


def _leave_deserted(state: State, key: LaneKey, lane: Lane) -> list[Effect]:
    """Send on the requests of a lane without planned workers, if their cascade or the plan has workers elsewhere."""
    effects: list[Effect] = []
    for request_id in (*lane.reruns, *lane.set_aside, *lane.fresh):
        request = state.requests[request_id]
        if request.lane_key == key:
            effects += go_on(state, request)
    return effects


def _leave_weights(state: State, key: LaneKey, lane: Lane) -> list[Effect]:
    """Route requests again that wait for weights that no worker of the pool holds, if the pool has workers. A request
    with an attempt keeps its route."""
    workers = state.pools[key[0]].workers.values()
    if not workers or any(worker.model_digest == key[1] for worker in workers):
        return []
    waiting = [state.requests[request_id] for request_id in (*lane.set_aside, *lane.fresh)]
    return [effect for one in waiting if one.lane_key == key and not one.route_pinned for effect in reroute(state, one)]


def _queue_in_turn(state: State, lane: Lane) -> tuple[FairQueue, str] | None:
    """Return the next queue, and its first request in turn that some worker has room for. A request that needs a place
    to prepare inputs is skipped while there is none, so that no other request waits for it."""
    if not lane.ready and not (lane.preparers and lane.inputs):
        return None
    for queue in (lane.fresh, lane.spare):
        found = queue.first_of(lambda request_id: bool(lane.takers(state.requests[request_id])))
        if found is not None:
            return queue, found
    return None


def _dispatch_urgent(state: State, now: float, lane: Lane) -> Effect | None:
    """Start a request without a free credit if it is due before the least urgent running one, to preempt it."""
    worker = state.workers[lane.reserve.first()]
    # Inputs that no worker can prepare now would delay a batch slot.
    request_id = lane.fresh.first_of(lambda name: not worker.preparing_count or name not in lane.inputs)
    if request_id is None:
        return None
    request = state.requests[request_id]
    if not suits(request, worker) or request.deadline >= latest_deadline(state, worker):
        return None
    if _would_miss_deadline(state, now, lane, request, worker):
        return None
    lane.fresh.serve(request.request_id)
    return start_attempt(state, now, request, worker)


def _dispatch_next(
    state: State, now: float, key: LaneKey, lane: Lane, queue: FairQueue, request_id: str
) -> list[Effect]:
    """Start the next request on its cheapest worker, or drop it, or set it aside until a suitable worker has room."""
    request = state.requests[request_id]
    worker = cheapest_worker(state, key, request)
    if worker is not None and _would_miss_deadline(state, now, lane, request, worker):
        return _drop(state, now, key, request, worker)
    queue.serve(request.request_id)
    if worker is None:
        lane.set_aside[request.request_id] = None
        return []
    return [_start(state, now, key, request, worker)]


def _dispatch_set_aside(state: State, now: float, key: LaneKey, lane: Lane, *, own: bool) -> list[Effect]:
    """Start requests that were set aside, in their order, while workers have room: only the lane's own requests with
    `own`, else only those of other lanes."""
    effects: list[Effect] = []
    unmet: set[AdapterNeeds] = set()
    for request_id in tuple(lane.set_aside):
        if not lane.ready and not lane.preparers:
            break
        request = state.requests[request_id]
        if (request.lane_key == key) is not own:
            continue
        worker = cheapest_worker(state, key, request) if request.needs not in unmet else None
        if worker is None:
            unmet.add(request.needs)
        elif _would_miss_deadline(state, now, lane, request, worker):
            effects += _drop(state, now, key, request, worker)
        else:
            effects.append(_start(state, now, key, request, worker))
    return effects


def _drop(state: State, now: float, key: LaneKey, request: Request, worker: Worker) -> list[Effect]:
    service_s = predicted_service_s(state, state.pools[key[0]], worker, least_work(state, request))
    return drop_late(state, now, request, service_s or 0.0)


def _start(state: State, now: float, key: LaneKey, request: Request, worker: Worker) -> Effect:
    if request.lane_key != key:
        _adopt(state, request, key)
    attempt = start_attempt(state, now, request, worker)
    if request.pair and _gains_by_pair(state, now, request):
        _reserve_peer(state, key, request, worker)
    return attempt


def _would_miss_deadline(state: State, now: float, lane: Lane, request: Request, worker: Worker) -> bool:
    """Decide whether the request is predicted to miss its deadline, and another fresh request, an earlier stage's image
    or a stage that stands in makes an attempt wasteful. Otherwise it may run."""
    if not state.drops_late:
        return False
    if len(lane.fresh) < 2 and not request.fallback_token and not stand_in_pool(state, request):
        return False
    service_s = predicted_service_s(state, state.pools[request.pool], worker, least_work(state, request))
    return service_s is not None and now + service_s > request.deadline


def _adopt(state: State, request: Request, key: LaneKey) -> None:
    """Move the request permanently to one of its route's `spare` lanes, which has no own requests waiting."""
    index, option = next(
        (index, option)
        for index, option in enumerate(request.spare, start=1)
        if (option.pool, option.model_digest) == key
    )
    state.enter(request, Phase.STARTING)
    state.move(request, option.pool, option.work, option.thinning)
    request.model_digest, request.option, request.spare = option.model_digest, index, ()


def _gains_by_pair(state: State, now: float, request: Request) -> bool:
    share = state.settings.pair_tight_share
    alone_s = service_s(state, request.pool, request.attempt_work)
    return share is None or deadline_gains(request.deadline - now, alone_s, share)


def _reserve_peer(state: State, key: LaneKey, request: Request, worker: Worker) -> None:
    """Reserve a second worker for the other half of the guidance, if one is idle and no request waits for it."""
    lane = state.lanes[key]
    if not worker.pairable or not lane.ready or lane.fresh or lane.spare or lane.set_aside:
        return
    peer = cheapest_worker(state, key, request)
    if peer is not None and peer is not worker and peer.pairable and not peer.used_credits:
        take_as_peer(state, peer, request.attempt_key)


def _dispatch_reruns(state: State, now: float, lane: Lane) -> list[Effect]:
    effects: list[Effect] = []
    for request_id in tuple(lane.reruns):
        if not lane.ready and not lane.preparers:
            break
        request = state.requests[request_id]
        worker = _worker_for_rerun(state, now, lane, request)
        if worker is not None:
            effects.append(start_attempt(state, now, request, worker))
    return effects


def _worker_for_rerun(state: State, now: float, lane: Lane, request: Request) -> Worker | None:
    """Return a worker that did not lose the request, unless no other exists; a suspect waits for a second worker."""
    if not request.excluded:
        return cheapest_worker(state, request.lane_key, request)
    others = state.pool(request.pool).workers.values()
    holders = [worker for worker in others if worker.holds(request.model_digest) and suits(request, worker)]
    if len(holders) < 2 and now < request.suspect_until:
        return None
    takers = lane.takers(request)
    ready = [worker for worker in (state.workers[name] for name in takers) if suits(request, worker)]
    preferred = next((worker for worker in ready if not _is_excluded(request, worker)), None)
    if preferred is not None or not all(_is_excluded(request, worker) for worker in holders):
        return preferred
    return next(iter(ready), None)


def _is_excluded(request: Request, worker: Worker) -> bool:
    return (worker.worker_id, worker.worker_generation) in request.excluded


# Workers of equal cost compared for a request without adapters.
MAX_COMPARED = 8
# Time to load a LoRA, for workers that have not measured it.
ADAPTER_LOAD_S = 0.5


def suits(request: Request, worker: Worker) -> bool:
    """Return whether the worker can run the request with its adapters."""
    return not request.needs or can_paint(request.needs, worker.holdings)


def cheapest_worker(state: State, key: LaneKey, request: Request) -> Worker | None:
    """Return the lane's worker that has room for the request, suits it, and has the lowest cost including adapter
    loads; None if there is none. O(log n) in the workers with room for a request without adapters, O(n) for one with
    adapters."""
    takers = state.lanes[key].takers(request)
    if not takers:
        return None
    if not request.needs:
        return _least_missed(state, takers)
    costs = takers.costs()
    suited = [state.workers[worker_id] for worker_id in costs if suits(request, state.workers[worker_id])]
    profiled = state.pool(key[0]).speed.profile is not None

    def cost(worker: Worker) -> tuple[float, int]:
        place, since = costs[worker.worker_id]
        if not profiled:
            # Before speeds are known, costs are numbers of requests, and a load counts as one.
            return place + load_count(request.needs, worker.holdings), since
        # Costs are seconds for each unit of work.
        loading = loading_s(request.needs, worker.holdings, ADAPTER_LOAD_S)
        return request.work * place + loading, since

    return min(suited, key=cost, default=None)


def _least_missed(state: State, ready: ReadyWorkers) -> Worker:
    """Return, among the cheapest workers, the one with LoRAs that the others hold too: for a request without adapters
    they are equally good."""
    first = state.workers[ready.first()]
    if not (first.holdings.loras or first.holdings.resident):
        # No worker holds fewer LoRAs; the first of several is taken.
        return first
    workers = [state.workers[name] for name in ready.cheapest(MAX_COMPARED)]
    return workers[least_missed([worker.holdings for worker in workers])]
