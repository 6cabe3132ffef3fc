"""List a tenant's requests, newest first, in pages, ended or not."""

import base64
import binascii
import math
import struct
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, and_, or_

from pentimento.domain.errors import InvalidArgument
from pentimento.domain.requests import RequestState
from pentimento.stores.ledger import journal_tables as tables
from pentimento.stores.ledger.journal_rows import request_of_row, select_requests
from pentimento.stores.ledger.records import JournalledRequest
from pentimento.stores.ledger.writer import LedgerReader

_requests = tables.requests
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
        statement = _of(tenant, states, jobs_only, behind).limit(limit_count)
        return self._reader.submit(lambda connection: [request_of_row(row) for row in connection.execute(statement)])


def _of(tenant: str, states: frozenset[RequestState], jobs_only: bool, behind: PagePlace | None) -> Select[Any]:
    columns = _requests.c
    statement = select_requests().where(columns.tenant == tenant)
    if states:
        statement = statement.where(columns.state.in_(sorted(state.value for state in states)))
    if jobs_only:
        statement = statement.where(columns.detached == 1)
    if behind is not None:
        older = columns.accepted_at < behind.accepted_at
        beside = and_(columns.accepted_at == behind.accepted_at, columns.request_id < behind.request_id)
        statement = statement.where(or_(older, beside))
    return statement.order_by(columns.accepted_at.desc(), columns.request_id.desc())
