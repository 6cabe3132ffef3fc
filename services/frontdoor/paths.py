"""Which models a request is painted by: one, or those of a cascade, light first.

Where the client names no model the deployment decides, by its plan or else by its settings.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pentimento.dataplane import Dataplane
from pentimento.domain.errors import NotFound, Unavailable
from pentimento.domain.fleet import HeldModel
from pentimento.domain.generation import CascadeStage, Scheduler
from pentimento.domain.image_request import ImageRequest
from pentimento.policies.serving import entry_pools
from pentimento.policies.serving.entry import NOISE
from services.frontdoor.catalogue import Catalogue
from services.frontdoor.resolution import ResolvedRequest


@dataclass(frozen=True)
class Stop:
    """A pool on a request's way, and its model."""

    pool: str
    model: str
    confidence_threshold: float = 0.0


class Paths:
    """Requests that name a model are painted by it alone."""

    def __init__(self, catalogue: Catalogue, dataplane: Dataplane, cascade: Sequence[str], rng: random.Random) -> None:
        """`cascade`: models by their stages, for plans that say nothing of the way."""
        self._catalogue = catalogue
        self._dataplane = dataplane
        self._cascade = tuple(Stop(model, model) for model in cascade)
        self._rng = rng

    def choose(self, request: ImageRequest) -> tuple[HeldModel, tuple[Stop, ...]]:
        """The model that the request is judged by, the last on the way, and the way. NotFound, Unavailable."""
        if request.model or request.init_image is not None:
            held = self._catalogue.find(request.model)
            return held, (Stop(held.model, held.model),)
        way = self._planned() or self._cascade
        if not all(self._is_known(stop.model) for stop in way):
            way = way[-1:]
        held = self._catalogue.find(way[-1].model if way else "")
        return held, way or (Stop(held.model, held.model),)

    def _planned(self) -> tuple[Stop, ...]:
        plan = self._dataplane.state.plan
        pools = entry_pools(plan.pools, NOISE, self._rng.random()) if plan is not None else ()
        return tuple(Stop(pool.pool, pool.model, pool.confidence_threshold) for pool in pools)

    def _is_known(self, model: str) -> bool:
        try:
            self._catalogue.find(model)
        except (NotFound, Unavailable):
            return False
        return True


def stages_of(way: Sequence[Stop]) -> tuple[CascadeStage, ...]:
    """As a route records them; none for a way of one stop."""
    if len(way) < 2:
        return ()
    discriminator = cascade_name([stop.model for stop in way])
    *scored, last = way
    return (
        *(CascadeStage(stop.model, discriminator, stop.confidence_threshold) for stop in scored),
        CascadeStage(last.model),
    )


def cascade_name(models: Sequence[str]) -> str:
    """By which a discriminator knows the cascade."""
    return ">".join(models)


def as_painted_by(resolved: ResolvedRequest, held: HeldModel) -> ResolvedRequest:
    """The same picture asked of another model: its own steps, guidance and scheduler, nothing else."""
    if held.model == resolved.spec.model:
        return resolved
    spec = replace(
        resolved.spec,
        model=held.model,
        num_inference_steps=held.default_steps,
        guidance_scale=held.default_guidance_scale,
        scheduler=Scheduler(held.schedulers[0]),
        eta=0.0,
    )
    return replace(resolved, spec=spec)


def fits(resolved: ResolvedRequest, held: HeldModel) -> bool:
    """Whether the model can paint a picture of that size."""
    sides = (resolved.spec.width_px, resolved.spec.height_px)
    return all(side <= held.max_size_px and side % held.size_multiple_px == 0 for side in sides)
