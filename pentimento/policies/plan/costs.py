"""Collect the costs of models, reported and registered, and read them by batch size."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from pentimento.domain.components import GB, Tier, TierSpeed
from pentimento.domain.errors import FailedPrecondition
from pentimento.domain.fleet import ModelCost, Replica, ReplicaKind
from pentimento.domain.models import DeviceCost
from pentimento.domain.reasons import Reason
from pentimento.policies.plan.inputs import AllocationProfile, PlanInput, ReplicaView


@dataclass(frozen=True, slots=True)
class BatchCost:
    """Hold the cost of a batch: a whole run (every step) of `batch_size` requests takes `latency_s`. A request waits
    for `wait_s` before its batch."""

    batch_size: int
    latency_s: float
    wait_s: float = 0.0

    @property
    def throughput(self) -> float:
        """Return T(b), the requests a second of one device that always runs full batches."""
        return self.batch_size / self.latency_s

    @property
    def felt_s(self) -> float:
        """Return the seconds of a whole run with the wait before it."""
        return self.wait_s + self.latency_s


def batch_costs(
    context: PlanInput, model: str, sizes: Iterable[int] | None = None, saved_share: float = 0.0
) -> tuple[BatchCost, ...]:
    """Return a model's cost by batch size, ascending.

    `sizes` limits them; a size between two profiled ones is interpolated linearly. `saved_share` (0..1) of the steps
    are skipped. On a mixed fleet the slowest kind of device decides, since DiffServe and MoDM assume one kind; without
    devices all kinds count. Raises FailedPrecondition for a model without a profile, which is never planned.
    """
    measured = _measured(context, model, saved_share)
    if not measured:
        raise FailedPrecondition(Reason.PROFILE_MISSING, f"model {model} has no profile for the devices that are there")
    wanted = sorted(measured) if sizes is None else sorted(set(sizes))
    costs = (BatchCost(size, latency) for size in wanted if (latency := _latency(measured, size)) is not None)
    return tuple(costs) or (BatchCost(min(measured), measured[min(measured)]),)


def profiled_steps(context: PlanInput, model: str) -> int:
    """Return the denoising steps of a run of `model` by its profile; 0 without a profile."""
    return next((one.step_count for one in context.profiles if one.model == model), 0)


def scoring_s(context: PlanInput, stated_s: float, discriminators: Iterable[str]) -> float:
    """Return the seconds of one scoring by the slowest discriminator: as stated, else as measured; 0 if unknown."""
    names = set(discriminators)
    measured = (one.latency_s for one in context.profiles if one.model in names and one.batch_size == 1)
    return stated_s or max(measured, default=0.0)


def has_profile(context: PlanInput, model: str) -> bool:
    """Return whether `model` has a profile on a kind of device of the fleet."""
    return bool(_measured(context, model))


class TierSeconds:
    """Find the seconds that replicas of a kind need to load bytes from tiers: as the replica measured, else the mean of
    the others."""

    def __init__(self, speeds: Mapping[str, Iterable[TierSpeed]]) -> None:
        """Create it from the seconds per gigabyte of each replica, by instance id."""
        self._own = {(name, one.tier): one.seconds_per_gb for name, found in speeds.items() for one in found}
        by_tier: defaultdict[Tier, list[float]] = defaultdict(list)
        for (_, tier), seconds in self._own.items():
            by_tier[tier].append(seconds)
        self._mean = {tier: fmean(found) for tier, found in by_tier.items()}

    def of(self, instance_id: str, parts: Iterable[tuple[Tier, int]]) -> float | None:
        """Return the seconds to load the bytes of each tier; None if a tier was not measured by any replica."""
        found = 0.0
        for tier, size_bytes in parts:
            seconds_per_gb = self._own.get((instance_id, tier), self._mean.get(tier))
            if seconds_per_gb is None:
                return None
            found += seconds_per_gb * size_bytes / GB
        return found


class LoadSeconds:
    """Find the seconds until a worker that holds another model serves a model.

    They follow from the model's bytes in each tier of the worker and the tiers' measured speeds. Without a measured
    speed: the worker's last load of the model, else the longest of the profiles for its kind of device.
    """

    def __init__(self, context: PlanInput) -> None:
        self._longest: dict[tuple[str, str], float] = {}
        for one in context.profiles:
            key = one.model, one.device
            self._longest[key] = max(one.load_s, self._longest.get(key, 0.0))
        workers = [view for view in context.replicas if view.replica.kind is ReplicaKind.UNET_WORKER]
        self._tiers = TierSeconds(
            {view.replica.instance_id: view.report.load_speeds for view in workers if view.report is not None}
        )
        self._parts: defaultdict[tuple[str, str], list[tuple[Tier, int]]] = defaultdict(list)
        for worker in (view.replica for view in workers):
            models = set(worker.models)
            for part in (one for one in worker.stored if one.component in models):
                self._parts[worker.instance_id, part.component].append((part.tier, part.size_bytes))

    def of(self, worker: Replica, model: str) -> float:
        """Return the seconds; 0 without a measurement."""
        parts = self._parts.get((worker.instance_id, model), [])
        by_tier = self._tiers.of(worker.instance_id, parts) if parts else None
        if by_tier is not None:
            return by_tier
        own = next((cost.load_s for cost in worker.costs if cost.model == model), 0.0)
        return own or self._longest.get((model, worker.device)) or self._longest.get((model, ""), 0.0)


def _measured(context: PlanInput, model: str, saved_share: float = 0.0) -> dict[int, float]:
    """Return seconds by batch size."""
    present = {worker.device for worker in context.workers()}
    measured: dict[int, float] = {}
    for profile in context.profiles:
        if profile.model == model and (not present or not profile.device or profile.device in present):
            seconds = profile.seconds_left(saved_share) if saved_share else profile.latency_s
            measured[profile.batch_size] = max(seconds, measured.get(profile.batch_size, 0.0))
    return measured


def _latency(measured: dict[int, float], size: int) -> float | None:
    if size in measured:
        return measured[size]
    below = max((known for known in measured if known < size), default=None)
    above = min((known for known in measured if known > size), default=None)
    if below is None or above is None:
        return None
    share = (size - below) / (above - below)
    return measured[below] + share * (measured[above] - measured[below])


def reported_profiles(replicas: Iterable[ReplicaView]) -> tuple[AllocationProfile, ...]:
    """Return the costs that workers report of their models, by kind of device: the slowest profile or, without one, the
    median estimate of the workers that finish requests of the model now, else of all."""
    said = [
        (view.replica.device, cost, view.works and view.replica.held_model == cost.model)
        for view in replicas
        for cost in view.replica.costs
    ]
    profiled = {(device, cost) for device, cost, _ in said if not cost.estimated}
    named = {(device, cost.model) for device, cost in profiled}
    working = {(device, cost.model) for device, cost, works in said if works}
    estimated = [
        (device, cost)
        for device, cost, works in said
        if (device, cost.model) not in named and (works or (device, cost.model) not in working)
    ]
    by_size: defaultdict[tuple[str, str, int], list[AllocationProfile]] = defaultdict(list)
    for device, cost in (*profiled, *estimated):
        for profile in _profiles(device, cost):
            by_size[cost.model, device, profile.batch_size].append(profile)
    return tuple(_combined(by_size[key]) for key in sorted(by_size))


def _combined(profiles: Sequence[AllocationProfile]) -> AllocationProfile:
    slowest = max(profiles, key=lambda one: one.latency_s)
    return replace(slowest, latency_s=median(one.latency_s for one in profiles)) if slowest.estimated else slowest


def with_registered(
    reported: tuple[AllocationProfile, ...], registered: Iterable[DeviceCost]
) -> tuple[AllocationProfile, ...]:
    """Return the reported costs, and the registered ones of models on devices without a report or with an estimate."""
    costs = tuple(registered)
    registered_for = {(on.cost.model, on.device) for on in costs}
    kept = tuple(
        profile
        for profile in reported
        if not (profile.estimated and registered_for & {(profile.model, profile.device), (profile.model, "")})
    )
    known = {(profile.model, profile.device) for profile in kept}
    measured = {model for model, _ in known}
    added = (
        profile
        for on in costs
        if (on.device and (on.cost.model, on.device) not in known) or (not on.device and on.cost.model not in measured)
        for profile in _profiles(on.device, on.cost)
    )
    return (*kept, *added)


def _profiles(device: str, cost: ModelCost) -> Iterator[AllocationProfile]:
    once = (cost.memory_bytes, cost.load_s, cost.step_count, cost.fixed_s, cost.finish_s, cost.estimated)
    return (AllocationProfile(cost.model, device, size, run_s, *once) for size, run_s in cost.run_s)
