"""Start a cascade's later stage from the previous stage's image, which the discriminator rejected (DiffServe,
section 5), if a registration or a hand-over profile of the pair gives the share of steps that this saves.

The image is passed on as an init image, as clients send them: it is noised to the first step that is run. It is not
stored; a replay of the result needs it from the client, like every input image. The journal stores its digest and
strength, for attaching to the attempt after a restart.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from pentimento.domain.generation import FromNoise, InitImage, SpecInput
from pentimento.domain.image_request import ResolvedRequest, StartImage
from pentimento.policies.plan.entry import Stage
from pentimento.profiles.catalogue import HandoverMode, HandoverProfiles, HandoverShare
from pentimento.stores.objects.store import refer_to
from services.frontdoor.requests.jobs import Job
from services.frontdoor.routing.starts import PoolOption
from services.frontdoor.workers.catalogue import Catalogue

INIT_IMAGE = "init_image.image"


@dataclass(frozen=True)
class LightStarts:
    """Decide which share of a later stage's steps is skipped. A registration in the plan overrides the profiles."""

    mode: HandoverMode
    profiles: HandoverProfiles
    catalogue: Catalogue

    def _share(self, light: Stage, heavy_digest: str) -> HandoverShare:
        """Return the share of the stage after `light`, and the reason."""
        if self.mode is HandoverMode.OFF:
            return HandoverShare(0.0, "hand-over is off")
        if light.reuse_share:
            return HandoverShare(light.reuse_share, "the registration of the cascade")
        held = self.catalogue.known(light.model)
        return self.profiles.share(held.model_digest if held is not None else "", heavy_digest)

    def notes(self, stages: Sequence[Stage]) -> list[str]:
        """Return a sentence for each pair of stages: how the later one starts, and why."""
        return [self._note(light, heavy) for light, heavy in pairwise(stages)]

    def _note(self, light: Stage, heavy: Stage) -> str:
        held = self.catalogue.known(heavy.model)
        found = self._share(light, held.model_digest if held is not None else "")
        if not found.share:
            return f"{heavy.model} starts from noise after {light.model}: {found.reason}"
        return f"{heavy.model} skips {found.share:.0%} of its steps from the image of {light.model}: {found.reason}"

    def started(self, job: Job, number: int, option: PoolOption) -> PoolOption:
        """Return the option of stage `number` with a start from the previous stage's image.

        The option is unchanged if the pair has no share, if no such image exists, or if the pair's measurement does not
        cover the request: with adapters, an init image, a requested quality, a pin, a replay or a start from the cache.
        """
        if not number:
            return option
        light = job.stages[number - 1]
        share = self._share(light, option.held.model_digest).share
        steps = int(option.resolved.spec.num_inference_steps * (1.0 - share) + 1e-9)
        image = _image_of(job, number - 1) if share and steps else None
        if image is None or not _may_reuse(option):
            return option
        job.note(f"{option.held.model} started from the image of {light.model}: {steps} steps")
        return replace(option, resolved=_from_image(option.resolved, image, steps))


def start_image_of(resolved: ResolvedRequest) -> StartImage | None:
    """Return the previous stage's image that the request starts from; None if it starts from none."""
    init_image = resolved.spec.init_image
    # A client's image has a key in the object store.
    handed = [part.object for part in resolved.inputs if part.field == INIT_IMAGE and not part.object.key]
    return StartImage(handed[0], init_image.strength) if handed and init_image is not None else None


def as_handed(resolved: ResolvedRequest, handed: StartImage) -> ResolvedRequest:
    """Return the request of an attempt that started from that image, without the image's bytes, which are lost."""
    spec = replace(resolved.spec, init_image=InitImage(b"", handed.strength))
    return replace(resolved, spec=spec, inputs=(*resolved.inputs, SpecInput(INIT_IMAGE, handed.image)))


def _image_of(job: Job, number: int) -> bytes | None:
    found = [one.result.image for one in job.executions.values() if one.stage == number and one.result is not None]
    return found[-1] if found else None


def _may_reuse(option: PoolOption) -> bool:
    resolved = option.resolved
    asks_more = resolved.quality is not None or bool(resolved.pin_ms) or resolved.replay is not None
    spec = resolved.spec
    adapted = bool(spec.loras or spec.controlnets or spec.image_prompts or spec.init_image)
    return isinstance(option.route.start, FromNoise) and not asks_more and not adapted


def _from_image(resolved: ResolvedRequest, image: bytes, steps: int) -> ResolvedRequest:
    """Return the request with only its last `steps`. The strength is rounded up, so that multiplying yields `steps`."""
    strength = min((steps + 1e-6) / resolved.spec.num_inference_steps, 1.0)
    spec = replace(resolved.spec, init_image=InitImage(image, strength))
    return replace(resolved, spec=spec, inputs=(*resolved.inputs, SpecInput(INIT_IMAGE, refer_to("", image))))
