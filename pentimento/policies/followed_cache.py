"""What of a plan a cache follows: how its hits are chosen, what may enter it, and who leaves first.

The operator's own choice stands over the plan's. What may enter is only ever less than the cache's own rules keep.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from pentimento.domain.fleet import CachePlan, Plan
from pentimento.domain.generation import PlanVersion
from pentimento.policies.plan.entry import LATENT, NOISE, STARTS

_FIRST_IN_FIRST_OUT = "fifo"


@dataclass(frozen=True)
class CacheChoice:
    """What the operator chose; None where nothing was said. `alpha`: the share of the from-scratch quality (0..1) that
    hits keep where a request does not say; `bias`: tenths of the steps that every K of the selector is moved by;
    `eviction`: the name of a rule. `keeps_light`: whether anything of a cascade's earlier stages may enter, as far as a
    plan admits it."""

    alpha: float | None = None
    bias: int | None = None
    eviction: str | None = None
    keeps_light: bool = True


@dataclass(frozen=True)
class CacheInForce:
    """What a cache goes by now. `alpha` None: whatever the selector's tables promise. `admits`: kinds of start whose
    pictures and latents may enter by the plan, those of a cascade's earlier stages where `admits_light`, and
    `keeps_light` by the operator. `told`: what a plan has to do with it, a sentence for provenance; empty for nothing.
    `plan`: the plan that is followed; None for none."""

    alpha: float | None = None
    bias: int = 0
    eviction: str = _FIRST_IN_FIRST_OUT
    admits: tuple[str, ...] = STARTS
    admits_light: bool = True
    told: str = ""
    plan: PlanVersion | None = None
    keeps_light: bool = True

    def refusal(self, start_kind: str, *, light: bool) -> str:
        """Return why nothing of such an attempt enters the cache; empty where it may."""
        if light and not self.keeps_light:
            return "this cache keeps nothing of a cascade's earlier stages"
        if self.plan is None:
            return ""
        by = _named(self.plan)
        if light and not self.admits_light:
            return f"{by} keeps nothing of a cascade's earlier stages"
        return "" if start_kind in self.admits else f"{by} keeps nothing that starts from {start_kind or 'there'}"


def cache_in_force(own: CacheChoice, plan: Plan | None) -> CacheInForce:
    """Return what a cache goes by that follows `plan`; None for a cache that follows none, or has heard of none yet."""
    if plan is None:
        return CacheInForce(own.alpha, own.bias or 0, own.eviction or _FIRST_IN_FIRST_OUT, keeps_light=own.keeps_light)
    cache = plan.cache
    return CacheInForce(
        alpha=own.alpha if own.alpha is not None else cache.alpha,
        bias=own.bias if own.bias is not None else cache.bias,
        eviction=own.eviction or cache.eviction or _FIRST_IN_FIRST_OUT,
        admits=cache.admits,
        admits_light=cache.admits_light,
        told=_told(own, plan.version, cache),
        plan=plan.version,
        keeps_light=own.keeps_light,
    )


def kind_of_run(start_kind: str, start_step: int) -> str:
    """Return the kind of start of an attempt; by its first step where a caller of before does not say."""
    return start_kind or (LATENT if start_step else NOISE)


def _told(own: CacheChoice, version: PlanVersion, cache: CachePlan) -> str:
    said = list(_said(own, cache))
    return f"{_named(version)}: {', '.join(said)}" if said else ""


def _said(own: CacheChoice, cache: CachePlan) -> Iterator[str]:
    """What the plan says of how hits are chosen, and where the operator's own word stands instead."""
    if cache.alpha is not None:
        yield f"alpha {cache.alpha:g}" if own.alpha is None else f"alpha {own.alpha:g} is the operator's"
    if cache.bias:
        yield f"cache bias {cache.bias:+}" if own.bias is None else f"cache bias {own.bias:+} is the operator's"


def _named(version: PlanVersion) -> str:
    return f"plan {version.leader_epoch}.{version.sequence}"
