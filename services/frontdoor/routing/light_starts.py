"""A later stage that starts from the picture which the stage before it made, and the discriminator refused (DiffServe,
section 5): where the plan says what share of its steps that spares, as the pair was measured.

The picture goes along as an image to start from, as clients send them: it is noised again to the first step that is
taken. It is kept nowhere; a replay of such a picture asks for it, as it asks for whatever a request came with. What
the journal has of it, its digest and how it was used, is for whoever attaches to such an attempt after a restart.
"""

from dataclasses import replace

from pentimento.domain.generation import FromNoise, InitImage, SpecInput
from pentimento.domain.image_request import ResolvedRequest, StartImage
from pentimento.stores.objects.store import refer_to
from services.frontdoor.requests.jobs import Job
from services.frontdoor.routing.stages import PoolOption

INIT_IMAGE = "init_image.image"


def started_from_light(job: Job, number: int, option: PoolOption) -> PoolOption:
    """Return the option of that stage as it starts from the picture of the stage before; as it is where the plan has no
    share for the pair, there is no such picture, or the pair's measurement says nothing of such a request: one with
    adapters or a quality of its own, one that has to be replayable, one that starts from something else."""
    share = job.stages[number - 1].reuse_share if number else 0.0
    steps = int(option.resolved.spec.num_inference_steps * (1.0 - share) + 1e-9)
    picture = _picture_of(job, number - 1) if share and steps else None
    if picture is None or not _may_reuse(option):
        return option
    job.note(f"{option.held.model} started from the image of {job.stages[number - 1].model}: {steps} steps")
    return replace(option, resolved=_from_picture(option.resolved, picture, steps))


def start_image_of(resolved: ResolvedRequest) -> StartImage | None:
    """Return what an attempt that paints this starts from of the stage before; None where that is nothing."""
    init_image = resolved.spec.init_image
    # What a client sent has a key in the object store.
    handed = [part.object for part in resolved.inputs if part.field == INIT_IMAGE and not part.object.key]
    return StartImage(handed[0], init_image.strength) if handed and init_image is not None else None


def as_handed(resolved: ResolvedRequest, handed: StartImage) -> ResolvedRequest:
    """Return what an attempt painted that started from that picture, whose bytes are gone."""
    spec = replace(resolved.spec, init_image=InitImage(b"", handed.strength))
    return replace(resolved, spec=spec, inputs=(*resolved.inputs, SpecInput(INIT_IMAGE, handed.image)))


def _picture_of(job: Job, number: int) -> bytes | None:
    found = [one.result.image for one in job.executions.values() if one.stage == number and one.result is not None]
    return found[-1] if found else None


def _may_reuse(option: PoolOption) -> bool:
    resolved = option.resolved
    asks_more = resolved.quality is not None or bool(resolved.pin_ms) or resolved.replay is not None
    adapted = bool(resolved.spec.loras or resolved.spec.controlnets or resolved.spec.init_image)
    return isinstance(option.route.start, FromNoise) and not asks_more and not adapted


def _from_picture(resolved: ResolvedRequest, picture: bytes, steps: int) -> ResolvedRequest:
    """Of its steps the last `steps` are taken. The strength is rounded up, so that whoever multiplies finds as many."""
    strength = min((steps + 1e-6) / resolved.spec.num_inference_steps, 1.0)
    spec = replace(resolved.spec, init_image=InitImage(picture, strength))
    return replace(resolved, spec=spec, inputs=(*resolved.inputs, SpecInput(INIT_IMAGE, refer_to("", picture))))
