"""`/v1/models`: the models of the deployment as OpenAI's clients read them, with their limits."""

from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from pentimento.clients.image import ImageClient
from pentimento.domain.errors import NotFound
from pentimento.domain.image_request import ModelInfo
from services.edge.http.callers import token_of
from services.edge.parts import EdgeParts

LIST_TIMEOUT_S = 10.0


def model_routes(parts: EdgeParts) -> list[BaseRoute]:
    """Return the routes of models."""

    async def models_of(request: Request) -> tuple[ModelInfo, ...]:
        async with parts.frontdoor.channel(token_of(request)) as channel:
            return await ImageClient(channel).list_models(LIST_TIMEOUT_S)

    async def models(request: Request) -> Response:
        """List them."""
        return JSONResponse({"object": "list", "data": [model_document(model) for model in await models_of(request)]})

    async def model(request: Request) -> Response:
        """Tell one of them."""
        name = request.path_params["model"]
        for known in await models_of(request):
            if known.name == name:
                return JSONResponse(model_document(known))
        raise NotFound.of("UNKNOWN_MODEL", "model", "there is no such model")

    return [Route("/v1/models", models), Route("/v1/models/{model}", model)]


def model_document(model: ModelInfo) -> dict[str, Any]:
    """Return a model in OpenAI's shape; `pentimento` says what its requests must keep."""
    return {"id": model.name, "object": "model", "created": 0, "owned_by": "pentimento", "pentimento": asdict(model)}
