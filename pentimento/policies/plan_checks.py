"""Validate plans: the controller before it publishes a plan, front doors before they follow it."""

import math
from collections.abc import Iterable

from pentimento.domain.errors import InvalidArgument
from pentimento.domain.fleet import CachePlan, CascadePlan, Plan, PoolPlan, ReplicaKind, StagePlan
from pentimento.policies.eviction_rules import EVICTION_NAMES
from pentimento.policies.plan.entry import SPARE, STARTS

MAX_BIAS = 16
# Limits of fields that only earlier stages may have.
_OF_THE_LAST = {
    "reuse_share": "must be 0: no stage starts from the last one's image",
    "thresholds": "must be empty: no image of the last stage is scored",
}


def check_plan(plan: Plan) -> None:
    """Raise InvalidArgument that names the first invalid field: a share outside 0..1, a missing pool or cascade, an
    unknown start."""
    _check_share("admission_rate", plan.admission_rate)
    _check_assignments(plan)
    _check_once("pools", (pool.pool for pool in plan.pools))
    _check_once("cascades", (cascade.cascade for cascade in plan.cascades))
    cascades = {cascade.cascade: cascade for cascade in plan.cascades}
    pools = {pool.pool for pool in plan.pools}
    for index, cascade in enumerate(plan.cascades):
        _check_cascade(f"cascades[{index}]", cascade, pools)
    for index, pool in enumerate(plan.pools):
        _check_pool(f"pools[{index}]", pool, cascades)
    _check_cache(plan.cache)
    _check_once("registered", (one.model for one in plan.registered))
    for index, placement in enumerate(plan.components):
        if placement.kind is ReplicaKind.UNET_WORKER or not placement.component:
            limit = "must be a component of a service; models of workers are in the assignments"
            raise InvalidArgument.of(f"components[{index}]", limit)


def _check_assignments(plan: Plan) -> None:
    _check_once("assignments", (assignment.worker_id for assignment in plan.assignments))
    for index, assignment in enumerate(plan.assignments):
        if assignment.max_batch_size < 0:
            limit = f"must be at least 0, got {assignment.max_batch_size}"
            raise InvalidArgument.of(f"assignments[{index}].max_batch_size", limit)


def _check_pool(field: str, pool: PoolPlan, cascades: dict[str, CascadePlan]) -> None:
    for index, route in enumerate(pool.routes):
        where = f"{field}.routes[{index}]"
        if route.route not in (*STARTS, SPARE):
            raise InvalidArgument.of(f"{where}.route", f"must be noise, latent, image or spare, got {route.route!r}")
        _check_share(f"{where}.share", route.share)
        if not route.cascade:
            continue
        if route.cascade not in cascades:
            raise InvalidArgument.of(f"{where}.cascade", f"must be a cascade of the plan, got {route.cascade!r}")
        if (first := cascades[route.cascade].stages[0].pool) != pool.pool:
            raise InvalidArgument.of(f"{where}.cascade", f"must begin with {pool.pool!r}, begins with {first!r}")


def _check_cascade(field: str, cascade: CascadePlan, pools: set[str]) -> None:
    if len(cascade.stages) < 2:
        raise InvalidArgument.of(f"{field}.stages", f"must be at least 2, got {len(cascade.stages)}")
    _check_once(f"{field}.stages", (stage.pool for stage in cascade.stages))
    for index, stage in enumerate(cascade.stages):
        if stage.pool not in pools:
            raise InvalidArgument.of(f"{field}.stages[{index}].pool", f"must be a pool of the plan, got {stage.pool!r}")
        _check_thresholds(f"{field}.stages[{index}]", stage)
        if not 0.0 <= stage.reuse_share < 1.0:
            limit = f"must be at least 0 and below 1, got {stage.reuse_share}"
            raise InvalidArgument.of(f"{field}.stages[{index}].reuse_share", limit)
    for name, limit in _OF_THE_LAST.items():
        if getattr(cascade.stages[-1], name):
            raise InvalidArgument.of(f"{field}.stages[{len(cascade.stages) - 1}].{name}", limit)


def _check_thresholds(field: str, stage: StagePlan) -> None:
    _check_once(f"{field}.thresholds", (threshold.start for threshold in stage.thresholds))
    for index, threshold in enumerate(stage.thresholds):
        where = f"{field}.thresholds[{index}]"
        if threshold.start not in STARTS:
            raise InvalidArgument.of(f"{where}.start", f"must be noise, latent or image, got {threshold.start!r}")
        _check_share(f"{where}.confidence", threshold.confidence)


def _check_cache(cache: CachePlan) -> None:
    for start in cache.admits:
        if start not in STARTS:
            raise InvalidArgument.of("cache.admits", f"must be noise, latent or image, got {start!r}")
    if cache.alpha is not None:
        _check_share("cache.alpha", cache.alpha)
    if cache.eviction and cache.eviction not in EVICTION_NAMES:
        limit = f"must be one of {', '.join(EVICTION_NAMES)}, or empty, got {cache.eviction!r}"
        raise InvalidArgument.of("cache.eviction", limit)
    if abs(cache.bias) > MAX_BIAS:
        raise InvalidArgument.of("cache.bias", f"must be between {-MAX_BIAS} and {MAX_BIAS}, got {cache.bias}")


def _check_once(field: str, names: Iterable[str]) -> None:
    seen = set[str]()
    for name in names:
        if not name or name in seen:
            raise InvalidArgument.of(field, f"must have names of their own, got {name!r}")
        seen.add(name)


def _check_share(field: str, value: float) -> None:
    if not (math.isfinite(value) and 0.0 <= value <= 1.0):
        raise InvalidArgument.of(field, f"must be between 0 and 1, got {value}")
