"""Read the prompts of a running suite, or of one that ran, from its frontdoor's journal."""

from pathlib import Path
from urllib.parse import quote

import numpy as np
from sqlalchemy import make_url, select
from sqlalchemy.exc import ArgumentError

from lab.studies import PromptLog
from pentimento.api.frontdoor.v1.journal_pb2 import JournalledRequest
from pentimento.domain.errors import InvalidArgument, NotFound
from pentimento.stores.ledger.database import open_engine
from pentimento.stores.ledger.errors import typed_errors
from pentimento.stores.ledger.journal.tables import requests

# The journal of a suite that `pentimento up` started, in its state directory.
SUITE_JOURNAL = "frontdoor.sqlite"
# The format of bodies that hold a JournalledRequest.
READABLE_FORMAT = 1


def read_journal_log(place: str) -> PromptLog:
    """Return the requests of a journal in the order of their acceptance; users are its tenants.

    `place` is a state directory of `pentimento up`, or the frontdoor's ledger URL. Replays are left out: the cache
    does not see them. Raises NotFound without a journal there, InvalidArgument for one with fewer than two requests.
    """
    engine = open_engine(_journal_url(place))
    columns = (requests.c.body, requests.c.tenant, requests.c.accepted_at)
    wanted = select(*columns).where(requests.c.body_format == READABLE_FORMAT).order_by(requests.c.accepted_at)
    try:
        with typed_errors("journal"), engine.connect().execution_options(reads_only=True) as connection:
            read = [(JournalledRequest.FromString(body), *of) for body, *of in connection.execute(wanted)]
    finally:
        engine.dispose()
    rows = [row for row in read if not row[0].HasField("replay")]
    if len(rows) < 2:
        raise InvalidArgument.of("journal", f"must hold at least 2 requests, got {len(rows)}")
    return PromptLog(
        "journal",
        tuple(request.spec.prompt for request, _, _ in rows),
        np.asarray([accepted_at for _, _, accepted_at in rows], np.float64),
        tuple(tenant for _, tenant, _ in rows),
    )


def _journal_url(place: str) -> str:
    """Return the ledger URL of a place. A SQLite file must exist: opening a missing one would create it."""
    url = place if "://" in place else f"sqlite:///{quote(str((Path(place) / SUITE_JOURNAL).resolve()))}"
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise InvalidArgument.of("journal", "must be a state directory or a ledger URL") from None
    if parsed.drivername == "sqlite" and not Path(str(parsed.database)).is_file():
        raise NotFound.of("JOURNAL_NOT_FOUND", "journal", f"there is no file {parsed.database}")
    return url
