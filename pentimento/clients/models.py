"""Call the model repository."""

from collections.abc import Sequence

import grpc.aio

from pentimento.api.models.v1 import model_repository_service_pb2 as pb
from pentimento.api.models.v1.model_repository_service_pb2_grpc import ModelRepositoryServiceStub
from pentimento.clients.errors import answer_of
from pentimento.domain.models import CascadeVariant, ModelVariant, RegisteredModels
from pentimento.wire.codec import decode, nested


class ModelRepositoryClient:
    """Call the controller's model repository."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = ModelRepositoryServiceStub(channel)

    async def register_model(self, variant: ModelVariant, timeout_s: float | None = None) -> None:
        """Register a variant. Raises InvalidArgument with field and limit, FailedPrecondition NAME_TAKEN."""
        request = pb.RegisterModelRequest(model=nested(variant, pb.ModelVariant))
        await answer_of(self._stub.RegisterModel, request, timeout_s)

    async def remove_model(self, name: str, timeout_s: float | None = None) -> None:
        """Remove a variant. Raises NotFound, FailedPrecondition MODEL_IN_USE."""
        await answer_of(self._stub.RemoveModel, pb.RemoveModelRequest(name=name), timeout_s)

    async def register_cascade(
        self, cascade: CascadeVariant, timeout_s: float | None = None, *, handover_profiles: Sequence[str] = ()
    ) -> CascadeVariant:
        """Register a cascade of registered models, and return it with the shares of its hand-over profiles. Raises like
        `register_model`."""
        request = pb.RegisterCascadeRequest(
            cascade=nested(cascade, pb.CascadeVariant), handover_profiles=handover_profiles
        )
        answer = await answer_of(self._stub.RegisterCascade, request, timeout_s)
        return decode(answer.cascade, CascadeVariant)

    async def remove_cascade(self, name: str, timeout_s: float | None = None) -> None:
        """Remove a cascade. Raises NotFound."""
        await answer_of(self._stub.RemoveCascade, pb.RemoveCascadeRequest(name=name), timeout_s)

    async def registered(self, timeout_s: float | None = None) -> RegisteredModels:
        """Return all registered models and cascades."""
        answer = await answer_of(self._stub.ListRegistered, pb.ListRegisteredRequest(), timeout_s)
        return decode(answer, RegisteredModels)
