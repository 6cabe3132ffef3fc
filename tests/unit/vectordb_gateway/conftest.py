"""Open a gateway over a new ledger."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pentimento.stores.ledger.cache.ledger import open_cache_ledger
from pentimento.stores.ledger.cache.records import EncoderBinding
from tests.contract.stores.cache_records import bind
from tests.unit.vectordb_gateway.said_index import ENCODER, Gateway


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    ledger = open_cache_ledger(f"sqlite:///{tmp_path}/ledger.sqlite")
    bind(ledger, EncoderBinding(ENCODER, 2))
    made = Gateway(ledger)
    made.guard.open()
    yield made
    made.close()
    ledger.close()
