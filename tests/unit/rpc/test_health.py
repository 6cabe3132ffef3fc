"""Report health to watchers, and forget watchers that left."""

import asyncio

import pytest
from grpc_health.v1 import health_pb2

from pentimento.domain.errors import NotFound
from pentimento.rpc.health import HealthServicer
from tests.support.waiting import settle_down

Status = health_pb2.HealthCheckResponse
EVERYTHING = health_pb2.HealthCheckRequest()


async def test_unchanged_state_is_sent_once_and_left_watcher_is_forgotten() -> None:
    health = HealthServicer()
    watch = health.Watch(EVERYTHING, None)  # type: ignore[arg-type]
    told = [(await anext(watch)).status]
    following = asyncio.ensure_future(anext(watch))
    await settle_down()

    health.set(False)
    await settle_down()
    waits = not following.done()
    health.set(True)
    told.append((await following).status)
    await watch.aclose()  # type: ignore[attr-defined]

    assert (told, waits) == ([Status.NOT_SERVING, Status.SERVING], True)
    assert (health.serving, health._watchers) == (True, set())


async def test_unknown_service_is_rejected_by_reason() -> None:
    with pytest.raises(NotFound) as refused:
        await HealthServicer().Check(health_pb2.HealthCheckRequest(service="elsewhere"), None)  # type: ignore[arg-type]

    assert refused.value.reason == "UNKNOWN_SERVICE"
