"""Calls about jobs and earlier requests."""

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
    """Make calls about jobs and lists of requests. Calls that the server does not answer (UNAVAILABLE) are retried."""

    def __init__(self, images: ImageClient, retries: RetryPolicy) -> None:
        self._images = images
        self._retries = retries

    async def submit(self, request: ImageRequest, idempotency_key: str, webhook_url: str) -> Accepted:
        """Submit a request as a job and return its id. A key prevents a second job by a retry."""
        key = idempotency_key or uuid.uuid4().hex
        return await self._retries.answered(lambda: self._images.submit(request, key, webhook_url=webhook_url))

    async def result(self, request_id: str) -> GeneratedImage:
        """Return the image of a completed request. FailedPrecondition NOT_COMPLETED for any other, with its state and
        the reason of a failure."""
        status = await self._retries.answered(lambda: self._images.get_request(request_id))
        if status.images:
            raise InvalidArgument.of("request_id", "must be the id of one image; each of several has its own")
        if status.completed is None:
            why = f" ({status.error_reason}: {status.error_message})" if status.error_reason else ""
            raise FailedPrecondition("NOT_COMPLETED", f"the request has no image: it is {status.state.value}{why}")
        return GeneratedImage.of(status.completed)

    async def page(self, query: RequestQuery) -> RequestPage:
        """Return one page of the tenant's requests."""
        return await self._retries.answered(lambda: self._images.list_requests(query))

    async def jobs(self, states: frozenset[RequestState]) -> AsyncGenerator[RequestSummary, None]:
        """Yield the tenant's jobs, newest first, page by page."""
        token = ""
        while True:
            page = await self.page(RequestQuery(states, jobs_only=True, page_token=token))
            for summary in page.requests:
                yield summary
            token = page.next_page_token
            if not token:
                return

    async def result_url(self, request_id: str, expires_in_ms: int | None) -> ResultUrl:
        """Return a URL of the image that expires."""
        return await self._retries.answered(lambda: self._images.result_url(request_id, expires_in_ms))

    async def webhook_key(self) -> str:
        """Return the key that signs the tenant's webhooks."""
        return await self._retries.answered(self._images.webhook_key)

    def attached(self, request_id: str) -> Callable[[str, int | None], AsyncGenerator[GenerateEvent, None]]:
        """Return the call that attaches to a request; it ignores the key and the deadline of a retry."""
        return lambda _key, _deadline_ms: self._images.attach(request_id)
