"""`/health`, `/ready` and `/metrics`."""

from typing import Any

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from pentimento.clients.frontdoor import FrontdoorClient
from services.edge.http.callers import token_of
from services.edge.parts import EdgeParts

READY_TIMEOUT_S = 2.0
STATUS_TIMEOUT_S = 5.0


def health_routes(parts: EdgeParts) -> list[BaseRoute]:
    """Return the routes that load balancers and Prometheus ask."""

    async def health(request: Request) -> Response:
        """Tell that this process answers, whatever the suite behind it does."""
        return JSONResponse({"status": "ok"})

    async def ready(request: Request) -> Response:
        """Tell whether the frontdoor takes requests."""
        async with parts.frontdoor.channel(None) as channel:
            serving = await is_serving(channel)
        return JSONResponse({"status": "ready" if serving else "not ready"}, 200 if serving else 503)

    async def metrics(request: Request) -> Response:
        """Tell this process's metrics to whoever may ask the frontdoor for its status."""
        async with parts.frontdoor.channel(token_of(request)) as channel:
            await FrontdoorClient(channel).status(STATUS_TIMEOUT_S)
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)

    return [Route("/health", health), Route("/ready", ready), Route("/metrics", metrics)]


async def is_serving(channel: grpc.aio.Channel) -> bool:
    """Ask grpc.health.v1."""
    stub: Any = health_pb2_grpc.HealthStub(channel)
    try:
        answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=READY_TIMEOUT_S)
    except grpc.aio.AioRpcError:
        return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
