"""Name the policies: all decisions of one system of the literature, as one value for the controller and simulator."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto

from pentimento.domain.errors import InvalidArgument
from pentimento.domain.fleet import CachePlan
from pentimento.domain.models import CascadeVariant
from pentimento.policies.plan.cascade import CascadePolicy, diffserve_cascade
from pentimento.policies.plan.entry import NOISE, STARTS
from pentimento.policies.plan.inputs import Policy, hold_resident
from pentimento.policies.plan.many_models import ManyModels
from pentimento.policies.plan.mixture import MixturePolicy, ResidentMixture
from pentimento.policies.plan.settings import ServingSettings


class CacheUse(Enum):
    """Name the reuse of a policy: none, intermediate latents (NIRVANA), refined images (MoDM), both, unchanged
    images."""

    NONE = auto()
    LATENTS = auto()
    IMAGES = auto()
    BOTH = auto()
    RETRIEVAL = auto()

    @property
    def latents(self) -> bool:
        """Return whether latents are stored and resumed."""
        return self in (CacheUse.LATENTS, CacheUse.BOTH)

    @property
    def images(self) -> bool:
        """Return whether images are stored, and refined or returned unchanged."""
        return self in (CacheUse.IMAGES, CacheUse.BOTH, CacheUse.RETRIEVAL)


@dataclass(frozen=True)
class ServingPolicy:
    """Describe a serving system as a value. `allocator` decides models, batch sizes, thresholds and shares; routers
    follow the plan (`plan.entry`).

    `plans_batches`: whether devices take the plan's batch sizes, or their own. `moves_models`: whether devices load the
    models assigned to them, or keep their present ones.
    `eviction` names the cache's rule (`policies.eviction_rules`). `cache_hits`: whether refined hits are cached too.
    `drops_late`: whether requests that are predicted to miss their deadline are dropped early (DiffServe, section 4.1).
    `follows_queues`: whether it decides by the present queues, at every second report, not once a period.
    """

    name: str
    allocator: Policy
    cache: CacheUse = CacheUse.NONE
    eviction: str = "fifo"
    cache_hits: bool = True
    drops_late: bool = True
    plans_batches: bool = True
    moves_models: bool = True
    follows_queues: bool = False

    def cache_plan(self, decided: CachePlan) -> CachePlan:
        """Return the cache part of a plan: as decided, else by the system's own admission and eviction.

        A policy without reuse does not change the cache, which other policies may read. Only the policy's allocator
        decides the choice of hits.
        """
        if self.cache is CacheUse.NONE or replace(decided, alpha=None, bias=0) != CachePlan():
            return decided
        return replace(decided, admits=STARTS if self.cache_hits else (NOISE,), eviction=self.eviction)


@dataclass(frozen=True)
class PolicyBuilder:
    """Build a policy of that name. `needs`: the fields of ServingSettings that it requires."""

    name: str
    needs: tuple[str, ...]
    build: Callable[[ServingSettings], ServingPolicy]

    def __call__(self, settings: ServingSettings) -> ServingPolicy:
        return self.build(settings)

    def check(self, settings: ServingSettings) -> None:
        """Raise InvalidArgument that names a missing or invalid field."""
        for field in self.needs:
            value = getattr(settings, field)
            if field in ("slo_s", "peak_per_s"):
                if not 0.0 < value < float("inf"):
                    raise InvalidArgument.of(field, f"must be above 0 and finite for {self.name}, got {value}")
            elif not value:
                raise InvalidArgument.of(field, f"must name a model for {self.name}")
        if "light" in self.needs and settings.light == settings.heavy:
            limit = f"must be another model than heavy for {self.name}, got {settings.light}"
            raise InvalidArgument.of("light", limit)


CASCADE = ("heavy", "light", "slo_s")


def policy(*needs: str) -> Callable[[Callable[[ServingSettings], ServingPolicy]], PolicyBuilder]:
    """Return the decorator that turns a function into a builder with the function's name."""
    return lambda build: PolicyBuilder(build.__name__.replace("_", "-"), needs, build)


@policy()
def resident(settings: ServingSettings) -> ServingPolicy:
    """Build the policy without planning: every worker keeps its model and its own batches."""
    return ServingPolicy("resident", hold_resident, plans_batches=False, moves_models=False)


@policy(*CASCADE)
def diffserve(settings: ServingSettings) -> ServingPolicy:
    """Build DiffServe: a cascade of two models, with the allocation solved again for each period's demand."""
    return ServingPolicy("diffserve", CascadePolicy(settings, diffserve_cascade(settings)))


def registered_cascade(settings: ServingSettings, cascade: CascadeVariant) -> ServingPolicy:
    """Build the policy that plans a registered cascade."""
    return ServingPolicy("cascade", CascadePolicy(settings, cascade))


@policy("heavy", "small_models")
def modm(settings: ServingSettings) -> ServingPolicy:
    """Build MoDM: images are reused, hits are refined by the small model."""
    return ServingPolicy("modm", MixturePolicy(settings), CacheUse.IMAGES, "fifo", drops_late=False)


@policy("heavy", "small_models")
def resident_mixture(settings: ServingSettings) -> ServingPolicy:
    """Build MoDM's routes without its monitor, for devices that hold both models: latents and images are reused, and
    no model is ever loaded."""
    return ServingPolicy(
        "resident-mixture", ResidentMixture(settings), CacheUse.BOTH, drops_late=False, plans_batches=False
    )


@policy("heavy", "small_models", "slo_s")
def joint(settings: ServingSettings) -> ServingPolicy:
    """Build the policy that plans all routes to an image together: cascades, hits of latents and images, every kind of
    device."""
    from pentimento.policies.plan.joint.policy import JointPolicy  # imports HiGHS, 40 MB

    return ServingPolicy("joint", JointPolicy(settings), CacheUse.BOTH, "lcbfu", cache_hits=False)


@policy()
def many_models(settings: ServingSettings) -> ServingPolicy:
    """Build the policy for more models than workers: workers switch to models with waiting requests."""
    return ServingPolicy("many-models", ManyModels(settings), plans_batches=False, follows_queues=True)


# Policies of every installation; plug-ins of the group `pentimento.policies` add others.
SERVING_POLICIES: Mapping[str, PolicyBuilder] = {
    built.name: built for built in (resident, diffserve, modm, resident_mixture, joint, many_models)
}
