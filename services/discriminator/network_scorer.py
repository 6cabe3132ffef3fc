"""Score images by networks; images of several calls share a forward pass."""

import asyncio
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pentimento.diffusion.discriminators import PictureDiscriminator
from pentimento.domain.embedding import Embedding
from pentimento.domain.errors import NotFound, ResourceExhausted, Unavailable
from pentimento.domain.fleet import MeasuredDeferral, ModelCost
from pentimento.files.discriminator_records import why_uninformative
from pentimento.images.decoding import decode
from pentimento.service.batching import BatchingLimits, ModelThread, TakenWork
from services.discriminator.metrics import PASS_SECONDS, SCORED_IMAGES
from services.discriminator.scoring import Foresights, ImageScores, ImageToScore, reads_no_prompts

MEASURED_PASSES = 3
QUEUE_LIMIT = 256
Opener = Callable[[], Mapping[str, PictureDiscriminator]]


@dataclass(frozen=True)
class _DecodedImage:
    pixels: NDArray[np.float32]
    # Embedded, if the cascade's discriminator reads it.
    prompt: NDArray[np.float32] | None


class NetworkScorer:
    """One pass at a time, on its own thread, over waiting images of one cascade. QUEUE_LIMIT images may wait, images
    that are being decoded included. `busy` receives the seconds of each pass."""

    def __init__(
        self,
        cascades: Sequence[str],
        opener: Opener,
        max_batch_size: int,
        inside: Callable[[], AbstractContextManager[Any]],
        busy: Callable[[float], None],
    ) -> None:
        """`opener` loads the network of each cascade; the thread of the passes enters `inside`."""
        self.cascades = tuple(cascades)
        self.costs: tuple[ModelCost, ...] = ()
        self._opener = opener
        # Without an aging limit the oldest image comes first, in any cascade.
        self._limits = BatchingLimits(max_batch_size, 0.0, QUEUE_LIMIT, aging_limit_s=0.0)
        self._inside = inside
        self._busy = busy
        self._networks: Mapping[str, PictureDiscriminator] = {}
        self._thread: ModelThread | None = None
        self._taken = TakenWork("discriminator")

    @property
    def prompt_cascades(self) -> tuple[str, ...]:
        """Return the cascades with a discriminator that reads prompts; none before they are loaded."""
        return tuple(cascade for cascade, network in self._networks.items() if network.head is not None)

    @property
    def deferrals(self) -> tuple[MeasuredDeferral, ...]:
        """Return f(t) of the cascades of `prompt_cascades`, by their heads' records."""
        heads = ((one, network.digest, network.head) for one, network in self._networks.items() if network.head)
        return tuple(
            MeasuredDeferral(
                cascade,
                digest,
                tuple(at for at, _ in head.record.deferral),
                tuple(share for _, share in head.record.deferral),
                why_uninformative(head.record.auroc),
            )
            for cascade, digest, head in heads
        )

    async def open(self) -> None:
        """Load the discriminators and measure a pass of each. Raises the fault of a bad directory."""
        networks, self.costs = await asyncio.to_thread(_measured, self._opener)
        lanes = {cascade: partial(_confidences, network) for cascade, network in networks.items()}
        self._thread = ModelThread(lanes, self._limits, self._inside, self._count)
        self._networks = networks

    async def close(self) -> None:
        """Take no more, score the accepted images, then end the thread."""
        await self._taken.close()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.close)

    async def foresee(self, cascade: str, prompts: Sequence[Embedding], threshold: float | None = None) -> Foresights:
        """Return a prediction per prompt: a product of a small matrix, computed at once. Raises NotFound
        UNKNOWN_CASCADE, FailedPrecondition NO_PROMPT_HEAD or OTHER_ENCODER, and InvalidArgument."""
        network, _ = self._loaded(cascade)
        head = network.head
        if head is None:
            raise reads_no_prompts(cascade)
        read = [head.prompt(f"prompts[{index}].prompt", prompt) for index, prompt in enumerate(prompts)]
        return Foresights(head.foresee(read, threshold), network.digest)

    async def score(self, cascade: str, images: Sequence[ImageToScore]) -> ImageScores:
        """Return the confidences. Raises InvalidArgument for an image that does not decode, NotFound
        UNKNOWN_CASCADE, ResourceExhausted if too many wait, and Unavailable DRAINING once it closes."""
        network, thread = self._loaded(cascade)
        if self._taken.count + len(images) > QUEUE_LIMIT:
            message = f"at most {QUEUE_LIMIT} images may wait for a discriminator"
            raise ResourceExhausted("QUEUE_FULL", message, retry_after_ms=100)
        with self._taken.taking(len(images)):
            prompts = [_prompt_of(network, index, entry) for index, entry in enumerate(images)]
            pixels = [
                await asyncio.to_thread(decode, entry.image, f"images[{index}].image", network.pixels)
                for index, entry in enumerate(images)
            ]
            decoded = [_DecodedImage(*pair) for pair in zip(pixels, prompts, strict=True)]
            return ImageScores(await thread.run(cascade, decoded), network.digest)

    def _loaded(self, cascade: str) -> tuple[PictureDiscriminator, ModelThread]:
        if cascade not in self.cascades:
            there = ", ".join(self.cascades)
            raise NotFound("UNKNOWN_CASCADE", f"no discriminator of cascade {cascade!r:.120}; there are {there}")
        if self._thread is None:
            raise Unavailable("LOADING", "the discriminator is being loaded", retry_after_ms=500)
        return self._networks[cascade], self._thread

    def _count(self, cascade: str, waited_s: Sequence[float], seconds: float) -> None:
        self._busy(seconds)
        PASS_SECONDS.observe(seconds)
        SCORED_IMAGES.inc(len(waited_s))


def _measured(opener: Opener) -> tuple[Mapping[str, PictureDiscriminator], tuple[ModelCost, ...]]:
    networks = opener()
    return networks, tuple(ModelCost(cascade, ((1, _pass_s(network)),)) for cascade, network in networks.items())


def _pass_s(network: PictureDiscriminator) -> float:
    """Return the median seconds of a pass over one image, after one that warms up."""
    blank = [network.pixels(Image.new("RGB", (network.image_size_px,) * 2))]
    taken = []
    for _ in range(1 + MEASURED_PASSES):
        began_s = time.perf_counter()
        network.confidences(blank)
        taken.append(time.perf_counter() - began_s)
    return statistics.median(taken[1:])


def _prompt_of(network: PictureDiscriminator, index: int, entry: ImageToScore) -> NDArray[np.float32] | None:
    return None if network.head is None else network.head.prompt(f"images[{index}].prompt", entry.prompt)


def _confidences(network: PictureDiscriminator, batch: Sequence[_DecodedImage]) -> list[float]:
    """Score images of one cascade: all or none have a prompt."""
    pixels = [entry.pixels for entry in batch]
    prompts = [entry.prompt for entry in batch if entry.prompt is not None]
    return network.confidences_with(pixels, prompts) if prompts else network.confidences(pixels)
