"""Turn a client's answers into records."""

from collections.abc import Sequence
from dataclasses import dataclass

from lab.runs import Outcome, RequestRecord, StageSpan, StartKind
from lab.workloads import Arrival
from pentimento.domain.errors import Cancelled, DeadlineExceeded, PentimentoError, ResourceExhausted
from pentimento.domain.generation import FromImage, FromLatent, Provenance, Route, StageTiming

GENERATOR, WORKER = "generator", "worker."
# A simulated device has only waiting and generation; a live device's stages are summed up to these two.
COARSE = {
    "worker.start": "wait_worker",
    "worker.queue": "wait_worker",
    "worker.prepare": "paint",
    "worker.denoise": "paint",
    "worker.decode": "paint",
    "worker.encode": "paint",
    "worker.store": "paint",
}


@dataclass(frozen=True)
class ReceivedAnswer:
    """Times are seconds on the run's clock: when it was sent, and when the last word came. One of `provenance` and
    `error` is set, or neither when none came within the grace period."""

    sent_s: float
    ended_s: float
    request_id: str = ""
    provenance: Provenance | None = None
    error: PentimentoError | None = None
    quality: float | None = None


def record_of(number: int, arrival: Arrival, received: ReceivedAnswer, detailed: bool = False) -> RequestRecord:
    """The latency counts from when the request was due, whenever it was really sent."""
    made, due_s = received.provenance, arrival.at_s
    late_to_send = (StageSpan(GENERATOR, due_s, received.sent_s),) if received.sent_s > due_s else ()
    common = {
        "request_id": received.request_id or f"unnamed-{number}",
        "tenant": arrival.tenant,
        "slo_class": arrival.slo_class,
        "arrived_s": due_s,
        "deadline_s": arrival.deadline_s,
        "ended_s": received.ended_s,
    }
    if made is None:
        outcome = outcome_of(received.error, accepted=bool(received.request_id))
        return RequestRecord(**common, pool=arrival.model, outcome=outcome, steps=arrival.steps, stages=late_to_send)  # type: ignore[arg-type]
    in_time = received.ended_s - due_s <= arrival.deadline_s
    start, start_step = start_of(made)
    return RequestRecord(
        **common,  # type: ignore[arg-type]
        pool=made.route.model,
        outcome=Outcome.COMPLETED if in_time else Outcome.LATE,
        start=start,
        start_step=start_step,
        steps=made.spec.num_inference_steps,
        model=made.route.model,
        deferred=was_deferred(made.route),
        confidence=made.discriminator_confidence,
        quality=received.quality,
        stages=late_to_send + stages_of(made.timings, received, detailed),
        device_s=made.device_seconds,
    )


def outcome_of(error: PentimentoError | None, *, accepted: bool) -> Outcome:
    """Return the outcome: rejected if it was never accepted, dropped if it was or would be past its deadline, else
    failed."""
    if isinstance(error, ResourceExhausted):
        return Outcome.DROPPED if accepted else Outcome.REJECTED
    if isinstance(error, DeadlineExceeded):
        return Outcome.DROPPED
    return Outcome.CANCELLED if isinstance(error, Cancelled) else Outcome.FAILED


def start_of(made: Provenance) -> tuple[StartKind, int]:
    match made.route.start:
        case FromLatent() as latent:
            return StartKind.LATENT, latent.saved_steps
        case FromImage() as image:
            whole = image.start_step >= made.spec.num_inference_steps
            return StartKind.RETRIEVAL if whole else StartKind.IMAGE, image.saved_steps
    return StartKind.NOISE, 0


def was_deferred(route: Route) -> bool:
    """Return whether the image comes from a later stage of its cascade than the first."""
    return len(route.stages) > 1 and route.model != route.stages[0].model


def stages_of(timings: Sequence[StageTiming], received: ReceivedAnswer, detailed: bool) -> tuple[StageSpan, ...]:
    """The server's clock is not ours: it is taken to have begun when the request was sent. What the server calls
    "execute" is the worker's stages and the way there; it is left out where those are known."""
    known = {timing.stage for timing in timings}
    inside = any(name.startswith(WORKER) for name in known)
    return tuple(
        StageSpan(
            timing.stage if detailed else COARSE.get(timing.stage, timing.stage),
            received.sent_s + timing.start_ms / 1000,
            received.sent_s + (timing.start_ms + timing.duration_ms) / 1000,
        )
        for timing in timings
        if not (inside and timing.stage == "execute")
    )
