"""What a prompt tells of a cascade before its light model paints: whether that would be for nothing."""

from collections.abc import Sequence

from pentimento.domain.embedding import Embedding
from pentimento.domain.generation import Start
from pentimento.policies.light_stages import leaves_out_light, skip_bound
from pentimento.policies.serving.entry import NOISE, Stage
from services.frontdoor.parts import FrontdoorParts
from services.frontdoor.routing.bounded_calls import Note
from services.frontdoor.routing.stages import discriminator_of
from services.frontdoor.routing.starts import kind_of


def foresees(parts: FrontdoorParts, stages: Sequence[Stage]) -> bool:
    """Return whether the light stage of such a request may be left out at all."""
    return len(stages) > 1 and _bound(parts, stages[0]) > 0.0


def _bound(parts: FrontdoorParts, first: Stage) -> float:
    return skip_bound(parts.dataplane.state.settings.skip_light_below, first.skip_below)


async def foresee(
    parts: FrontdoorParts, stages: Sequence[Stage], start: Start, embedding: Embedding | None, note: Note
) -> float | None:
    """Return the probability that the light picture from that start would be good enough; None where that is not asked
    of such a start, and with a note where nobody told in time. Raises nothing."""
    if not foresees(parts, stages) or _threshold(parts, stages[0], start) is None:
        return None
    told: float | None = None
    if embedding is not None:
        cascade, timeout_s = discriminator_of(stages, 0), parts.timeouts.foresee_s
        digest = stages[0].discriminator_digest
        told = await parts.discriminators.foresee(cascade, embedding, timeout_s, digest)
    if told is None:
        note("foresight skipped: no discriminator told")
    return told


def is_left_out(parts: FrontdoorParts, stages: Sequence[Stage], start: Start, foreseen: float | None) -> bool:
    """Return whether the light stage would be left out now, as the dataplane decides it."""
    if not foresees(parts, stages):
        return False
    return leaves_out_light(foreseen, _bound(parts, stages[0]), _threshold(parts, stages[0], start))


def left_out_note(model: str, foreseen: float) -> str:
    """Say for the provenance that a light model was left out, and why."""
    return f"{model} left out: by the prompt alone its picture is good enough with probability {foreseen:.3f}"


def _threshold(parts: FrontdoorParts, first: Stage, start: Start) -> float | None:
    """The confidence that a light picture must exceed; None where none from that start is scored, or the prompt's
    probability is not of such a start."""
    if kind_of(start) != NOISE:
        return None
    if first.cascade:
        return first.threshold(NOISE)
    state = parts.dataplane.state
    planned = state.plan is not None and state.plan.routes_requests
    return None if planned else state.settings.confidence_threshold
