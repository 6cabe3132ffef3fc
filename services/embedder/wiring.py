"""Put an embedder process together."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from pentimento.api.embedder.v1.embedder_service_pb2_grpc import add_EmbedderServiceServicer_to_server
from pentimento.diffusion.device import exact_device
from pentimento.diffusion.model_registry import check_digest
from pentimento.domain.embedding import Space
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.fleet import ReplicaKind
from pentimento.rpc import RpcServer
from pentimento.service.fleet_member import FleetMember
from pentimento.service.process import ServiceProcess
from services.embedder.embedder import Embedder
from services.embedder.model import EmbeddingModel, open_model
from services.embedder.servicer import FULL_NAME, EmbedderServicer
from services.embedder.settings import EmbedderSettings

OpenModel = Callable[[Path, torch.device], EmbeddingModel]


@dataclass(kw_only=True)
class EmbedderProcess(ServiceProcess):
    embedder: Embedder
    settings: EmbedderSettings
    device: torch.device
    open_model: OpenModel

    async def prepare(self) -> None:
        """Load the encoder off the event loop, so that health is answered meanwhile."""
        torch.set_num_threads(self.settings.threads)
        model = await asyncio.to_thread(self.open_model, self.settings.encoder, self.device)
        check_digest(self.settings.encoder, model.digest, self.settings.expected_digest)
        if self.settings.space is Space.IMAGE and model.images is None:
            limit = "must embed images, as CLIP and SigLIP do, with --space image"
            raise InvalidArgument.of("encoder", f"{limit}; {self.settings.encoder} embeds texts only")
        self.embedder.start(model)

    async def finish(self) -> None:
        await self.embedder.close()


def wire(settings: EmbedderSettings, open_model: OpenModel = open_model) -> EmbedderProcess:
    """Build the process, inside its event loop. `open_model` loads the encoder's directory on a device."""
    device = exact_device(settings.device)
    server = RpcServer(settings.rpc, "embedder")
    embedder = Embedder()
    server.add(add_EmbedderServiceServicer_to_server, EmbedderServicer(embedder, settings.space), FULL_NAME)
    kind = ReplicaKind.IMAGE_EMBEDDER if settings.space is Space.IMAGE else ReplicaKind.EMBEDDER
    member = FleetMember(server, kind, settings)
    registration = member.registration(
        lambda replica: replace(replica, device=str(device), resident_models=embedder.names),
        lambda report: replace(report, resident_models=embedder.names),
    )
    return EmbedderProcess(
        server=server,
        registration=registration,
        embedder=embedder,
        settings=settings,
        device=device,
        open_model=open_model,
    )
