"""Load a suite over gRPC and HTTP at once, with repeated calls under one key, cancellations and queries."""

import asyncio
import base64
import io
import itertools
import time
from collections.abc import Awaitable, Iterator
from dataclasses import replace
from functools import cache

import httpx
from PIL import Image, ImageDraw

from benchmarks.suites.faulted_load import FaultedLoad, Sample, digest_of, request_of
from pentimento.domain.errors import DeadlineExceeded, NotFound, PentimentoError
from pentimento.domain.image_request import AskedControlNet, CacheMode, ImageFormat, ImageRequest
from pentimento.domain.reasons import Reason
from pentimento.sdk import AsyncClient

# Every n-th request: uses the cache, is also called over HTTP, is cancelled, is queried while it runs.
CACHED, BOTH, CANCELLED, QUERIED = 3, 2, 7, 4
# Every n-th image has a ControlNet.
CONTROLLED, EDGES, SIDE_PX = 4, "tiny-controlnet-edges", 64
PAUSE_S = 0.3
STORE_FULL = "STORE_FULL"
# Longer than any stop, and than a restart of every process behind it.
HTTP_TIMEOUT_S = 600.0


def request_over_either(image: int, cached: bool) -> ImageRequest:
    """Return a request with the format that HTTP always states: the same body over gRPC and HTTP."""
    controlnets = (AskedControlNet(EDGES, condition(), 1.0),) if image % CONTROLLED == 0 else ()
    return replace(request_of(image, cached), format=ImageFormat.PNG, controlnets=controlnets)


@cache
def condition() -> bytes:
    """Return the edges of a square, as a PNG of the images' size."""
    drawing, found = Image.new("L", (SIDE_PX, SIDE_PX)), io.BytesIO()
    ImageDraw.Draw(drawing).rectangle((16, 16, 48, 48), outline=255)
    drawing.save(found, "PNG")
    return found.getvalue()


class ProductionLoad(FaultedLoad):
    """Generate the load, and receive every answer into the history."""

    def __init__(self, client: AsyncClient, http: httpx.AsyncClient) -> None:
        super().__init__(client, CACHED, request_over_either)
        self._http = http
        self._turns = itertools.count(1)
        self.http_images = 0
        self.refused: list[str] = []

    async def _play(self, sample: Sample) -> None:
        turn = next(self._turns)
        sample.is_cancelled = turn % CANCELLED == 0
        await asyncio.gather(super()._play(sample), *self._beside(turn, sample))
        if sample.error and not sample.is_cancelled:
            print(f"{sample.key}, {sample.request_id}: {sample.error}", flush=True)

    async def _receive(self, sample: Sample) -> None:
        """Receive the request, and call again while a full disk keeps an accepted one from its repeated call."""
        await super()._receive(sample)
        while sample.accepted and sample.error == STORE_FULL:
            await asyncio.sleep(PAUSE_S)
            sample.error = ""
            await super()._receive(sample)

    def _beside(self, turn: int, sample: Sample) -> Iterator[Awaitable[None]]:
        if turn % BOTH == 0:
            yield self._call_over_http(sample)
        if sample.is_cancelled:
            yield self._cancel(sample)
        if turn % QUERIED == 0:
            yield self._query(sample)

    async def _call_over_http(self, sample: Sample) -> None:
        """Request the same image under the same key, until an answer is final."""
        request = request_over_either(sample.image, sample.cached)
        body = {
            "prompt": request.prompt,
            "num_inference_steps": request.num_inference_steps,
            "seed": request.seed,
            "deadline_ms": request.deadline_ms,
            "cache": "read-write" if request.cache is CacheMode.READ_WRITE else "off",
            "controlnets": [
                {"name": one.name, "conditioning_image": base64.b64encode(one.conditioning_image).decode()}
                for one in request.controlnets
            ],
        }
        called_s = time.time()
        while True:
            try:
                answer = await self._http.post(
                    "/v1/images/generations",
                    json=body,
                    headers={"Idempotency-Key": sample.key},
                    timeout=HTTP_TIMEOUT_S,
                )
            except httpx.TransportError:
                answer = None
            if answer is not None and answer.status_code == httpx.codes.OK:
                self.http_images += 1
                image = base64.b64decode(answer.json()["data"][0]["b64_json"])
                self.note(sample.key, "accepted", answer.headers["x-request-id"], called_s)
                return self.note(sample.key, "result", digest_of(image), called_s)
            if answer is not None and answer.status_code < httpx.codes.INTERNAL_SERVER_ERROR:
                # A full disk refuses new requests; a broken stream cancels the request for both calls.
                if not (sample.is_cancelled or STORE_FULL in answer.text or Reason.CLIENT_LEFT in answer.text):
                    self.refused.append(answer.text)
                return None
            if sample.error and not sample.is_cancelled:
                # The request is over; its answer stays the same.
                return None
            await asyncio.sleep(PAUSE_S)

    async def _is_accepted(self, sample: Sample) -> bool:
        """Wait until the stream has set the request's id, or ended with an error before."""
        while not (sample.request_id or sample.error):  # noqa: ASYNC110 - the stream sets both
            await asyncio.sleep(PAUSE_S / 10)
        return bool(sample.request_id)

    async def _cancel(self, sample: Sample) -> None:
        if not await self._is_accepted(sample):
            return
        while True:
            called_s = time.time()
            try:
                state = await self._client.cancel(sample.request_id)
            except DeadlineExceeded:
                # A stopped frontdoor or a lossy network; a repeated cancellation changes nothing.
                continue
            return self.note(sample.key, "state", state.value, called_s)

    async def _query(self, sample: Sample) -> None:
        """Query the state until it is terminal. Raises NotFound for a request that is lost."""
        while await self._is_accepted(sample):
            called_s = time.time()
            try:
                status = await self._client.get_request(sample.request_id)
            except NotFound:
                raise
            except PentimentoError:
                # The object store is away, or gave wrong bytes.
                await asyncio.sleep(PAUSE_S)
                continue
            self.note(sample.key, "state", status.state.value, called_s)
            if status.completed is not None:
                self.note(sample.key, "result", digest_of(status.completed.image), called_s)
            if status.state.terminal:
                return
            await asyncio.sleep(PAUSE_S)
