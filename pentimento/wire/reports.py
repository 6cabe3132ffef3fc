"""Registration, reports and the fleet: pentimento.api.controller.v1 beside pentimento.domain.fleet."""

from dataclasses import asdict

from pentimento.api.controller.v1 import controller_service_pb2 as pb
from pentimento.domain.fleet import (
    AdapterDemand,
    Fleet,
    PlanAcknowledgement,
    PoolDemand,
    ReplicaLease,
    ReplicaReport,
    ReplicaStatus,
    StartShare,
    UnplannedModel,
)
from pentimento.domain.kept_quality import KeptQuality
from pentimento.domain.thinned_steps import ThinnableSteps
from pentimento.wire.enumerations import ADAPTER_KINDS
from pentimento.wire.fleet import replica_from_proto, replica_to_proto
from pentimento.wire.generation import plan_version_from_proto, plan_version_to_proto
from pentimento.wire.plans import plan_from_proto, plan_to_proto


def lease_to_proto(lease: ReplicaLease) -> pb.RegisterResponse:
    return pb.RegisterResponse(
        lease_ms=lease.lease_ms, report_interval_ms=lease.report_interval_ms, leader_epoch=lease.leader_epoch
    )


def lease_from_proto(message: pb.RegisterResponse) -> ReplicaLease:
    return ReplicaLease(message.lease_ms, message.report_interval_ms, message.leader_epoch)


def report_to_proto(report: ReplicaReport) -> pb.ReportRequest:
    return pb.ReportRequest(
        instance_id=report.instance_id,
        generation=report.generation,
        resident_models=report.resident_models,
        queue_length=report.queue_length,
        running_count=report.running_count,
        busy_share=report.busy_share,
        completed_count=report.completed_count,
        failed_count=report.failed_count,
        demand=[_demand_to_proto(demand) for demand in report.demand],
        plan=_acknowledgement_to_proto(report.plan) if report.plan else None,
        draining=report.draining,
        held_model_digest=report.held_model_digest,
    )


def report_from_proto(message: pb.ReportRequest) -> ReplicaReport:
    plan = message.plan
    acknowledged = PlanAcknowledgement(plan_version_from_proto(plan.version), plan.model_digest)
    return ReplicaReport(
        instance_id=message.instance_id,
        generation=message.generation,
        resident_models=tuple(message.resident_models),
        queue_length=message.queue_length,
        running_count=message.running_count,
        busy_share=message.busy_share,
        completed_count=message.completed_count,
        failed_count=message.failed_count,
        demand=tuple(_demand_from_proto(demand) for demand in message.demand),
        plan=acknowledged if message.HasField("plan") else None,
        draining=message.draining,
        held_model_digest=message.held_model_digest,
    )


def _acknowledgement_to_proto(plan: PlanAcknowledgement) -> pb.PlanAcknowledgement:
    return pb.PlanAcknowledgement(version=plan_version_to_proto(plan.version), model_digest=plan.model_digest)


def _demand_to_proto(demand: PoolDemand) -> pb.PoolDemand:
    return pb.PoolDemand(
        model=demand.model,
        arrived_count=demand.arrived_count,
        completed_count=demand.completed_count,
        dropped_count=demand.dropped_count,
        late_count=demand.late_count,
        queue_length=demand.queue_length,
        starts=[pb.StartShare(**asdict(share)) for share in demand.starts],
        scored_count=demand.scored_count,
        deferred_count=demand.deferred_count,
        stood_in_count=demand.stood_in_count,
        pool=demand.pool,
        confidences=demand.confidences,
        adapters=[_adapter_demand_to_proto(adapter) for adapter in demand.adapters],
        thinnable=pb.ThinnableSteps(**asdict(demand.thinnable)),
        compared=[pb.KeptQuality(**asdict(one)) for one in demand.compared],
        hits=pb.KeptQuality(**asdict(demand.hits)),
    )


def _demand_from_proto(message: pb.PoolDemand) -> PoolDemand:
    # Scores without a word of how many were sent on would be taken for a share of none.
    scored_count = message.scored_count if message.HasField("deferred_count") else 0
    return PoolDemand(
        message.model,
        message.arrived_count,
        message.completed_count,
        message.dropped_count,
        message.late_count,
        message.queue_length,
        tuple(_start_from_proto(share) for share in message.starts),
        scored_count,
        message.deferred_count,
        message.stood_in_count,
        message.pool,
        tuple(message.confidences),
        tuple(_adapter_demand_from_proto(adapter) for adapter in message.adapters),
        _thinnable_from_proto(message.thinnable),
        tuple(_kept_from_proto(one) for one in message.compared),
        _kept_from_proto(message.hits),
    )


def _kept_from_proto(message: pb.KeptQuality) -> KeptQuality:
    return KeptQuality(message.count, message.kept, message.squares)


def _thinnable_from_proto(message: pb.ThinnableSteps) -> ThinnableSteps:
    return ThinnableSteps(message.request_count, message.spare_shares, message.lost_shares)


def _start_from_proto(message: pb.StartShare) -> StartShare:
    return StartShare(message.start_step, message.request_count, message.kind, message.step_count, message.model)


def _adapter_demand_to_proto(demand: AdapterDemand) -> pb.AdapterDemand:
    kind = ADAPTER_KINDS.to_proto(demand.kind)
    return pb.AdapterDemand(kind=kind, name=demand.name, request_count=demand.request_count)


def _adapter_demand_from_proto(message: pb.AdapterDemand) -> AdapterDemand:
    return AdapterDemand(ADAPTER_KINDS.from_proto(message.kind), message.name, message.request_count)


def status_to_proto(status: ReplicaStatus) -> pb.ReplicaStatus:
    return pb.ReplicaStatus(
        replica=replica_to_proto(status.replica),
        last_report_age_ms=status.last_report_age_ms,
        live=status.live,
        draining=status.draining,
        queue_length=status.queue_length,
        running_count=status.running_count,
        busy_share=status.busy_share,
        completed_count=status.completed_count,
        failed_count=status.failed_count,
    )


def status_from_proto(message: pb.ReplicaStatus) -> ReplicaStatus:
    return ReplicaStatus(
        replica_from_proto(message.replica),
        message.last_report_age_ms,
        message.live,
        message.draining,
        message.queue_length,
        message.running_count,
        message.busy_share,
        message.completed_count,
        message.failed_count,
    )


def fleet_to_proto(fleet: Fleet) -> pb.GetFleetResponse:
    return pb.GetFleetResponse(
        replicas=[status_to_proto(status) for status in fleet.replicas],
        plan=plan_to_proto(fleet.plan),
        leader_epoch=fleet.leader_epoch,
        unplanned=[pb.UnplannedModel(**asdict(one)) for one in fleet.unplanned],
        slo_s=fleet.slo_s,
    )


def fleet_from_proto(message: pb.GetFleetResponse) -> Fleet:
    replicas = tuple(status_from_proto(status) for status in message.replicas)
    unplanned = tuple(UnplannedModel(u.model, u.device, u.reason, u.worker_id) for u in message.unplanned)
    return Fleet(replicas, plan_from_proto(message.plan), message.leader_epoch, unplanned, message.slo_s)
