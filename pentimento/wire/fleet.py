"""pentimento.api.controller.v1 and pentimento.api.worker.v1 beside pentimento.domain.fleet and .execution."""

from dataclasses import asdict

from pentimento.api.controller.v1 import controller_service_pb2 as pb
from pentimento.api.worker.v1 import unet_worker_service_pb2 as worker_pb
from pentimento.domain.adapters import Adapter
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.execution import (
    AttemptResult,
    ExecuteEvent,
    PlaceYielded,
    RunningAttempt,
    Started,
    StepProgress,
    WorkerCredits,
)
from pentimento.domain.fleet import (
    Capability,
    HeldModel,
    ModelCost,
    Replica,
)
from pentimento.wire.adapters import adapter_from_proto, adapter_to_proto, rejected_from_proto, rejected_to_proto
from pentimento.wire.enumerations import CAPABILITIES, REPLICA_KINDS, capabilities_from_proto
from pentimento.wire.generation import (
    attempt_from_proto,
    attempt_to_proto,
    captured_from_proto,
    captured_to_proto,
)
from pentimento.wire.provenance import timing_from_proto, timing_to_proto


def replica_to_proto(replica: Replica) -> pb.Replica:
    return pb.Replica(
        instance_id=replica.instance_id,
        kind=REPLICA_KINDS.to_proto(replica.kind),
        address=replica.address,
        build_version=replica.build_version,
        generation=replica.generation,
        device=replica.device,
        device_memory_bytes=replica.device_memory_bytes,
        available_models=replica.available_models,
        resident_models=replica.resident_models,
        capabilities=sorted(value.value for value in replica.capabilities),
        costs=[cost_to_proto(cost) for cost in replica.costs],
        adapters=[adapter_to_proto(adapter) for adapter in replica.adapters],
        held_model_digest=replica.held_model_digest,
    )


def replica_from_proto(message: pb.Replica) -> Replica:
    known = {value.value: value for value in Capability}
    return Replica(
        instance_id=message.instance_id,
        kind=REPLICA_KINDS.from_proto(message.kind),
        address=message.address,
        generation=message.generation,
        build_version=message.build_version,
        device=message.device,
        device_memory_bytes=message.device_memory_bytes,
        available_models=tuple(message.available_models),
        resident_models=tuple(message.resident_models),
        capabilities=frozenset(known[name] for name in message.capabilities if name in known),
        costs=tuple(cost_from_proto(cost) for cost in message.costs),
        adapters=tuple(adapter_from_proto(adapter) for adapter in message.adapters),
        held_model_digest=message.held_model_digest,
    )


def cost_to_proto(cost: ModelCost) -> pb.ModelCost:
    batches = [pb.BatchCost(batch_size=size, run_seconds=seconds) for size, seconds in cost.run_s]
    return pb.ModelCost(
        model=cost.model,
        batches=batches,
        memory_bytes=cost.memory_bytes,
        load_seconds=cost.load_s,
        step_count=cost.step_count,
        fixed_seconds=cost.fixed_s,
        finish_seconds=cost.finish_s,
    )


def cost_from_proto(message: pb.ModelCost) -> ModelCost:
    run_s = tuple((batch.batch_size, batch.run_seconds) for batch in message.batches)
    return ModelCost(
        message.model,
        run_s,
        message.memory_bytes,
        message.load_seconds,
        message.step_count,
        message.fixed_seconds,
        message.finish_seconds,
    )


def held_model_to_proto(held: HeldModel) -> worker_pb.HeldModel:
    return worker_pb.HeldModel(**asdict(held))


def held_model_from_proto(message: worker_pb.HeldModel) -> HeldModel:
    fields = {name: getattr(message, name) for name in HeldModel.__dataclass_fields__}
    return HeldModel(**{**fields, "schedulers": tuple(message.schedulers)})


def running_attempt_to_proto(attempt: RunningAttempt) -> worker_pb.RunningAttempt:
    return worker_pb.RunningAttempt(**asdict(attempt))


def running_attempt_from_proto(message: worker_pb.RunningAttempt) -> RunningAttempt:
    return RunningAttempt(message.request_id, message.fencing_token, message.step, message.step_count, message.orphaned)


def credits_to_proto(credits: WorkerCredits) -> worker_pb.WatchCreditsResponse:
    return worker_pb.WatchCreditsResponse(
        worker_id=credits.worker_id,
        held=held_model_to_proto(credits.held),
        credit_count=credits.credit_count,
        reserve_count=credits.reserve_count,
        preparing_count=credits.preparing_count,
        running_count=credits.running_count,
        queued_count=credits.queued_count,
        draining=credits.draining,
        capabilities=sorted(CAPABILITIES.to_proto(value) for value in credits.capabilities),
        resident_components=credits.resident_components,
        attempts=[running_attempt_to_proto(attempt) for attempt in credits.attempts],
        known_adapters=_known_adapters_to_proto(credits.known_adapters),
        rejected_adapters=[rejected_to_proto(rejected) for rejected in credits.rejected_adapters],
    )


def credits_from_proto(message: worker_pb.WatchCreditsResponse) -> WorkerCredits:
    return WorkerCredits(
        worker_id=message.worker_id,
        held=held_model_from_proto(message.held),
        credit_count=message.credit_count,
        reserve_count=message.reserve_count,
        preparing_count=message.preparing_count,
        running_count=message.running_count,
        queued_count=message.queued_count,
        draining=message.draining,
        capabilities=capabilities_from_proto(list(message.capabilities)),
        resident_components=tuple(message.resident_components),
        attempts=tuple(running_attempt_from_proto(attempt) for attempt in message.attempts),
        known_adapters=_known_adapters_from_proto(message),
        rejected_adapters=tuple(rejected_from_proto(rejected) for rejected in message.rejected_adapters),
    )


def _known_adapters_to_proto(adapters: tuple[Adapter, ...] | None) -> worker_pb.KnownAdapters | None:
    if adapters is None:
        return None
    return worker_pb.KnownAdapters(adapters=[adapter_to_proto(adapter) for adapter in adapters])


def _known_adapters_from_proto(message: worker_pb.WatchCreditsResponse) -> tuple[Adapter, ...] | None:
    if not message.HasField("known_adapters"):
        return None
    return tuple(adapter_from_proto(adapter) for adapter in message.known_adapters.adapters)


def result_to_proto(result: AttemptResult) -> worker_pb.AttemptResult:
    return worker_pb.AttemptResult(
        attempt=attempt_to_proto(result.attempt),
        image=result.image,
        width_px=result.width_px,
        height_px=result.height_px,
        image_digest=result.image_digest,
        captured=captured_to_proto(result.captured),
        steps_run=result.steps_run,
        steps_saved=result.steps_saved,
        timings=[timing_to_proto(timing) for timing in result.timings],
        device_seconds=result.device_seconds,
        energy_joules=result.energy_joules,
        model_digest=result.model_digest,
        worker_generation=result.worker_generation,
        notes=result.notes,
        bad_donor_reason=result.bad_donor_reason,
        lora_patch_step=result.lora_patch_step,
        residual_wait_share=result.residual_wait_share,
        thinned_steps=result.thinned_steps,
    )


def result_from_proto(message: worker_pb.AttemptResult) -> AttemptResult:
    return AttemptResult(
        attempt=attempt_from_proto(message.attempt),
        image=message.image,
        width_px=message.width_px,
        height_px=message.height_px,
        image_digest=message.image_digest,
        captured=captured_from_proto(message.captured),
        steps_run=message.steps_run,
        steps_saved=message.steps_saved,
        model_digest=message.model_digest,
        worker_generation=message.worker_generation,
        timings=tuple(timing_from_proto(timing) for timing in message.timings),
        device_seconds=message.device_seconds,
        energy_joules=message.energy_joules if message.HasField("energy_joules") else None,
        notes=tuple(message.notes),
        bad_donor_reason=message.bad_donor_reason,
        lora_patch_step=message.lora_patch_step if message.HasField("lora_patch_step") else None,
        residual_wait_share=message.residual_wait_share if message.HasField("residual_wait_share") else None,
        thinned_steps=tuple(message.thinned_steps),
    )


def execute_event_to_proto(event: ExecuteEvent) -> worker_pb.ExecuteResponse:
    match event:
        case Started():
            return worker_pb.ExecuteResponse(started=worker_pb.Started(**asdict(event)))
        case StepProgress():
            return worker_pb.ExecuteResponse(progress=worker_pb.StepProgress(**asdict(event)))
        case PlaceYielded():
            return worker_pb.ExecuteResponse(place_yielded=worker_pb.PlaceYielded())
        case AttemptResult():
            return worker_pb.ExecuteResponse(result=result_to_proto(event))


def attach_event_to_proto(event: ExecuteEvent) -> worker_pb.AttachResponse:
    message = execute_event_to_proto(event)
    return worker_pb.AttachResponse(
        started=message.started if message.HasField("started") else None,
        progress=message.progress if message.HasField("progress") else None,
        result=message.result if message.HasField("result") else None,
        place_yielded=message.place_yielded if message.HasField("place_yielded") else None,
    )


def execute_event_from_proto(message: worker_pb.ExecuteResponse | worker_pb.AttachResponse) -> ExecuteEvent:
    kind = message.WhichOneof("event")
    if kind == "started":
        return Started(message.started.worker_id, message.started.first_step, message.started.step_count)
    if kind == "progress":
        return StepProgress(message.progress.step, message.progress.step_count, message.progress.preview)
    if kind == "result":
        return result_from_proto(message.result)
    if kind == "place_yielded":
        return PlaceYielded()
    raise InvalidArgument.of("event", "must be started, progress, result or place_yielded, got nothing")
