"""Every domain value survives the way through its message."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pentimento.api.controller.v1 import controller_service_pb2 as controller_pb
from pentimento.api.embedder.v1 import embedder_service_pb2 as embedder_pb
from pentimento.api.generation.v1 import generation_pb2
from pentimento.api.image.v1 import image_service_pb2 as image_pb
from pentimento.api.worker.v1 import unet_worker_service_pb2 as worker_pb
from pentimento.domain.adapters import Adapter
from pentimento.domain.cache import CacheScope
from pentimento.domain.errors import Internal, InvalidArgument, PentimentoError
from pentimento.domain.execution import AttemptResult, Started, StepProgress, WorkerCredits
from pentimento.domain.fleet import Fleet, HeldModel, Plan, Replica, ReplicaLease, ReplicaReport
from pentimento.domain.generation import Attempt, CacheGrant, CapturedEntries, GenerationSpec, Provenance, Route
from pentimento.domain.image_request import (
    Accepted,
    AskedLora,
    Completed,
    Explanation,
    ImageRequest,
    ModelInfo,
    PictureFailed,
    Progress,
    ReplayRequest,
    RequestStatus,
    Routed,
)
from pentimento.domain.jobs import RequestPage, RequestQuery, ResultUrl
from pentimento.domain.retrieval import LookupAnswer, LookupCandidate
from pentimento.wire import adapters, cache, fleet, generation, image, jobs, plans, provenance, reports

# Numbers as wide as the contract's narrowest field of the kind; text as protobuf takes it (no lone surrogates).
st.register_type_strategy(int, st.integers(0, 2**31 - 1))
st.register_type_strategy(float, st.floats(allow_nan=False))
st.register_type_strategy(str, st.text(st.characters(exclude_categories=["Cs"]), max_size=8))
st.register_type_strategy(bytes, st.binary(max_size=8))
# One of several pictures: their statuses have none below them. With whole pictures the draws would be too large.
PICTURE_STATUSES = st.builds(RequestStatus, error_reason=..., error_message=...)
st.register_type_strategy(
    RequestStatus,
    st.builds(
        RequestStatus,
        completed=...,
        error_reason=...,
        error_message=...,
        pictures=st.lists(PICTURE_STATUSES, max_size=2).map(tuple),
        summary=...,
        webhook=...,
    ),
)

ROUND_TRIPS = {
    GenerationSpec: (generation.spec_to_proto, generation.spec_from_proto),
    Route: (generation.route_to_proto, generation.route_from_proto),
    CacheGrant: (generation.grant_to_proto, generation.grant_from_proto),
    CapturedEntries: (generation.captured_to_proto, generation.captured_from_proto),
    Provenance: (provenance.provenance_to_proto, provenance.provenance_from_proto),
    Adapter: (adapters.adapter_to_proto, adapters.adapter_from_proto),
    Replica: (fleet.replica_to_proto, fleet.replica_from_proto),
    HeldModel: (fleet.held_model_to_proto, fleet.held_model_from_proto),
    Plan: (plans.plan_to_bytes, plans.plan_from_bytes),
    WorkerCredits: (fleet.credits_to_proto, fleet.credits_from_proto),
    Started: (fleet.execute_event_to_proto, fleet.execute_event_from_proto),
    StepProgress: (fleet.attach_event_to_proto, fleet.execute_event_from_proto),
    ReplicaLease: (reports.lease_to_proto, reports.lease_from_proto),
    ReplicaReport: (reports.report_to_proto, reports.report_from_proto),
    Fleet: (reports.fleet_to_proto, reports.fleet_from_proto),
    ImageRequest: (image.request_to_proto, image.request_from_proto),
    ReplayRequest: (image.replay_to_proto, image.replay_from_proto),
    Accepted: (image.event_to_proto, image.event_from_proto),
    Routed: (image.event_to_proto, image.event_from_proto),
    Progress: (image.event_to_proto, image.event_from_proto),
    Completed: (image.event_to_proto, image.event_from_proto),
    RequestStatus: (image.status_to_proto, image.status_from_proto),
    Explanation: (image.explanation_to_proto, image.explanation_from_proto),
    ModelInfo: (image.model_to_proto, image.model_from_proto),
    RequestPage: (jobs.page_to_proto, jobs.page_from_proto),
    RequestQuery: (jobs.query_to_proto, jobs.query_from_proto),
    ResultUrl: (jobs.result_url_to_proto, jobs.result_url_from_proto),
    CacheScope: (cache.scope_to_proto, cache.scope_from_proto),
    LookupCandidate: (cache.candidate_to_proto, cache.candidate_from_proto),
    LookupAnswer: (cache.answer_to_proto, cache.answer_from_proto),
}


@pytest.mark.parametrize("kind", ROUND_TRIPS, ids=lambda kind: kind.__name__)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_value_survives_its_message(kind, data):
    to_proto, from_proto = ROUND_TRIPS[kind]
    value = data.draw(st.from_type(kind))

    assert from_proto(to_proto(value)) == value


@pytest.mark.parametrize("kind", [Accepted, Routed, Progress, Completed])
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_a_replay_tells_what_a_generation_tells(kind, data):
    event = data.draw(st.from_type(kind))

    assert image.event_from_proto(image.replay_event_to_proto(event)) == event


@pytest.mark.parametrize("kind", PentimentoError.__subclasses__())
@pytest.mark.parametrize("retry_after_ms", [None, 1500])
def test_a_picture_that_failed_keeps_what_its_error_says(kind, retry_after_ms):
    error = kind("WORKER_LOST", "two workers were lost", retry_after_ms=retry_after_ms)

    heard = image.event_from_proto(image.event_to_proto(PictureFailed("p2-0-1", 1, error)))

    assert isinstance(heard, PictureFailed)
    assert (heard.request_id, heard.image_index, type(heard.error)) == ("p2-0-1", 1, kind)
    assert (heard.error.reason, heard.error.message) == ("WORKER_LOST", "two workers were lost")
    assert heard.error.retry_after_ms == retry_after_ms


def test_an_error_of_no_known_code_is_internal():
    assert image.failed_from_proto(image_pb.PictureFailed(code=77)).error.__class__ is Internal


@settings(max_examples=25, deadline=None)
@given(result=st.from_type(AttemptResult), request_id=st.text("abc", min_size=1))
def test_result_survives_its_message(result, request_id):
    named = replace(result, attempt=replace(result.attempt, request_id=request_id))

    assert fleet.execute_event_from_proto(fleet.execute_event_to_proto(named)) == named


@pytest.mark.parametrize(
    ("read", "message", "field"),
    [
        (generation.spec_from_proto, generation_pb2.GenerationSpec(), "scheduler"),
        (generation.start_from_proto, generation_pb2.Start(), "start"),
        (generation.start_from_proto, generation_pb2.Start(latent=generation_pb2.FromLatent()), "start.latent.latent"),
        (generation.attempt_from_proto, generation_pb2.Attempt(), "attempt.request_id"),
        (fleet.replica_from_proto, controller_pb.Replica(), "kind"),
    ],
)
def test_message_that_lacks_a_field_is_refused_by_its_name(read, message, field):
    with pytest.raises(InvalidArgument) as caught:
        read(message)

    assert caught.value.violations[0].field == field


@pytest.mark.parametrize("size", [0, 3, 7, 9])
def test_embedding_of_the_wrong_length_is_refused(size):
    message = embedder_pb.Embedding(values=bytes(size), dimension_count=2)

    with pytest.raises(InvalidArgument, match="4 bytes a dimension"):
        cache.embedding_from_proto(message, "sha256:0")


def test_capability_of_a_newer_peer_is_left_out():
    credits = fleet.credits_to_proto(_credits())
    credits.capabilities.append(999)

    assert fleet.credits_from_proto(credits) == _credits()


def _credits() -> WorkerCredits:
    held = HeldModel("m", "sha256:0", 1, "", "", "epsilon", "sd", 32, 32, 8, 64, 50, 100, 7.5, ("ddim",))
    return WorkerCredits("worker-0", held, 1)


def test_attempt_survives_its_message():
    attempt = Attempt("request", 2, 7, "frontdoor-0", 3, "tenant")

    assert generation.attempt_from_proto(generation.attempt_to_proto(attempt)) == attempt


@settings(deadline=None)
@given(st.from_type(GenerationSpec))
def test_a_spec_written_into_a_message_is_the_one_made_for_it(spec):
    request = worker_pb.ExecuteRequest()

    generation.write_spec(spec, request.spec)

    assert request == worker_pb.ExecuteRequest(spec=generation.spec_to_proto(spec))


def test_places_beyond_the_credits_survive_their_message():
    credits = replace(_credits(), reserve_count=2, preparing_count=3)

    assert fleet.credits_from_proto(fleet.credits_to_proto(credits)) == credits


@pytest.mark.parametrize("known", [None, ()])
def test_a_worker_that_knows_no_adapters_is_told_from_one_that_has_told_before(known):
    credits = replace(_credits(), known_adapters=known)

    assert fleet.credits_from_proto(fleet.credits_to_proto(credits)).known_adapters == known


def test_a_scale_of_zero_is_not_one_that_was_left_out():
    asked = ImageRequest("a", loras=(AskedLora("neon", 0.0), AskedLora("mosaic")))

    assert image.request_from_proto(image.request_to_proto(asked)).loras == asked.loras


def test_what_no_request_has_so_many_of_is_refused_before_it_is_read() -> None:
    """Two bytes a LoRA: 16 MiB of them would hold up everybody for 15 seconds."""
    loras = image_pb.ImageRequest(loras=[image_pb.AskedLora()] * 1025)
    controlnets = image_pb.ImageRequest(controlnets=[image_pb.AskedControlNet()] * 1025)
    inputs = image_pb.ReplayRequest(inputs=[image_pb.ReplayInput()] * 1025)

    with pytest.raises(InvalidArgument, match="loras: must be at most 1024, got 1025"):
        image.request_from_proto(loras)
    with pytest.raises(InvalidArgument, match="controlnets: must be at most 1024, got 1025"):
        image.request_from_proto(controlnets)
    with pytest.raises(InvalidArgument, match="inputs: must be at most 1024, got 1025"):
        image.replay_from_proto(inputs)
