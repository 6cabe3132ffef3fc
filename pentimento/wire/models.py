"""Registered models and cascades: pentimento.api.models.v1 beside pentimento.domain.models."""

from pentimento.api.models.v1 import model_repository_service_pb2 as pb
from pentimento.domain.models import (
    CascadeVariant,
    DeviceCost,
    Handover,
    ModelFile,
    ModelVariant,
    RegisteredModels,
    ReuseProfile,
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
            reuse_profile=_reuse_profile_to_proto(handover.reuse_profile),
        )
        for handover in cascade.handovers
    ]
    return pb.CascadeVariant(models=cascade.models, handovers=handovers)


def cascade_from_proto(message: pb.CascadeVariant) -> CascadeVariant:
    """Return the cascade of a message."""
    return CascadeVariant(tuple(message.models), tuple(_handover_from_proto(of) for of in message.handovers))


def _handover_from_proto(message: pb.Handover) -> Handover:
    profile = message.reuse_profile
    return Handover(
        message.discriminator,
        message.discriminator_digest,
        tuple(message.thresholds),
        tuple(message.shares),
        message.reuse_share,
        ReuseProfile(profile.file_digest, profile.alpha, profile.rule) if message.HasField("reuse_profile") else None,
    )


def _reuse_profile_to_proto(profile: ReuseProfile | None) -> pb.ReuseProfile | None:
    if profile is None:
        return None
    return pb.ReuseProfile(file_digest=profile.file_digest, alpha=profile.alpha, rule=profile.rule)


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
