"""Policies of the lab by name, and all that a checkout has."""

from collections.abc import Mapping

from lab.planners.ablations import StaticCascade, ablated
from lab.planners.baselines import ClipperModel, Proteus
from lab.planners.cascade_milp import solve_by_milp
from pentimento.policies.plan.placement import OneModel
from pentimento.policies.plan.registry import (
    CASCADE,
    SERVING_POLICIES,
    CacheUse,
    PolicyBuilder,
    ServingPolicy,
    policy,
)
from pentimento.policies.plan.settings import ServingSettings


@policy("heavy")
def vanilla(settings: ServingSettings) -> ServingPolicy:
    """Build the baseline without reuse: every request by the heavy model from noise, first come first served; late is
    late."""
    return ServingPolicy("vanilla", _heavy(settings), drops_late=False)


@policy("light", "slo_s")
def clipper_light(settings: ServingSettings) -> ServingPolicy:
    """Build Clipper with the light model only: AIMD batches."""
    allocator = ClipperModel(settings.light, settings.slo_s, settings.batch_sizes)
    return ServingPolicy("clipper-light", allocator)


@policy("heavy", "slo_s")
def clipper_heavy(settings: ServingSettings) -> ServingPolicy:
    """Build Clipper with the heavy model only: AIMD batches."""
    allocator = ClipperModel(settings.heavy, settings.slo_s, settings.batch_sizes)
    return ServingPolicy("clipper-heavy", allocator)


@policy(*CASCADE)
def proteus(settings: ServingSettings) -> ServingPolicy:
    """Build Proteus: light and heavy by load, requests to them at random."""
    return ServingPolicy("proteus", Proteus(settings))


@policy(*CASCADE, "peak_per_s")
def static_cascade(settings: ServingSettings) -> ServingPolicy:
    """Build DiffServe-Static: a cascade allocated once, for the peak demand."""
    return ServingPolicy("static-cascade", StaticCascade(settings))


@policy(*CASCADE)
def static_threshold(settings: ServingSettings) -> ServingPolicy:
    """Build DiffServe with a threshold that never moves."""
    return ServingPolicy("static-threshold", ablated(settings, fixed_threshold=settings.fixed_threshold))


@policy(*CASCADE)
def aimd(settings: ServingSettings) -> ServingPolicy:
    """Build DiffServe with AIMD batch sizes in place of the solver's."""
    return ServingPolicy("aimd", ablated(settings, aimd=True))


@policy(*CASCADE)
def no_queueing_model(settings: ServingSettings) -> ServingPolicy:
    """Build DiffServe without Little's law: a wait of twice the execution is assumed."""
    return ServingPolicy("no-queueing-model", ablated(settings, queueing_model=False))


@policy(*CASCADE)
def diffserve_relaxed(settings: ServingSettings) -> ServingPolicy:
    """Build DiffServe without the heavy model's terms while no request is deferred, so that a long heavy queue leaves
    the light model running."""
    return ServingPolicy("diffserve-relaxed", ablated(settings, relaxed=True))


@policy(*CASCADE)
def diffserve_milp(settings: ServingSettings) -> ServingPolicy:
    """Build DiffServe with the paper's MILP solver: the same thresholds, later."""
    return ServingPolicy("diffserve-milp", ablated(settings, solver=solve_by_milp))


@policy("heavy")
def nirvana_only(settings: ServingSettings) -> ServingPolicy:
    """Build NIRVANA: latents of misses are reused, as the paper stores them, with LCBFU eviction."""
    return ServingPolicy(
        "nirvana-only", _heavy(settings), CacheUse.LATENTS, "lcbfu", cache_hits=False, drops_late=False
    )


@policy("heavy")
def retrieval_only(settings: ServingSettings) -> ServingPolicy:
    """Build pure retrieval: answer with the nearest cached image if it is similar enough, else use the heavy model
    (Pinecone in MoDM's evaluation)."""
    return ServingPolicy("retrieval-only", _heavy(settings), CacheUse.RETRIEVAL, cache_hits=False, drops_late=False)


def _heavy(settings: ServingSettings) -> OneModel:
    return OneModel(settings.heavy, settings.slo_s, settings.batch_sizes)


LAB_POLICIES: Mapping[str, PolicyBuilder] = {
    built.name: built
    for built in (
        vanilla,
        clipper_light,
        clipper_heavy,
        proteus,
        static_cascade,
        static_threshold,
        aimd,
        no_queueing_model,
        diffserve_relaxed,
        diffserve_milp,
        nirvana_only,
        retrieval_only,
    )
}
POLICIES: Mapping[str, PolicyBuilder] = {**SERVING_POLICIES, **LAB_POLICIES}
