"""`/health`, `/ready` and `/metrics`."""

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from pentimento.clients.frontdoor import FrontdoorClient
from services.edge.http.callers import token_of
from services.edge.parts import EdgeParts

STATUS_TIMEOUT_S = 5.0


def health_routes(parts: EdgeParts) -> list[BaseRoute]:
    """Return the routes for load balancers and Prometheus."""

    async def health(request: Request) -> Response:
        """Answer 200, independent of the suite."""
        return JSONResponse({"status": "ok"})

    async def ready(request: Request) -> Response:
        """Answer 200 if clients should send requests here, else 503."""
        why_not = await parts.readiness.why_not()
        if why_not is None:
            return JSONResponse({"status": "ready"})
        return JSONResponse({"status": "not ready", **({"reason": why_not} if why_not else {})}, 503)

    async def metrics(request: Request) -> Response:
        """Return this process's metrics, if the caller may read the frontdoor's status."""
        async with parts.frontdoor.channel(token_of(request)) as channel:
            await FrontdoorClient(channel).status(STATUS_TIMEOUT_S)
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)

    return [Route("/health", health), Route("/ready", ready), Route("/metrics", metrics)]
