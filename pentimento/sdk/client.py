"""The public API for asyncio programs."""

import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

from grpc.aio import Channel

from pentimento.clients.image import ImageClient
from pentimento.clients.retries import RetryPolicy, retried_events
from pentimento.domain.errors import FailedPrecondition, InvalidArgument, PentimentoError
from pentimento.domain.image_request import (
    Accepted,
    GenerateEvent,
    ImageRequest,
    ReplayInput,
    ReplayRequest,
)
from pentimento.domain.jobs import RequestQuery, RequestState, RequestSummary
from pentimento.rpc.channel import open_channel
from pentimento.rpc.settings import client_settings
from pentimento.sdk.generated_image import GeneratedImage, ImageSet, images_of

P = ParamSpec("P")
T = TypeVar("T")


def _answered(
    method: Callable[Concatenate[ImageClient, P], Awaitable[T]],
) -> Callable[Concatenate["AsyncClient", P], Coroutine[Any, Any, T]]:
    """Return a call of the image service as a method that is retried while the server does not answer."""

    @wraps(method)
    async def call(self: "AsyncClient", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._retries.answered(lambda: method(self._images, *args, **kwargs))

    return call


class AsyncClient:
    """Call `pentimento.api.image.v1.ImageService` at `address` (host:port or unix:/path).

    A call that the server does not answer (UNAVAILABLE) is retried. Every request has an idempotency key, the caller's
    or a new one: a retry continues the first request, so that no image is generated twice. Waiting for an accepted
    request continues through a restart of the server. A call that another cell of the suite serves continues there.
    """

    def __init__(
        self,
        address: str,
        *,
        token: str = "",
        tls_dir: str | Path | None = None,
        retries: RetryPolicy | None = None,
    ) -> None:
        """Connect to the server.

        `tls_dir`: a directory with ca.crt, the PEM authorities of the server, for TLS; its tls.crt and tls.key are
        shown to a server that asks for a certificate. InvalidArgument names a missing file, SettingsError an invalid
        one; RuntimeError in a process forked after the first client."""
        settings = client_settings(tls_dir)
        self._open = partial(open_channel, settings=settings, token=token or None)
        self._channels = {address: self._open(address)}
        self._images = ImageClient(self._channels[address], self._cell)
        self._retries = retries or RetryPolicy()
        self._retried = partial(retried_events, retries=self._retries)

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        for channel in self._channels.values():
            await channel.close()

    @asynccontextmanager
    async def _cell(self, error: PentimentoError) -> AsyncIterator[Channel]:
        """Yield a channel to the cell that the server named, with the same token."""
        address = error.metadata.get("address", "")
        if not address:
            raise error
        if address not in self._channels:
            self._channels[address] = self._open(address)
        yield self._channels[address]

    async def generate(
        self, request: ImageRequest, *, idempotency_key: str = "", preview_interval_steps: int = 0
    ) -> GeneratedImage:
        """Return the finished image. Cancelling the task cancels the request. InvalidArgument for several images: use
        `generate_all`."""
        if request.image_count not in (None, 1):
            raise InvalidArgument.of("image_count", f"must be 1, got {request.image_count}: generate_all has several")
        asked = self.stream(
            request,
            idempotency_key=idempotency_key,
            preview_interval_steps=preview_interval_steps,
            omit_progress=True,
        )
        return (await images_of(asked, one=True)).images[0]

    async def generate_all(self, request: ImageRequest, *, idempotency_key: str = "") -> ImageSet:
        """Return the finished images of a request, and the errors of the others. If all failed, raise the first error.
        Cancelling the task cancels the request."""
        return await images_of(self.stream(request, idempotency_key=idempotency_key, omit_progress=True))

    def stream(
        self,
        request: ImageRequest,
        *,
        idempotency_key: str = "",
        preview_interval_steps: int = 0,
        omit_progress: bool = False,
    ) -> AsyncGenerator[GenerateEvent, None]:
        """Yield accepted, routed, progress and completed; for several images the last three per image, with its index,
        or failed.

        `omit_progress`: without routed, and only progress with a preview. A retry continues in the same stream; if it
        is another request, accepted comes again, and it has the rest of the deadline. Close the generator (`aclose`) to
        cancel."""
        return self._retried(
            lambda key, deadline_ms: self._images.generate(
                replace(request, deadline_ms=deadline_ms), key, preview_interval_steps, omit_progress=omit_progress
            ),
            idempotency_key=idempotency_key,
            deadline_ms=request.deadline_ms,
        )

    async def replay(
        self,
        request_id: str,
        *,
        inputs: Mapping[str, bytes] | None = None,
        deadline_ms: int | None = None,
        idempotency_key: str = "",
    ) -> GeneratedImage:
        """Return the image of a completed request, generated again.

        `inputs` are the request's input images by field ("init_image.image"). The provenance says whether the bytes are
        the same (`replay_equal`). NotFound ANCESTOR_GONE if the image's start is no longer stored, UNKNOWN_REQUEST if
        the request is not."""
        given = tuple(ReplayInput(place, data) for place, data in (inputs or {}).items())
        asked = ReplayRequest(request_id, given, deadline_ms)
        return (await images_of(self.replay_stream(asked, idempotency_key=idempotency_key), one=True)).images[0]

    def replay_stream(
        self, request: ReplayRequest, *, idempotency_key: str = "", preview_interval_steps: int = 0
    ) -> AsyncGenerator[GenerateEvent, None]:
        """Yield the events of a replay, like `stream`."""
        return self._retried(
            lambda key, deadline_ms: self._images.replay(
                replace(request, deadline_ms=deadline_ms), key, preview_interval_steps
            ),
            idempotency_key=idempotency_key,
            deadline_ms=request.deadline_ms,
        )

    async def submit(self, request: ImageRequest, *, idempotency_key: str = "", webhook_url: str = "") -> Accepted:
        """Submit the request as a job, which continues without this client, and return its id once it is accepted.
        `webhook_url` is called at its end, if the deployment allows the host."""
        # A key prevents a second job by a retry.
        key = idempotency_key or uuid.uuid4().hex
        return await self._retries.answered(lambda: self._images.submit(request, key, webhook_url=webhook_url))

    def attach(self, request_id: str) -> AsyncGenerator[GenerateEvent, None]:
        """Yield the events of an earlier request, like `stream`; a retry continues in the same stream. Closing the
        generator cancels no job."""
        return self._retried(
            lambda _key, _ms: self._images.attach(request_id), idempotency_key=request_id, accepted=True
        )

    async def wait(self, request_id: str) -> GeneratedImage:
        """Wait for an earlier request and return its image, or raise its error. Cancelling the task cancels no job.
        InvalidArgument for several images: use `wait_all`."""
        return (await images_of(self.attach(request_id), one=True)).images[0]

    async def wait_all(self, request_id: str) -> ImageSet:
        """Wait for an earlier request and return its images, and the errors of the failed ones. If all failed, raise
        the first error. Cancelling the task cancels no job."""
        return await images_of(self.attach(request_id))

    async def result(self, request_id: str) -> GeneratedImage:
        """Return the image of a completed request without waiting. FailedPrecondition NOT_COMPLETED for any other, with
        its state and the reason of a failure."""
        status = await self.get_request(request_id)
        if status.images:
            raise InvalidArgument.of("request_id", "must be the id of one image; each of several has its own")
        if status.completed is None:
            why = f" ({status.error_reason}: {status.error_message})" if status.error_reason else ""
            raise FailedPrecondition("NOT_COMPLETED", f"the request has no image: it is {status.state.value}{why}")
        return GeneratedImage.of(status.completed)

    async def jobs(self, *states: RequestState) -> AsyncGenerator[RequestSummary, None]:
        """Yield the tenant's jobs, newest first, page by page: those in `states`, or all."""
        query = RequestQuery(frozenset(states), jobs_only=True)
        while True:
            page = await self.list_requests(query)
            for summary in page.requests:
                yield summary
            if not page.next_page_token:
                return
            query = replace(query, page_token=page.next_page_token)

    list_requests = _answered(ImageClient.list_requests)
    result_url = _answered(ImageClient.result_url)
    webhook_key = _answered(ImageClient.webhook_key)
    pin = _answered(ImageClient.pin)
    unpin = _answered(ImageClient.unpin)
    cancel = _answered(ImageClient.cancel)
    get_request = _answered(ImageClient.get_request)
    explain = _answered(ImageClient.explain)
    list_models = _answered(ImageClient.list_models)
    list_adapters = _answered(ImageClient.list_adapters)
