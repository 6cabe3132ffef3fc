"""List and describe a tenant's requests, from the journal and from the dataplane's running requests."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from pentimento.dataplane import Dataplane
from pentimento.dataplane.requests import Phase
from pentimento.domain.errors import InvalidArgument, NotFound
from pentimento.domain.image_request import RequestStatus
from pentimento.domain.jobs import (
    DEFAULT_PAGE_SIZE,
    MAX_PAGE_SIZE,
    RequestPage,
    RequestQuery,
    RequestState,
    RequestSummary,
    WebhookDelivery,
)
from pentimento.stores.ledger import Journal
from pentimento.stores.ledger.journal.listing import PagePlace
from pentimento.stores.ledger.journal.records import JournalledRequest
from services.frontdoor.answers.audience import client_key, group_of, ids_of_images, status_of
from services.frontdoor.objects.results import Results
from services.frontdoor.requests.cells import CellGate
from services.frontdoor.requests.jobs import Jobs

_MAX_ID_LENGTH = 64
# The state that clients see of a running request, by its phase.
_PUBLIC_STATE = {
    Phase.ACCEPTING: RequestState.ACCEPTED,
    Phase.ROUTING: RequestState.ACCEPTED,
    Phase.QUEUED: RequestState.QUEUED,
    Phase.STARTING: RequestState.QUEUED,
}
# The only states of running requests in the journal.
_JOURNALLED_LIVE = frozenset({RequestState.ACCEPTED, RequestState.RUNNING})


@dataclass
class TenantRequests:
    """Read the journal and the dataplane. `retention_s` returns for how many seconds a tenant's ended requests are
    stored."""

    journal: Journal
    dataplane: Dataplane
    jobs: Jobs
    results: Results
    cells: CellGate
    retention_s: Callable[[str], float]

    async def record(self, tenant: str, request_id: str) -> JournalledRequest:
        """Return the request. Raises NotFound for an unknown id, another tenant's or a malformed one, InvalidArgument
        for the id of several images, FailedPrecondition WRONG_CELL for one that another cell may know."""
        looks_right = 0 < len(request_id) <= _MAX_ID_LENGTH and request_id.isascii() and request_id.isprintable()
        found = await asyncio.wrap_future(self.journal.get(request_id, tenant)) if looks_right else None
        if found is None and (pictures := ids_of_images(request_id)):
            await self.record(tenant, pictures[0])
            raise InvalidArgument.of("request_id", "must be the id of one image; each of several has its own")
        if found is None:
            raise self.cells.unknown(tenant, request_id, unknown_request())
        return found

    async def known(self, tenant: str, request_id: str) -> frozenset[str]:
        """Return the id; for several images the ids that exist, without images rejected when the others were accepted.
        Raises NotFound if no request exists, WRONG_CELL as `record`."""
        ids = ids_of_images(request_id)
        if not ids:
            return frozenset({(await self.record(tenant, request_id)).request.request_id})
        found = await asyncio.wrap_future(self.journal.known(ids, tenant))
        if not found:
            raise self.cells.unknown(tenant, request_id, unknown_request())
        return found

    async def get_request(self, tenant: str, request_id: str, omit_image: bool = False) -> RequestStatus:
        """Return the status of a request; for several images the status of each, without its bytes."""
        ids = ids_of_images(request_id)
        if ids:
            known = await self.known(tenant, request_id)
            found = {one: await self.get_request(tenant, one, omit_image=True) for one in ids if one in known}
            status = status_of(request_id, tuple(found.values()))
            summaries = [one.summary for one in status.images if one.summary is not None]
            webhook = await self.webhook(summaries[0], request_id)
            status = replace(status, images=statuses_by_index(ids, found))
            return replace(status, summary=summary_of_several(request_id, status.state, summaries), webhook=webhook)
        record = await self.record(tenant, request_id)
        completed = None
        if record.state is RequestState.COMPLETED:
            completed = await self.results.load(record, with_image=not omit_image)
        summary = self.summary(record)
        webhook = await self.webhook(summary)
        ended = (record.error_reason, record.error_message)
        job = None if summary.state.terminal else self.jobs.of_tenant(tenant, request_id)
        progress = job.audience.progress if job is not None else None
        status = RequestStatus(request_id, summary.state, completed, *ended, summary=summary, webhook=webhook)
        return replace(status, progress=progress)

    async def page(self, tenant: str, query: RequestQuery) -> RequestPage:
        """Return a page of the tenant's requests. Raises InvalidArgument for a wrong size or token."""
        size = _page_size(query)
        behind = PagePlace.of_token(query.page_token)
        asked = self.journal.listing.page(tenant, _journalled(query.states), query.jobs_only, size + 1, behind)
        found = await asyncio.wrap_future(asked)
        summaries = tuple(map(self.summary, found[:size]))
        shown = tuple(one for one in summaries if not query.states or one.state in query.states)
        if len(found) <= size:
            return RequestPage(shown)
        last = found[size - 1].request
        return RequestPage(shown, PagePlace(last.accepted_at, last.request_id).to_token())

    def summary(self, record: JournalledRequest) -> RequestSummary:
        request, result, ended_at = record.request, record.result, record.finished_at
        return RequestSummary(
            request_id=request.request_id,
            state=self.state(record),
            job=request.detached,
            idempotency_key=client_key(request.idempotency_key),
            accepted_at_ms=_ms(request.accepted_at),
            deadline_at_ms=_ms(request.deadline_at or 0.0),
            finished_at_ms=_ms(ended_at) if ended_at is not None else None,
            kept_until_ms=_ms(ended_at + self.retention_s(request.tenant)) if ended_at is not None else None,
            width_px=result.width_px if result is not None else 0,
            height_px=result.height_px if result is not None else 0,
            error_reason=record.error_reason,
            error_message=record.error_message,
            group_id=group_of(request.request_id),
        )

    def state(self, record: JournalledRequest) -> RequestState:
        """Return its state; of a request that runs here by its phase, which the journal does not store."""
        live = self.dataplane.state.requests.get(record.request.request_id)
        if record.state.terminal or live is None:
            return record.state
        return _PUBLIC_STATE.get(live.phase, RequestState.RUNNING)

    async def webhook(self, summary: RequestSummary, job_id: str = "") -> WebhookDelivery | None:
        """Return the delivery of its webhook, None if it named none. `job_id`: for the first of several images, the id
        of their job."""
        if not summary.job:
            return None
        return await asyncio.wrap_future(self.journal.webhooks.delivery(summary.request_id, job_id))


def unknown_request() -> NotFound:
    return NotFound.of("UNKNOWN_REQUEST", "request_id", "there is no such request")


def statuses_by_index(ids: Sequence[str], found: Mapping[str, RequestStatus]) -> tuple[RequestStatus, ...]:
    """Return the status of each of several images, with its index: those `found`, and a failure for each without a
    request."""
    statuses = [found.get(one) or status_of_none(one) for one in ids]
    return tuple(
        replace(one, completed=replace(one.completed, image_index=index)) if one.completed is not None else one
        for index, one in enumerate(statuses)
    )


def status_of_none(request_id: str) -> RequestStatus:
    error = unknown_request()
    return RequestStatus(request_id, RequestState.FAILED, None, error.reason, error.message)


def summary_of_several(request_id: str, state: RequestState, pictures: Sequence[RequestSummary]) -> RequestSummary:
    """Return one summary for the images of a call: it ends with the last image, and is stored until the first one is
    deleted. Its size and error are those of an image in its state."""
    ends = [one.finished_at_ms for one in pictures if one.finished_at_ms is not None]
    kept = [one.kept_until_ms for one in pictures if one.kept_until_ms is not None]
    has_ended = len(ends) == len(pictures)
    shown = next(one for one in pictures if one.state is state)
    return replace(
        shown,
        request_id=request_id,
        group_id="",
        deadline_at_ms=max(one.deadline_at_ms for one in pictures),
        finished_at_ms=max(ends) if has_ended else None,
        kept_until_ms=min(kept) if has_ended else None,
    )


def _page_size(query: RequestQuery) -> int:
    if not 0 <= query.page_size <= MAX_PAGE_SIZE:
        raise InvalidArgument.of("page_size", f"must be 1 to {MAX_PAGE_SIZE}, or 0, got {query.page_size}")
    return query.page_size or DEFAULT_PAGE_SIZE


def _journalled(states: frozenset[RequestState]) -> frozenset[RequestState]:
    """Return the states that matching requests may have in the journal."""
    ended = frozenset(state for state in states if state.terminal)
    return ended if ended == states else ended | _JOURNALLED_LIVE


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
