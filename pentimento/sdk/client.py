"""The public API for asyncio programs."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from pentimento.clients.image import ImageClient
from pentimento.clients.retried_events import StreamCall, retried_events
from pentimento.clients.retries import RetryPolicy
from pentimento.domain.adapters import Adapter
from pentimento.domain.errors import Internal, InvalidArgument
from pentimento.domain.image_request import (
    Accepted,
    Completed,
    Explanation,
    GenerateEvent,
    ImageRequest,
    ModelInfo,
    PinnedPicture,
    ReplayRequest,
    RequestStatus,
)
from pentimento.domain.jobs import RequestPage, RequestQuery, RequestSummary, ResultUrl
from pentimento.domain.requests import RequestState
from pentimento.rpc.channel import open_channel
from pentimento.rpc.settings import client_settings
from pentimento.sdk.generated_image import GeneratedImage
from pentimento.sdk.image_set import ImageSet, images_of
from pentimento.sdk.job_calls import JobCalls


class AsyncClient:
    """Calls `pentimento.api.image.v1.ImageService` at `address` (host:port or unix:/path).

    A call that the server did not answer (UNAVAILABLE) is made again. Every request carries an idempotency key, the
    caller's or one made for it, by which the server goes on with the first one; nothing is painted twice. Who waits for
    a request that was accepted waits through a restart of the server.
    """

    def __init__(
        self,
        address: str,
        *,
        token: str = "",
        tls_ca_file: str | Path | None = None,
        tls_client_cert_file: str | Path | None = None,
        tls_client_key_file: str | Path | None = None,
        retries: RetryPolicy | None = None,
    ) -> None:
        """`tls_ca_file`: PEM authorities of the server, which is called over TLS then; the other two are shown to one
        that asks for a certificate. InvalidArgument names a file that lacks, SettingsError one that is none; in a
        process that was forked off after the first client, RuntimeError."""
        settings = client_settings(tls_ca_file, tls_client_cert_file, tls_client_key_file)
        self._channel = open_channel(address, settings, token or None)
        self._images = ImageClient(self._channel)
        self._retries = retries or RetryPolicy()
        self._jobs = JobCalls(self._images, self._retries)

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close()

    async def generate(
        self, request: ImageRequest, *, idempotency_key: str = "", preview_interval_steps: int = 0
    ) -> GeneratedImage:
        """Return the finished image. Cancelling the task cancels the request. InvalidArgument for several images,
        which `generate_all` returns."""
        if request.image_count not in (None, 1):
            raise InvalidArgument.of("image_count", f"must be 1, got {request.image_count}: generate_all has several")
        return await _image_of(
            self.stream(
                request,
                idempotency_key=idempotency_key,
                preview_interval_steps=preview_interval_steps,
                omit_progress=True,
            )
        )

    async def generate_all(self, request: ImageRequest, *, idempotency_key: str = "") -> ImageSet:
        """Return the finished images of a request, as many as its `image_count`, and why others failed. Raises the
        first one's error where all did. Cancelling the task cancels the request."""
        return await images_of(self.stream(request, idempotency_key=idempotency_key, omit_progress=True))

    def stream(
        self,
        request: ImageRequest,
        *,
        idempotency_key: str = "",
        preview_interval_steps: int = 0,
        omit_progress: bool = False,
    ) -> AsyncGenerator[GenerateEvent, None]:
        """Yield accepted, routed, progress, completed; of several images the last three of each, with its index, and
        failed for one that will not come. `omit_progress`: not routed, and of the progress only what has a preview. A
        retry goes on in the same stream; where it is another request, accepted comes again, and it has what is left of
        the deadline. Close it (`aclose`) to cancel."""
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
        """Return the image of a completed request, generated again. `inputs` are the bytes that it came with, by their
        place ("init_image.image"). Its provenance says whether the bytes are the first ones (`replay_equal`). NotFound
        ANCESTOR_GONE where what it started from is not kept any more, UNKNOWN_REQUEST where the request is not."""
        asked = ReplayRequest(request_id, tuple((inputs or {}).items()), deadline_ms)
        return await _image_of(self.replay_stream(asked, idempotency_key=idempotency_key))

    def replay_stream(
        self, request: ReplayRequest, *, idempotency_key: str = "", preview_interval_steps: int = 0
    ) -> AsyncGenerator[GenerateEvent, None]:
        """Yield what `stream` does, of an image that is generated again."""
        return self._retried(
            lambda key, deadline_ms: self._images.replay(
                replace(request, deadline_ms=deadline_ms), key, preview_interval_steps
            ),
            idempotency_key=idempotency_key,
            deadline_ms=request.deadline_ms,
        )

    async def submit(self, request: ImageRequest, *, idempotency_key: str = "", webhook_url: str = "") -> Accepted:
        """Have the request painted as a job, which goes on without this client, and return its id once it is accepted.
        `webhook_url` is called when it has ended, where the deployment allows its host."""
        return await self._jobs.submit(request, idempotency_key, webhook_url)

    def attach(self, request_id: str) -> AsyncGenerator[GenerateEvent, None]:
        """Yield what `stream` does, of a request that was asked for before; a retry goes on in the same stream. Closing
        it cancels no job."""
        return self._retried(self._jobs.attached(request_id), idempotency_key=request_id, accepted=True)

    async def wait(self, request_id: str) -> GeneratedImage:
        """Return the image of a request that was asked for before, once it is there; raises what it ended with.
        Cancelling the task cancels no job. InvalidArgument for several images, which `wait_all` returns."""
        return await _image_of(self.attach(request_id))

    async def wait_all(self, request_id: str) -> ImageSet:
        """Return the images of a request that was asked for before, once all have ended, and why others failed.
        Raises the first one's error where all did. Cancelling the task cancels no job."""
        return await images_of(self.attach(request_id))

    async def result(self, request_id: str) -> GeneratedImage:
        """Return the image of a completed request without waiting. FailedPrecondition NOT_COMPLETED for any other."""
        return await self._jobs.result(request_id)

    async def list_requests(self, query: RequestQuery | None = None) -> RequestPage:
        """Return a page of the tenant's requests, newest first."""
        return await self._jobs.page(query or RequestQuery())

    def jobs(self, *states: RequestState) -> AsyncGenerator[RequestSummary, None]:
        """Yield the tenant's jobs, newest first: those in `states`, or all."""
        return self._jobs.jobs(frozenset(states))

    async def result_url(self, request_id: str, *, expires_in_ms: int | None = None) -> ResultUrl:
        """Return an address under which anybody may read the image of a completed request until it expires: a path of
        the HTTP API where that serves it."""
        return await self._jobs.result_url(request_id, expires_in_ms)

    async def webhook_key(self) -> str:
        """Return what webhooks of this tenant are signed with (Standard Webhooks, whsec_…)."""
        return await self._jobs.webhook_key()

    async def pin(self, request_id: str, duration_ms: int) -> PinnedPicture:
        """Keep what a completed request's image started from for so long from now: until then it can be replayed.
        ResourceExhausted QUOTA_EXCEEDED beyond what the tenant may pin, NotFound ANCESTOR_GONE where it is too late."""
        return await self._retries.answered(lambda: self._images.pin(request_id, duration_ms))

    async def unpin(self, request_id: str) -> None:
        """End the pin of a request; no error where it has none."""
        await self._retries.answered(lambda: self._images.unpin(request_id))

    def _retried(
        self, call: StreamCall, *, idempotency_key: str, deadline_ms: int | None = None, accepted: bool = False
    ) -> AsyncGenerator[GenerateEvent, None]:
        return retried_events(
            call, self._retries, idempotency_key=idempotency_key, deadline_ms=deadline_ms, accepted=accepted
        )

    async def cancel(self, request_id: str) -> RequestState:
        """Stop a request within one denoising step, and return the state it is in afterwards."""
        return await self._retries.answered(lambda: self._images.cancel(request_id))

    async def get_request(self, request_id: str, *, omit_image: bool = False) -> RequestStatus:
        """Return the request's state, with its image when it is completed. NotFound when there is none, or it is
        another tenant's."""
        return await self._retries.answered(lambda: self._images.get_request(request_id, omit_image))

    async def explain(self, request: ImageRequest, *, neighbour_count: int = 0) -> Explanation:
        """Return the route that `generate` would take now, and so many of the cache's nearest entries (at most 50)."""
        return await self._retries.answered(lambda: self._images.explain(request, neighbour_count=neighbour_count))

    async def list_models(self) -> tuple[ModelInfo, ...]:
        """Return the models that are served, with their limits."""
        return await self._retries.answered(self._images.list_models)

    async def list_adapters(self) -> tuple[Adapter, ...]:
        """Return the LoRAs and ControlNets that a request may name, with the models that they are made for."""
        return await self._retries.answered(self._images.list_adapters)


async def _image_of(stream: AsyncGenerator[GenerateEvent, None]) -> GeneratedImage:
    """Return the image that the stream ends with."""
    image: GeneratedImage | None = None
    async with aclosing(stream) as events:
        # To its end: a call that its client breaks off leaves memory behind in a server (grpc/grpc#43360).
        async for event in events:
            if isinstance(event, Accepted) and event.image_request_ids:
                count = len(event.image_request_ids)
                raise InvalidArgument.of(
                    "request_id", f"must be the id of one image, got one of {count}: wait_all has several"
                )
            if isinstance(event, Completed):
                image = GeneratedImage.of(event)
    if image is None:
        raise Internal("STREAM_ENDED_EARLY", "the stream ended without an image and without an error")
    return image
