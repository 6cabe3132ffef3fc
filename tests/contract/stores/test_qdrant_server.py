"""The wire to a Qdrant server, as far as it shows without one."""

import pytest

from pentimento.stores.errors import StoreUnavailable
from pentimento.stores.vectors import open_vectors


def test_a_server_that_is_away_is_unavailable() -> None:
    index = open_vectors("qdrant://127.0.0.1:1?collection=test")

    with pytest.raises(StoreUnavailable, match="UNAVAILABLE"):
        index.prepare(8)

    index.close()


def test_making_the_client_connects_to_nothing() -> None:
    open_vectors("qdrant://nowhere.invalid:6334").close()
