"""Test the load generator's requests, and the records of its answers."""

from dataclasses import replace

import numpy as np
import pytest

from lab.runs import Outcome, StageSpan, StartKind
from lab.runs.answers import ReceivedAnswer, outcome_of, record_of, stages_of, start_of, was_deferred
from lab.runs.asking import check_askable, request_of
from lab.runs.figures import waterfall
from lab.runs.load import LoadSettings
from lab.workloads import Arrival, Content, from_trace
from pentimento.domain.errors import (
    Cancelled,
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    PentimentoError,
    ResourceExhausted,
    Unavailable,
)
from pentimento.domain.generation import (
    CascadeStage,
    Donor,
    FromImage,
    FromLatent,
    FromNoise,
    NoiseForm,
    ObjectReference,
    Provenance,
    Route,
    StageTiming,
    Start,
)
from tests.support.values import a_provenance, a_route, a_spec

ARRIVAL = Arrival(5.0, "a", "a circle", "fast", 10.0, 50, 7, loras=("neon",))
SPEC = a_spec(model="heavy", num_inference_steps=50)
OBJECT, DONOR = ObjectReference("k", "sha256:0", 1), Donor("e", "sha256:0", 0.9)
TIMINGS = (
    StageTiming("queue", 0.0, 100.0),
    StageTiming("execute", 100.0, 1000.0),
    StageTiming("worker.queue", 100.0, 200.0),
    StageTiming("worker.denoise", 300.0, 700.0),
)


def provenance(start: Start | None = None, timings: tuple[StageTiming, ...] = ()) -> Provenance:
    return a_provenance(
        spec=SPEC,
        route=a_route(start=start or FromNoise(), model="heavy"),
        timings=timings,
        discriminator_confidence=0.7,
        device_seconds=1.5,
    )


def test_steps_of_zero_are_left_to_the_model() -> None:
    assert request_of(replace(ARRIVAL, steps=0), None).num_inference_steps is None


def test_request_has_the_arrivals_fields() -> None:
    request = request_of(ARRIVAL, 2.5)

    assert (request.prompt, request.num_inference_steps, request.seed, request.deadline_ms) == ("a circle", 50, 7, 2500)
    assert [lora.name for lora in request.loras] == ["neon"]


@pytest.mark.parametrize(("left_s", "deadline_ms"), [(None, None), (-3.0, 1), (0.0, 1)])
def test_past_deadline_is_sent_as_one_ms(left_s: float | None, deadline_ms: int | None) -> None:
    assert request_of(ARRIVAL, left_s).deadline_ms == deadline_ms


def test_controlnets_need_a_conditioning_image() -> None:
    workload = from_trace([0.0], np.random.default_rng(0), Content(("a",)))
    controlled = replace(workload, arrivals=(replace(workload.arrivals[0], controlnets=("edges",)),))

    check_askable(controlled, b"png")
    assert request_of(controlled.arrivals[0], None, None, b"png").controlnets[0].conditioning_image == b"png"
    with pytest.raises(InvalidArgument, match=r"arrivals\[0\]\.controlnets: need a conditioning image"):
        check_askable(controlled, b"")


@pytest.mark.parametrize(("ended_s", "outcome"), [(15.0, Outcome.COMPLETED), (15.01, Outcome.LATE)])
def test_the_deadline_counts_from_when_the_request_was_due(ended_s: float, outcome: Outcome) -> None:
    record = record_of(0, ARRIVAL, ReceivedAnswer(9.0, ended_s, "r1", provenance()))

    assert record.outcome is outcome
    assert record.latency_s == pytest.approx(ended_s - 5.0)
    assert record.stages == (StageSpan("generator", 5.0, 9.0),)


OUTCOMES: list[tuple[PentimentoError | None, Outcome]] = [
    (ResourceExhausted("QUEUE_FULL", "full"), Outcome.REJECTED),
    (DeadlineExceeded("PREDICTED_LATE", "late"), Outcome.DROPPED),
    (Cancelled("CANCELLED", "stopped"), Outcome.CANCELLED),
    (Unavailable("DOWN", "down"), Outcome.FAILED),
    (Internal("BUG", "bug"), Outcome.FAILED),
    (None, Outcome.FAILED),
]


def test_errors_are_outcomes() -> None:
    for error, outcome in OUTCOMES:
        record = record_of(3, ARRIVAL, ReceivedAnswer(5.0, 5.5, error=error))

        assert outcome_of(error, accepted=False) is outcome
        assert (record.outcome, record.request_id, record.device_s) == (outcome, "unnamed-3", 0.0)


def test_abandoned_accepted_request_is_dropped() -> None:
    error = ResourceExhausted("PREDICTED_LATE", "late", retry_after_ms=100)

    record = record_of(3, ARRIVAL, ReceivedAnswer(5.0, 7.5, "r1", error=error))

    assert (record.outcome, record.request_id) == (Outcome.DROPPED, "r1")


STARTS: list[tuple[Start, StartKind, int]] = [
    (FromNoise(), StartKind.NOISE, 0),
    (FromLatent(OBJECT, 20, 50, 0.5, DONOR), StartKind.LATENT, 20),
    (FromImage(OBJECT, 30, NoiseForm.FLOW_MATCHING, DONOR), StartKind.IMAGE, 30),
    (FromImage(OBJECT, 50, NoiseForm.FLOW_MATCHING, DONOR), StartKind.RETRIEVAL, 50),
]


def test_starts_have_kinds_and_steps() -> None:
    for start, kind, step in STARTS:
        assert start_of(provenance(start)) == (kind, step)


def test_image_of_a_later_stage_was_deferred() -> None:
    stages = (CascadeStage("light", "d", 0.5), CascadeStage("heavy"))

    assert was_deferred(Route("r", FromNoise(), "heavy", "", stages))
    assert not was_deferred(Route("r", FromNoise(), "light", "", stages))
    assert not was_deferred(Route("r", FromNoise(), "heavy", ""))


def test_stages_have_simulated_names_on_the_runs_clock() -> None:
    received = ReceivedAnswer(6.0, 8.0)

    assert stages_of(TIMINGS, received, detailed=False) == (
        StageSpan("queue", 6.0, 6.1),
        StageSpan("wait_worker", 6.1, pytest.approx(6.3)),
        StageSpan("paint", 6.3, 7.0),
    )


def test_detailed_stages_keep_the_workers_names() -> None:
    names = [stage.name for stage in stages_of(TIMINGS, ReceivedAnswer(0.0, 1.0), detailed=True)]

    assert names == ["queue", "worker.queue", "worker.denoise"]


def test_execution_without_stages_is_kept() -> None:
    assert [stage.name for stage in stages_of(TIMINGS[:2], ReceivedAnswer(0.0, 1.0), detailed=False)] == [
        "queue",
        "execute",
    ]


def test_no_second_counts_twice_in_the_waterfall() -> None:
    record = record_of(0, ARRIVAL, ReceivedAnswer(5.0, 6.0, "r", provenance(timings=TIMINGS)))

    assert sum(stage.share for stage in waterfall([record])) == pytest.approx(1.0)


def test_settings_have_limits() -> None:
    with pytest.raises(InvalidArgument, match="grace_s: must be at least 0"):
        LoadSettings(grace_s=-1.0)
    with pytest.raises(InvalidArgument, match="lead_s: must be at least 0"):
        LoadSettings(lead_s=float("nan"))
