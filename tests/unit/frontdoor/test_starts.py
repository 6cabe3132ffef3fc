"""A scope of the cache tells apart what was painted otherwise."""

from dataclasses import replace

from lab.fixtures.held_models import HELD
from pentimento.domain.cache import image_key, latent_key
from pentimento.domain.generation import ControlNetSelection, GenerationSpec, Scheduler
from pentimento.domain.image_request import CacheMode, ImageFormat, ResolvedRequest
from services.frontdoor.routing.starts import scope_of

SPEC = GenerationSpec("a red circle", "", HELD.model, 32, 32, 50, 3.0, Scheduler.DDIM, 7)
CONTROLLED = replace(SPEC, controlnets=(ControlNetSelection("edges", b"png", digest="sha256:edges"),))
RESOLVED = ResolvedRequest(CONTROLLED, CacheMode.READ_WRITE, ImageFormat.PNG, None, 1000, 0)


def test_latents_of_pipelined_pictures_are_not_those_of_synchronous_ones_and_images_serve_both() -> None:
    synchronous, early, late = (scope_of("tenant", RESOLVED, HELD, 0, first) for first in (0, 4, 8))

    assert len({latent_key(scope, 10) for scope in (synchronous, early, late)}) == 3
    assert len({image_key(scope) for scope in (synchronous, early, late)}) == 1
