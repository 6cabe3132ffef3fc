"""Read cached objects that a request may start from, and store an attempt's own under its grant: latents while it
denoises, the image at the end. A failure costs the cache an entry and adds a note to the provenance, but never costs
the image."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import replace

from pentimento.domain.cache import GrantBinding, GrantRefusal, check_grant
from pentimento.domain.clock import Clock
from pentimento.domain.errors import Internal, NotFound, PentimentoError, Unavailable
from pentimento.domain.generation import CacheGrant, CapturedEntries, CapturedLatent, FromImage, ObjectReference, Route
from pentimento.domain.reasons import Reason
from pentimento.rpc.watched_file import SharedKeys
from pentimento.stores.errors import ObjectCorrupt, ObjectMissing
from pentimento.stores.objects import ObjectStore
from services.unet_worker import metrics
from services.unet_worker.attempts.order import ExecuteOrder

logger = logging.getLogger(__name__)

SKIPPED = "cache skipped"


REPLAY_RETRY_MS = 5000


class UnusableDonor(Exception):
    """Explain why a donor is skipped: its object is bad, or the store is unavailable."""

    def __init__(self, reason: str, detail: str, *, object_is_bad: bool = False, away: bool = False) -> None:
        super().__init__(f"{SKIPPED}: {reason}: {detail}")
        self.bad_donor_reason = reason if object_is_bad else ""
        self._detail = detail
        self._away = away

    def of_replay(self, route: Route) -> PentimentoError:
        """Return the error of a replay, which has no other start: NotFound ANCESTOR_GONE with the missing object's
        name, Unavailable while the store is away, Internal for an existing donor that cannot be resumed."""
        kind = "image" if isinstance(route.start, FromImage) else "latent"
        what = f"the {kind} that {route.replay_of} started from"
        if self._away:
            message = f"{what} cannot be read now: {self._detail}"
            return Unavailable(Reason.INPUT_UNAVAILABLE, message, retry_after_ms=REPLAY_RETRY_MS)
        if self.bad_donor_reason:
            return NotFound(Reason.ANCESTOR_GONE, f"{what} is no longer stored: {self._detail}")
        return Internal("REPLAY_FAILED", f"{what} cannot be resumed: {self._detail}")


class DonorReader:
    def __init__(self, objects: ObjectStore, executor: Executor, timeout_s: float) -> None:
        self._objects = objects
        self._executor = executor
        self._timeout_s = timeout_s

    async def read(self, reference: ObjectReference) -> bytes:
        """Return the object, its digest checked. Raises UnusableDonor if it is missing, corrupt or late."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout_s):
                return await loop.run_in_executor(self._executor, self._objects.get, reference)
        except TimeoutError:
            raise UnusableDonor("STORE_SLOW", f"no answer in {self._timeout_s:g} s", away=True) from None
        except PentimentoError as error:
            is_bad = isinstance(error, ObjectMissing | ObjectCorrupt)
            raise UnusableDonor(error.reason, error.message, object_is_bad=is_bad, away=not is_bad) from None


_REASONS = {
    GrantRefusal.UNSIGNED: "its grant is not signed",
    GrantRefusal.NOT_OURS: "its grant is not the gateway's for this attempt",
    GrantRefusal.EXPIRED: "its grant has expired",
}


class GrantGuard:
    """Check grants. Without `keys`, believe every grant if `open_to_all`, as every client may call then, else none."""

    def __init__(self, keys: SharedKeys | None, clock: Clock, *, open_to_all: bool) -> None:
        self._keys = keys
        self._clock = clock
        self._open = keys is None and open_to_all
        if keys is None and not open_to_all:
            logger.warning("no grant key file: nothing is stored in the cache")

    def admitted(self, order: ExecuteOrder) -> ExecuteOrder:
        """Return the order; an invalid grant is removed, with a note that gives the reason."""
        if order.cache_grant is None or self._open:
            return order
        keys = self._keys() if self._keys is not None else ()
        refusal = check_grant(keys, order.cache_grant, _binding(order), self._clock.wall() * 1000)
        if refusal is None:
            return order
        metrics.GRANTS_REFUSED.labels(refusal.value).inc()
        return replace(order, cache_grant=None, notes=(*order.notes, f"cache: nothing stored, {_REASONS[refusal]}"))


def _binding(order: ExecuteOrder) -> GrantBinding:
    attempt, spec = order.attempt, order.spec
    return GrantBinding(
        tenant=attempt.tenant,
        request_id=attempt.request_id,
        fencing_token=attempt.fencing_token,
        model_digest=order.route.model_digest,
        width_px=spec.width_px,
        height_px=spec.height_px,
        step_count=spec.num_inference_steps,
    )


class Uploads:
    """Store the objects of one attempt. `add_latent` is called on the engine's thread, the rest on the event loop. The
    objects are made on the executor's threads; a maker that returns None stores nothing."""

    def __init__(self, grant: CacheGrant, objects: ObjectStore, executor: Executor) -> None:
        self._grant = grant
        self._objects = objects
        self._executor = executor
        self._keys = {slot.resume_step: slot.key for slot in grant.latents}
        self._latents: dict[tuple[int, float], Future[ObjectReference | None]] = {}
        self._image: Future[ObjectReference | None] | None = None
        # Makers of the objects that are not stored yet, by key.
        self._contents: dict[str, Callable[[], bytes | None]] = {}
        self._closed = False
        # The first step run with LoRAs: latents captured before it do not depend on them. None without LoRAs.
        self.adapters_from_step: int | None = None

    @property
    def steps(self) -> frozenset[int]:
        return frozenset(self._keys)

    def add_latent(self, step: int, sigma: float, make: Callable[[], bytes | None]) -> None:
        if not self._closed:
            self._latents[(step, sigma)] = self._submit(self._keys[step], make)

    def add_image(self, png: bytes) -> None:
        if self._grant.image_key:
            self._image = self._submit(self._grant.image_key, lambda: png)

    async def collect(self, timeout_s: float) -> tuple[CapturedEntries, tuple[str, ...]]:
        """Return the stored objects when all are done or the time is up, and a note if some were not stored."""
        futures = [*self._latents.values(), *([self._image] if self._image else [])]
        waiting = [asyncio.wrap_future(future) for future in futures]
        if waiting:
            await asyncio.wait(waiting, timeout=timeout_s)
        latents = tuple(
            CapturedLatent(step, sigma, reference, adapter_free=self._is_adapter_free(step))
            for (step, sigma), future in self._latents.items()
            if (reference := _stored(future)) is not None
        )
        image = _stored(self._image) if self._image else None
        lost = len(futures) - len(latents) - (image is not None)
        notes = (f"cache: {lost} of {len(futures)} objects could not be stored",) if lost else ()
        return CapturedEntries(self._grant.grant_id, latents, image), notes

    def close(self) -> None:
        """Begin no further uploads, and release the pending contents: an object without a caller would have no entry,
        and an unresponsive store would keep every pending content in memory. Harmless twice."""
        self._closed = True
        self._contents.clear()

    def _is_adapter_free(self, step: int) -> bool:
        return self.adapters_from_step is None or step <= self.adapters_from_step

    def _submit(self, key: str, make: Callable[[], bytes | None]) -> "Future[ObjectReference | None]":
        self._contents[key] = make
        return self._executor.submit(self._put, key)

    def _put(self, key: str) -> ObjectReference | None:
        make = self._contents.pop(key, None)
        content = make() if make is not None else None
        if content is None:
            return None
        try:
            return self._objects.put(key, content, durable=False)
        except PentimentoError as error:
            logger.warning("an object could not be stored: %s", error.reason)
            return None


def _stored(future: "Future[ObjectReference | None]") -> ObjectReference | None:
    if not future.done() or future.cancelled() or future.exception() is not None:
        return None
    return future.result()
