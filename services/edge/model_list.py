"""`/v1/models`: the deployment's models and their limits, in OpenAI's format."""

from collections.abc import Mapping, Sequence
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

    async def models_of(request: Request) -> dict[str, dict[str, Any]]:
        async with parts.frontdoor.channel(token_of(request)) as channel:
            served = await ImageClient(channel).list_models(LIST_TIMEOUT_S)
        return model_documents(served, parts.model_aliases)

    async def models(request: Request) -> Response:
        """List the models."""
        return JSONResponse({"object": "list", "data": list((await models_of(request)).values())})

    async def model(request: Request) -> Response:
        """Return one model."""
        found = (await models_of(request)).get(request.path_params["model"])
        if found is None:
            raise NotFound.of("UNKNOWN_MODEL", "model", "there is no such model")
        return JSONResponse(found)

    return [Route("/v1/models", models), Route("/v1/models/{model}", model)]


def model_documents(served: Sequence[ModelInfo], aliases: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return models in OpenAI's format by name.

    `pentimento` has a model's limits; for an alias, its `alias_of` names the model (empty: the suite's choice). Aliases
    of models that are not served are skipped."""
    documents = {model.name: model_document(model.name, asdict(model)) for model in served}
    known = {model.name: asdict(model) for model in served}
    for alias, name in aliases.items():
        if name in known or not name:
            documents[alias] = model_document(alias, {**known.get(name, {}), "alias_of": name})
    return documents


def model_document(name: str, values: dict[str, Any]) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "pentimento", "pentimento": values}
