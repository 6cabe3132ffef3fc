"""Serve an embedder and a gateway over the real contracts, with answers set by the test."""

import asyncio
import hashlib
import struct
from dataclasses import replace
from typing import Any

from pentimento.api.embedder.v1 import embedder_service_pb2 as embedder_pb
from pentimento.api.embedder.v1.embedder_service_pb2_grpc import (
    EmbedderServiceServicer,
    add_EmbedderServiceServicer_to_server,
)
from pentimento.api.generation.v1 import generation_pb2
from pentimento.api.vectordb.v1 import vectordb_gateway_service_pb2 as gateway_pb
from pentimento.api.vectordb.v1.vectordb_gateway_service_pb2_grpc import (
    VectordbGatewayServiceServicer,
    add_VectordbGatewayServiceServicer_to_server,
)
from pentimento.domain.cache import Neighbour
from pentimento.domain.errors import PentimentoError, Unavailable
from pentimento.domain.generation import FromImage, FromLatent, FromNoise, Start
from pentimento.rpc import RpcServer, RpcServerSettings
from pentimento.wire.codec import encode

EMBEDDER = embedder_pb.DESCRIPTOR.services_by_name["EmbedderService"].full_name
GATEWAY = gateway_pb.DESCRIPTOR.services_by_name["VectordbGatewayService"].full_name


KEPT_STEPS = (5, 10, 15, 20, 25)


class Mood:
    """`error` is raised; `hangs` blocks every answer."""

    def __init__(self) -> None:
        self.error: PentimentoError | None = None
        self.hangs = False

    async def pass_by(self) -> None:
        if self.error is not None:
            raise self.error
        if self.hangs:
            await asyncio.Event().wait()


class ChosenEmbedder(EmbedderServiceServicer, Mood):
    """Embed as the test chooses. `images` records embedded images; `image_error` is raised only for images. `space` is
    stated, "" by an embedder that is being loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.space = "text"
        self.images: list[bytes] = []
        self.image_error: PentimentoError | None = None
        self.image_calls = self.text_calls = 0
        self.encoder_digest = "sha256:encoder"

    async def EmbedText(self, request: embedder_pb.EmbedTextRequest, context: Any) -> embedder_pb.EmbedTextResponse:
        self.text_calls += 1
        await self.pass_by()
        values = struct.pack("<2f", 1.0, 0.0)
        vectors = [
            embedder_pb.Embedding(values=values, dimension_count=2, encoder_digest=self.encoder_digest)
            for _ in request.texts
        ]
        return embedder_pb.EmbedTextResponse(embeddings=vectors)

    async def EmbedImage(self, request: embedder_pb.EmbedImageRequest, context: Any) -> embedder_pb.EmbedImageResponse:
        self.image_calls += 1
        if self.image_error is not None:
            raise self.image_error
        self.images.extend(request.images)
        values = struct.pack("<2f", 0.0, 1.0)
        vectors = [
            embedder_pb.Embedding(values=values, dimension_count=2, encoder_digest=self.encoder_digest)
            for _ in request.images
        ]
        return embedder_pb.EmbedImageResponse(embeddings=vectors)

    async def GetInfo(self, request: embedder_pb.GetInfoRequest, context: Any) -> embedder_pb.GetInfoResponse:
        if not self.space:
            raise Unavailable("LOADING", "the encoder is being loaded", retry_after_ms=1)
        return embedder_pb.GetInfoResponse(space=self.space)


class ChosenGateway(VectordbGatewayServiceServicer, Mood):
    """Answer lookups with `start`, for an image at one of `image_steps` steps. Writes are recorded by grant.
    `commit_error` is raised only for commits."""

    def __init__(self) -> None:
        super().__init__()
        self.start: Start = FromNoise()
        self.trial: Start | None = None
        self.image_steps = 4
        self.keeps_images = False
        self.neighbours: tuple[Neighbour, ...] = ()
        self.looked_around: list[gateway_pb.ListNeighboursRequest] = []
        self.lookups: list[gateway_pb.LookupRequest] = []
        self.reserved: list[gateway_pb.ReserveRequest] = []
        self.committed: list[gateway_pb.CommitRequest] = []
        self.commit_error: PentimentoError | None = None
        self.released: list[str] = []
        self.reported: list[gateway_pb.ReportStartRequest] = []
        self.bad: list[gateway_pb.ReportBadObjectRequest] = []
        self._changed = asyncio.Event()

    async def wait_until(self, condition: Any) -> None:
        while not condition():
            await self._changed.wait()

    def change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def Lookup(self, request: gateway_pb.LookupRequest, context: Any) -> gateway_pb.LookupResponse:
        await self.pass_by()
        self.lookups.append(request)
        starts = [
            gateway_pb.CandidateStart(
                start=encode(self.start_of(candidate), generation_pb2.Start),
                reason="as the test chose",
                trial=encode(self.trial, generation_pb2.Start) if self.trial is not None else None,
            )
            for candidate in request.candidates
        ]
        return gateway_pb.LookupResponse(starts=starts)

    def start_of(self, candidate: gateway_pb.LookupCandidate) -> Start:
        """Return `start` if the candidate takes its kind. A latent needs a model with its step count. An image serves
        any model, at the same share of its steps."""
        start, steps = self.start, candidate.scope.num_inference_steps
        if isinstance(start, FromLatent):
            return start if candidate.latents and start.donor_steps == steps else FromNoise()
        if isinstance(start, FromImage) and candidate.images:
            step = int(start.start_step / self.image_steps * steps)
            return replace(start, start_step=step) if step else FromNoise()
        return FromNoise()

    async def ListNeighbours(
        self, request: gateway_pb.ListNeighboursRequest, context: Any
    ) -> gateway_pb.ListNeighboursResponse:
        await self.pass_by()
        self.looked_around.append(request)
        return gateway_pb.ListNeighboursResponse(
            neighbours=[encode(each, generation_pb2.Neighbour) for each in self.neighbours]
        )

    async def Reserve(self, request: gateway_pb.ReserveRequest, context: Any) -> gateway_pb.ReserveResponse:
        await self.pass_by()
        self.reserved.append(request)
        slots = [
            generation_pb2.LatentSlot(resume_step=step, key=f"latents/{hashlib.sha256(bytes([step])).hexdigest()[:8]}")
            for step in KEPT_STEPS
            if step > request.start_step
        ]
        grant_id = f"grant-{request.attempt.fencing_token}"
        image_key = "images/x" if self.keeps_images else ""
        grant = generation_pb2.CacheGrant(grant_id=grant_id, latents=slots, image_key=image_key, expires_in_ms=60_000)
        return gateway_pb.ReserveResponse(grant=grant)

    async def ReportStart(self, request: gateway_pb.ReportStartRequest, context: Any) -> gateway_pb.ReportStartResponse:
        self.reported.append(request)
        self.change()
        return gateway_pb.ReportStartResponse()

    async def ReportBadObject(
        self, request: gateway_pb.ReportBadObjectRequest, context: Any
    ) -> gateway_pb.ReportBadObjectResponse:
        self.bad.append(request)
        self.change()
        return gateway_pb.ReportBadObjectResponse()

    async def Commit(self, request: gateway_pb.CommitRequest, context: Any) -> gateway_pb.CommitResponse:
        self.committed.append(request)
        self.change()
        if self.commit_error is not None:
            raise self.commit_error
        return gateway_pb.CommitResponse(entry_id="entry")

    async def Release(self, request: gateway_pb.ReleaseRequest, context: Any) -> gateway_pb.ReleaseResponse:
        self.released.append(request.grant_id)
        self.change()
        return gateway_pb.ReleaseResponse()


async def serve_cache(embedder: ChosenEmbedder, gateway: ChosenGateway, address: str) -> RpcServer:
    server = RpcServer(RpcServerSettings(listen=(address,)), "chosen_cache")
    server.add(add_EmbedderServiceServicer_to_server, embedder, EMBEDDER)
    server.add(add_VectordbGatewayServiceServicer_to_server, gateway, GATEWAY)
    await server.start()
    server.set_serving()
    return server
