"""Registered models and cascades: pentimento.api.models.v1 beside pentimento.domain.models."""

from pentimento.api.models.v1 import model_repository_service_pb2 as pb
from pentimento.domain.models import (
    CascadeVariant,
    DeviceCost,
    Handover,
    ModelFile,
    ModelVariant,
    RegisteredModels,
)
from pentimento.wire.fleet import cost_from_proto, cost_to_proto


def variant_to_proto(variant: ModelVariant) -> pb.ModelVariant:
    """Return the message of a variant."""
    return pb.ModelVariant(
        name=variant.name,
        digest=variant.digest,
        family=variant.family,
        licence=variant.licence,
        files=[pb.ModelFile(path=f.path, sha256=f.sha256, size_bytes=f.size_bytes) for f in variant.files],
        costs=[pb.DeviceCost(device=on.device, cost=cost_to_proto(on.cost)) for on in variant.costs],
    )


def variant_from_proto(message: pb.ModelVariant) -> ModelVariant:
    """Return the variant of a message."""
    return ModelVariant(
        message.name,
        message.digest,
        message.family,
        message.licence,
        tuple(ModelFile(file.path, file.sha256, file.size_bytes) for file in message.files),
        tuple(DeviceCost(on.device, cost_from_proto(on.cost)) for on in message.costs),
    )


def cascade_to_proto(cascade: CascadeVariant) -> pb.CascadeVariant:
    """Return the message of a cascade."""
    handovers = [
        pb.Handover(
            discriminator=handover.discriminator,
            discriminator_digest=handover.discriminator_digest,
            thresholds=handover.thresholds,
            shares=handover.shares,
            reuse_share=handover.reuse_share,
        )
        for handover in cascade.handovers
    ]
    return pb.CascadeVariant(models=cascade.models, handovers=handovers)


def cascade_from_proto(message: pb.CascadeVariant) -> CascadeVariant:
    """Return the cascade of a message."""
    handovers = tuple(
        Handover(of.discriminator, of.discriminator_digest, tuple(of.thresholds), tuple(of.shares), of.reuse_share)
        for of in message.handovers
    )
    return CascadeVariant(tuple(message.models), handovers)


def registered_to_proto(registered: RegisteredModels) -> pb.ListRegisteredResponse:
    """Return the message of all that is registered."""
    return pb.ListRegisteredResponse(
        models=[variant_to_proto(variant) for variant in registered.models],
        cascades=[cascade_to_proto(cascade) for cascade in registered.cascades],
    )


def registered_from_proto(message: pb.ListRegisteredResponse) -> RegisteredModels:
    """Return all that is registered, of a message."""
    return RegisteredModels(
        tuple(variant_from_proto(variant) for variant in message.models),
        tuple(cascade_from_proto(cascade) for cascade in message.cascades),
    )
