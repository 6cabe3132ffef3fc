"""Health by itself: what a watcher is told, and that nobody is remembered who has gone."""

import asyncio

import pytest
from grpc_health.v1 import health_pb2

from pentimento.domain.errors import NotFound
from pentimento.rpc.health import HealthServicer
from tests.support.waiting import settle_down

Status = health_pb2.HealthCheckResponse
EVERYTHING = health_pb2.HealthCheckRequest()


async def test_a_state_that_does_not_change_is_told_once_and_a_watcher_who_goes_is_forgotten() -> None:
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


async def test_what_is_not_served_here_is_refused_by_its_reason() -> None:
    with pytest.raises(NotFound) as refused:
        await HealthServicer().Check(health_pb2.HealthCheckRequest(service="elsewhere"), None)  # type: ignore[arg-type]

    assert refused.value.reason == "UNKNOWN_SERVICE"
