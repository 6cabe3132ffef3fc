"""Serve pentimento.api.image.v1 and .frontdoor.v1 over the transport-neutral API."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import grpc.aio

from pentimento.api.frontdoor.v1 import frontdoor_service_pb2 as frontdoor_pb
from pentimento.api.frontdoor.v1.frontdoor_service_pb2_grpc import FrontdoorServiceServicer
from pentimento.api.generation.v1 import generation_pb2
from pentimento.api.image.v1 import image_service_pb2 as pb
from pentimento.api.image.v1.image_service_pb2_grpc import ImageServiceServicer
from pentimento.dataplane import Dataplane
from pentimento.dataplane.pools import Pool, Worker
from pentimento.domain.image_request import GenerateEvent, ImageRequest, ReplayRequest
from pentimento.domain.jobs import RequestQuery
from pentimento.rpc import current_caller
from pentimento.rpc.transport import MAX_MESSAGE_BYTES
from pentimento.wire.codec import decode, encode, nested, number_of
from services.frontdoor.answers.large_images import ImageSplitter, Response
from services.frontdoor.identity import Identity
from services.frontdoor.objects.results import ResultUrls
from services.frontdoor.quality.shadows import Shadows
from services.frontdoor.requests.cells import CellGate
from services.frontdoor.requests.image_api import ImageApi
from services.frontdoor.requests.limits import Acceptance
from services.frontdoor.requests.pins import Pins
from services.frontdoor.requests.tenant_requests import TenantRequests
from services.frontdoor.routing.explaining import Explainer
from services.frontdoor.status import Offers, PaintedCounts, completed_latencies
from services.frontdoor.webhooks.delivering import Webhooks
from services.frontdoor.workers.worker_links import WorkerLinks

IMAGE_SERVICE = pb.DESCRIPTOR.services_by_name["ImageService"].full_name
FRONTDOOR_SERVICE = frontdoor_pb.DESCRIPTOR.services_by_name["FrontdoorService"].full_name
Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, eq=False)
class ImageServicer(ImageServiceServicer):
    """Serve ImageService. `stream_idle_s`: seconds after which a client that takes no message is cut off."""

    api: ImageApi
    tenants: TenantRequests
    pins: Pins
    explainer: Explainer
    offers: Offers
    cells: CellGate
    urls: ResultUrls
    webhooks: Webhooks
    stream_idle_s: float

    def Generate(self, request: pb.GenerateRequest, context: Context) -> AsyncGenerator[pb.GenerateResponse, None]:
        options = (request.idempotency_key, request.preview_interval_steps)
        asked, omits = decode(request.request, ImageRequest), request.omit_progress
        told = ImageSplitter(pb.GenerateResponse, request.max_message_bytes, MAX_MESSAGE_BYTES)
        stream = self.api.generate(current_caller().tenant, asked, *options, omit_progress=omits)
        return self._told(stream, told)

    def Replay(self, request: pb.ReplayRequest, context: Context) -> AsyncGenerator[pb.ReplayResponse, None]:
        options = (request.idempotency_key, request.preview_interval_steps)
        told = ImageSplitter(pb.ReplayResponse, request.max_message_bytes, MAX_MESSAGE_BYTES)
        stream = self.api.replay(current_caller().tenant, decode(request, ReplayRequest), *options)
        return self._told(stream, told)

    async def _told(
        self, stream: AsyncGenerator[GenerateEvent, None], told: ImageSplitter[Response]
    ) -> AsyncGenerator[Response, None]:
        loop = asyncio.get_running_loop()
        async with aclosing(stream) as events, asyncio.timeout(None) as limit:
            async for event in events:
                for message in told.messages(event):
                    limit.reschedule(loop.time() + self.stream_idle_s)
                    # Suspended here until the client takes the message.
                    yield message
                    limit.reschedule(None)

    async def Submit(self, request: pb.SubmitRequest, context: Context) -> pb.SubmitResponse:
        asked = request.generate
        options = (asked.idempotency_key, asked.preview_interval_steps, request.webhook.url)
        accepted = await self.api.submit(current_caller().tenant, decode(asked.request, ImageRequest), *options)
        return encode(accepted, pb.SubmitResponse)

    def Attach(self, request: pb.AttachRequest, context: Context) -> AsyncGenerator[pb.AttachResponse, None]:
        told = ImageSplitter(pb.AttachResponse, request.max_message_bytes, MAX_MESSAGE_BYTES)
        stream = self.api.attach(current_caller().tenant, request.request_id)
        return self._told(stream, told)

    async def ListRequests(self, request: pb.ListRequestsRequest, context: Context) -> pb.ListRequestsResponse:
        return encode(
            await self.tenants.page(current_caller().tenant, decode(request, RequestQuery)), pb.ListRequestsResponse
        )

    async def GetResultUrl(self, request: pb.GetResultUrlRequest, context: Context) -> pb.GetResultUrlResponse:
        record = await self.tenants.record(current_caller().tenant, request.request_id)
        expires_in_ms = request.expires_in_ms if request.HasField("expires_in_ms") else None
        return encode(await self.urls.url_of(record, expires_in_ms), pb.GetResultUrlResponse)

    async def GetWebhookKey(self, request: pb.GetWebhookKeyRequest, context: Context) -> pb.GetWebhookKeyResponse:
        return pb.GetWebhookKeyResponse(key=self.webhooks.key_of(current_caller().tenant))

    async def Pin(self, request: pb.PinRequest, context: Context) -> pb.PinResponse:
        record = await self.tenants.record(current_caller().tenant, request.request_id)
        return encode(await self.pins.pin(record, request.duration_ms), pb.PinResponse)

    async def Unpin(self, request: pb.UnpinRequest, context: Context) -> pb.UnpinResponse:
        tenant = current_caller().tenant
        record = await self.tenants.record(tenant, request.request_id)
        await self.pins.unpin(tenant, record.request.request_id)
        return pb.UnpinResponse()

    async def Cancel(self, request: pb.CancelRequest, context: Context) -> pb.CancelResponse:
        state = await self.api.cancel(current_caller().tenant, request.request_id)
        return pb.CancelResponse(state=number_of(state, pb.RequestState))

    async def GetRequest(self, request: pb.GetRequestRequest, context: Context) -> pb.GetRequestResponse:
        asked = (current_caller().tenant, request.request_id, request.omit_image)
        return encode(await self.tenants.get_request(*asked), pb.GetRequestResponse)

    async def Explain(self, request: pb.ExplainRequest, context: Context) -> pb.ExplainResponse:
        asked = (decode(request.request, ImageRequest), request.neighbour_count)
        return encode(await self.explainer.explain(current_caller().tenant, *asked), pb.ExplainResponse)

    async def FindCell(self, request: pb.FindCellRequest, context: Context) -> pb.FindCellResponse:
        return encode(self.cells.find(current_caller().tenant), pb.FindCellResponse)

    async def ListModels(self, request: pb.ListModelsRequest, context: Context) -> pb.ListModelsResponse:
        return pb.ListModelsResponse(
            models=[nested(model, pb.Model) for model in self.offers.models()],
            adapters=[nested(one, generation_pb2.Adapter) for one in self.offers.adapters.offered()],
            result_url_server=number_of(self.urls.server, pb.ResultUrlServer),
        )


@dataclass(frozen=True, eq=False)
class FrontdoorServicer(FrontdoorServiceServicer):
    """Serve FrontdoorService. `frontdoor_id`: the name of this replica."""

    frontdoor_id: str
    identity: Identity
    dataplane: Dataplane
    acceptance: Acceptance
    links: WorkerLinks
    painted: PaintedCounts
    shadows: Shadows
    offers: Offers
    cells: CellGate

    async def GetStatus(
        self, request: frontdoor_pb.GetStatusRequest, context: Context
    ) -> frontdoor_pb.GetStatusResponse:
        state, acceptance = self.dataplane.state, self.acceptance
        counters, queue_limit = state.counters, state.settings.queue_limit
        return frontdoor_pb.GetStatusResponse(
            frontdoor_id=self.frontdoor_id,
            frontdoor_epoch=state.epoch,
            plan_version=nested(state.index.version, generation_pb2.PlanVersion),
            pools=[_pool_to_proto(pool, queue_limit) for _, pool in sorted(state.pools.items())],
            workers=[_worker_to_proto(one, self.links.address_of(name)) for name, one in sorted(state.workers.items())],
            accepted_count=counters.accepted,
            completed_count=counters.completed,
            failed_count=counters.failed + counters.expired + counters.dropped,
            cancelled_count=counters.cancelled,
            rejected_count=acceptance.rejected_count,
            rejections=[
                frontdoor_pb.RejectionCount(reason=reason, request_count=count)
                for reason, count in sorted(acceptance.rejections.items())
            ],
            not_accepting_reason=acceptance.blocked,
            retried_count=counters.rerun,
            draining=state.draining,
            latencies=[
                frontdoor_pb.LatencyBucket(upper_bound_s=bound_s, request_count=count)
                for bound_s, count in completed_latencies()
            ],
            starts=[
                frontdoor_pb.StartCount(kind=kind, saved_steps=saved, image_count=count)
                for (kind, saved), count in sorted(self.painted.starts.items())
            ],
            steps_run=self.painted.steps_run,
            steps_saved=self.painted.steps_saved,
            image_device_s=self.shadows.image_device_s,
            shadow_device_s=self.shadows.shadow_device_s,
            rejected_adapters=[nested(one, generation_pb2.RejectedAdapter) for one in self.offers.adapters.rejected],
            models=[nested(model, pb.Model) for model in self.offers.models()],
            journal_id=self.identity.journal_id,
            refusing_workers=[
                frontdoor_pb.RefusingWorker(address=address, reason=error.reason, message=error.message)
                for address, error in self.links.refusals().items()
            ],
            cell=self.cells.own,
            cells=[pb.Cell(name=name, address=address) for name, address in self.cells.cells.addresses.items()],
        )

    async def FindKey(self, request: frontdoor_pb.FindKeyRequest, context: Context) -> frontdoor_pb.FindKeyResponse:
        # The active frontdoor of the cell would not learn of the hand-over.
        self.identity.require_active()
        known = await self.cells.find_key(request.tenant, request.idempotency_key, request.cell)
        return frontdoor_pb.FindKeyResponse(known=known)


def _pool_to_proto(pool: Pool, queue_limit: int) -> frontdoor_pb.PoolStatus:
    return frontdoor_pb.PoolStatus(
        pool=pool.name,
        queued_count=pool.waiting_count,
        running_count=pool.running_count,
        queue_limit_count=queue_limit,
        arrived_count=pool.arrived_count,
        completed_count=pool.completed_count,
        dropped_count=pool.dropped_count,
        late_count=pool.late_count,
        scored_count=pool.scored_count,
        deferred_count=pool.deferred_count,
    )


def _worker_to_proto(worker: Worker, address: str) -> frontdoor_pb.WorkerView:
    return frontdoor_pb.WorkerView(
        worker_id=worker.worker_id,
        address=address,
        model=worker.model,
        model_digest=worker.model_digest,
        worker_generation=worker.worker_generation,
        credit_count=worker.credit_count,
        in_flight_count=len(worker.in_flight),
        connected=worker.connected,
        draining=worker.draining,
    )
