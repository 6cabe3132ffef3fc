"""Test the external scaler's answers, and when it wakes its streams."""

import asyncio
import math
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import replace

import pytest

from pentimento.domain.demand import PoolDemand
from pentimento.domain.errors import InvalidArgument, ResourceExhausted, Unavailable
from pentimento.domain.fleet import Replica, ReplicaKind, ReplicaReport
from pentimento.policies.plan.inputs import ModelDemand, PlanInput, ReplicaView
from pentimento.policies.replica_counts import MOST_TARGETS, ScaledTarget
from services.controller.scaler import Scaler, target_of
from tests.support.values import a_worker
from tests.unit.policies.plan.fleets import SD15, profiles

HEAVY = ScaledTarget("unet_worker", ("sd15",), dwell_s=120.0)
MODELS = frozenset({"sd15", "turbo"})


class Fleet:
    """A scaler, a clock and the fleet that it looks at."""

    def __init__(self, slo_s: float = 3.6) -> None:
        self.now_s = 0.0
        self.scaler = Scaler(slo_s, lambda: self.now_s, most_streams=2)

    def begin(self) -> None:
        """Look for the first time, five seconds ago: arrivals count from then on."""
        self.scaler.look(PlanInput(self.now_s - 5.0, ()), MODELS, {})
        self.now_s += 5.0

    def look(self, *replicas: ReplicaView, per_s: float = 0.0, assigned: Mapping[str, str] | None = None) -> None:
        demand = (ModelDemand("sd15", per_s),)
        held = profiles(sd15=SD15) if any(view.replica.kind is ReplicaKind.UNET_WORKER for view in replicas) else ()
        self.scaler.look(PlanInput(self.now_s, replicas, demand, held), MODELS, assigned or {})

    def pass_time(self, seconds: float, *replicas: ReplicaView, per_s: float = 0.0) -> None:
        for _ in range(int(seconds / 5)):
            self.now_s += 5.0
            self.look(*replicas, per_s=per_s)


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


def workers(count: int) -> tuple[ReplicaView, ...]:
    return tuple(ReplicaView(a_worker(f"w{number}", "sd15")) for number in range(count))


def waiting(count: int) -> ReplicaView:
    door = Replica("f1", ReplicaKind.FRONTDOOR, "unix:/f1", 1)
    return ReplicaView(door, ReplicaReport("f1", 1, demand=(PoolDemand("sd15", queue_length=count),)))


def busy(kind: ReplicaKind, name: str, running: int, queued: int = 0) -> ReplicaView:
    report = ReplicaReport(name, 1, running_count=running, queue_length=queued)
    return ReplicaView(Replica(name, kind, f"unix:/{name}", 1), report)


def test_metadata_of_keda_itself_is_left_out() -> None:
    metadata = {"scalerAddress": "c:9090", "enableTLS": "true", "service": "unet_worker", "models": "sd15, turbo"}

    assert target_of(metadata) == ScaledTarget("unet_worker", ("sd15", "turbo"), 0.0, 300.0)
    assert target_of({"service": "embedder", "callsPerReplica": "2.5", "dwellSeconds": "30"}) == ScaledTarget(
        "embedder", (), 2.5, 30.0, 0.0
    )
    assert target_of({"service": "unet_worker", "startSeconds": "90"}) == ScaledTarget("unet_worker", start_s=90.0)


@pytest.mark.parametrize(
    ("metadata", "field", "limit"),
    [
        (
            {},
            "service",
            "must be one of controlnet_svc, discriminator, edge, embedder, frontdoor, image_embedder, unet_worker",
        ),
        ({"service": "painter"}, "service", "got 'painter'"),
        ({"service": "embedder", "callsPerReplica": "many"}, "callsPerReplica", "must be a number of 0.01 to 1e"),
        ({"service": "embedder", "callsPerReplica": "0"}, "callsPerReplica", "got '0'"),
        ({"service": "edge", "dwellSeconds": "nan"}, "dwellSeconds", "must be a number of 0 to 86400, got 'nan'"),
        ({"service": "edge", "dwellSecond": "5"}, "dwellSecond", "the metadata are service, models, callsPerReplica"),
        ({"service": "edge", "models": "sd15"}, "models", "is for the service unet_worker"),
        ({"service": "edge", "startSeconds": "5"}, "startSeconds", "is for the service unet_worker"),
        ({"service": "unet_worker", "callsPerReplica": "2"}, "callsPerReplica", "is for other services"),
    ],
)
def test_wrong_metadata_are_named_with_their_limit(metadata: dict[str, str], field: str, limit: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        target_of(metadata)

    (violation,) = refused.value.violations
    assert violation.field == f"scalerMetadata.{field}"
    assert limit in violation.description


@pytest.mark.parametrize("kind", [kind for kind in ReplicaKind if kind is not ReplicaKind.UNET_WORKER])
def test_every_service_has_a_number_of_calls(kind: ReplicaKind) -> None:
    assert target_of({"service": kind.value}).calls >= 1.0


def test_target_is_unavailable_until_the_fleet_is_known(fleet: Fleet) -> None:
    with pytest.raises(Unavailable) as refused:
        fleet.scaler.wanted(HEAVY)

    assert refused.value.reason == "FLEET_UNKNOWN"


def test_unknown_model_is_named_with_the_known_ones(fleet: Fleet) -> None:
    fleet.look()

    with pytest.raises(InvalidArgument, match=r"scalerMetadata.models: must be of sd15, turbo; got 'sdxl'"):
        fleet.scaler.wanted(ScaledTarget("unet_worker", ("sd15", "sdxl")))


def test_a_new_target_begins_with_the_running_count(fleet: Fleet) -> None:
    fleet.look(*workers(7), per_s=0.1)

    assert fleet.scaler.wanted(HEAVY) == 7


def test_workers_follow_demand_up_at_once_and_down_after_the_dwell(fleet: Fleet) -> None:
    fleet.begin()
    fleet.look(*workers(2), per_s=4.5)
    assert fleet.scaler.wanted(HEAVY) == 12

    fleet.pass_time(100, *workers(12))
    assert fleet.scaler.wanted(HEAVY) == 12
    fleet.pass_time(600, *workers(12))
    assert fleet.scaler.wanted(HEAVY) == 0


def test_requests_that_wait_at_workers_and_frontdoors_add_up(fleet: Fleet) -> None:
    full = ReplicaView(a_worker("w1", "sd15"), ReplicaReport("w1", 1, ("sd15",), queue_length=260))
    fleet.look(full, waiting(100))

    # 360 images of 1.78 s within five seconds after a start of a minute.
    assert fleet.scaler.wanted(HEAVY) == 10
    assert fleet.scaler.wanted(ScaledTarget("unet_worker", ("turbo",))) == 0


def test_workers_of_several_models_are_added_up(fleet: Fleet) -> None:
    fleet.begin()
    fleet.look(*workers(1), per_s=4.5)

    assert fleet.scaler.wanted(ScaledTarget("unet_worker")) == 12
    assert fleet.scaler.wanted(ScaledTarget("unet_worker", ("turbo",))) == 0


def test_costs_are_remembered_after_the_last_worker(fleet: Fleet) -> None:
    fleet.look(*workers(1))
    fleet.now_s = 5.0
    fleet.look(per_s=4.5)

    assert fleet.scaler.wanted(HEAVY) == 12


def test_a_move_of_models_by_the_plan_keeps_the_count_for_a_dwell(fleet: Fleet) -> None:
    fleet.look(*workers(9), per_s=0.01, assigned={"w1": "sd15"})
    assert fleet.scaler.wanted(HEAVY) == 9
    fleet.now_s = 100.0
    fleet.look(*workers(9), per_s=0.01, assigned={"w1": "turbo"})
    fleet.now_s = 219.0
    fleet.look(*workers(9), per_s=0.01, assigned={"w1": "turbo"})
    assert fleet.scaler.wanted(HEAVY) == 9

    fleet.now_s = 221.0
    fleet.look(*workers(9), per_s=0.01, assigned={"w1": "turbo"})
    assert fleet.scaler.wanted(HEAVY) < 9


@pytest.mark.parametrize(
    ("models", "count"),
    [
        pytest.param(("sd15",), 9, id="one of the two models that moved"),
        pytest.param(("sdxl",), 0, id="another model"),
        pytest.param(("sd15", "turbo"), 0, id="both models that moved"),
        pytest.param((), 0, id="all models"),
    ],
)
def test_move_of_models_holds_only_targets_that_gain_or_lose_a_worker(
    fleet: Fleet, models: tuple[str, ...], count: int
) -> None:
    known = MODELS | {"sdxl"}
    target = ScaledTarget("unet_worker", models, dwell_s=120.0)
    running = tuple(ReplicaView(a_worker(f"w{n}", models[0] if models else "sd15")) for n in range(9))
    for now_s, model in ((0.0, "sd15"), (100.0, "turbo"), (130.0, "turbo")):
        fleet.now_s = now_s
        fleet.scaler.look(PlanInput(now_s, running), known, {"w1": model, "w2": "sdxl"})
        assert fleet.scaler.wanted(target) == (9 if now_s < 130.0 else count)


def test_plan_that_moves_models_often_lets_the_count_fall_after_a_dwell(fleet: Fleet) -> None:
    wanted = []
    for now_s in range(0, 600, 50):
        fleet.now_s = float(now_s)
        fleet.look(*workers(9), assigned={"w1": "sd15" if now_s % 100 else "turbo"})
        wanted.append(fleet.scaler.wanted(HEAVY))

    # The first move is at 50 s, a dwell has 120 s.
    assert wanted == [9, 9, 9, 9, 0, 0, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("kind", "service"),
    [
        (ReplicaKind.EMBEDDER, "embedder"),
        (ReplicaKind.CONTROLNET, "controlnet_svc"),
        (ReplicaKind.DISCRIMINATOR, "discriminator"),
        (ReplicaKind.VECTORDB_GATEWAY, "vectordb_gateway"),
        (ReplicaKind.FRONTDOOR, "frontdoor"),
    ],
)
def test_services_follow_the_calls_of_their_replicas(fleet: Fleet, kind: ReplicaKind, service: str) -> None:
    fleet.look(busy(kind, "a", 20), busy(kind, "b", 10, queued=11))

    assert fleet.scaler.wanted(ScaledTarget(service, (), 10.0)) == 5


def edged(name: str, edges: int, calls: int) -> ReplicaView:
    """Return a frontdoor with 90 calls, `calls` of edges, and 50 queued requests."""
    report = ReplicaReport(name, 1, running_count=90, queue_length=50, edge_count=edges, edge_call_count=calls)
    return ReplicaView(Replica(name, ReplicaKind.FRONTDOOR, f"unix:/{name}", 1), report)


def test_edges_follow_their_own_calls_at_all_frontdoors(fleet: Fleet) -> None:
    fleet.look(edged("f1", 2, 20), edged("f2", 2, 11))

    assert fleet.scaler.wanted(ScaledTarget("edge", (), 10.0, dwell_s=0.0)) == 4


def test_edge_target_after_a_restart_begins_with_the_edges_that_called_and_falls_after_the_dwell(fleet: Fleet) -> None:
    target = ScaledTarget("edge", (), 10.0, dwell_s=120.0)
    wanted = []
    for now_s in (0.0, 100.0, 130.0):
        fleet.now_s = now_s
        fleet.look(edged("f1", 6, 0), edged("f2", 5, 0))
        wanted.append(fleet.scaler.wanted(target))

    assert wanted == [6, 6, 0]


async def test_stream_tells_at_once_and_when_a_request_begins_to_wait(fleet: Fleet) -> None:
    fleet.look()
    async with aclosing(fleet.scaler.watch_active(HEAVY)) as changes:
        assert await anext(changes) is False
        told = asyncio.ensure_future(anext(changes))
        await asyncio.sleep(0)
        fleet.scaler.note_waiting((waiting(0),))
        await asyncio.sleep(0)
        assert not told.done()
        fleet.scaler.note_waiting((waiting(1),))
        assert await asyncio.wait_for(told, 10.0) is True

    assert fleet.scaler.wanted(HEAVY) == 1


async def test_streams_are_limited_and_end_with_the_scaler(fleet: Fleet) -> None:
    fleet.look()
    streams = [fleet.scaler.watch_active(HEAVY) for _ in range(3)]
    for stream in streams[:2]:
        assert await anext(stream) is False
    with pytest.raises(ResourceExhausted):
        await anext(streams[2])

    fleet.scaler.close()
    for stream in streams[:2]:
        with pytest.raises(StopAsyncIteration):
            await anext(stream)


def test_targets_beyond_the_limit_are_forgotten(fleet: Fleet) -> None:
    fleet.look(*workers(5))
    for number in range(MOST_TARGETS + 1):
        fleet.scaler.wanted(replace(HEAVY, dwell_s=float(number)))
    fleet.now_s = 1000.0
    fleet.look(*workers(1))

    # The first look begins again, with the workers that run by then.
    assert fleet.scaler.wanted(replace(HEAVY, dwell_s=0.0)) == 1
    assert math.isfinite(fleet.scaler.wanted(replace(HEAVY, dwell_s=200.0)))
