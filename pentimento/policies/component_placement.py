"""Place popular ControlNets and LoRAs on replicas before requests need them.

A few ControlNets serve almost all calls (Katz, section 5), so the popular ones are placed on replicas in proportion to
their share of the calls. LoRAs have a long tail: a worker loads ahead the LoRAs that requests most often use together
with its model (MLoRA, Eq. 5, with counts that fade). A placed component stays until its demand clearly falls, so that a
plan does not change with every sample of the demand. Pure: its memory is the returned `AskedShares`.
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pentimento.domain.adapters import AdapterKind
from pentimento.domain.fleet import Capability, ComponentPlacement, ReplicaKind, WorkerAssignment
from pentimento.policies.plan.inputs import ModelDemand, ReplicaView

# Weight of the newest sample in the average of calls.
NEWEST_WEIGHT = 0.3
# Fewest calls that show popularity.
LEAST_CALLS = 3.0
# A component is placed from this share of its kind's calls on, and stays down to half of it.
PLACED_SHARE = 0.05
# Most LoRAs that a worker loads ahead of need.
MOST_LORAS = 8
# Theta of Eq. 5: the share of the uses of a model's most used LoRA at which another one is loaded ahead, too.
LEAST_TOGETHER = 0.15
# A use together counts half after this number of further ones.
HALF_LIFE_USES = 500.0
# Fewest uses of LoRAs with a model that show which are popular there.
LEAST_USES = 3.0

Asked = tuple[AdapterKind, str]


@dataclass(frozen=True)
class AskedShares:
    """Hold the calls by adapter, averaged over samples of the demand, and the number of replicas that each has.

    `together`: uses by (model, LoRA), which fade; `ahead`: the pairs that are loaded ahead of need.
    """

    calls: Mapping[Asked, float] = field(default_factory=dict)
    placed: Mapping[Asked, int] = field(default_factory=dict)
    together: Mapping[tuple[str, str], float] = field(default_factory=dict)
    ahead: frozenset[tuple[str, str]] = frozenset()

    def seen(self, demand: Sequence[ModelDemand]) -> "AskedShares":
        """Return the average with one more sample; unchanged if the sample has no adapter."""
        now = Counter[Asked]()
        for model in demand:
            for one in model.adapters:
                now[one.kind, one.name] += one.request_count
        if not now:
            return self
        average = {
            asked: (1.0 - NEWEST_WEIGHT) * self.calls.get(asked, 0.0) + NEWEST_WEIGHT * now[asked]
            for asked in self.calls.keys() | now.keys()
        }
        calls = {asked: calls for asked, calls in average.items() if calls >= 1e-3}
        return replace(self, calls=calls, together=self._together(demand))

    def _together(self, demand: Sequence[ModelDemand]) -> dict[tuple[str, str], float]:
        new = Counter[tuple[str, str]]()
        for model in demand:
            for one in model.adapters:
                new[model.model, one.name] += one.request_count if one.kind is AdapterKind.LORA else 0
        kept = 0.5 ** (new.total() / HALF_LIFE_USES)
        uses = {pair: kept * self.together.get(pair, 0.0) + new[pair] for pair in self.together.keys() | new.keys()}
        return {pair: count for pair, count in uses.items() if count >= 1e-3}

    def loras_of(self, model: str) -> tuple[str, ...]:
        """Return Eq. 5's LoRAs of a model, by name: an order by popularity would change the plan whenever two swap
        places. A LoRA that is loaded ahead stays down to half of the threshold."""
        uses = {lora: count for (base, lora), count in self.together.items() if base == model}
        if sum(uses.values()) < LEAST_USES:
            return ()
        least = LEAST_TOGETHER * max(uses.values())
        wanted = [
            lora for lora, count in uses.items() if count >= (least / 2 if (model, lora) in self.ahead else least)
        ]
        return tuple(sorted(sorted(wanted, key=lambda lora: (-uses[lora], lora))[:MOST_LORAS]))

    def most_used(self, model: str) -> tuple[str, ...]:
        """Return the LoRAs that requests use with a model, by name, the most used first."""
        uses = {lora: count for (base, lora), count in self.together.items() if base == model}
        return tuple(sorted(uses, key=lambda lora: (-uses[lora], lora)))

    def share(self, asked: Asked) -> float:
        """Return an adapter's share (0..1) of its kind's calls; 0 if there were too few."""
        total = sum(calls for (kind, _), calls in self.calls.items() if kind is asked[0])
        return self.calls.get(asked, 0.0) / total if total >= NEWEST_WEIGHT * LEAST_CALLS else 0.0

    def wanted(self, asked: Asked, replica_count: int) -> int:
        """Return the number of replicas, of `replica_count`, that should hold the adapter."""
        before, share = self.placed.get(asked, 0), self.share(asked)
        if share < (PLACED_SHARE / 2 if before else PLACED_SHARE):
            return 0
        exact = share * replica_count
        # Keep a count that is still within about one of the exact one.
        if before and before <= replica_count and before - 1.25 < exact < before + 0.25:
            return before
        return min(max(math.ceil(exact), 1), replica_count)


@dataclass(frozen=True)
class PlacedComponents:
    """Hold a plan's placements: ControlNets by replica, and assignments with the LoRAs to load ahead of need."""

    components: tuple[ComponentPlacement, ...]
    assignments: tuple[WorkerAssignment, ...]
    shares: AskedShares


def place_components(
    shares: AskedShares,
    replicas: Sequence[ReplicaView],
    assignments: Sequence[WorkerAssignment],
    uploaded: Collection[str] = (),
) -> PlacedComponents:
    """Return the placements for the demand so far. Replicas that already hold a component come first, then replicas
    with the fewest placed ones, to avoid needless loads. `uploaded` names the LoRAs that workers can fetch."""
    placed, counts = _controlnets(shares, replicas)
    loras = {model: shares.loras_of(model) for model in {one.model for one in assignments}}
    there = {view.replica.instance_id: view.replica for view in replicas}
    known = {name: {adapter.name for adapter in replica.adapters} for name, replica in there.items()}
    for name, replica in there.items():
        known[name].update(uploaded if Capability.UPLOADED_LORA in replica.capabilities else ())
    ahead = tuple(
        replace(one, prefetch=tuple(name for name in loras[one.model] if name in known.get(one.worker_id, ())))
        for one in assignments
    )
    pairs = frozenset((model, name) for model, names in loras.items() for name in names)
    return PlacedComponents(placed, ahead, replace(shares, placed=counts, ahead=pairs))


def _controlnets(
    shares: AskedShares, replicas: Sequence[ReplicaView]
) -> tuple[tuple[ComponentPlacement, ...], dict[Asked, int]]:
    serving = [view.replica for view in replicas if view.replica.kind is ReplicaKind.CONTROLNET]
    load = Counter[str]()
    found, counts = [], dict[Asked, int]()
    for asked in _popular(shares, AdapterKind.CONTROLNET):
        name = asked[1]
        able = [one for one in serving if name in (adapter.name for adapter in one.adapters)]
        count = shares.wanted(asked, len(able)) if able else 0
        if not count:
            continue
        able.sort(key=lambda one: (name not in one.resident_models, load[one.instance_id], one.instance_id))
        chosen = sorted(one.instance_id for one in able[:count])
        load.update(chosen)
        counts[asked] = count
        found.append(ComponentPlacement(ReplicaKind.CONTROLNET, name, tuple(chosen)))
    return tuple(sorted(found, key=lambda one: one.component)), counts


def _popular(shares: AskedShares, kind: AdapterKind) -> list[Asked]:
    return sorted((asked for asked in shares.calls if asked[0] is kind), key=lambda one: (-shares.calls[one], one[1]))


def placed_on(components: Sequence[ComponentPlacement], kind: ReplicaKind, instance_id: str) -> tuple[str, ...]:
    """Return the components that a replica should hold, in the plan's order."""
    return tuple(one.component for one in components if one.kind is kind and instance_id in one.instance_ids)
