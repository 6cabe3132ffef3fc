"""Provide every backend of every store, and its server."""

from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest

from lab.fixtures.clocks import SetClock
from lab.fixtures.postgresql import PostgresqlServer
from pentimento.stores.ledger import Journal, open_journal
from pentimento.stores.ledger.cache.ledger import CacheLedger, open_cache_ledger
from pentimento.stores.objects import ObjectStore, open_objects
from tests.contract.stores.records import NOW_S

_buckets = count(1)


@pytest.fixture(params=["filesystem", pytest.param("s3", marks=pytest.mark.server)])
def objects_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "filesystem":
        return f"file://{tmp_path}/objects"
    endpoint = request.getfixturevalue("s3_endpoint")
    return f"s3://bucket-{next(_buckets)}/some/prefix?endpoint={endpoint}&create_bucket=true"


@pytest.fixture
def objects(objects_url: str) -> ObjectStore:
    return open_objects(objects_url)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.server)])
def ledger_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/ledger.sqlite"
    server: PostgresqlServer = request.getfixturevalue("postgresql")
    return server.new_database()


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def dated_clock() -> SetClock:
    """Open a ledger with a clock at NOW_S."""
    return SetClock(wall_s=NOW_S)


@pytest.fixture
def ledger(ledger_url: str, clock: SetClock) -> Iterator[CacheLedger]:
    """Open a ledger, and check its integrity after the test."""
    ledger = open_cache_ledger(ledger_url, clock)
    yield ledger
    assert ledger.check_integrity() == []
    ledger.close()


@pytest.fixture
def journal(ledger_url: str) -> Iterator[Journal]:
    """Open a journal with the machine's clock."""
    with closing(open_journal(ledger_url)) as opened:
        yield opened
