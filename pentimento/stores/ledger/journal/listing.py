"""List a tenant's requests, newest first, in pages, ended or not."""

import base64
import binascii
import math
import struct
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import and_, bindparam, or_

from pentimento.domain.errors import InvalidArgument
from pentimento.domain.jobs import RequestState
from pentimento.stores.ledger.journal import tables
from pentimento.stores.ledger.journal.records import REQUESTS, JournalledRequest, request_of_row
from pentimento.stores.ledger.statements import Statement, among
from pentimento.stores.ledger.writer import LedgerReader

_columns = tables.requests.c
_MAX_TOKEN_CHARS = 200
_TIME = struct.Struct(">d")


@dataclass(frozen=True)
class PagePlace:
    """Mark the end of a page: the last request's acceptance time, in seconds since 1970, and its id."""

    accepted_at: float
    request_id: str

    def to_token(self) -> str:
        """Return the place as a token for the client's next call."""
        data = _TIME.pack(self.accepted_at) + self.request_id.encode()
        return base64.urlsafe_b64encode(data).decode().rstrip("=")

    @classmethod
    def of_token(cls, token: str) -> "PagePlace | None":
        """Return the place of a token from `to_token`; None for "". Raises InvalidArgument for any other text."""
        if not token:
            return None
        try:
            if len(token) > _MAX_TOKEN_CHARS:
                raise ValueError
            data = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
            place = cls(_TIME.unpack_from(data)[0], data[_TIME.size :].decode("ascii"))
            if place.to_token() != token or not math.isfinite(place.accepted_at) or "\0" in place.request_id:
                raise ValueError
        except (ValueError, binascii.Error, struct.error):
            raise InvalidArgument.of("page_token", "must come from an earlier answer") from None
        return place


class JournalListing:
    """List the requests of a journal. Changes nothing; futures are as the journal's. A separate thread reads: all
    requests of a large tenant may have to be scanned."""

    def __init__(self, reader: LedgerReader) -> None:
        self._reader = reader

    def page(
        self,
        tenant: str,
        states: frozenset[RequestState],
        jobs_only: bool,
        limit_count: int,
        behind: PagePlace | None = None,
    ) -> "Future[list[JournalledRequest]]":
        """Return up to `limit_count` requests of the tenant, newest first, after the place `behind`. `states`: as
        journalled, RUNNING from the first attempt on; empty for all."""
        wanted: dict[str, Any] = {"of_tenant": tenant, "limit_count": limit_count}
        if states:
            wanted["states"] = [state.value for state in states]
        if behind is not None:
            wanted |= {"before": behind.accepted_at, "before_id": behind.request_id}
        statement = _page(bool(states), jobs_only, behind is not None)
        return self._reader.submit(lambda connection: [*map(request_of_row, statement.rows(connection, **wanted))])


@cache
def _page(of_states: bool, jobs_only: bool, is_next: bool) -> Statement:
    """Return the statement that selects a page of a tenant's requests."""
    wanted = [_columns.tenant == bindparam("of_tenant")]
    wanted += [among(_columns.state, "states")] if of_states else []
    wanted += [_columns.detached == 1] if jobs_only else []
    if is_next:
        before = bindparam("before", type_=_columns.accepted_at.type)
        beside = and_(_columns.accepted_at == before, _columns.request_id < bindparam("before_id"))
        wanted.append(or_(_columns.accepted_at < before, beside))
    newest = REQUESTS.where(*wanted).order_by(_columns.accepted_at.desc(), _columns.request_id.desc())
    return Statement(newest.limit(bindparam("limit_count")))
