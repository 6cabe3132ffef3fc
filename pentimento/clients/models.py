"""Call the model repository."""

from collections.abc import AsyncIterator, Iterable, Sequence

import grpc.aio

from pentimento.api.models.v1 import model_repository_service_pb2 as pb
from pentimento.api.models.v1.model_repository_service_pb2_grpc import ModelRepositoryServiceStub
from pentimento.clients.errors import WrittenCall, answer_of
from pentimento.domain.models import CascadeVariant, ModelFile, ModelVariant, RegisteredModels
from pentimento.wire.codec import decode, nested

CHUNK_BYTES = 1 << 20
# Deadline of a file: 25 GB at 7 MB/s.
UPLOAD_TIMEOUT_S = 3600.0


class ModelRepositoryClient:
    """Call the controller's model repository."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = ModelRepositoryServiceStub(channel)

    async def register_model(self, variant: ModelVariant, timeout_s: float | None = None) -> None:
        """Register a variant. Raises InvalidArgument with field and limit, FailedPrecondition NAME_TAKEN."""
        request = pb.RegisterModelRequest(model=nested(variant, pb.ModelVariant))
        await answer_of(self._stub.RegisterModel, request, timeout_s)

    async def missing_files(self, files: Sequence[ModelFile], timeout_s: float | None = None) -> frozenset[str]:
        """Return the sha256 of the files that the object store lacks. Raises FailedPrecondition COMPONENT_TOO_LARGE,
        NO_UPLOADS."""
        request = pb.FindMissingFilesRequest(files=[nested(file, pb.ModelFile) for file in files])
        return frozenset((await answer_of(self._stub.FindMissingFiles, request, timeout_s)).sha256s)

    async def add_file(self, file: ModelFile, chunks: Iterable[bytes], timeout_s: float = UPLOAD_TIMEOUT_S) -> None:
        """Upload a model's file, in chunks of at most `CHUNK_BYTES`. Raises InvalidArgument with field and limit."""

        async def messages() -> AsyncIterator[pb.AddFileRequest]:
            yield pb.AddFileRequest(file=nested(file, pb.ModelFile))
            for chunk in chunks:
                yield pb.AddFileRequest(chunk=chunk)

        call = self._stub.AddFile(messages(), timeout=timeout_s)
        async with WrittenCall(call).domain_errors():
            await call

    async def model(self, name: str, timeout_s: float | None = None) -> ModelVariant:
        """Return a registered model with the hashes of its files' blocks. Raises NotFound."""
        answer = await answer_of(self._stub.GetModel, pb.GetModelRequest(name=name), timeout_s)
        return decode(answer.model, ModelVariant)

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
