"""PictureScores pictures by real discriminators, those of several calls in one pass."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pentimento.diffusion.discriminators import PictureDiscriminator
from pentimento.domain.errors import NotFound, ResourceExhausted, Unavailable
from pentimento.pictures.decoding import decode
from services.discriminator.metrics import PASS_SECONDS, SCORED_PICTURES
from services.discriminator.scoring import PictureScores

Opener = Callable[[], Mapping[str, PictureDiscriminator]]


@dataclass(frozen=True)
class ScoringLimits:
    """`max_batch_size` pictures in one pass; `queue_limit` may wait for one."""

    max_batch_size: int = 16
    queue_limit: int = 256


@dataclass(frozen=True)
class _WaitingPicture:
    cascade: str
    pixels: NDArray[np.float32]
    scored: "asyncio.Future[float]"


class NetworkScorer:
    """One pass at a time, on a thread of its own. Pictures that come while one runs are the next one, as far as they
    are of one cascade. `busy` hears of the seconds that passes take."""

    def __init__(
        self, cascades: Sequence[str], opener: Opener, limits: ScoringLimits, busy: Callable[[float], None]
    ) -> None:
        self._cascades = tuple(cascades)
        self._opener = opener
        self._limits = limits
        self._busy = busy
        self._networks: Mapping[str, PictureDiscriminator] = {}
        self._queue: deque[_WaitingPicture] = deque()
        # Pictures of calls that are not answered yet, those that are being decoded among them.
        self._taken_count = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="model")
        self._passes: asyncio.Task[None] | None = None

    @property
    def cascades(self) -> tuple[str, ...]:
        """Return the cascades whose pictures it scores."""
        return self._cascades

    async def open(self) -> None:
        """Load the discriminators. Raises what is wrong with one."""
        self._networks = await asyncio.get_running_loop().run_in_executor(self._thread, self._opener)

    async def close(self) -> None:
        """Score what waits, then end the thread."""
        if self._passes is not None:
            await self._passes
        self._thread.shutdown(wait=False)

    async def score(self, cascade: str, images: Sequence[bytes]) -> PictureScores:
        """Return the confidences. Raises InvalidArgument for a picture that does not decode, NotFound
        UNKNOWN_CASCADE, and ResourceExhausted where too many wait."""
        network = self._network(cascade)
        if self._taken_count + len(images) > self._limits.queue_limit:
            message = f"at most {self._limits.queue_limit} pictures may wait for a discriminator"
            raise ResourceExhausted("QUEUE_FULL", message, retry_after_ms=100)
        self._taken_count += len(images)
        try:
            return PictureScores(await self._scored(network, cascade, images), network.digest)
        finally:
            self._taken_count -= len(images)

    async def _scored(self, network: PictureDiscriminator, cascade: str, images: Sequence[bytes]) -> list[float]:
        pixels = [await _pixels_of(network, index, image) for index, image in enumerate(images)]
        loop = asyncio.get_running_loop()
        waiting = [_WaitingPicture(cascade, picture, loop.create_future()) for picture in pixels]
        self._queue.extend(waiting)
        if self._passes is None or self._passes.done():
            self._passes = asyncio.create_task(self._run_passes())
        return list(await asyncio.gather(*(entry.scored for entry in waiting)))

    def _network(self, cascade: str) -> PictureDiscriminator:
        if cascade not in self._cascades:
            there = ", ".join(self._cascades)
            raise NotFound("UNKNOWN_CASCADE", f"no discriminator of cascade {cascade!r:.120}; there are {there}")
        network = self._networks.get(cascade)
        if network is None:
            raise Unavailable("LOADING", "the discriminator is being loaded", retry_after_ms=500)
        return network

    async def _run_passes(self) -> None:
        loop = asyncio.get_running_loop()
        while self._queue:
            batch = self._next_batch()
            network, pixels = self._networks[batch[0].cascade], [entry.pixels for entry in batch]
            began_s = time.monotonic()
            try:
                confidences = await loop.run_in_executor(self._thread, network.confidences, pixels)
            except Exception as error:  # told to all who wait for this pass; the next one may go well
                for entry in batch:
                    if not entry.scored.done():
                        entry.scored.set_exception(error)
                continue
            self._count(len(batch), time.monotonic() - began_s)
            for entry, confidence in zip(batch, confidences, strict=True):
                if not entry.scored.done():
                    entry.scored.set_result(confidence)

    def _next_batch(self) -> list[_WaitingPicture]:
        """The oldest picture, and of those of its cascade as many as fit, in their order. Whoever left is left out."""
        first = self._queue[0]
        chosen = [entry for entry in self._queue if entry.cascade == first.cascade][: self._limits.max_batch_size]
        taken = set(map(id, chosen))
        self._queue = deque(entry for entry in self._queue if id(entry) not in taken)
        return chosen

    def _count(self, size: int, seconds: float) -> None:
        self._busy(seconds)
        PASS_SECONDS.observe(seconds)
        SCORED_PICTURES.inc(size)


async def _pixels_of(network: PictureDiscriminator, index: int, image: bytes) -> NDArray[np.float32]:
    return await asyncio.to_thread(decode, image, f"images[{index}].image", network.pixels)
