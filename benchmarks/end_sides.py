"""Run the sides of `benchmarks.end_to_end` with clients: the peer, and the suite's arms."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from benchmarks.peers.orders import PeerOrder
from pentimento.domain.errors import PentimentoError
from pentimento.domain.image_request import AskedLora, CacheMode, ImageRequest
from pentimento.sdk import AsyncClient
from zoo.registry import entry_of

if TYPE_CHECKING:
    from benchmarks.peers.diffusers_litserve import PeerProcess

HEAVY, LIGHT = "tiny-heavy", "tiny-light"
LORAS = ("tiny-lora-neon", "tiny-lora-blueprint", "tiny-lora-mosaic")


@dataclass(frozen=True)
class EndArm:
    """Describe one configuration of the suite."""

    name: str
    suite: str = "cascade"
    cached: bool = True
    thins: bool = True


EVERYTHING = EndArm("everything on")
# both sides take all steps of an image
EQUAL_STEPS = EndArm("everything but thinning", thins=False)
THINNING = EndArm("thinning alone", "mixture", cached=False)
ARMS = (
    EVERYTHING,
    EndArm("everything but the cache", cached=False),
    EndArm("everything but the cascade", "mixture"),
    EQUAL_STEPS,
    EndArm("batches by steps alone", "mixture", cached=False, thins=False),
    EndArm("the cache alone", "mixture", thins=False),
    EndArm("the cascade alone", cached=False, thins=False),
    THINNING,
)
PEER = "diffusers behind LitServe"


@dataclass(frozen=True)
class LogRow:
    """Hold a row of the log."""

    row: int
    prompt: str
    loras: tuple[str, ...]

    @property
    def seed(self) -> int:
        return 30_000 + self.row


@dataclass
class SideRun:
    """Collect a side's run.

    PNGs by row, seconds of each answer by row, seconds of its rounds, each image's steps, and processor seconds by
    service.
    """

    images: dict[int, bytes] = field(default_factory=dict)
    latencies_s: dict[int, float] = field(default_factory=dict)
    round_s: list[float] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    processor_s: dict[str, float] = field(default_factory=dict)

    def note_processor_s(self, before: Mapping[str, float], after: Mapping[str, float]) -> None:
        """Add the services' processor time between two readings."""
        for service, seconds in after.items():
            spent = seconds - before.get(service, 0.0)
            self.processor_s[service] = self.processor_s.get(service, 0.0) + spent

    @property
    def p95_s(self) -> float:
        """Return the nearest-rank p95; infinite if that many failed."""
        ordered = sorted(self.latencies_s.values())
        return ordered[math.ceil(0.95 * len(ordered)) - 1]


# an encoded image and its steps
Generate = Callable[[LogRow], Awaitable[tuple[bytes, int]]]


@dataclass(frozen=True)
class Sides:
    """Hold everything that runs: the peer, and a client for each arm."""

    peer: "PeerProcess"
    clients: Mapping[str, AsyncClient]

    def generate(self, arm: EndArm | None) -> Generate:
        """Return the generating function of an arm, or of the peer."""
        return self._by_peer if arm is None else lambda asked: self._by_suite(asked, arm, binding=not arm.thins)

    def filler(self, arm: EndArm) -> Generate:
        """Return the function that fills an arm's cache."""
        return lambda asked: self._by_suite(asked, arm, binding=True)

    async def _by_peer(self, asked: LogRow) -> tuple[bytes, int]:
        order = peer_order(asked)
        return await self.peer.generate(order), order.steps

    async def _by_suite(self, asked: LogRow, arm: EndArm, *, binding: bool) -> tuple[bytes, int]:
        request = ImageRequest(
            asked.prompt,
            # LoRAs belong to one model, so that requests with LoRAs name it
            model=HEAVY if asked.loras else "",
            loras=tuple(AskedLora(name) for name in asked.loras),
            seed=asked.seed,
            cache=CacheMode.READ_WRITE if arm.cached else CacheMode.OFF,
            binding_steps=binding,
        )
        image = await self.clients[arm.name].generate(request)
        return image.data, image.provenance.steps_run


def peer_order(asked: LogRow) -> PeerOrder:
    """Return the same image as an order for the peer."""
    known = entry_of(HEAVY)
    steps, guidance = int(known["default_steps"]), float(known["default_guidance_scale"])
    return PeerOrder(asked.prompt, asked.seed, steps, guidance, asked.loras)


async def play(generate: Generate, asked: Sequence[LogRow], client_count: int, run: SideRun) -> float:
    """Generate all images with `client_count` clients, in order, and return the seconds. A failed request counts as
    never answered."""
    left = iter(asked)

    async def one_after_the_other() -> None:
        for one in left:
            began = time.monotonic()
            try:
                run.images[one.row], steps = await generate(one)
                run.steps.append(steps)
                run.latencies_s[one.row] = time.monotonic() - began
            except PentimentoError:
                run.latencies_s[one.row] = float("inf")

    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for _ in range(client_count):
            group.create_task(one_after_the_other())
    return time.monotonic() - began


def folded(names: Sequence[str]) -> tuple[str, ...]:
    """Return the zoo's LoRAs for those of the mix, by their numbers, without duplicates."""
    return tuple(dict.fromkeys(LORAS[int(name.rpartition("-")[2]) % len(LORAS)] for name in names))


def parts_of(asked: Sequence[LogRow], count: int) -> list[Sequence[LogRow]]:
    """Cut the log into `count` parts."""
    edges = [len(asked) * number // count for number in range(count + 1)]
    return [asked[first:last] for first, last in pairwise(edges)]
