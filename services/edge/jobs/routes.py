"""Routes of jobs: read the call, make it at the frontdoor, answer."""

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from pentimento.clients.image import ImageClient
from pentimento.domain.errors import FailedPrecondition, NotFound, PentimentoError
from pentimento.domain.image_request import ImageFailed, RequestStatus
from pentimento.domain.requests import RequestState
from services.edge.http.callers import caller_of, idempotency_key_of, token_of
from services.edge.http.documents import DocumentResponse
from services.edge.http.leaving import Receive, Scope, Send, while_connected
from services.edge.images.addresses import UrlOffers, origin_of, urls_of, whole_url
from services.edge.images.answering import images_document
from services.edge.images.events import HEARTBEAT, error_event
from services.edge.images.image_call import with_alias
from services.edge.images.routes import introduce, may_be_large
from services.edge.images.streaming import STREAM_HEADERS, EndedImages, send_part, with_heartbeats
from services.edge.jobs.documents import (
    WantedResult,
    event_of,
    failed_event,
    failure_of,
    job_document,
    jobs_document,
    query_of,
    submitted_document,
    wanted_result,
)
from services.edge.jobs.submission import read_job
from services.edge.parts import EdgeParts

CALL_TIMEOUT_S = 30.0


def job_routes(parts: EdgeParts) -> list[BaseRoute]:
    """Return the routes of jobs."""
    calls = JobRoutes(parts)
    return [
        # One route, so that the answer to another method names both.
        Route("/v1/jobs", calls.submit_or_page, methods=["GET", "POST"]),
        Route("/v1/jobs/{id}", calls.show),
        Route("/v1/jobs/{id}/cancel", calls.cancel, methods=["POST"]),
        Route("/v1/jobs/{id}/result", calls.result),
        Route("/v1/jobs/{id}/url", calls.url, methods=["POST"]),
        Route("/v1/jobs/{id}/events", JobEvents(parts), methods=["GET"]),
    ]


class JobRoutes:
    """Handle the calls of jobs."""

    def __init__(self, parts: EdgeParts) -> None:
        self._parts = parts
        self._url_offers = UrlOffers(parts)

    async def submit_or_page(self, request: Request) -> Response:
        """Submit a job or list jobs, by the method."""
        return await (self.submit(request) if request.method == "POST" else self.page(request))

    async def submit(self, request: Request) -> Response:
        """Submit a generation or an edit, and answer once it is accepted."""
        key = idempotency_key_of(request)
        if may_be_large(request):
            await introduce(self._parts, token_of(request))
        with self._parts.bodies.held(caller_of(request)) as held:
            given, webhook_url = await read_job(self._parts, request, held)
            call = with_alias(given, self._parts.model_aliases)
            if call.as_urls:
                await self._url_offers.check(token_of(request))
            async with self._client(request) as client:
                accepted = await client.submit(call.request, key, webhook_url=webhook_url)
        result = WantedResult(call.as_urls, call.provenance).path(accepted.request_id)
        headers = {"Location": f"/v1/jobs/{accepted.request_id}"}
        return JSONResponse(submitted_document(accepted, result), 202, headers)

    async def page(self, request: Request) -> Response:
        """List jobs, newest first."""
        query = query_of(request.query_params.multi_items())
        async with self._client(request) as client:
            return JSONResponse(jobs_document(await client.list_requests(query, CALL_TIMEOUT_S)))

    async def show(self, request: Request) -> Response:
        """Return a job with its progress."""
        async with self._client(request) as client:
            status = await client.get_request(request.path_params["id"], True, CALL_TIMEOUT_S)
        assert status.summary is not None
        return JSONResponse(job_document(status.summary, status))

    async def cancel(self, request: Request) -> Response:
        """Cancel a job, and return it."""
        async with self._client(request) as client:
            await client.cancel(request.path_params["id"], CALL_TIMEOUT_S)
        return await self.show(request)

    async def result(self, request: Request) -> Response:
        """Return the images of a completed job."""
        wanted = wanted_result(request.query_params.multi_items())
        if wanted.as_urls:
            await self._url_offers.check(token_of(request))
        async with self._client(request) as client:
            ended = await ended_images(client, request.path_params["id"], wanted.as_urls)
            urls = await urls_of_ended(client, ended, origin_of(request, self._parts)) if wanted.as_urls else ()
        document = images_document(ended.completed, ended.failed, int(time.time()), wanted.provenance, urls)
        return DocumentResponse(document)

    async def url(self, request: Request) -> Response:
        """Create a URL of its image that expires."""
        await self._url_offers.check(token_of(request))
        async with self._client(request) as client:
            result = await client.result_url(request.path_params["id"], None, CALL_TIMEOUT_S)
        url = whole_url(result, origin_of(request, self._parts))
        return JSONResponse({"url": url, "expires_at": result.expires_at_ms // 1000})

    @asynccontextmanager
    async def _client(self, request: Request) -> AsyncIterator[ImageClient]:
        async with self._parts.frontdoor.channel(token_of(request)) as channel:
            yield ImageClient(channel)


class JobEvents:
    """Stream the events of a job, as an ASGI application. A client that disconnects cancels nothing."""

    def __init__(self, parts: EdgeParts) -> None:
        self._parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        async with AsyncExitStack() as stack:
            channel = await stack.enter_async_context(self._parts.frontdoor.channel(token_of(request)))
            await stack.enter_async_context(while_connected(receive))
            client, job_id = ImageClient(channel), request.path_params["id"]
            attached = client.attach(job_id)
            events = await stack.enter_async_context(aclosing(attached))
            # An error of the call becomes the answer's status.
            first = await anext(events)
            await send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
            if request.method == "HEAD":
                # The answer ends now, so that the connection is free for the next request while the job runs.
                await send({"type": "http.response.body", "body": b""})
                return
            await send_part(send, event_of(first))
            try:
                async with aclosing(with_heartbeats(events)) as beating:
                    async for event in beating:
                        await send_part(send, HEARTBEAT if event is None else event_of(event))
            except PentimentoError as error:
                await send_part(send, await last_event(client, job_id, error))
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def last_event(client: ImageClient, job_id: str, error: PentimentoError) -> bytes:
    """Return the event that ends a stream: the job's failure if it failed, else an error of the stream."""
    try:
        status = await client.get_request(job_id, True, CALL_TIMEOUT_S)
    except PentimentoError:
        return error_event(error)
    has_failed = status.state.terminal and status.state is not RequestState.COMPLETED
    return failed_event(error) if has_failed else error_event(error)


async def ended_images(client: ImageClient, request_id: str, omit_image: bool) -> EndedImages:
    """Return the images of a completed request, at least one, and the errors of the others: failed, or no
    longer stored. Raises FailedPrecondition NOT_COMPLETED unless it is completed, NotFound RESULT_GONE if no image is
    stored."""
    status = await client.get_request(request_id, omit_image, CALL_TIMEOUT_S)
    if status.state is not RequestState.COMPLETED:
        raise not_completed(status)
    ended = EndedImages()
    for index, one in enumerate(status.images or (status,)):
        if one.state is not RequestState.COMPLETED:
            ended.failed.append(ImageFailed(one.request_id, index, failure_of(one)))
            continue
        try:
            found = await client.get_request(one.request_id, omit_image, CALL_TIMEOUT_S) if status.images else one
        except NotFound as gone:
            ended.failed.append(ImageFailed(one.request_id, index, gone))
            continue
        assert found.completed is not None
        ended.completed.append(replace(found.completed, image_index=index))
    if not ended.completed:
        raise ended.failed[-1].error
    return ended


async def urls_of_ended(client: ImageClient, ended: EndedImages, origin: str) -> list[str]:
    """Return a URL for each image; images that are no longer stored move to `ended.failed`. Raises like `urls_of` if
    none is stored."""
    urls: list[str] = []
    for one in tuple(ended.completed):
        try:
            urls += await urls_of(client, (one,), origin)
        except NotFound as gone:
            ended.completed.remove(one)
            ended.failed.append(ImageFailed(one.request_id, one.image_index, gone))
            if not ended.completed:
                raise
    ended.failed.sort(key=lambda failed: failed.image_index)
    return urls


def not_completed(status: RequestStatus) -> FailedPrecondition:
    why = f" ({status.error_reason}: {status.error_message})" if status.error_reason else ""
    has_no = "has no image" if status.state.terminal else "has not ended"
    return FailedPrecondition("NOT_COMPLETED", f"the job {has_no}: it is {status.state.value}{why}")
