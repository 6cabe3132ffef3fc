"""The models that workers hold, as requests are judged by them."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from pentimento.domain.errors import NotFound, Unavailable
from pentimento.domain.fleet import HeldModel, RegisteredDigest
from pentimento.domain.image_request import ModelInfo

logger = logging.getLogger(__name__)

# Workers report once a second: whoever was silent for so long no longer decides.
_SILENCE_S = 10.0
# Names are echoed to the client no further than this.
_SHOWN_NAME_LENGTH = 80


class Catalogue:
    """Learns from workers' reports and forgets nothing: a model whose workers are away is waited for, not unknown.

    Where workers hold other weights under one name, those of the worker that started last are what new requests are
    routed to, for as long as it reports.
    """

    def __init__(
        self,
        default_model: str,
        no_worker_retry_ms: int = 1000,
        monotonic: Callable[[], float] = time.monotonic,
        worker_wait_s: float = 0.0,
    ) -> None:
        """`worker_wait_s`: how long a worker that must be there is waited for."""
        self._default_model = default_model
        self._retry_ms = no_worker_retry_ms
        self._models: dict[str, HeldModel] = {}
        self._monotonic = monotonic
        # When the digest that counts was last reported, by the model's name.
        self._reported_at: dict[str, float] = {}
        self._told: set[frozenset[str]] = set()
        # By name, the digests that alone count.
        self._registered: dict[str, str] = {}
        # What the plan gives to workers, which may not have told yet.
        self._planned: frozenset[str] = frozenset()
        # Workers that have not told what they hold, by their addresses, each with when it is waited for no longer.
        self._worker_wait_s = worker_wait_s
        self._awaited: dict[str, float] = {}
        self._learnt = asyncio.Event()

    def follow(self, registered: Iterable[RegisteredDigest], planned: Iterable[str] = ()) -> None:
        """Changes state: under these names no other digests are known from now on, nor those that were. `planned`: the
        names of models that workers hold, or are to."""
        self._planned = frozenset(planned)
        self._registered = {one.model: one.digest for one in registered}
        for held in [held for held in self._models.values() if not self._may_be(held)]:
            del self._models[held.model]

    def await_worker(self, address: str) -> None:
        """Changes state: what a worker there holds no plan says, so that no name is unknown for a while."""
        self._awaited[address] = self._monotonic() + self._worker_wait_s

    def await_no_longer(self, address: str) -> None:
        """Changes state: the worker there has told, or is not wanted."""
        self._awaited.pop(address, None)

    def _may_be(self, held: HeldModel) -> bool:
        return self._registered.get(held.model, held.model_digest) == held.model_digest

    def learn(self, held: HeldModel) -> None:
        """Changes state: the model as a worker holds it decides how new requests are judged and routed, unless one
        that started later holds other weights under its name."""
        if not self._may_be(held):
            return
        known, now = self._models.get(held.model), self._monotonic()
        if known is not None and known.model_digest != held.model_digest and self._outranks(known, held, now):
            return
        self._reported_at[held.model] = now
        if known is not None and known.model_digest == held.model_digest:
            # Of several workers the slowest counts: it may be the one that gets a request.
            held = replace(held, step_s=max(known.step_s, held.step_s))
        if known != held:
            self._models[held.model] = held
            self._learnt.set()
            self._learnt = asyncio.Event()

    def _outranks(self, known: HeldModel, held: HeldModel, now: float) -> bool:
        """Whether the weights that count go on counting; that there are two is told once."""
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
        """The model of that name, the default one for "". NotFound; Unavailable while no worker was ever heard of, or
        none that has loaded what the plan names or a worker without a plan may hold: after a start not all have told
        yet."""
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
        """None for a model that no worker ever held."""
        return self._models.get(name)

    def of_digest(self, model_digest: str) -> HeldModel | None:
        """Return the model with these weights as it was last held; None where none has them now."""
        return next((held for held in self._models.values() if held.model_digest == model_digest), None)

    def default(self) -> HeldModel | None:
        """The deployment's default model; None where it names none, or it was never held."""
        return self.known(self._default_model)

    async def wait_for(self, name: str) -> HeldModel:
        """The model, as soon as a worker has reported it."""
        while name not in self._models:
            await self._learnt.wait()
        return self._models[name]

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
