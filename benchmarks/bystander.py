"""Send a light open-loop load to the public API as another tenant during an attack, and time each call."""

import asyncio
import random
import time
from collections import Counter
from contextlib import suppress

from pentimento.domain.errors import PentimentoError
from pentimento.domain.image_request import CacheMode, ImageRequest
from pentimento.sdk import AsyncClient

CALLS_PER_S = 12.0
CALL_LIMIT_S = 30.0
# nine of ten calls are a waiting page's reads, one requests a small image
LIST, GET, GENERATE = "ListModels", "GetRequest", "Generate"
KINDS = (LIST, LIST, LIST, LIST, LIST, GET, GET, GET, GET, GENERATE)
# the same image every time, so that it can be compared
CANARY = ImageRequest("a small blue ring", num_inference_steps=4, seed=7, cache=CacheMode.OFF, deadline_ms=30_000)


class Bystander:
    """Record `seconds` of answered calls by kind and `failures` by reason. Both grow until `take`."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._source = random.Random(1)
        self._request_id = ""
        self._calls: set[asyncio.Task[None]] = set()
        self.seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
        self.failures: Counter[str] = Counter()

    async def canary(self) -> bytes:
        """Return the reference image, from the request that the load also sends. Raises the suite's error."""
        image = await self._client.generate(CANARY)
        self._request_id = image.provenance.request_id
        return image.data

    async def load(self, until: asyncio.Event) -> None:
        """Call at random times without waiting for earlier answers, then wait for all."""
        while not until.is_set():
            task = asyncio.create_task(self._call(self._source.choice(KINDS)))
            self._calls.add(task)
            task.add_done_callback(self._calls.discard)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._source.expovariate(CALLS_PER_S)):
                    await until.wait()
        if self._calls:
            await asyncio.wait(self._calls)

    async def _call(self, kind: str) -> None:
        began = time.perf_counter()
        try:
            async with asyncio.timeout(CALL_LIMIT_S):
                if kind == LIST:
                    await self._client.list_models()
                elif kind == GET:
                    await self._client.get_request(self._request_id, omit_image=True)
                else:
                    await self._client.generate(CANARY)
        except (PentimentoError, TimeoutError) as error:
            reason = error.reason if isinstance(error, PentimentoError) else "TIMEOUT"
            self.failures[f"{kind} {reason}"] += 1
        # a failed call counts its time too
        self.seconds[kind].append(time.perf_counter() - began)

    def take(self) -> tuple[dict[str, list[float]], Counter[str]]:
        """Return the records since the last call."""
        taken = (self.seconds, self.failures)
        self.seconds, self.failures = {kind: [] for kind in KINDS}, Counter()
        return taken
