"""The LoRAs and ControlNets that requests may name: LoRAs as workers tell of them with their credits, ControlNets as
their replicas told the controller, whose plan says where they are and which LoRAs were uploaded."""

from collections import defaultdict
from collections.abc import Iterable
from itertools import count

from pentimento.domain.adapters import Adapter, AdapterKind, RejectedAdapter
from pentimento.domain.execution import ControlNetEndpoint, WorkerCredits
from pentimento.domain.fleet import AdapterPlacement, Capability, HeldModel, Plan
from pentimento.domain.generation import ControlNetSelection, GenerationSpec, LoraSelection

_CAPABILITIES = {
    AdapterKind.LORA: frozenset({Capability.LORA, Capability.UPLOADED_LORA}),
    AdapterKind.CONTROLNET: frozenset({Capability.CONTROLNET}),
}
# Of one name, so many kinds of weights are remembered; workers that disagree on more are not worth it.
_MAX_NAMESAKES = 8
_ROUNDING = 1e-9


class AdapterCatalogue:
    """Forgets no name: what was once served is waited for, not unknown. Of one name there may be several, with other
    weights each, and the one that was told of last counts. Uploaded LoRAs alone are gone once the plan names them no
    more: then no new request may ask for them, and those under way keep what they have."""

    def __init__(self) -> None:
        # By kind and name, then by weights and the models that they change: of the same ones what was told last counts.
        self._known: defaultdict[tuple[AdapterKind, str], dict[tuple[str, str, str], Adapter]] = defaultdict(dict)
        # By worker: the digest of its model, and what it cannot use with that.
        self._rejected: dict[str, tuple[str, tuple[RejectedAdapter, ...]]] = {}
        # By model digest and LoRA digest: how late a LoRA may come was measured on one model.
        self._latest_shares: dict[tuple[str, str], float] = {}
        self._capabilities: dict[str, frozenset[Capability]] = {}
        # By name and digest.
        self._placements: dict[tuple[str, str], tuple[AdapterPlacement, ...]] = {}
        self._addresses: dict[str, str] = {}
        # Of LoRAs, those that a plan names.
        self._uploaded: frozenset[Adapter] = frozenset()
        self._turn = count()

    def learn(self, credits: WorkerCredits) -> None:
        """Take what a worker can do and has."""
        self._capabilities[credits.worker_id] = credits.capabilities
        if credits.known_adapters is not None:
            self._rejected[credits.worker_id] = (credits.held.model_digest, credits.rejected_adapters)
        for adapter in credits.known_adapters or ():
            if adapter.kind is AdapterKind.LORA:
                self._remember(adapter)
                self._latest_shares[credits.held.model_digest, adapter.digest] = adapter.latest_start_fraction

    def follow(self, plan: Plan) -> None:
        """Take from a plan which ControlNets there are, and where; and which LoRAs were uploaded."""
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
        """The LoRAs in the object store that requests may ask for."""
        return self._uploaded

    def takes(self, kind: AdapterKind) -> bool:
        """Return whether any worker ever said that it paints with adapters of that kind."""
        return any(_CAPABILITIES[kind] & capabilities for capabilities in self._capabilities.values())

    def find(self, kind: AdapterKind, name: str) -> tuple[Adapter, ...]:
        """Return those of that name, the newest last."""
        return tuple(adapter for adapter in self._known.get((kind, name), {}).values() if self._is_offered(adapter))

    def rejection(self, kind: AdapterKind, name: str, model_digest: str) -> RejectedAdapter | None:
        """Return why a worker with that model cannot use the adapter of that name; of others' where none has the
        model, None where nobody rejects it."""
        found = [
            (digest == model_digest, one)
            for digest, rejected in self._rejected.values()
            for one in rejected
            if (one.kind, one.name) == (kind, name)
        ]
        return max(found, key=lambda item: item[0])[1] if found else None

    @property
    def rejected(self) -> tuple[RejectedAdapter, ...]:
        """Those that workers found and that none can use, by name."""
        every = {one.name: one for _, rejected in self._rejected.values() for one in rejected}
        return tuple(every[name] for name in sorted(every) if not self.find(every[name].kind, name))

    def is_reachable(self, adapter: Adapter) -> bool:
        """Return whether it can be had now. LoRAs are where their workers are; a ControlNet's replica must be there."""
        return adapter.kind is AdapterKind.LORA or bool(self._reachable(adapter.name, adapter.digest))

    def change(self, spec: GenerationSpec, held: HeldModel) -> bool:
        """Return whether every adapter of the spec, resolved, is made for that model."""
        found = [self._of_digest(AdapterKind.LORA, lora) for lora in spec.loras]
        found += [self._of_digest(AdapterKind.CONTROLNET, controlnet) for controlnet in spec.controlnets]
        return all(any(one.changes(held.model_digest, held.family) for one in adapters) for adapters in found)

    def lora_patch_step(self, spec: GenerationSpec, held: HeldModel) -> int:
        """Return how many of the spec's steps that model may take before its LoRAs take effect: as many as each of them
        allows, rounded down. Bounds are measured at weight 1; what is asked for more strongly does more in its first
        steps."""
        shares = [self._latest_share(lora, held) if abs(lora.scale) <= 1 else 0.0 for lora in spec.loras]
        # 29 / 50 * 50 is less than 29.
        return int(min(shares, default=0.0) * spec.num_inference_steps + _ROUNDING)

    def _latest_share(self, lora: LoraSelection, held: HeldModel) -> float:
        """By the workers that hold the model; of an uploaded LoRA by its upload, for every model that it changes."""
        told = self._latest_shares.get((held.model_digest, lora.digest))
        if told is not None:
            return told
        adapter = self._resolved(AdapterKind.LORA, lora)
        return adapter.latest_start_fraction if adapter is not None and adapter.object is not None else 0.0

    def endpoints(self, controlnets: Iterable[ControlNetSelection]) -> tuple[ControlNetEndpoint, ...]:
        """Return where the ControlNets are served now, each once: replicas that hold it first, taking turns."""
        turn = next(self._turn)
        found = []
        for name, digest in dict.fromkeys((selected.name, selected.digest) for selected in controlnets):
            for instance_id in self._in_turn(name, digest, turn):
                found.append(ControlNetEndpoint(name, self._addresses[instance_id], digest))
        return tuple(found)

    def offered(self) -> tuple[Adapter, ...]:
        """Return those that requests may name, of each name the newest for each kind of model, by kind and name."""
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

    def _of_digest(self, kind: AdapterKind, selected: LoraSelection | ControlNetSelection) -> list[Adapter]:
        known = self._known.get((kind, selected.name), {})
        return [adapter for adapter in known.values() if adapter.digest == selected.digest]

    def _resolved(self, kind: AdapterKind, selected: LoraSelection | ControlNetSelection) -> Adapter | None:
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
