"""How a picture came to be: Provenance of pentimento.api.generation.v1 beside that of pentimento.domain.generation."""

from pentimento.api.generation.v1 import generation_pb2 as pb
from pentimento.domain.generation import Provenance, StageTiming
from pentimento.wire.generation import (
    input_from_proto,
    input_to_proto,
    route_from_proto,
    route_to_proto,
    spec_from_proto,
    spec_to_proto,
)


def timing_to_proto(timing: StageTiming) -> pb.StageTiming:
    return pb.StageTiming(stage=timing.stage, start_ms=timing.start_ms, duration_ms=timing.duration_ms)


def timing_from_proto(message: pb.StageTiming) -> StageTiming:
    return StageTiming(message.stage, message.start_ms, message.duration_ms)


def provenance_to_proto(provenance: Provenance) -> pb.Provenance:
    return pb.Provenance(
        request_id=provenance.request_id,
        spec=spec_to_proto(provenance.spec),
        route=route_to_proto(provenance.route),
        model_digest=provenance.model_digest,
        worker_id=provenance.worker_id,
        worker_generation=provenance.worker_generation,
        attempt_number=provenance.attempt_number,
        steps_run=provenance.steps_run,
        steps_saved=provenance.steps_saved,
        timings=[timing_to_proto(timing) for timing in provenance.timings],
        build_version=provenance.build_version,
        discriminator_confidence=provenance.discriminator_confidence,
        device_seconds=provenance.device_seconds,
        energy_joules=provenance.energy_joules,
        notes=provenance.notes,
        inputs=[input_to_proto(part) for part in provenance.inputs],
        replay_equal=provenance.replay_equal,
        encoding_quality=provenance.encoding_quality,
    )


def provenance_from_proto(message: pb.Provenance) -> Provenance:
    confidence = message.discriminator_confidence if message.HasField("discriminator_confidence") else None
    return Provenance(
        request_id=message.request_id,
        spec=spec_from_proto(message.spec),
        route=route_from_proto(message.route),
        model_digest=message.model_digest,
        worker_id=message.worker_id,
        worker_generation=message.worker_generation,
        attempt_number=message.attempt_number,
        steps_run=message.steps_run,
        steps_saved=message.steps_saved,
        build_version=message.build_version,
        timings=tuple(timing_from_proto(timing) for timing in message.timings),
        discriminator_confidence=confidence,
        device_seconds=message.device_seconds,
        energy_joules=message.energy_joules if message.HasField("energy_joules") else None,
        notes=tuple(message.notes),
        inputs=tuple(input_from_proto(part) for part in message.inputs),
        replay_equal=message.replay_equal if message.HasField("replay_equal") else None,
        encoding_quality=message.encoding_quality if message.HasField("encoding_quality") else None,
    )


def provenance_to_bytes(provenance: Provenance) -> bytes:
    """Return the form in which the frontdoor journals how a picture came to be."""
    return provenance_to_proto(provenance).SerializeToString(deterministic=True)


def provenance_from_bytes(data: bytes) -> Provenance:
    return provenance_from_proto(pb.Provenance.FromString(data))
