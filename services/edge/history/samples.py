"""Samples for the charts: the suite's totals and the plan in force. Pure."""

import math
from collections import Counter
from typing import Any

from pentimento.clients.suite_status import SuiteStatus
from pentimento.domain.fleet import Plan

COUNTS = ("accepted", "completed", "failed", "rejected")
POOL_COUNTS = ("late", "scored", "deferred")


def sample_of(status: SuiteStatus, at_ms: int) -> dict[str, Any] | None:
    """Return a status as JSON values; None if the frontdoor did not answer.

    Totals since the start of the frontdoor process that `epoch` names: requests; `late`, `scored` and `deferred` images
    of all pools; steps `run` and `saved`; images by start and K; completed requests by latency in seconds. From the
    plan: workers by model, thresholds by stage, the admitted share, and the SLO in seconds (0 for none)."""
    frontdoor = status.frontdoor
    if frontdoor is None:
        return None
    return {
        "at": at_ms,
        "epoch": f"{frontdoor.frontdoor_id} {frontdoor.frontdoor_epoch}",
        **{name: getattr(frontdoor, f"{name}_count") for name in COUNTS},
        **{name: sum(getattr(pool, f"{name}_count") for pool in frontdoor.pools) for name in POOL_COUNTS},
        "run": frontdoor.steps_run,
        "saved": frontdoor.steps_saved,
        "starts": [[one.kind, one.saved_steps, one.image_count] for one in frontdoor.starts],
        "latencies": [[bound_of(one.upper_bound_s), one.request_count] for one in frontdoor.latencies],
        **plan_sample(status.fleet.plan if status.fleet is not None else None),
        "slo_s": status.fleet.slo_s if status.fleet is not None else 0.0,
    }


def bound_of(seconds: float) -> float | str:
    """Return a bucket's bound as a JSON value."""
    return seconds if math.isfinite(seconds) else "Infinity"


def plan_sample(plan: Plan | None) -> dict[str, Any]:
    """Return the plan's part of a sample; without a plan every request is admitted."""
    if plan is None:
        return {"workers": {}, "thresholds": {}, "admission": 1.0}
    thresholds = {}
    for cascade in plan.cascades:
        stages = [stage for stage in cascade.stages if stage.thresholds]
        for stage in stages:
            name = cascade.cascade if len(stages) == 1 else f"{cascade.cascade} {stage.pool}"
            thresholds[name] = max(one.confidence for one in stage.thresholds)
    workers = Counter(assignment.model for assignment in plan.assignments)
    return {"workers": dict(workers), "thresholds": thresholds, "admission": plan.admission_rate}
