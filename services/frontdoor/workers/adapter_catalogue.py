"""Track the adapters that requests may name: LoRAs and IP-Adapters from workers' credits, ControlNets from the plan.

The plan names the replicas of ControlNets, as they registered with the controller, and the uploaded LoRAs.
"""

from collections import defaultdict
from collections.abc import Iterable
from itertools import count

from pentimento.domain.adapters import Adapter, AdapterKind, RejectedAdapter
from pentimento.domain.execution import ControlNetEndpoint, WorkerCredits
from pentimento.domain.fleet import AdapterPlacement, Capability, HeldModel, Plan
from pentimento.domain.generation import ControlNetSelection, GenerationSpec, ImagePromptSelection, LoraSelection

_CAPABILITIES = {
    AdapterKind.LORA: frozenset({Capability.LORA, Capability.UPLOADED_LORA}),
    AdapterKind.CONTROLNET: frozenset({Capability.CONTROLNET}),
    AdapterKind.IP_ADAPTER: frozenset({Capability.IP_ADAPTER}),
}
Selection = LoraSelection | ControlNetSelection | ImagePromptSelection
# Variants (weights and base model) remembered per name, so that disagreeing workers cannot fill the memory.
_MAX_NAMESAKES = 8
_ROUNDING = 1e-9


class AdapterCatalogue:
    """Remember every name: requests wait for an adapter that was once served instead of failing as unknown.

    A name may have several variants with other weights; the one reported last counts. Only uploaded LoRAs are withdrawn
    once the plan no longer names them: new requests may not name them, and running requests keep theirs.
    """

    def __init__(self) -> None:
        # Keyed by kind and name, then by weights and the models that they change; the latest report counts.
        self._known: defaultdict[tuple[AdapterKind, str], dict[tuple[str, str, str], Adapter]] = defaultdict(dict)
        # The digest of each worker's model, and the adapters that it cannot use with that model.
        self._rejected: dict[str, tuple[str, tuple[RejectedAdapter, ...]]] = {}
        # Keyed by model digest and LoRA digest: the latest start of a LoRA was measured on one model.
        self._latest_shares: dict[tuple[str, str], float] = {}
        self._capabilities: dict[str, frozenset[Capability]] = {}
        # Keyed by name and digest.
        self._placements: dict[tuple[str, str], tuple[AdapterPlacement, ...]] = {}
        self._addresses: dict[str, str] = {}
        # The LoRAs that the plan names.
        self._uploaded: frozenset[Adapter] = frozenset()
        self._turn = count()

    def learn(self, credits: WorkerCredits) -> None:
        """Store a worker's capabilities and adapters."""
        self._capabilities[credits.worker_id] = credits.capabilities
        if credits.known_adapters is not None:
            self._rejected[credits.worker_id] = (credits.held.model_digest, credits.rejected_adapters)
        for adapter in credits.known_adapters or ():
            if adapter.kind is not AdapterKind.CONTROLNET:
                self._remember(adapter)
            if adapter.kind is AdapterKind.LORA:
                self._latest_shares[credits.held.model_digest, adapter.digest] = adapter.latest_start_fraction

    def follow(self, plan: Plan) -> None:
        """Take ControlNets with their replicas, and uploaded LoRAs, from a plan."""
        named = (placement.adapter for placement in plan.placements)
        self._uploaded = frozenset(one for one in named if one.kind is AdapterKind.LORA and one.object is not None)
        for adapter in self._uploaded:
            self._remember(adapter)
        placed = [placement for placement in plan.placements if placement.adapter.kind is AdapterKind.CONTROLNET]
        self._placements = {}
        self._addresses = {endpoint.instance_id: endpoint.address for endpoint in plan.endpoints}
        for placement in placed:
            key = (placement.adapter.name, placement.adapter.digest)
            self._placements[key] = (*self._placements.get(key, ()), placement)
            self._remember(placement.adapter)

    @property
    def uploaded(self) -> frozenset[Adapter]:
        """Return the LoRAs in the object store that requests may name."""
        return self._uploaded

    def takes(self, kind: AdapterKind) -> bool:
        """Return whether any worker ever reported that it supports adapters of that kind."""
        return any(_CAPABILITIES[kind] & capabilities for capabilities in self._capabilities.values())

    def find(self, kind: AdapterKind, name: str) -> tuple[Adapter, ...]:
        """Return the adapters of that name, the newest last."""
        return tuple(adapter for adapter in self._known.get((kind, name), {}).values() if self._is_offered(adapter))

    def rejection(self, kind: AdapterKind, name: str, model_digest: str) -> RejectedAdapter | None:
        """Return why a worker with that model cannot use the adapter of that name.

        If no such worker rejects it, return the reason of a worker with another model; None if no worker rejects it.
        """
        found = [
            (digest == model_digest, one)
            for digest, rejected in self._rejected.values()
            for one in rejected
            if (one.kind, one.name) == (kind, name)
        ]
        return max(found, key=lambda item: item[0])[1] if found else None

    @property
    def rejected(self) -> tuple[RejectedAdapter, ...]:
        """Return the adapters that workers found and that none can use, by name."""
        every = {one.name: one for _, rejected in self._rejected.values() for one in rejected}
        return tuple(every[name] for name in sorted(every) if not self.find(every[name].kind, name))

    def is_reachable(self, adapter: Adapter) -> bool:
        """Return whether the adapter is available now. A ControlNet needs a replica; the others come with their
        workers."""
        return adapter.kind is not AdapterKind.CONTROLNET or bool(self._reachable(adapter.name, adapter.digest))

    def change(self, spec: GenerationSpec, held: HeldModel) -> bool:
        """Return whether every adapter of the spec, resolved, is made for that model."""
        found = [self._of_digest(AdapterKind.LORA, lora) for lora in spec.loras]
        found += [self._of_digest(AdapterKind.CONTROLNET, controlnet) for controlnet in spec.controlnets]
        found += [self._of_digest(AdapterKind.IP_ADAPTER, prompt) for prompt in spec.image_prompts]
        return all(any(one.changes(held.model_digest, held.family) for one in adapters) for adapters in found)

    def lora_patch_step(self, spec: GenerationSpec, held: HeldModel) -> int:
        """Return how many of the spec's steps the model may take before its LoRAs take effect: the least that a LoRA
        allows, rounded down. Bounds are measured at scale 1; a larger scale changes more in the first steps, so that it
        allows none."""
        shares = [self._latest_share(lora, held) if abs(lora.scale) <= 1 else 0.0 for lora in spec.loras]
        # 29 / 50 * 50 is less than 29.
        return int(min(shares, default=0.0) * spec.num_inference_steps + _ROUNDING)

    def _latest_share(self, lora: LoraSelection, held: HeldModel) -> float:
        """Return the latest start reported by workers with the model, else by the LoRA's upload; 0 without either."""
        told = self._latest_shares.get((held.model_digest, lora.digest))
        if told is not None:
            return told
        adapter = self._resolved(AdapterKind.LORA, lora)
        return adapter.latest_start_fraction if adapter is not None and adapter.object is not None else 0.0

    def endpoints(self, controlnets: Iterable[ControlNetSelection]) -> tuple[ControlNetEndpoint, ...]:
        """Return the replicas of each ControlNet, resident ones first, rotated at each call."""
        turn = next(self._turn)
        found = []
        for name, digest in dict.fromkeys((selected.name, selected.digest) for selected in controlnets):
            for instance_id in self._in_turn(name, digest, turn):
                found.append(ControlNetEndpoint(name, self._addresses[instance_id], digest))
        return tuple(found)

    def offered(self) -> tuple[Adapter, ...]:
        """Return the adapters that requests may name, the newest per name and kind of model, by kind and name."""
        kinds = [kind for kind in AdapterKind if self.takes(kind)]
        found = [adapter for kind, name in self._known if kind in kinds for adapter in self.find(kind, name)]
        newest = {(one.kind.value, one.name, one.family, one.base_digest): one for one in found}
        return tuple(newest[key] for key in sorted(newest))

    def _is_offered(self, adapter: Adapter) -> bool:
        return adapter.kind is not AdapterKind.LORA or adapter.object is None or adapter in self._uploaded

    def _remember(self, adapter: Adapter) -> None:
        known = self._known[adapter.kind, adapter.name]
        key = (adapter.digest, adapter.family, adapter.base_digest)
        known.pop(key, None)
        known[key] = adapter
        if len(known) > _MAX_NAMESAKES:
            del known[next(iter(known))]

    def _of_digest(self, kind: AdapterKind, selected: Selection) -> list[Adapter]:
        known = self._known.get((kind, selected.name), {})
        return [adapter for adapter in known.values() if adapter.digest == selected.digest]

    def _resolved(self, kind: AdapterKind, selected: Selection) -> Adapter | None:
        return next(reversed(self._of_digest(kind, selected)), None)

    def _reachable(self, name: str, digest: str) -> list[str]:
        placed = self._placements.get((name, digest), ())
        there = (instance_id for placement in placed for instance_id in placement.instance_ids)
        return [instance_id for instance_id in there if instance_id in self._addresses]

    def _in_turn(self, name: str, digest: str, turn: int) -> list[str]:
        there = self._reachable(name, digest)
        placed = self._placements.get((name, digest), ())
        resident = {instance_id for placement in placed for instance_id in placement.resident_instance_ids}
        turned = there[turn % len(there) :] + there[: turn % len(there)] if there else []
        return sorted(turned, key=lambda instance_id: instance_id not in resident)
