"""Scores pictures by real discriminators, those of several calls in one pass."""

import asyncio
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pentimento.diffusion.discriminators import PictureDiscriminator, PromptHead
from pentimento.domain.embedding import Embedding
from pentimento.domain.errors import NotFound, ResourceExhausted, Unavailable
from pentimento.domain.fleet import ModelCost
from pentimento.domain.reasons import Reason
from pentimento.pictures.decoding import decode
from services.discriminator.metrics import PASS_SECONDS, SCORED_PICTURES
from services.discriminator.scoring import Foresights, PictureScores, PictureToScore, reads_no_prompts

MEASURED_PASSES = 3
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
    # Embedded, where the cascade's discriminator reads it.
    prompt: NDArray[np.float32] | None
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
        self._costs: tuple[ModelCost, ...] = ()
        self._queue: deque[_WaitingPicture] = deque()
        # Pictures of calls that are not answered yet, those that are being decoded among them.
        self._taken_count = 0
        self._all_answered = asyncio.Event()
        self._all_answered.set()
        self._closed = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="model")
        self._passes: asyncio.Task[None] | None = None

    @property
    def cascades(self) -> tuple[str, ...]:
        """Return the cascades whose pictures it scores."""
        return self._cascades

    @property
    def costs(self) -> tuple[ModelCost, ...]:
        """Return what a pass over one picture took of each cascade, as measured when they were loaded; none before."""
        return self._costs

    async def open(self) -> None:
        """Load the discriminators and measure what they take. Raises what is wrong with one."""
        loop = asyncio.get_running_loop()
        networks = await loop.run_in_executor(self._thread, self._opener)
        self._costs = await loop.run_in_executor(self._thread, _measured, networks)
        self._networks = networks

    async def close(self) -> None:
        """Take no more, score what was taken, those that are being decoded among it, then end the thread."""
        self._closed = True
        await self._all_answered.wait()
        if self._passes is not None:
            await self._passes
        self._thread.shutdown(wait=False)

    @property
    def prompt_cascades(self) -> tuple[str, ...]:
        """Return those whose discriminators read prompts; none before they are loaded."""
        return tuple(cascade for cascade, network in self._networks.items() if network.head is not None)

    async def foresee(self, cascade: str, prompts: Sequence[Embedding]) -> Foresights:
        """Return what each prompt tells by itself: a product of a small matrix, done at once. Raises NotFound
        UNKNOWN_CASCADE, FailedPrecondition NO_PROMPT_HEAD or OTHER_ENCODER, and InvalidArgument."""
        network = self._network(cascade)
        head = network.head
        if head is None:
            raise reads_no_prompts(cascade)
        read = [head.prompt(f"prompts[{index}].prompt", prompt) for index, prompt in enumerate(prompts)]
        return Foresights(head.foresee(read), network.digest)

    async def score(self, cascade: str, images: Sequence[PictureToScore]) -> PictureScores:
        """Return the confidences. Raises InvalidArgument for a picture that does not decode, NotFound
        UNKNOWN_CASCADE, ResourceExhausted where too many wait, and Unavailable DRAINING once it closes."""
        network = self._network(cascade)
        if self._closed:
            raise Unavailable(Reason.DRAINING, "the discriminator is stopping", retry_after_ms=500)
        if self._taken_count + len(images) > self._limits.queue_limit:
            message = f"at most {self._limits.queue_limit} images may wait for a discriminator"
            raise ResourceExhausted("QUEUE_FULL", message, retry_after_ms=100)
        self._taken_count += len(images)
        self._all_answered.clear()
        try:
            return PictureScores(await self._scored(network, cascade, images), network.digest)
        finally:
            self._taken_count -= len(images)
            if not self._taken_count:
                self._all_answered.set()

    async def _scored(
        self, network: PictureDiscriminator, cascade: str, images: Sequence[PictureToScore]
    ) -> list[float]:
        prompts = [_prompt_of(network.head, index, entry) for index, entry in enumerate(images)]
        pixels = [await _pixels_of(network, index, entry.image) for index, entry in enumerate(images)]
        loop = asyncio.get_running_loop()
        waiting = [
            _WaitingPicture(cascade, picture, prompt, loop.create_future())
            for picture, prompt in zip(pixels, prompts, strict=True)
        ]
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
        while batch := self._next_batch():
            network = self._networks[batch[0].cascade]
            began_s = time.monotonic()
            try:
                confidences = await loop.run_in_executor(self._thread, _confidences, network, batch)
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
        """The oldest picture, and of those of its cascade as many as fit, in their order; none where none waits.
        Whoever left is left out."""
        waiting = [entry for entry in self._queue if not entry.scored.done()]
        chosen = [entry for entry in waiting if entry.cascade == waiting[0].cascade][: self._limits.max_batch_size]
        taken = set(map(id, chosen))
        self._queue = deque(entry for entry in waiting if id(entry) not in taken)
        return chosen

    def _count(self, size: int, seconds: float) -> None:
        self._busy(seconds)
        PASS_SECONDS.observe(seconds)
        SCORED_PICTURES.inc(size)


def _measured(networks: Mapping[str, PictureDiscriminator]) -> tuple[ModelCost, ...]:
    return tuple(ModelCost(cascade, ((1, _pass_s(network)),)) for cascade, network in networks.items())


def _pass_s(network: PictureDiscriminator) -> float:
    """The median of some, after one that warms up."""
    blank = [network.pixels(Image.new("RGB", (network.image_size_px,) * 2))]
    taken = []
    for _ in range(1 + MEASURED_PASSES):
        began_s = time.perf_counter()
        network.confidences(blank)
        taken.append(time.perf_counter() - began_s)
    return statistics.median(taken[1:])


async def _pixels_of(network: PictureDiscriminator, index: int, image: bytes) -> NDArray[np.float32]:
    return await asyncio.to_thread(decode, image, f"images[{index}].image", network.pixels)


def _prompt_of(head: PromptHead | None, index: int, entry: PictureToScore) -> NDArray[np.float32] | None:
    return None if head is None else head.prompt(f"images[{index}].prompt", entry.prompt)


def _confidences(network: PictureDiscriminator, batch: Sequence[_WaitingPicture]) -> list[float]:
    """Of one cascade, so that all or none have a prompt."""
    pixels = [entry.pixels for entry in batch]
    prompts = [entry.prompt for entry in batch if entry.prompt is not None]
    return network.confidences_with(pixels, prompts) if prompts else network.confidences(pixels)
