"""Account for the time of an attempt's stages, for its provenance and for the metrics."""

from collections.abc import Iterable

from pentimento.domain.execution import AttemptResult
from pentimento.domain.generation import StageTiming
from services.unet_worker import metrics

Mark = tuple[str, float, float]
"""A stage, when it began and when it ended; seconds on one clock."""


def stage_timings(accepted_at: float, marks: Iterable[Mark]) -> tuple[StageTiming, ...]:
    """Return the stages in order, in milliseconds since the order arrived."""
    return tuple(StageTiming(name, (since - accepted_at) * 1e3, (until - since) * 1e3) for name, since, until in marks)


def count_result(result: AttemptResult) -> None:
    """Add a result to the metrics."""
    for timing in result.timings:
        metrics.STAGE_SECONDS.labels(timing.stage).observe(timing.duration_ms / 1e3)
    metrics.SAVED_STEPS.inc(result.steps_saved)
    metrics.DEVICE_SECONDS.observe(result.device_seconds)
