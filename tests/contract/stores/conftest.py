"""Every backend of every store, and the servers behind them."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from lab.fixtures.clocks import SetClock
from pentimento.stores.ledger.cache_ledger import CacheLedger, open_cache_ledger
from pentimento.stores.objects import ObjectStore, open_objects
from tests.contract.stores.journal_records import NOW_S
from tests.support.postgresql import PostgresqlServer, running_server, why_not
from tests.support.s3_server import running_s3_server

_buckets = count(1)


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch, running_s3_server() as endpoint:
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        yield endpoint


@pytest.fixture(params=["filesystem", pytest.param("s3", marks=pytest.mark.server)])
def objects_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "filesystem":
        return f"file://{tmp_path}/objects"
    endpoint = request.getfixturevalue("s3_endpoint")
    return f"s3://bucket-{next(_buckets)}/some/prefix?endpoint={endpoint}&create_bucket=true"


@pytest.fixture
def objects(objects_url: str) -> ObjectStore:
    return open_objects(objects_url)


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgresqlServer]:
    if reason := why_not():
        pytest.skip(reason)
    with running_server() as server:
        yield server


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
    """One at NOW_S."""
    return SetClock(wall_s=NOW_S)


@pytest.fixture
def ledger(ledger_url: str, clock: SetClock) -> Iterator[CacheLedger]:
    """One whose integrity is looked at after the test."""
    ledger = open_cache_ledger(ledger_url, clock)
    yield ledger
    assert ledger.check_integrity() == []
    ledger.close()
