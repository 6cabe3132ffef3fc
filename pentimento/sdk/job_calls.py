"""What a client asks about requests that go on without it, and about those it made before."""

import uuid
from collections.abc import AsyncGenerator, Callable

from pentimento.clients.image import ImageClient
from pentimento.clients.retries import RetryPolicy
from pentimento.domain.errors import FailedPrecondition, InvalidArgument
from pentimento.domain.image_request import Accepted, GenerateEvent, ImageRequest
from pentimento.domain.jobs import RequestPage, RequestQuery, RequestSummary, ResultUrl
from pentimento.domain.requests import RequestState
from pentimento.sdk.generated_image import GeneratedImage


class JobCalls:
    """Jobs and lists of requests. Calls that the server did not answer (UNAVAILABLE) are made again."""

    def __init__(self, images: ImageClient, retries: RetryPolicy) -> None:
        self._images = images
        self._retries = retries

    async def submit(self, request: ImageRequest, idempotency_key: str, webhook_url: str) -> Accepted:
        """Return the id of the job that the request became; under a key, so that a repeated call makes no second
        one."""
        key = idempotency_key or uuid.uuid4().hex
        return await self._retries.answered(lambda: self._images.submit(request, key, webhook_url=webhook_url))

    async def result(self, request_id: str) -> GeneratedImage:
        """Return the image of a completed request. FailedPrecondition NOT_COMPLETED for any other, which names its
        state and, where it failed, the reason."""
        status = await self._retries.answered(lambda: self._images.get_request(request_id))
        if status.pictures:
            raise InvalidArgument.of("request_id", "must be the id of one image; each of several has its own")
        if status.completed is None:
            why = f" ({status.error_reason}: {status.error_message})" if status.error_reason else ""
            raise FailedPrecondition("NOT_COMPLETED", f"the request has no image: it is {status.state.value}{why}")
        return GeneratedImage.of(status.completed)

    async def page(self, query: RequestQuery) -> RequestPage:
        """Return one page of the tenant's requests."""
        return await self._retries.answered(lambda: self._images.list_requests(query))

    async def jobs(self, states: frozenset[RequestState]) -> AsyncGenerator[RequestSummary, None]:
        """Yield the tenant's jobs, newest first, a page after another."""
        token = ""
        while True:
            page = await self.page(RequestQuery(states, jobs_only=True, page_token=token))
            for summary in page.requests:
                yield summary
            token = page.next_page_token
            if not token:
                return

    async def result_url(self, request_id: str, expires_in_ms: int | None) -> ResultUrl:
        """Return an address of the image that expires."""
        return await self._retries.answered(lambda: self._images.result_url(request_id, expires_in_ms))

    async def webhook_key(self) -> str:
        """Return what the tenant's webhooks are signed with."""
        return await self._retries.answered(self._images.webhook_key)

    def attached(self, request_id: str) -> Callable[[str, int | None], AsyncGenerator[GenerateEvent, None]]:
        """Return the call that hears of a request; key and deadline that retries come with are of no use to it."""
        return lambda _key, _deadline_ms: self._images.attach(request_id)
