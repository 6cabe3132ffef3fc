"""Track the models that workers hold; requests are validated against them."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

from pentimento.domain.demand import PoolDemand
from pentimento.domain.errors import NotFound, Unavailable
from pentimento.domain.fleet import HeldModel, RegisteredDigest, ReplicaReport
from pentimento.domain.image_request import ModelInfo

logger = logging.getLogger(__name__)

# Workers report once a second: after this silence, their weights no longer count.
_SILENCE_S = 10.0
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
        self,
        default_model: str,
        no_worker_retry_ms: int = 1000,
        monotonic: Callable[[], float] = time.monotonic,
        worker_wait_s: float = 0.0,
    ) -> None:
        """Create an empty catalogue. `worker_wait_s`: how long to wait for the report of a worker named in settings."""
        self._default_model = default_model
        self._retry_ms = no_worker_retry_ms
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
        """Stop expecting the worker: it has reported or is not wanted."""
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
            raise Unavailable("NO_WORKER_READY", "no worker is ready yet", retry_after_ms=self._retry_ms)
        shown = repr(name[:_SHOWN_NAME_LENGTH])
        now = self._monotonic()
        if name in self._planned or any(now < until for until in self._awaited.values()):
            raise Unavailable("MODEL_NOT_LOADED", f"no worker has loaded {shown} yet", retry_after_ms=self._retry_ms)
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
        """Return the model as soon as a worker has reported it."""
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
