"""A serving policy: everything that one system of the literature decides, as one value that any runner can play."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto

from pentimento.domain.fleet import CachePlan
from pentimento.policies.allocation import Allocator, hold_resident
from pentimento.policies.serving.cascade_milp import solve_by_milp
from pentimento.policies.serving.cascades import CascadeAllocator, StaticCascade
from pentimento.policies.serving.entry import NOISE, STARTS
from pentimento.policies.serving.joint import JointAllocator
from pentimento.policies.serving.mixture import MixtureAllocator, ResidentMixture
from pentimento.policies.serving.proteus import Proteus
from pentimento.policies.serving.settings import ServingSettings
from pentimento.policies.serving.uniform import OneModel


class CacheUse(Enum):
    """What is reused: nothing, intermediate latents (NIRVANA), images refined (MoDM), both, images as they are."""

    NONE = auto()
    LATENTS = auto()
    IMAGES = auto()
    BOTH = auto()
    RETRIEVAL = auto()

    @property
    def latents(self) -> bool:
        """Whether latents are kept and resumed."""
        return self in (CacheUse.LATENTS, CacheUse.BOTH)

    @property
    def images(self) -> bool:
        """Whether images are kept, and refined or answered."""
        return self in (CacheUse.IMAGES, CacheUse.BOTH, CacheUse.RETRIEVAL)


@dataclass(frozen=True)
class ServingPolicy:
    """A serving system as a value. `allocator` decides models, batch sizes, thresholds and shares; routers follow the
    plan (`serving.entry`).

    `plans_batches`: whether devices take the plan's batch sizes, or their own.
    `eviction` names the cache's rule (`policies.eviction`). `cache_hits`: whether refined hits are cached too.
    `drops_late`: whether requests that are predicted to miss their deadline are dropped early (DiffServe, section 4.1).
    """

    name: str
    allocator: Allocator
    cache: CacheUse = CacheUse.NONE
    eviction: str = "fifo"
    cache_hits: bool = True
    drops_late: bool = True
    plans_batches: bool = True

    def cache_plan(self, decided: CachePlan) -> CachePlan:
        """Return what plans of this policy say of the cache: what its allocator decided, else what the system itself
        keeps and evicts. A policy that reuses nothing says nothing of a cache that others may read. How hits are chosen
        is the allocator's word alone."""
        if self.cache is CacheUse.NONE or replace(decided, alpha=None, bias=0) != CachePlan():
            return decided
        return replace(decided, admits=STARTS if self.cache_hits else (NOISE,), eviction=self.eviction)


def resident(settings: ServingSettings) -> ServingPolicy:
    """Build the policy without planning: every worker goes on with the model that it holds, in batches of its own."""
    return ServingPolicy("resident", hold_resident, plans_batches=False)


def vanilla(settings: ServingSettings) -> ServingPolicy:
    """Build the baseline without reuse: every request by the heavy model from noise, first come first served; late is
    late."""
    return ServingPolicy("vanilla", _heavy(settings), drops_late=False)


def clipper_light(settings: ServingSettings) -> ServingPolicy:
    """Build Clipper with the light model only: AIMD batches."""
    allocator = OneModel(settings.light, settings.slo_s, settings.batch_sizes, aimd=True)
    return ServingPolicy("clipper-light", allocator)


def clipper_heavy(settings: ServingSettings) -> ServingPolicy:
    """Build Clipper with the heavy model only: AIMD batches."""
    allocator = OneModel(settings.heavy, settings.slo_s, settings.batch_sizes, aimd=True)
    return ServingPolicy("clipper-heavy", allocator)


def proteus(settings: ServingSettings) -> ServingPolicy:
    """Build Proteus: light and heavy by load, requests to them at random."""
    return ServingPolicy("proteus", Proteus(settings))


def static_cascade(settings: ServingSettings) -> ServingPolicy:
    """Build DiffServe-Static: a cascade whose allocation is solved once, for the peak demand."""
    return ServingPolicy("static-cascade", StaticCascade(settings))


def static_threshold(settings: ServingSettings) -> ServingPolicy:
    """Build DiffServe with a threshold that never moves."""
    return ServingPolicy("static-threshold", CascadeAllocator(settings, fixed_threshold=settings.fixed_threshold))


def aimd(settings: ServingSettings) -> ServingPolicy:
    """Build DiffServe with AIMD batch sizes in place of the solver's."""
    return ServingPolicy("aimd", CascadeAllocator(settings, aimd=True))


def no_queueing_model(settings: ServingSettings) -> ServingPolicy:
    """Build DiffServe without Little's law: a wait of twice the execution is assumed."""
    return ServingPolicy("no-queueing-model", CascadeAllocator(settings, queueing_model=False))


def diffserve(settings: ServingSettings) -> ServingPolicy:
    """Build DiffServe: a cascade whose allocation is solved anew for each period's demand."""
    return ServingPolicy("diffserve", CascadeAllocator(settings))


def diffserve_relaxed(settings: ServingSettings) -> ServingPolicy:
    """Build DiffServe whose light model alone may go on where the heavy model's queue is too long."""
    return ServingPolicy("diffserve-relaxed", CascadeAllocator(settings, relaxed=True))


def diffserve_milp(settings: ServingSettings) -> ServingPolicy:
    """Build DiffServe whose problem is solved as the paper does it, by a MILP solver: the same thresholds, later."""
    return ServingPolicy("diffserve-milp", CascadeAllocator(settings, solver=solve_by_milp))


def nirvana_only(settings: ServingSettings) -> ServingPolicy:
    """Build NIRVANA: latents of misses are reused, as the paper stores them, with LCBFU eviction."""
    return ServingPolicy(
        "nirvana-only", _heavy(settings), CacheUse.LATENTS, "lcbfu", cache_hits=False, drops_late=False
    )


def modm(settings: ServingSettings) -> ServingPolicy:
    """Build MoDM: images are reused, hits are refined by the small model."""
    return ServingPolicy("modm", MixtureAllocator(settings), CacheUse.IMAGES, "fifo", drops_late=False)


def resident_mixture(settings: ServingSettings) -> ServingPolicy:
    """Build MoDM's routes without its monitor, for devices that hold both models: latents and images are reused, and
    nothing is ever loaded."""
    return ServingPolicy(
        "resident-mixture", ResidentMixture(settings), CacheUse.BOTH, drops_late=False, plans_batches=False
    )


def modm_only(settings: ServingSettings) -> ServingPolicy:
    """Build MoDM under the name of a baseline."""
    return ServingPolicy("modm-only", MixtureAllocator(settings), CacheUse.IMAGES, "fifo", drops_late=False)


def retrieval_only(settings: ServingSettings) -> ServingPolicy:
    """Build pure retrieval: the nearest image as it is where one is near, else the heavy model (Pinecone in MoDM's
    evaluation)."""
    return ServingPolicy("retrieval-only", _heavy(settings), CacheUse.RETRIEVAL, cache_hits=False, drops_late=False)


def joint(settings: ServingSettings) -> ServingPolicy:
    """Build the policy that plans all ways to paint at once: cascades, hits of latents and images, every kind of
    device."""
    return ServingPolicy("joint", JointAllocator(settings), CacheUse.BOTH, "lcbfu", cache_hits=False)


def _heavy(settings: ServingSettings) -> OneModel:
    return OneModel(settings.heavy, settings.slo_s, settings.batch_sizes)


SERVING_POLICIES: Mapping[str, Callable[[ServingSettings], ServingPolicy]] = {
    "resident": resident,
    "vanilla": vanilla,
    "clipper-light": clipper_light,
    "clipper-heavy": clipper_heavy,
    "proteus": proteus,
    "static-cascade": static_cascade,
    "static-threshold": static_threshold,
    "aimd": aimd,
    "no-queueing-model": no_queueing_model,
    "diffserve": diffserve,
    "diffserve-relaxed": diffserve_relaxed,
    "diffserve-milp": diffserve_milp,
    "nirvana-only": nirvana_only,
    "modm-only": modm_only,
    "retrieval-only": retrieval_only,
    "modm": modm,
    "resident-mixture": resident_mixture,
    "joint": joint,
}
