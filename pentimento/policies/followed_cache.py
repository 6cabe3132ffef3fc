"""Combine a plan's cache settings with the operator's: the choice of hits, admission, and eviction.

The operator's choice overrides the plan's. A plan can only narrow what the cache's own rules admit.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from pentimento.domain.fleet import CachePlan, Plan
from pentimento.domain.generation import PlanVersion
from pentimento.policies.plan.entry import LATENT, NOISE, STARTS

# Saves most in small caches (benchmarks `eviction`, `cache_holes`).
DEFAULT_EVICTION = "aged"


@dataclass(frozen=True)
class CacheChoice:
    """Hold the operator's choices; None for no choice. `alpha`: the share of the from-scratch quality (0..1) that hits
    keep by default; `bias`: tenths of the steps added to every K of the selector; `eviction`: the name of a rule.
    `keeps_light`: whether entries of a cascade's earlier stages may enter, if the plan admits them too."""

    alpha: float | None = None
    bias: int | None = None
    eviction: str | None = None
    keeps_light: bool = True


@dataclass(frozen=True)
class CacheInForce:
    """Hold the settings that a cache uses now. `alpha` None: the promise of the selector's tables. `admits`: kinds of
    start that the plan admits, with images and latents; entries of a cascade's earlier stages also need `admits_light`
    (the plan's) and `keeps_light` (the operator's). `told`: the plan's part in the choice of hits, for provenance;
    empty for none. `plan`: the followed plan; None for none."""

    alpha: float | None = None
    bias: int = 0
    eviction: str = DEFAULT_EVICTION
    admits: tuple[str, ...] = STARTS
    admits_light: bool = True
    told: str = ""
    plan: PlanVersion | None = None
    keeps_light: bool = True

    def refusal(self, start_kind: str, *, light: bool) -> str:
        """Return why such an attempt stores nothing in the cache; empty if it may."""
        if light and not self.keeps_light:
            return "this cache keeps nothing of a cascade's earlier stages"
        if self.plan is None:
            return ""
        by = _named(self.plan)
        if light and not self.admits_light:
            return f"{by} keeps nothing of a cascade's earlier stages"
        return "" if start_kind in self.admits else f"{by} keeps nothing that starts from {start_kind or 'there'}"


def cache_in_force(own: CacheChoice, plan: Plan | None) -> CacheInForce:
    """Return the settings of a cache that follows `plan`; None if it follows no plan or has not received one yet."""
    if plan is None:
        return CacheInForce(own.alpha, own.bias or 0, own.eviction or DEFAULT_EVICTION, keeps_light=own.keeps_light)
    cache = plan.cache
    return CacheInForce(
        alpha=own.alpha if own.alpha is not None else cache.alpha,
        bias=own.bias if own.bias is not None else cache.bias,
        eviction=own.eviction or cache.eviction or DEFAULT_EVICTION,
        admits=cache.admits,
        admits_light=cache.admits_light,
        told=_told(own, plan.version, cache),
        plan=plan.version,
        keeps_light=own.keeps_light,
    )


def kind_of_run(start_kind: str, start_step: int) -> str:
    """Return the kind of start of an attempt; derived from its first step if an older caller does not state it."""
    return start_kind or (LATENT if start_step else NOISE)


def _told(own: CacheChoice, version: PlanVersion, cache: CachePlan) -> str:
    said = list(_said(own, cache))
    return f"{_named(version)}: {', '.join(said)}" if said else ""


def _said(own: CacheChoice, cache: CachePlan) -> Iterator[str]:
    """Yield the plan's settings for the choice of hits, and the operator's choices that override them."""
    if cache.alpha is not None:
        yield f"alpha {cache.alpha:g}" if own.alpha is None else f"alpha {own.alpha:g} is the operator's"
    if cache.bias:
        yield f"cache bias {cache.bias:+}" if own.bias is None else f"cache bias {own.bias:+} is the operator's"


def _named(version: PlanVersion) -> str:
    return f"plan {version.leader_epoch}.{version.sequence}"
