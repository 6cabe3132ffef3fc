"""Play a steady load of many small requests, with clients that wait, leave, err and repeat."""

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace

from pentimento.domain.errors import PentimentoError
from pentimento.domain.image_request import Accepted, CacheMode, ImageRequest
from pentimento.sdk import AsyncClient, RetryPolicy

CLIENTS, CROWD = 24, 128
PROMPTS = 400
# every n-th request: uses the cache, is left once accepted, has a wrong field, is sent twice
CACHED, LEFT, WRONG, TWICE = 4, 50, 51, 53
DEADLINE_MS = 120_000
RETRIES = RetryPolicy(tries=20, first_pause_s=0.05, max_pause_s=1.0)
Turn = Callable[[], Awaitable[None]]


class SoakLoad:
    """Send at most `rate` requests a second, so that retained data does not grow with the machine's speed.

    `ended`: requests ended so far; `endings`: counts by ending.
    """

    def __init__(self, steps: int, rate: float) -> None:
        self._steps = steps
        self._interval_s = 1.0 / rate
        self._next_at = 0.0
        self._numbers = itertools.count(1)
        self.ended = 0
        self.endings: Counter[str] = Counter()

    def start_again(self) -> None:
        """Reset the counts."""
        self.ended, self.endings = 0, Counter()

    async def play(self, address: str, requests: int) -> None:
        """Send more requests from clients with one request in flight each; close their connection afterwards."""
        await self._play(address, requests, CLIENTS, self._turn)

    async def crowd(self, address: str, requests: int) -> None:
        """Send as fast as possible from many clients, so that every pool reaches its full number of threads."""
        await self._play(address, requests, CROWD, self._at_once)

    async def _play(self, address: str, requests: int, clients: int, turn: Turn) -> None:
        last = self.ended + requests
        async with AsyncClient(address, retries=RETRIES) as client:
            await asyncio.gather(*(self._keep_busy(client, last, turn) for _ in range(clients)))

    async def _keep_busy(self, client: AsyncClient, last: int, turn: Turn) -> None:
        while self.ended < last:
            number = next(self._numbers)
            await turn()
            self.endings[await self._play_one(client, number)] += 1
            self.ended += 1

    async def _turn(self) -> None:
        now = time.monotonic()
        at = self._next_at = max(self._next_at + self._interval_s, now)
        await asyncio.sleep(at - now)

    async def _at_once(self) -> None:
        """Wait for nothing."""

    async def _play_one(self, client: AsyncClient, number: int) -> str:
        request = self._request(number)
        try:
            if number % LEFT == 0:
                return await leave(client, request)
            if number % WRONG == 0:
                request = replace(request, num_inference_steps=0)
            key = f"twice-{number}" if number % TWICE == 0 else ""
            image = await client.generate(request, idempotency_key=key)
            if key and (await client.generate(request, idempotency_key=key)).data != image.data:
                return "OTHER IMAGE"
            return "OK"
        except PentimentoError as error:
            return error.reason

    def _request(self, number: int) -> ImageRequest:
        cache = CacheMode.READ_WRITE if number % CACHED == 0 else CacheMode.OFF
        prompt = f"a red circle, number {number % PROMPTS}"
        return ImageRequest(prompt, num_inference_steps=self._steps, seed=number, cache=cache, deadline_ms=DEADLINE_MS)


async def leave(client: AsyncClient, request: ImageRequest) -> str:
    """Leave once the request is accepted."""
    async with aclosing(client.stream(request)) as events:
        async for event in events:
            if isinstance(event, Accepted):
                return "LEFT"
    return "NOT ACCEPTED"
