"""`/v1/jobs`: read the call, make it at the frontdoor, answer."""

import time
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from pentimento.clients.image import ImageClient
from pentimento.domain.errors import (
    Cancelled,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PentimentoError,
)
from pentimento.domain.image_request import ImageFailed, RequestStatus
from pentimento.domain.jobs import DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE, RequestQuery, RequestState
from services.edge.api.answers import (
    accepted_document,
    images_document,
    job_document,
    jobs_document,
    result_path,
)
from services.edge.api.bodies import EditJobRequest, JobRequest
from services.edge.api.events import answer_events, error_event, job_event, job_failed_event
from services.edge.api.fields import Body, json_value
from services.edge.api.images import (
    JSON_TYPE,
    EndedImages,
    FrontdoorOffers,
    content_type,
    held_body,
    origin_of,
    read_document,
    urls_of,
    whole_url,
)
from services.edge.http.answers import DocumentResponse, Receive, Scope, Send
from services.edge.http.bodies import FORM_TYPE, HeldBody, read_form, shown
from services.edge.http.callers import idempotency_key_of, token_of
from services.edge.parts import EdgeParts

CALL_TIMEOUT_S = 30.0
STATES = {state.value: state for state in RequestState}
FromText = BeforeValidator(json_value)


def states_of(text: str) -> frozenset[RequestState]:
    words = text.split(",")
    if not set(words) <= set(STATES):
        raise ValueError(f"must be some of {', '.join(STATES)}, separated by commas")
    return frozenset(STATES[word] for word in words)


class JobsQuery(Body):
    """The parameters of a list of jobs."""

    limit: Annotated[int, Field(ge=1, le=MAX_PAGE_SIZE), FromText] = DEFAULT_PAGE_SIZE
    """jobs per page"""
    after: str = ""
    """`next` of the previous page"""
    status: Annotated[
        frozenset[RequestState],
        BeforeValidator(states_of),
        WithJsonSchema({"type": "array", "items": {"enum": list(STATES)}, "minItems": 1}),
    ] = frozenset()
    """only these states, separated by commas"""
    jobs_only: Annotated[bool, FromText] = True
    """false: also requests with a waiting client"""


class ResultQuery(Body):
    """The parameters of a job's result."""

    response_format: Literal["b64_json", "url"] = "b64_json"
    """encoding of the images"""
    provenance: Annotated[bool, FromText] = False
    """add the provenance of each image"""


def single_values(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the values of a query by name. InvalidArgument for a repeated name."""
    given: dict[str, str] = {}
    for name, value in pairs:
        if name in given:
            raise InvalidArgument.of(shown(name), "must occur once")
        given[name] = value
    return given


def job_routes(parts: EdgeParts) -> list[BaseRoute]:
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
        self._offers = FrontdoorOffers(parts)

    async def submit_or_page(self, request: Request) -> Response:
        return await (self.submit(request) if request.method == "POST" else self.page(request))

    async def submit(self, request: Request) -> Response:
        """Submit a generation or an edit, and answer once it is accepted."""
        key = idempotency_key_of(request)
        async with held_body(self._parts, request) as held:
            body = await read_job(request, held)
            asked = body.to_request(self._parts.model_aliases)
            if body.as_urls:
                await self._offers.check_urls(token_of(request))
            async with self._client(request) as client:
                accepted = await client.submit(asked, key, webhook_url=body.webhook.url if body.webhook else "")
        result = result_path(accepted.request_id, body.as_urls, body.provenance)
        headers = {"Location": f"/v1/jobs/{accepted.request_id}"}
        return JSONResponse({**accepted_document(accepted), "result": result}, 202, headers)

    async def page(self, request: Request) -> Response:
        asked = JobsQuery.read(single_values(request.query_params.multi_items()))
        query = RequestQuery(asked.status, asked.jobs_only, asked.limit, asked.after)
        page = await self._parts.frontdoor.page(token_of(request), query, CALL_TIMEOUT_S)
        return JSONResponse(jobs_document(page))

    async def show(self, request: Request) -> Response:
        async with self._client(request) as client:
            status = await client.get_request(request.path_params["id"], True, CALL_TIMEOUT_S)
        assert status.summary is not None
        return JSONResponse(job_document(status.summary, status))

    async def cancel(self, request: Request) -> Response:
        async with self._client(request) as client:
            await client.cancel(request.path_params["id"], CALL_TIMEOUT_S)
        return await self.show(request)

    async def result(self, request: Request) -> Response:
        asked = ResultQuery.read(single_values(request.query_params.multi_items()))
        as_urls = asked.response_format == "url"
        if as_urls:
            await self._offers.check_urls(token_of(request))
        async with self._client(request) as client:
            ended = await ended_images(client, request.path_params["id"], as_urls)
            urls = await urls_of_ended(client, ended, origin_of(request, self._parts)) if as_urls else ()
        document = images_document(ended.completed, ended.failed, int(time.time()), asked.provenance, urls)
        return DocumentResponse(document)

    async def url(self, request: Request) -> Response:
        await self._offers.check_urls(token_of(request))
        async with self._client(request) as client:
            result = await client.result_url(request.path_params["id"], None, CALL_TIMEOUT_S)
        url = whole_url(result, origin_of(request, self._parts))
        return JSONResponse({"url": url, "expires_at": result.expires_at_ms // 1000})

    def _client(self, request: Request) -> AbstractAsyncContextManager[ImageClient]:
        return self._parts.frontdoor.images(token_of(request))


class JobEvents:
    """Stream the events of a job, as an ASGI application. A client that disconnects cancels nothing."""

    def __init__(self, parts: EdgeParts) -> None:
        self._parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        job_id = request.path_params["id"]
        async with self._parts.frontdoor.images(token_of(request)) as client:

            async def ended(error: PentimentoError) -> bytes:
                return await last_event(client, job_id, error)

            # The answer to HEAD ends now, so that the connection is free for the next request while the job runs.
            only_head = request.method == "HEAD"
            await answer_events(receive, send, client.attach(job_id), job_event, ended, only_head=only_head)


async def read_job(request: Request, held: HeldBody) -> JobRequest | EditJobRequest:
    """Read a submission: a generation or an edit as JSON, or an edit as a form."""
    kind = content_type(request)
    if kind not in (JSON_TYPE, FORM_TYPE):
        raise InvalidArgument.of("Content-Type", f"must be {JSON_TYPE} or {FORM_TYPE}")
    if kind == JSON_TYPE:
        return JobRequest.read(await read_document(request, held))
    return EditJobRequest.read_form(await read_form(request, held))


async def last_event(client: ImageClient, job_id: str, error: PentimentoError) -> bytes:
    """Return the event that ends a stream: the job's failure if it failed, else an error of the stream."""
    try:
        status = await client.get_request(job_id, True, CALL_TIMEOUT_S)
    except PentimentoError:
        return error_event(error)
    has_failed = status.state.terminal and status.state is not RequestState.COMPLETED
    return job_failed_event(error) if has_failed else error_event(error)


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


def failure_of(status: RequestStatus) -> PentimentoError:
    """Return the error of a failed image of several."""
    classes = {RequestState.CANCELLED: Cancelled, RequestState.EXPIRED: DeadlineExceeded}
    error: type[PentimentoError] = classes.get(status.state, FailedPrecondition)
    return error(status.error_reason, status.error_message)
