"""Values of a request's life. Each builder has plain defaults; a test names only the fields that it is about."""

from dataclasses import replace
from typing import Any

from pentimento.domain.fleet import Replica, ReplicaKind
from pentimento.domain.generation import Attempt, FromNoise, GenerationSpec, Provenance, Route, Scheduler
from pentimento.domain.image_request import ImageRequest

_SPEC = GenerationSpec("a red circle", "", "tiny", 32, 32, 10, 3.0, Scheduler.DDIM, seed=7)
_ROUTE = Route("route", FromNoise(), "tiny", "sha256:model")
_PROVENANCE = Provenance("request", _SPEC, _ROUTE, "sha256:model", "worker", 1, 1, 10, 0, "build")
_ATTEMPT = Attempt("request", 1, 1, "frontdoor", 1, "tenant")


def a_request(prompt: str = "a red circle", **changes: Any) -> ImageRequest:
    """Return a request as a client sends it, seed 1."""
    return replace(ImageRequest(prompt, seed=1), **changes)


def a_spec(**changes: Any) -> GenerationSpec:
    """Return a resolved request: the model tiny, 32 × 32 pixels, 10 steps."""
    return replace(_SPEC, **changes)


def a_route(**changes: Any) -> Route:
    """Return a route from noise to the model tiny."""
    return replace(_ROUTE, **changes)


def a_provenance(**changes: Any) -> Provenance:
    """Return the provenance of an image of `a_spec` by `a_route`, all 10 steps run."""
    return replace(_PROVENANCE, **changes)


def an_attempt(request_id: str = "request", **changes: Any) -> Attempt:
    """Return the first attempt at a request of the tenant "tenant", fencing token 1."""
    return replace(_ATTEMPT, request_id=request_id, **changes)


def a_worker(name: str = "w1", *resident_models: str, **changes: Any) -> Replica:
    """Return a worker that holds these models, generation 1."""
    replica = Replica(name, ReplicaKind.UNET_WORKER, f"unix:/{name}", 1, resident_models=resident_models)
    return replace(replica, **changes)
