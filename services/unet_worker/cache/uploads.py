"""What an attempt stores under its grant: latents while it still denoises, the image at the end. A failure costs the
cache an entry and the provenance a note, never the picture."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor, Future

from pentimento.domain.errors import PentimentoError
from pentimento.domain.generation import CacheGrant, CapturedEntries, CapturedLatent, ObjectReference
from pentimento.stores.objects import ObjectStore

logger = logging.getLogger(__name__)


class Uploads:
    """Of one attempt. `add_latent` is called on the engine's thread, the rest on the event loop. What is stored is made
    on the executor's threads; where there is nothing to be made, nothing is stored."""

    def __init__(self, grant: CacheGrant, objects: ObjectStore, executor: Executor) -> None:
        self._grant = grant
        self._objects = objects
        self._executor = executor
        self._keys = {slot.resume_step: slot.key for slot in grant.latents}
        self._latents: dict[tuple[int, float], Future[ObjectReference | None]] = {}
        self._image: Future[ObjectReference | None] | None = None
        # By key: what is stored once its turn has come.
        self._contents: dict[str, Callable[[], bytes | None]] = {}
        self._closed = False
        # The first step taken with LoRAs: what was captured before it owes nothing to them. None without any.
        self.adapters_from_step: int | None = None

    @property
    def steps(self) -> frozenset[int]:
        """Steps before which a latent is wanted."""
        return frozenset(self._keys)

    def add_latent(self, step: int, sigma: float, make: Callable[[], bytes | None]) -> None:
        if not self._closed:
            self._latents[(step, sigma)] = self._submit(self._keys[step], make)

    def add_image(self, png: bytes) -> None:
        if self._grant.image_key:
            self._image = self._submit(self._grant.image_key, lambda: png)

    async def collect(self, timeout_s: float) -> tuple[CapturedEntries, tuple[str, ...]]:
        """What was stored when all is done or the time is up, and a note if something was not."""
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
        """Begin no more, and keep nothing for it: what nobody hears of is an object without an entry, and a store that
        does not answer would have all kept that waits for it. Harmless twice."""
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
