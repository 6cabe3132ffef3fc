"""Recount what the dataplane counts from its requests and workers."""

import math
from collections.abc import Mapping

import pytest

from pentimento.dataplane.credits import is_eligible
from pentimento.dataplane.pools import Lane, Pool, Worker
from pentimento.dataplane.requests import ATTEMPTED, WAITING, LaneKey, Phase, Request
from pentimento.dataplane.state import State, TimerKind


def check_bookkeeping(state: State) -> None:
    """Assert that every total, queue and list of workers equals the sum of its parts."""
    for pool in state.pools.values():
        _check_waiting(pool, [each for each in _of(state, pool) if each.phase in WAITING])
        _check_running(pool, [each for each in _of(state, pool) if each.phase in ATTEMPTED])
        _check_credits(pool, state)
    for key, lane in state.lanes.items():
        _check_queues(key, lane, state)
        _check_offers(key, lane, state)
    tenants = [request.tenant for request in state.requests.values()]
    assert state.tenant_counts == {tenant: tenants.count(tenant) for tenant in tenants}
    _check_attempts(state)
    _check_timers(state)


def check_counters(state: State, asked: Mapping[str, int]) -> None:
    """Compare the counters that operators see with the messages to clients: `asked` counts effects by kind, and
    ends."""
    counters, pools = state.counters, state.pools.values()
    shown = {
        "Announce": counters.accepted,
        "Reject": counters.rejected,
        "Deliver": counters.completed,
        "FAILED": counters.failed,
        "CANCELLED": counters.cancelled,
        "EXPIRED": counters.expired,
        "DROPPED": counters.dropped,
    }
    assert shown == {name: asked[name] for name in shown}
    assert sum(pool.completed_count for pool in pools) == asked["Deliver"]
    assert sum(pool.dropped_count for pool in pools) == sum(
        asked[name] for name in ("Reject", "FAILED", "EXPIRED", "DROPPED")
    )
    sent_on = sum(pool.deferred_count + pool.stood_in_count for pool in pools)
    assert sum(pool.arrived_count for pool in pools) == asked["PersistAccepted"] + asked["Reject"] + sent_on
    assert all(pool.deferred_count <= pool.scored_count for pool in pools)
    assert sum(pool.scored_count for pool in pools) <= asked["Score"]


def _of(state: State, pool: Pool) -> list[Request]:
    return [request for request in state.requests.values() if request.pool == pool.name]


def _check_waiting(pool: Pool, waiting: list[Request]) -> None:
    assert pool.waiting_count == len(waiting)
    assert pool.waiting_work == pytest.approx(sum(request.work for request in waiting))
    tenants = {request.tenant for request in waiting}
    assert pool.tenants.keys() == tenants
    for tenant in tenants:
        own = [request.work for request in waiting if request.tenant == tenant]
        assert pool.tenants[tenant].count == len(own)
        assert pool.tenants[tenant].work == pytest.approx(sum(own))


def _check_running(pool: Pool, running: list[Request]) -> None:
    assert pool.running_count == len(running)
    assert pool.ends == sorted(request.ends_at for request in running if request.ends_at is not None)


def _check_credits(pool: Pool, state: State) -> None:
    there = {name: worker for name, worker in state.workers.items() if worker.connected and pool.name in worker.pools}
    assert pool.workers == there
    credits = [worker.credit_count for worker in there.values() if not worker.draining]
    assert pool.credit_count == sum(credits)
    # e(b) as profiled gives b / e(b) of a full worker; without a profile a unit of work is a second.
    assert pool.throughput == pytest.approx(
        sum(count / pool.speed.seconds_per_work(count) for count in credits if count)
    )


def _check_queues(key: LaneKey, lane: Lane, state: State) -> None:
    queued = [request for request in state.requests.values() if request.phase is Phase.QUEUED]
    own = {request.request_id for request in queued if request.lane_key == key}
    fresh = {name for name in own if name in lane.fresh}
    aside = lane.set_aside.keys() & own
    assert own == fresh | lane.reruns.keys() | aside
    assert len(fresh) + len(lane.reruns) + len(aside) == len(own)
    assert len(lane.fresh) == len(fresh)
    others = {
        request.request_id
        for request in queued
        if request.request_id not in state.lane(request.lane_key).reruns
        and key in [(option.pool, option.model_digest) for option in request.spare]
    }
    others_aside = lane.set_aside.keys() - own
    assert others_aside <= others
    assert lane.inputs.keys() == {name for name in own | others if state.requests[name].has_inputs}
    assert len(lane.spare) == len(others - others_aside)
    assert all(name in lane.spare for name in others - others_aside)


def _check_offers(key: LaneKey, lane: Lane, state: State) -> None:
    ready, preparers, reserve = set(lane.ready), set(lane.preparers), set(lane.reserve)
    for name, worker in state.workers.items():
        there = worker.connected and key in worker.lane_keys and is_eligible(state, worker)
        free = worker.credit_count - worker.used_credits
        assert (name in ready) == (there and free > 0)
        prepares = len(worker.preparing) < worker.preparing_count and worker.credit_count > 0 and free >= 0
        assert (name in preparers) == (there and (prepares if worker.preparing_count else free > 0))
        spare = free <= 0 < free + worker.reserve_count and bool(worker.in_flight)
        assert (name in reserve) == (there and spare)
    assert ready | preparers | reserve <= state.workers.keys()


def _check_attempts(state: State) -> None:
    for name, worker in state.workers.items():
        holds = {key for key, holder in state.attempt_workers.items() if holder == name}
        helps = {key for key, helper in state.peers.items() if helper == name}
        assert worker.in_flight.keys() == holds | helps
        assert not holds & helps
        assert worker.begun.keys() | worker.yielded.keys() | worker.preparing.keys() <= holds
        assert worker.preparing.keys().isdisjoint(worker.begun.keys() | worker.yielded.keys())
        _check_used(worker)
    for request in state.requests.values():
        held = {token for name, token in state.attempt_workers if name == request.request_id}
        assert held <= {request.fencing_token}
        assert request.phase not in ATTEMPTED or held
    assert state.unpersisted.keys() >= {
        request.attempt_key for request in state.requests.values() if request.phase is Phase.STARTING
    }


def _check_used(worker: Worker) -> None:
    assert worker.used_credits >= 0
    assert not worker.abandoned & worker.in_flight.keys()


def _check_timers(state: State) -> None:
    """Assert that no deadline is missed and that every timer belongs to a request or worker that exists."""
    due = {(kind, key): at for at, _, kind, key in sorted(state.timers, reverse=True)}
    for request_id, request in state.requests.items():
        if request.phase not in (Phase.COMMITTING, Phase.ENDING) and request.ending is None:
            assert due.get((TimerKind.DEADLINE, request_id), math.inf) <= request.deadline
    if state.timers:
        assert state.is_set(state.timers[0])
