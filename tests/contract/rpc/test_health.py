"""Test grpc.health.v1 as load balancers read it."""

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.contract.rpc.scripted import EMBEDDER, WORKER, Scripted

Status = health_pb2.HealthCheckResponse


async def check(channel: grpc.aio.Channel, service: str) -> int:
    answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=service))
    return int(answer.status)


async def test_health_of_process_and_services_is_the_same(target: Scripted, channel: grpc.aio.Channel) -> None:
    services = ("", EMBEDDER, WORKER)
    before = [await check(channel, service) for service in services]
    target.server.set_not_serving()

    assert before == [Status.SERVING] * 3
    assert [await check(channel, service) for service in services] == [Status.NOT_SERVING] * 3


async def test_watch_sends_current_state_and_every_change(target: Scripted, channel: grpc.aio.Channel) -> None:
    watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
    told = [(await watch.read()).status]
    target.server.set_not_serving()
    told.append((await watch.read()).status)
    target.server.set_serving()
    told.append((await watch.read()).status)

    assert told == [Status.SERVING, Status.NOT_SERVING, Status.SERVING]


async def test_a_watch_of_an_unknown_service_waits_for_it(channel: grpc.aio.Channel) -> None:
    watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service="later"))

    assert (await watch.read()).status == Status.SERVICE_UNKNOWN
