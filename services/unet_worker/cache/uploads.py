"""Store an attempt's objects under its grant: latents while it denoises, the image at the end. A failure costs the
cache an entry and adds a note to the provenance, but never costs the image."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor, Future

from pentimento.domain.errors import PentimentoError
from pentimento.domain.generation import CacheGrant, CapturedEntries, CapturedLatent, ObjectReference
from pentimento.stores.objects import ObjectStore

logger = logging.getLogger(__name__)


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
        """Return the steps before which a latent is captured."""
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
