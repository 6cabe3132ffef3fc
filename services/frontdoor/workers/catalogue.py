"""Track the models and adapters that workers hold and the plan names; requests are validated against them."""

import asyncio
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import count

from pentimento.domain.adapters import Adapter, AdapterKind, RejectedAdapter
from pentimento.domain.demand import PoolDemand
from pentimento.domain.errors import NotFound, Unavailable
from pentimento.domain.execution import ControlNetEndpoint, WorkerCredits
from pentimento.domain.fleet import AdapterPlacement, Capability, HeldModel, Plan, RegisteredDigest, ReplicaReport
from pentimento.domain.generation import ControlNetSelection, GenerationSpec, ImagePromptSelection, LoraSelection
from pentimento.domain.image_request import ModelInfo

logger = logging.getLogger(__name__)

# Workers report once a second: after this silence, their weights no longer count.
_SILENCE_S = 10.0
RETRY_MS = 1000
# Characters of a name that are echoed to the client.
_SHOWN_NAME_LENGTH = 80
# Wait of a call without a deadline for a model that no worker ever held, the longest one, and the most such calls. An
# autoscaler may have to start a node first.
MODEL_WAIT_S, LONGEST_WAIT_S = 60.0, 900.0
MOST_WAITING = 256


class Catalogue:
    """Learn models from workers' reports and keep them: requests wait for a model without workers, which stays known.

    If workers hold different weights under one name, new requests go to those of the worker that started last, while it
    reports.
    """

    def __init__(
        self, default_model: str, monotonic: Callable[[], float] = time.monotonic, worker_wait_s: float = 0.0
    ) -> None:
        """Create an empty catalogue. `worker_wait_s`: how long to wait for the report of a worker named in settings."""
        self._default_model = default_model
        self._models: dict[str, HeldModel] = {}
        self._monotonic = monotonic
        # When the digest in use was last reported, by the model's name.
        self._reported_at: dict[str, float] = {}
        self._told: set[frozenset[str]] = set()
        # The only digests that count, by name.
        self._registered: dict[str, str] = {}
        # Models of the plan, which workers may not have reported yet.
        self._planned: frozenset[str] = frozenset()
        # Workers that have not reported yet, by address, each with the end of the wait for it.
        self._worker_wait_s = worker_wait_s
        self._awaited: dict[str, float] = {}
        self._learnt = asyncio.Event()
        # Calls that wait for a model which no worker ever held, by its name.
        self.wanted: Counter[str] = Counter()

    def follow(self, registered: Iterable[RegisteredDigest], planned: Iterable[str] = ()) -> None:
        """Accept only the registered digests under their names, and forget models with others. `planned`: the names of
        models that workers hold or are to hold; a pool without a model has the empty one."""
        self._planned = frozenset(planned) - {""}
        self._registered = {one.model: one.digest for one in registered}
        for held in [held for held in self._models.values() if not self._may_be(held)]:
            del self._models[held.model]

    def await_worker(self, address: str) -> None:
        """Expect a worker with a model outside the plan: until it reports or the wait ends, no name is unknown."""
        self._awaited[address] = self._monotonic() + self._worker_wait_s

    def await_no_longer(self, address: str) -> None:
        self._awaited.pop(address, None)

    def _may_be(self, held: HeldModel) -> bool:
        return self._registered.get(held.model, held.model_digest) == held.model_digest

    def learn(self, held: HeldModel) -> None:
        """Validate and route new requests by the model as a worker holds it, unless a worker that started later holds
        other weights under its name."""
        if not self._may_be(held):
            return
        known, now = self._models.get(held.model), self._monotonic()
        if known is not None and known.model_digest != held.model_digest and self._outranks(known, held, now):
            return
        self._reported_at[held.model] = now
        if known is not None and known.model_digest == held.model_digest:
            # The slowest of several workers counts, as it may get the request.
            reused = max(known.reused_step_share, held.reused_step_share)
            held = replace(held, step_s=max(known.step_s, held.step_s), reused_step_share=reused)
        if known != held:
            self._models[held.model] = held
            self._learnt.set()
            self._learnt = asyncio.Event()

    def _outranks(self, known: HeldModel, held: HeldModel, now: float) -> bool:
        """Return whether the known weights stay in use; log the conflict once."""
        if now - self._reported_at[held.model] >= _SILENCE_S:
            return False
        pair = frozenset((known.model_digest, held.model_digest))
        if pair not in self._told:
            self._told.add(pair)
            older, newer = sorted((known, held), key=lambda one: one.worker_generation)
            logger.error(
                "workers hold different weights under one model name; the later start counts",
                extra={"model": held.model, "used": newer.model_digest, "not_used": older.model_digest},
            )
        return known.worker_generation > held.worker_generation

    def find(self, name: str) -> HeldModel:
        """Return the model of that name, the default one for "".

        Raises NotFound for an unknown name. Raises Unavailable while no worker has reported, or if the model may still
        come: the plan names it, or an expected worker outside the plan has not reported.
        """
        wanted = name or self._default_model or next(iter(sorted(self._models)), "")
        held = self._models.get(wanted)
        if held is not None:
            return held
        if not self._models or not name:
            raise Unavailable("NO_WORKER_READY", "no worker is ready yet", retry_after_ms=RETRY_MS)
        shown = repr(name[:_SHOWN_NAME_LENGTH])
        now = self._monotonic()
        if name in self._planned or any(now < until for until in self._awaited.values()):
            raise Unavailable("MODEL_NOT_LOADED", f"no worker has loaded {shown} yet", retry_after_ms=RETRY_MS)
        limit = f"must be one of {', '.join(sorted(self._models))}, got {shown}"
        raise NotFound.of("UNKNOWN_MODEL", "model", limit)

    def known(self, name: str) -> HeldModel | None:
        """Return the model of that name; None if no worker ever held it."""
        return self._models.get(name)

    def of_digest(self, model_digest: str) -> HeldModel | None:
        """Return the model with these weights as last reported; None if no known model has them."""
        return next((held for held in self._models.values() if held.model_digest == model_digest), None)

    def default(self) -> HeldModel | None:
        """Return the deployment's default model; None if it names none, or no worker ever held it."""
        return self.known(self._default_model)

    async def wait_for(self, name: str) -> HeldModel:
        while name not in self._models:
            await self._learnt.wait()
        return self._models[name]

    async def wait_until_loaded(self, name: str, timeout_s: float) -> None:
        """Wait until a worker has reported a model that the plan names and no worker ever held, the default one for "".
        Return at once for other models, at the time limit, and while too many calls wait. `wanted` has the model
        meanwhile."""
        name = name or self._default_model
        if name in self._models or name not in self._planned or sum(self.wanted.values()) >= MOST_WAITING:
            return
        self.wanted[name] += 1
        try:
            async with asyncio.timeout(min(timeout_s, LONGEST_WAIT_S)):
                await self.wait_for(name)
        except TimeoutError:
            pass  # `find` raises the error of an absent model
        finally:
            self.wanted[name] -= 1

    def added_to(self, report: ReplicaReport) -> ReplicaReport:
        """Return a frontdoor's report with the calls that wait for a model, so that a policy loads it."""
        waiting = tuple(PoolDemand(name, queue_length=count) for name, count in sorted(self.wanted.items()) if count)
        return replace(report, demand=(*report.demand, *waiting))

    async def wait_for_any(self) -> None:
        while not self._models:
            await self._learnt.wait()

    def infos(self, ready_worker_count: Callable[[HeldModel], int]) -> tuple[ModelInfo, ...]:
        return tuple(_info(held, ready_worker_count(held)) for _, held in sorted(self._models.items()))


def _info(held: HeldModel, ready_worker_count: int) -> ModelInfo:
    return ModelInfo(
        name=held.model,
        family=held.family,
        digest=held.model_digest,
        default_width_px=held.default_width_px,
        default_height_px=held.default_height_px,
        size_multiple_px=held.size_multiple_px,
        max_size_px=held.max_size_px,
        default_steps=held.default_steps,
        max_steps=held.max_steps,
        default_guidance_scale=held.default_guidance_scale,
        schedulers=held.schedulers,
        licence=held.licence,
        ready_worker_count=ready_worker_count,
    )


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
        # The LoRAs in the object store that the plan names, so that requests may name them.
        self.uploaded: frozenset[Adapter] = frozenset()
        self._turn = count()

    def learn(self, credits: WorkerCredits) -> None:
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
        self.uploaded = frozenset(one for one in named if one.kind is AdapterKind.LORA and one.object is not None)
        for adapter in self.uploaded:
            self._remember(adapter)
        placed = [placement for placement in plan.placements if placement.adapter.kind is AdapterKind.CONTROLNET]
        self._placements = {}
        self._addresses = {endpoint.instance_id: endpoint.address for endpoint in plan.endpoints}
        for placement in placed:
            key = (placement.adapter.name, placement.adapter.digest)
            self._placements[key] = (*self._placements.get(key, ()), placement)
            self._remember(placement.adapter)

    def takes(self, kind: AdapterKind) -> bool:
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
        return adapter.kind is not AdapterKind.LORA or adapter.object is None or adapter in self.uploaded

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
