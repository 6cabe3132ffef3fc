"""Place ControlNets and LoRAs on replicas before requests need them: state the problem of `plan.residents` from the
demand and the fleet, and put its solution into a plan.

A few ControlNets serve almost all calls (Katz, section 5). LoRAs have a long tail: a worker holds ahead of need LoRAs
that requests use with its model (MLoRA, Eq. 5, with counts that fade). A placed component stays until another one
would spare twice as many seconds. Pure: its memory is the returned `ComponentUses`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import TypeVar

from pentimento.domain.adapters import Adapter, AdapterKind
from pentimento.domain.components import GB, Tier
from pentimento.domain.fleet import Capability, ComponentPlacement, ReplicaKind, WorkerAssignment
from pentimento.policies.plan.costs import TierSeconds
from pentimento.policies.plan.inputs import ModelDemand, ReplicaView

T = TypeVar("T")

# A use counts half after this number of further ones of its kind.
HALF_LIFE_USES = 500.0
# Fewest uses of a model's LoRAs, or of ControlNets, that show which are popular.
LEAST_USES = 3.0
# A replica serves at most this multiple of an equal share of the uses.
MOST_OF_EQUAL = 1.25
# Share of a replica's memory for planned components; the rest is for the others, which requests load. With three
# quarters more calls wait than without a plan (benchmarks/controlnet_residency.py).
PLANNED_SHARE = 0.5
# Most components that one replica is to hold. Without a known memory of it: that of MOST_UNKNOWN mean components.
MOST_RESIDENTS, MOST_UNKNOWN = 64, 8
# Speed of a tier that no replica has measured.
ASSUMED_SECONDS_PER_GB = 1.0


Combination = tuple[str, ...]
"""The names of components that a request uses together, in order."""


@dataclass(frozen=True)
class Holder:
    """Describe a replica that can hold components: its memory, the uses that it can serve, and the load seconds of each
    component that it can hold. `held` ones need no load. `planned` ones are residents in the plan in force."""

    name: str
    memory_bytes: float
    capacity: float
    loads_s: Mapping[str, float]
    held: frozenset[str] = frozenset()
    planned: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ResidencyProblem:
    """Hold the numbers of the problem: the uses of each combination, and the bytes of each component."""

    holders: Sequence[Holder]
    uses: Mapping[Combination, float]
    sizes: Mapping[str, float]


@dataclass(frozen=True)
class ComponentUses:
    """Hold the uses of components, which fade: of each ControlNet, and by model of the LoRAs that requests use
    together (none for requests without LoRAs). `placed`: (instance id, component) of the plan in force."""

    controlnets: Mapping[str, float] = field(default_factory=dict)
    loras: Mapping[tuple[str, Combination], float] = field(default_factory=dict)
    placed: frozenset[tuple[str, str]] = frozenset()

    def seen(self, demand: Sequence[ModelDemand]) -> "ComponentUses":
        """Return the uses with those of one more sample; unchanged if the sample has no adapter."""
        controlnets, loras = Counter[str](), Counter[tuple[str, Combination]]()
        for model in demand:
            for one in model.adapters:
                if one.kind is AdapterKind.CONTROLNET:
                    controlnets[one.name] += one.request_count
                elif one.kind is AdapterKind.LORA:
                    loras[model.model, one.names] += one.request_count
        if not (controlnets or loras):
            return self
        uses = loras.total()
        for model in demand:
            with_loras = sum(one.request_count for one in model.adapters if one.kind is AdapterKind.LORA)
            loras[model.model, ()] += max(sum(start.request_count for start in model.starts) - with_loras, 0)
        return replace(
            self,
            controlnets=_faded(self.controlnets, controlnets, controlnets.total()),
            loras=_faded(self.loras, loras, uses),
        )

    def of(self, model: str) -> dict[Combination, float]:
        """Return the uses of LoRAs with a model."""
        return {names: count for (base, names), count in self.loras.items() if base == model}

    def most_used(self, model: str) -> tuple[str, ...]:
        """Return the LoRAs that requests use with a model, by name, the most used first."""
        uses = Counter[str]()
        for names, count in self.of(model).items():
            uses.update(dict.fromkeys(names, count))
        return tuple(sorted(uses, key=lambda lora: (-uses[lora], lora)))


def _faded(before: Mapping[T, float], new: Mapping[T, int], use_count: int) -> dict[T, float]:
    kept = 0.5 ** (use_count / HALF_LIFE_USES)
    uses = {one: kept * before.get(one, 0.0) + new.get(one, 0) for one in before.keys() | new.keys()}
    return {one: count for one, count in uses.items() if count >= 1e-3}


@dataclass(frozen=True)
class PlacedComponents:
    """Hold a plan's placements: ControlNets by replica, and assignments with the LoRAs that workers are to hold."""

    components: tuple[ComponentPlacement, ...]
    assignments: tuple[WorkerAssignment, ...]
    uses: ComponentUses


def place_components(
    uses: ComponentUses,
    replicas: Sequence[ReplicaView],
    assignments: Sequence[WorkerAssignment],
    uploaded: Sequence[Adapter] = (),
) -> PlacedComponents:
    """Return the placements for the demand so far. `uploaded`: the LoRAs that workers can fetch."""
    workers = {view.replica.instance_id: view for view in replicas}
    lora_speeds = {name: view.report.lora_speeds for name, view in workers.items() if view.report is not None}
    loads = _Loads(TierSeconds(lora_speeds), AdapterKind.LORA, uploaded)
    loras: dict[str, tuple[str, ...]] = {}
    for model in dict.fromkeys(one.model for one in assignments):
        of_model = [one.worker_id for one in assignments if one.model == model and one.worker_id in workers]
        loras |= _placed(uses.of(model), [workers[name] for name in of_model], uses, loads, model)
    serving = [view for view in replicas if view.replica.kind is ReplicaKind.CONTROLNET]
    speeds = {view.replica.instance_id: view.report.load_speeds for view in serving if view.report is not None}
    called: dict[Combination, float] = {(name,): count for name, count in uses.controlnets.items()}
    controlnets = _placed(called, serving, uses, _Loads(TierSeconds(speeds), AdapterKind.CONTROLNET))
    placed = frozenset((holder, name) for found in (loras, controlnets) for holder in found for name in found[holder])
    return PlacedComponents(
        _by_component(controlnets),
        tuple(replace(one, prefetch=loras.get(one.worker_id, ())) for one in assignments),
        replace(uses, placed=placed),
    )


def _by_component(residents: Mapping[str, Sequence[str]]) -> tuple[ComponentPlacement, ...]:
    names = sorted({name for found in residents.values() for name in found})
    return tuple(
        ComponentPlacement(
            ReplicaKind.CONTROLNET, name, tuple(sorted(holder for holder in residents if name in residents[holder]))
        )
        for name in names
    )


@dataclass(frozen=True)
class _Loads:
    """Find the components of a kind that replicas can load, their bytes, and the seconds of a load."""

    speeds: TierSeconds
    kind: AdapterKind
    uploaded: Sequence[Adapter] = ()

    def sizes(self, view: ReplicaView) -> dict[str, int]:
        """Return the bytes of the components that a replica can load, 0 for unknown."""
        stored = {one.component: one.size_bytes for one in view.replica.stored}
        own = {one.name: stored.get(one.name, 0) for one in view.replica.adapters if one.kind is self.kind}
        fetched = {one.name: one.object.size_bytes if one.object is not None else 0 for one in self._fetched(view)}
        return fetched | own

    def seconds(self, view: ReplicaView, sizes: Mapping[str, float]) -> dict[str, float]:
        """Return the seconds of a load on a replica, by component."""
        absent = {one.name for one in self._fetched(view) if one.digest not in view.on_disk}
        own = {one.name for one in view.replica.adapters}
        found = {}
        for name, size_bytes in sizes.items():
            tier = Tier.STORE if name in absent and name not in own else Tier.DISK
            measured = self.speeds.of(view.replica.instance_id, [(tier, round(size_bytes))])
            found[name] = ASSUMED_SECONDS_PER_GB * size_bytes / GB if measured is None else measured
        return found

    def _fetched(self, view: ReplicaView) -> Sequence[Adapter]:
        return self.uploaded if Capability.UPLOADED_LORA in view.replica.capabilities else ()


def _placed(
    uses: Mapping[Combination, float],
    views: Sequence[ReplicaView],
    before: ComponentUses,
    loads: _Loads,
    model: str = "",
) -> dict[str, tuple[str, ...]]:
    """Return the components that each replica should hold, by name: an order by gain would change the plan whenever
    two swap places."""
    used = {name for names in uses for name in names}
    if sum(count for names, count in uses.items() if names) < LEAST_USES:
        return {}
    known = [{name: size for name, size in loads.sizes(view).items() if name in used} for view in views]
    mean_bytes = fmean([size for sizes in known for size in sizes.values() if size] or [1.0])
    sizes = {name: size or mean_bytes for sizes in known for name, size in sizes.items()}
    capacity = MOST_OF_EQUAL * sum(uses.values()) / max(len(views), 1)
    holders = []
    for view, of_view in zip(views, known, strict=True):
        replica = view.replica
        resident = replica.resident_models[1:] if model else replica.resident_models
        memory_bytes = PLANNED_SHARE * replica.adapter_memory_bytes or MOST_UNKNOWN * mean_bytes
        holders.append(
            Holder(
                replica.instance_id,
                memory_bytes,
                capacity,
                loads.seconds(view, {name: sizes[name] for name in of_view}),
                frozenset(resident if replica.held_model == model or not model else ()),
                frozenset(name for holder, name in before.placed if holder == replica.instance_id),
            )
        )
    # A controller without ControlNets and LoRAs loads no numerics.
    from pentimento.policies.plan.residents import residents_of

    found = residents_of(ResidencyProblem(holders, uses, sizes))
    return {holder: tuple(sorted(residents[:MOST_RESIDENTS])) for holder, residents in found.items()}
