"""Plans: pentimento.api.controller.v1.Plan beside pentimento.domain.fleet.Plan."""

from dataclasses import asdict

from google.protobuf.message import DecodeError

from pentimento.api.controller.v1 import controller_service_pb2 as pb
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.fleet import (
    AdapterPlacement,
    CachePlan,
    CascadePlan,
    ComponentPlacement,
    Plan,
    PoolPlan,
    RegisteredDigest,
    RouteShare,
    ServiceEndpoint,
    StagePlan,
    StartThreshold,
    WorkerAssignment,
)
from pentimento.wire.adapters import adapter_from_proto, adapter_to_proto
from pentimento.wire.enumerations import REPLICA_KINDS
from pentimento.wire.generation import plan_version_from_proto, plan_version_to_proto


def plan_to_proto(plan: Plan) -> pb.Plan:
    return pb.Plan(
        version=plan_version_to_proto(plan.version),
        assignments=[pb.WorkerAssignment(**asdict(assignment)) for assignment in plan.assignments],
        pools=[_pool_to_proto(pool) for pool in plan.pools],
        admission_rate=plan.admission_rate,
        endpoints=[_endpoint_to_proto(endpoint) for endpoint in plan.endpoints],
        allocator=plan.allocator,
        keeps_late=not plan.drops_late,
        placements=[_placement_to_proto(placement) for placement in plan.placements],
        cascades=[_cascade_to_proto(cascade) for cascade in plan.cascades],
        cache=_cache_to_proto(plan.cache),
        components=[_component_to_proto(placement) for placement in plan.components],
        notes=plan.notes,
        registered=[pb.RegisteredDigest(model=one.model, digest=one.digest) for one in plan.registered],
    )


def plan_from_proto(message: pb.Plan) -> Plan:
    return Plan(
        version=plan_version_from_proto(message.version),
        assignments=tuple(_assignment_from_proto(assignment) for assignment in message.assignments),
        pools=tuple(_pool_from_proto(pool) for pool in message.pools),
        admission_rate=message.admission_rate,
        endpoints=tuple(_endpoint_from_proto(endpoint) for endpoint in message.endpoints),
        allocator=message.allocator,
        drops_late=not message.keeps_late,
        placements=tuple(_placement_from_proto(placement) for placement in message.placements),
        cascades=tuple(_cascade_from_proto(cascade) for cascade in message.cascades),
        cache=_cache_from_proto(message.cache) if message.HasField("cache") else CachePlan(),
        components=tuple(_component_from_proto(placement) for placement in message.components),
        notes=tuple(message.notes),
        registered=tuple(RegisteredDigest(one.model, one.digest) for one in message.registered),
    )


def plan_to_bytes(plan: Plan) -> bytes:
    """Return the form in which the frontdoor keeps its last plan."""
    return plan_to_proto(plan).SerializeToString(deterministic=True)


def plan_from_bytes(data: bytes) -> Plan:
    """Return what `plan_to_bytes` was given. Raises InvalidArgument for what is no known plan."""
    try:
        return plan_from_proto(pb.Plan.FromString(data))
    except DecodeError as error:
        raise InvalidArgument.of("plan", "must be a saved plan") from error


def _assignment_from_proto(message: pb.WorkerAssignment) -> WorkerAssignment:
    return WorkerAssignment(
        message.worker_id,
        message.address,
        message.model,
        message.generation,
        message.max_batch_size,
        tuple(message.prefetch),
    )


def _pool_to_proto(pool: PoolPlan) -> pb.PoolPlan:
    return pb.PoolPlan(
        pool=pool.pool,
        model=pool.model,
        worker_ids=pool.worker_ids,
        routes=[pb.RouteShare(**asdict(share)) for share in pool.routes],
        thins=pool.thins,
    )


def _pool_from_proto(message: pb.PoolPlan) -> PoolPlan:
    return PoolPlan(
        message.pool,
        message.model,
        tuple(message.worker_ids),
        tuple(RouteShare(share.route, share.share, share.cascade) for share in message.routes),
        message.thins,
    )


def _placement_to_proto(placement: AdapterPlacement) -> pb.AdapterPlacement:
    return pb.AdapterPlacement(
        adapter=adapter_to_proto(placement.adapter),
        instance_ids=placement.instance_ids,
        resident_instance_ids=placement.resident_instance_ids,
    )


def _placement_from_proto(message: pb.AdapterPlacement) -> AdapterPlacement:
    adapter = adapter_from_proto(message.adapter)
    return AdapterPlacement(adapter, tuple(message.instance_ids), tuple(message.resident_instance_ids))


def _endpoint_to_proto(endpoint: ServiceEndpoint) -> pb.ServiceEndpoint:
    kind = REPLICA_KINDS.to_proto(endpoint.kind)
    return pb.ServiceEndpoint(
        kind=kind,
        instance_id=endpoint.instance_id,
        address=endpoint.address,
        available_models=endpoint.available_models,
    )


def _endpoint_from_proto(message: pb.ServiceEndpoint) -> ServiceEndpoint:
    kind = REPLICA_KINDS.from_proto(message.kind)
    return ServiceEndpoint(kind, message.instance_id, message.address, tuple(message.available_models))


def _cascade_to_proto(cascade: CascadePlan) -> pb.CascadePlan:
    return pb.CascadePlan(
        cascade=cascade.cascade,
        stages=[
            pb.StagePlan(
                pool=stage.pool,
                thresholds=[pb.StartThreshold(**asdict(threshold)) for threshold in stage.thresholds],
                discriminator=stage.discriminator,
                skip_below=stage.skip_below,
                reuse_share=stage.reuse_share,
                discriminator_digest=stage.discriminator_digest,
            )
            for stage in cascade.stages
        ],
    )


def _cascade_from_proto(message: pb.CascadePlan) -> CascadePlan:
    return CascadePlan(message.cascade, tuple(_stage_from_proto(stage) for stage in message.stages))


def _stage_from_proto(message: pb.StagePlan) -> StagePlan:
    thresholds = tuple(StartThreshold(threshold.start, threshold.confidence) for threshold in message.thresholds)
    return StagePlan(
        message.pool,
        thresholds,
        message.discriminator,
        message.skip_below,
        message.reuse_share,
        message.discriminator_digest,
    )


def _cache_to_proto(cache: CachePlan) -> pb.CachePlan:
    return pb.CachePlan(
        admits=cache.admits,
        refuses_light=not cache.admits_light,
        alpha=cache.alpha,
        bias=cache.bias,
        eviction=cache.eviction,
    )


def _cache_from_proto(message: pb.CachePlan) -> CachePlan:
    alpha = message.alpha if message.HasField("alpha") else None
    return CachePlan(tuple(message.admits), not message.refuses_light, alpha, message.bias, message.eviction)


def _component_to_proto(placement: ComponentPlacement) -> pb.ComponentPlacement:
    kind = REPLICA_KINDS.to_proto(placement.kind)
    return pb.ComponentPlacement(kind=kind, component=placement.component, instance_ids=placement.instance_ids)


def _component_from_proto(message: pb.ComponentPlacement) -> ComponentPlacement:
    kind = REPLICA_KINDS.from_proto(message.kind)
    return ComponentPlacement(kind, message.component, tuple(message.instance_ids))
