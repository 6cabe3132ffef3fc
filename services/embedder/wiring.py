"""Puts an embedder process together."""

import asyncio
from dataclasses import dataclass

import torch

from pentimento.api.embedder.v1.embedder_service_pb2_grpc import add_EmbedderServiceServicer_to_server
from pentimento.clients.controller import ControllerClient
from pentimento.clients.registration import Registration, generation_at
from pentimento.diffusion.model_registry import check_digest
from pentimento.domain.clock import SystemClock
from pentimento.domain.fleet import Replica, ReplicaKind, ReplicaReport
from pentimento.rpc import RpcServer, open_channel
from services.embedder.batching import EmbeddingBatchLimits
from services.embedder.embedder import CallLimits, Embedder
from services.embedder.model import open_model
from services.embedder.servicer import FULL_NAME, EmbedderServicer
from services.embedder.settings import EmbedderSettings


@dataclass(frozen=True)
class EmbedderProcess:
    """`registration` is None without a controller."""

    server: RpcServer
    embedder: Embedder
    registration: Registration | None
    settings: EmbedderSettings

    async def run(self) -> None:
        await self.server.run_until_stopped(self.warm, self.drain)

    async def warm(self) -> None:
        """Load the encoder off the event loop, so that health is answered meanwhile."""
        torch.set_num_threads(self.settings.threads)
        model = await asyncio.to_thread(open_model, self.settings.encoder)
        if not self.settings.accept_other_digest:
            check_digest(self.settings.encoder, model.digest, self.settings.expected_encoder_digest)
        self.embedder.start(model)
        if self.registration is not None:
            self.registration.start()

    async def drain(self) -> None:
        if self.registration is not None:
            await self.registration.close()
        await self.embedder.close()


def wire(settings: EmbedderSettings) -> EmbedderProcess:
    """Call it inside the event loop that the process runs on."""
    server = RpcServer(settings.rpc, "embedder")
    embedder = Embedder(
        CallLimits(settings.max_texts, settings.max_text_bytes, settings.max_images, settings.max_image_bytes),
        EmbeddingBatchLimits(settings.max_batch_size, settings.max_wait_ms / 1000, settings.queue_limit),
        settings.memo_entries,
    )
    server.add(add_EmbedderServiceServicer_to_server, EmbedderServicer(embedder), FULL_NAME)
    registration = _registration(settings, server) if settings.controller_address else None
    return EmbedderProcess(server, embedder, registration, settings)


def _registration(settings: EmbedderSettings, server: RpcServer) -> Registration:
    generation = generation_at(SystemClock())

    def replica() -> Replica:
        address = settings.advertise_address or server.bound_addresses[0]
        return Replica(server.instance_id, ReplicaKind.EMBEDDER, address, generation, device="cpu")

    def report() -> ReplicaReport:
        return ReplicaReport(server.instance_id, generation)

    controller = ControllerClient(open_channel(settings.controller_address, settings.channels))
    return Registration(controller, replica, report)
