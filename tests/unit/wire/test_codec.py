"""Convert every class to its message and back; missing fields of a message are rejected by path."""

import dataclasses
import importlib
import pkgutil
from collections.abc import Iterator
from itertools import product
from random import Random
from typing import Any

import pytest
from google.protobuf.message import Message

import pentimento.api
import pentimento.domain
from pentimento.api.controller.v1 import controller_service_pb2 as controller_pb
from pentimento.api.embedder.v1 import embedder_service_pb2 as embedder_pb
from pentimento.api.frontdoor.v1 import journal_pb2
from pentimento.api.generation.v1 import generation_pb2
from pentimento.api.image.v1 import image_service_pb2 as image_pb
from pentimento.api.models.v1 import model_repository_service_pb2 as models_pb
from pentimento.api.tenants.v1 import tenant_service_pb2 as tenants_pb
from pentimento.api.vectordb.v1 import vectordb_gateway_service_pb2 as gateway_pb
from pentimento.api.worker.v1 import unet_worker_service_pb2 as worker_pb
from pentimento.domain.cache import LookupAnswer
from pentimento.domain.embedding import Embedding
from pentimento.domain.errors import Internal, InvalidArgument, PentimentoError
from pentimento.domain.execution import ExecuteEvent, PlaceYielded, WorkerCredits
from pentimento.domain.fleet import CachePlan, Capability, Fleet, Plan, Replica, ReplicaLease, ReplicaReport
from pentimento.domain.generation import Attempt, GenerationSpec, PlanVersion, Route, Start
from pentimento.domain.image_request import (
    Accepted,
    AskedLora,
    Completed,
    Explanation,
    GenerateEvent,
    ImageFailed,
    ImageRequest,
    ModelInfo,
    PinnedImage,
    Progress,
    ReplayRequest,
    RequestStatus,
    ResolvedRequest,
    Routed,
)
from pentimento.domain.jobs import RequestPage, RequestQuery, RequestState, ResultUrl
from pentimento.domain.models import RegisteredModels
from pentimento.domain.online_quality import ComparedHit
from pentimento.domain.tenants import Tenant, TenantKey, TenantQuota, UsagePeriod, UsagePeriodLength
from pentimento.wire.codec import converter, decode, encode, from_bytes, member_of, nested, number_of
from tests.unit.wire.random_values import random_value
from tests.unit.wire.samples import SAMPLES, SPEC

# Pairs with different names.
OTHERS: list[tuple[Any, type[Message]]] = [
    (Accepted, image_pb.SubmitResponse),
    (ExecuteEvent, worker_pb.ExecuteResponse),
    (ExecuteEvent, worker_pb.AttachResponse),
    (Accepted | Routed | Progress | Completed, image_pb.GenerateResponse),
    (Accepted | Routed | Progress | Completed, image_pb.ReplayResponse),
    (Accepted | Routed | Progress | Completed, image_pb.AttachResponse),
    (Explanation, image_pb.ExplainResponse),
    (Fleet, controller_pb.GetFleetResponse),
    (LookupAnswer, gateway_pb.LookupResponse),
    (ModelInfo, image_pb.Model),
    (ComparedHit, gateway_pb.ReportQualityRequest),
    (PinnedImage, image_pb.PinResponse),
    (RegisteredModels, models_pb.ListRegisteredResponse),
    (ReplicaLease, controller_pb.RegisterResponse),
    (ReplicaReport, controller_pb.ReportRequest),
    (RequestPage, image_pb.ListRequestsResponse),
    (RequestQuery, image_pb.ListRequestsRequest),
    (RequestStatus, image_pb.GetRequestResponse),
    (RequestStatus, image_pb.ImageStatus),
    (ResolvedRequest, journal_pb2.JournalledRequest),
    (ResultUrl, image_pb.GetResultUrlResponse),
    (Start, generation_pb2.Start),
    (WorkerCredits, worker_pb.WatchCreditsResponse),
]


def members(package: Any, kind: type) -> Iterator[Any]:
    """Yield the classes of a kind that the modules of a package define."""
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not found.ispkg and not found.name.endswith("_grpc"):
            module = importlib.import_module(found.name)
            yield from (
                one
                for one in vars(module).values()
                if isinstance(one, type) and one.__module__ == found.name
                if issubclass(one, kind)
            )


def pairs() -> list[tuple[Any, type[Message]]]:
    """Return each class with the message of its name, and the others. Errors have no equality of their own."""
    classes = {one.__name__: one for one in members(pentimento.domain, object) if dataclasses.is_dataclass(one)}
    del classes["ImageFailed"]
    messages = members(pentimento.api, Message)
    return [(classes[one.__name__], one) for one in messages if one.__name__ in classes] + OTHERS


def survives(value: Any, kind: Any, message: Any) -> bool:
    """Return whether a value is the same after a trip in its message, alone and inside another one."""
    one = converter(kind, message)
    written = one.encode(value)
    came_back = one.decode(message.FromString(written.SerializeToString()))
    return bool(came_back == value and message(**one.nested(value)) == written)


def test_decode_of_encoded_value_returns_value() -> None:
    lost = [
        (kind, message.__name__, seed)
        for kind, message in pairs()
        for seed in range(30)
        if not survives(random_value(kind, Random(seed)), kind, message)
    ]

    assert lost == []


def test_decode_of_failed_image_returns_its_error() -> None:
    events = converter(GenerateEvent, image_pb.GenerateResponse)
    for kind, retry_after_ms in product(PentimentoError.__subclasses__(), [None, 1500]):
        error = kind("WORKER_LOST", "two workers were lost", retry_after_ms=retry_after_ms)

        heard = events.decode(events.encode(ImageFailed("p2-0-1", 1, error)))

        assert (heard.request_id, heard.image_index, type(heard.error)) == ("p2-0-1", 1, kind)
        assert (heard.error.reason, heard.error.message) == ("WORKER_LOST", "two workers were lost")
        assert heard.error.retry_after_ms == retry_after_ms
    assert type(decode(image_pb.ImageFailed(code=77), ImageFailed).error) is Internal


REFUSED: list[tuple[Message, Any, str, str]] = [
    (
        generation_pb2.GenerationSpec(),
        GenerationSpec,
        "here.scheduler",
        "must be one of [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13], got 0",
    ),
    (generation_pb2.Start(), Start, "here", "must be noise, latent or image, got nothing"),
    (generation_pb2.Start(latent={}), Start, "here.latent.latent", "must be an object of the object store"),
    (generation_pb2.Attempt(), Attempt, "here.request_id", "must not be empty"),
    (controller_pb.Replica(), Replica, "here.kind", "must be one of [1, 2, 3, 4, 5, 6, 7], got 0"),
    (
        controller_pb.Replica(kind=1, adapters=[{}]),
        Replica,
        "here.adapters[0].kind",
        "must be one of [1, 2, 3], got 0",
    ),
    (image_pb.ListRequestsRequest(states=[1, 99]), RequestQuery, "here.states[1]", "got 99"),
    (image_pb.ImageRequest(cache=9), ImageRequest, "here.cache", "must be one of [1, 2, 3, 4], got 9"),
    (worker_pb.ExecuteResponse(), ExecuteEvent, "here", "must be started, progress, place_yielded or result"),
    (tenants_pb.TenantQuota(weight=0.0), TenantQuota, "here.weight", "must be between 0.01 and 100, got 0"),
    (tenants_pb.TenantQuota(burst_count=3), TenantQuota, "here.burst_count", "must come with requests_per_s"),
    (tenants_pb.TenantQuota(pools=[""]), TenantQuota, "here.pools", "must be at most 64 names"),
    (image_pb.ImageRequest(loras=[{}] * 1025), ImageRequest, "here.loras", "must be at most 1024, got 1025"),
    (image_pb.ImageRequest(controlnets=[{}] * 1025), ImageRequest, "here.controlnets", "must be at most 1024"),
    (image_pb.ReplayRequest(inputs=[{}] * 1025), ReplayRequest, "here.inputs", "must be at most 1024, got 1025"),
    (embedder_pb.Embedding(values=bytes(7), dimension_count=2), Embedding, "here.values", "must be 4 bytes a"),
    (embedder_pb.Embedding(values=bytes(9), dimension_count=2), Embedding, "here.values", "must be 4 bytes a"),
    (embedder_pb.Embedding(), Embedding, "here.values", "must be 4 bytes a dimension"),
]


def test_decode_names_path_of_field_refused() -> None:
    for message, kind, field, says in REFUSED:
        with pytest.raises(InvalidArgument) as caught:
            converter(kind, type(message)).decode(message, "here")

        (violation,) = caught.value.violations
        assert (violation.field, caught.value.message) == (field, f"{field}: {violation.description}")
        assert says in violation.description, field


def test_encode_refuses_class_that_oneof_lacks() -> None:
    failed = ImageFailed("r", 1, Internal("REASON", "why"))

    with pytest.raises(InvalidArgument, match=r"event: must be .*, got ImageFailed"):
        converter(GenerateEvent, image_pb.ReplayResponse).encode(failed)


def test_decode_tells_zero_from_absent() -> None:
    asked = ImageRequest("a", seed=0, loras=(AskedLora("neon", 0.0), AskedLora("mosaic")))

    assert decode(encode(asked, image_pb.ImageRequest), ImageRequest) == asked
    assert decode(tenants_pb.TenantQuota(cache_bytes=0), TenantQuota) == TenantQuota(cache_bytes=0)


def test_decode_of_absent_field_returns_default() -> None:
    rows: list[tuple[Message, Any]] = [
        (tenants_pb.TenantQuota(), TenantQuota()),
        (controller_pb.CachePlan(admits=CachePlan().admits), CachePlan()),
        (controller_pb.Plan(admission_rate=1.0), Plan(PlanVersion())),
        (image_pb.ImageRequest(prompt="a"), ImageRequest("a")),
    ]

    assert [decode(message, type(expected)) for message, expected in rows] == [expected for _, expected in rows]


@pytest.mark.parametrize("known", [None, ()])
def test_decode_tells_no_adapters_from_absent_adapters(known: tuple[()] | None) -> None:
    credits = dataclasses.replace(SAMPLES["credits"], known_adapters=known)

    assert decode(encode(credits, worker_pb.WatchCreditsResponse), WorkerCredits).known_adapters == known


def test_decode_leaves_out_capability_of_newer_peer() -> None:
    replica = controller_pb.Replica(kind=1, capabilities=[999, number_of(Capability.LORA, worker_pb.Capability)])

    assert decode(replica, Replica).capabilities == {Capability.LORA}


def test_encode_writes_seconds_as_milliseconds() -> None:
    tenant = encode(Tenant("acme", created_at=1.2345, tenant_id="kept here"), tenants_pb.Tenant)
    key = encode(TenantKey("k", "acme", 1.5, 2.5), tenants_pb.TenantKey)

    assert (tenant.created_at_ms, key.created_at_ms, key.expires_at_ms) == (1234, 1500, 2500)
    assert not key.HasField("revoked_at_ms")
    assert encode(UsagePeriod(7200), tenants_pb.UsagePeriod).start_at_ms == 7_200_000


def test_nested_value_makes_message_of_encoded_value() -> None:
    request = worker_pb.ExecuteRequest(spec=nested(SPEC, generation_pb2.GenerationSpec))

    assert request == worker_pb.ExecuteRequest(spec=encode(SPEC, generation_pb2.GenerationSpec))


def test_encode_of_empty_member_sets_oneof() -> None:
    assert encode(PlaceYielded(), worker_pb.ExecuteResponse).WhichOneof("event") == "place_yielded"


def test_from_bytes_refuses_other_bytes() -> None:
    with pytest.raises(InvalidArgument, match="Route: must be the bytes of such a message"):
        from_bytes(b"\xff\xff", Route, generation_pb2.Route)


def test_member_of_returns_member_of_number() -> None:
    assert member_of(2, UsagePeriodLength, tenants_pb.UsagePeriodLength, "period") is UsagePeriodLength.DAY
    assert number_of(RequestState.QUEUED, image_pb.RequestState) == image_pb.REQUEST_STATE_QUEUED
    assert number_of(None, image_pb.RequestState) == 0
    with pytest.raises(InvalidArgument, match=r"^period: must be one of \[1, 2\], got 9$"):
        member_of(9, UsagePeriodLength, tenants_pb.UsagePeriodLength, "period")


@pytest.mark.parametrize(
    ("kind", "message", "says"),
    [
        (Route, generation_pb2.Attempt, "has no field for route_id of Route"),
        (PlanVersion, generation_pb2.Provenance, "has no field for leader_epoch of PlanVersion"),
        (Accepted, image_pb.Routed, "has no field for request_id of Accepted"),
    ],
)
def test_converter_rejects_class_with_other_fields(kind: type, message: type[Message], says: str) -> None:
    with pytest.raises(TypeError, match=says):
        converter(kind, message)


def test_converter_rejects_message_with_unknown_field() -> None:
    with pytest.raises(TypeError, match=r"ResultUrl has no fields for \['inputs_kept', 'request_id', 'size_bytes'\]"):
        converter(dataclasses.make_dataclass("ResultUrl", [("expires_at_ms", int)]), image_pb.PinResponse)
