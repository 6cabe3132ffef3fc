"""The codec and the functions that it replaces make equal messages and equal values."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pentimento.api.controller.v1 import controller_service_pb2 as controller_pb
from pentimento.api.frontdoor.v1 import journal_pb2
from pentimento.api.generation.v1 import generation_pb2
from pentimento.api.image.v1 import image_service_pb2 as image_pb
from pentimento.api.models.v1 import model_repository_service_pb2 as models_pb
from pentimento.api.tenants.v1 import tenant_service_pb2 as tenants_pb
from pentimento.api.vectordb.v1 import vectordb_gateway_service_pb2 as gateway_pb
from pentimento.api.worker.v1 import unet_worker_service_pb2 as worker_pb
from pentimento.domain.adapters import Adapter, RejectedAdapter
from pentimento.domain.cache import CacheScope
from pentimento.domain.execution import ExecuteEvent, WorkerCredits
from pentimento.domain.fleet import HeldModel, ReplicaLease
from pentimento.domain.generation import Attempt, CacheGrant, CapturedEntries, GenerationSpec, Provenance, Route
from pentimento.domain.image_request import (
    Accepted,
    Completed,
    Explanation,
    ImageRequest,
    ModelInfo,
    PinnedPicture,
    Progress,
    RequestStatus,
    ResolvedRequest,
    Routed,
)
from pentimento.domain.jobs import RequestPage, RequestQuery, ResultUrl
from pentimento.domain.models import CascadeVariant
from pentimento.domain.online_quality import PaintedAgain, ReuseQuality
from pentimento.domain.retrieval import LookupAnswer, LookupCandidate, Neighbour
from pentimento.domain.tenants import TenantKey, TenantQuota
from pentimento.wire import (
    adapters,
    cache,
    fleet,
    generation,
    image,
    jobs,
    journal,
    models,
    online_quality,
    provenance,
    reports,
    tenants,
)
from pentimento.wire.codec import converter
from tests.unit.wire.strategies import values

PAIRS: list[tuple[Any, Any, Any, Any]] = [
    (GenerationSpec, generation_pb2.GenerationSpec, generation.spec_to_proto, generation.spec_from_proto),
    (Route, generation_pb2.Route, generation.route_to_proto, generation.route_from_proto),
    (Attempt, generation_pb2.Attempt, generation.attempt_to_proto, generation.attempt_from_proto),
    (CacheGrant, generation_pb2.CacheGrant, generation.grant_to_proto, generation.grant_from_proto),
    (CapturedEntries, generation_pb2.CapturedEntries, generation.captured_to_proto, generation.captured_from_proto),
    (Neighbour, generation_pb2.Neighbour, generation.neighbour_to_proto, generation.neighbour_from_proto),
    (Provenance, generation_pb2.Provenance, provenance.provenance_to_proto, provenance.provenance_from_proto),
    (Adapter, generation_pb2.Adapter, adapters.adapter_to_proto, adapters.adapter_from_proto),
    (RejectedAdapter, generation_pb2.RejectedAdapter, adapters.rejected_to_proto, adapters.rejected_from_proto),
    (HeldModel, worker_pb.HeldModel, fleet.held_model_to_proto, fleet.held_model_from_proto),
    (WorkerCredits, worker_pb.WatchCreditsResponse, fleet.credits_to_proto, fleet.credits_from_proto),
    (ExecuteEvent, worker_pb.ExecuteResponse, fleet.execute_event_to_proto, fleet.execute_event_from_proto),
    (ExecuteEvent, worker_pb.AttachResponse, fleet.attach_event_to_proto, fleet.execute_event_from_proto),
    (ReplicaLease, controller_pb.RegisterResponse, reports.lease_to_proto, reports.lease_from_proto),
    (ImageRequest, image_pb.ImageRequest, image.request_to_proto, image.request_from_proto),
    (Accepted | Routed | Progress | Completed, image_pb.GenerateResponse, image.event_to_proto, image.event_from_proto),
    (Accepted | Completed, image_pb.ReplayResponse, image.replay_event_to_proto, image.event_from_proto),
    (RequestStatus, image_pb.GetRequestResponse, image.status_to_proto, image.status_from_proto),
    (Explanation, image_pb.ExplainResponse, image.explanation_to_proto, image.explanation_from_proto),
    (ModelInfo, image_pb.Model, image.model_to_proto, image.model_from_proto),
    (PinnedPicture, image_pb.PinResponse, image.pinned_to_proto, image.pinned_from_proto),
    (RequestPage, image_pb.ListRequestsResponse, jobs.page_to_proto, jobs.page_from_proto),
    (RequestQuery, image_pb.ListRequestsRequest, jobs.query_to_proto, jobs.query_from_proto),
    (ResultUrl, image_pb.GetResultUrlResponse, jobs.result_url_to_proto, jobs.result_url_from_proto),
    (ResolvedRequest, journal_pb2.JournalledRequest, journal.journalled_to_proto, journal.journalled_from_proto),
    (CacheScope, gateway_pb.CacheScope, cache.scope_to_proto, cache.scope_from_proto),
    (LookupCandidate, gateway_pb.LookupCandidate, cache.candidate_to_proto, cache.candidate_from_proto),
    (LookupAnswer, gateway_pb.LookupResponse, cache.answer_to_proto, cache.answer_from_proto),
    (
        PaintedAgain,
        gateway_pb.ReportQualityRequest,
        online_quality.painted_again_to_proto,
        online_quality.painted_again_from_proto,
    ),
    (
        ReuseQuality,
        generation_pb2.ReuseQuality,
        online_quality.reuse_quality_to_proto,
        online_quality.reuse_quality_from_proto,
    ),
    (CascadeVariant, models_pb.CascadeVariant, models.cascade_to_proto, models.cascade_from_proto),
    (TenantQuota, tenants_pb.TenantQuota, tenants.quota_to_proto, tenants.quota_from_proto),
    (TenantKey, tenants_pb.TenantKey, tenants.key_to_proto, tenants.key_from_proto),
]


@pytest.mark.parametrize(("kind", "message", "write", "read"), PAIRS, ids=lambda one: getattr(one, "__name__", ""))
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_codec_makes_message_and_value_of_functions(kind: Any, message: Any, write: Any, read: Any, data: Any) -> None:
    value = data.draw(values(kind))
    one = converter(kind, message)

    written = one.encode(value)

    assert written == write(value)
    try:
        expected = read(written)
    except Exception as error:
        with pytest.raises(type(error)):
            one.decode(written)
    else:
        assert one.decode(written) == expected
