"""No search without a tenant; no vector without a direction."""

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pentimento.domain.errors import InvalidArgument
from pentimento.stores.vectors import Space, VectorPoint, VectorQuery, open_vectors
from pentimento.stores.vectors.unit_vectors import check_vector

ONE = struct.pack("<2f", 1, 0)
ID = "00000000-0000-4000-8000-000000000000"


@pytest.mark.parametrize("tenants", [(), ("",), ("a", ""), ("a\0b",), ("a" * 257,), "tenant"])
def test_a_search_without_a_tenant_cannot_be_made(tenants: tuple[str, ...]) -> None:
    with pytest.raises(InvalidArgument):
        VectorQuery(Space.TEXT, ONE, tenants, ("k",))


@pytest.mark.parametrize(
    ("keys", "limit"), [((), 1), (("",), 1), (("k", ""), 1), ("k", 1), (("k",), 0), (("k",), -1), (("k",), 101)]
)
def test_a_search_needs_keys_and_a_limit(keys: tuple[str, ...], limit: int) -> None:
    with pytest.raises(InvalidArgument):
        VectorQuery(Space.TEXT, ONE, ("t",), keys, limit)


def test_the_filter_names_tenants_and_keys() -> None:
    query = VectorQuery(Space.TEXT, ONE, ("a", "b"), ("k", "l"))

    assert query.conditions() == {"tenant": ["a", "b"], "compatibility_key": ["k", "l"]}


@pytest.mark.parametrize(
    ("entry_id", "tenant", "keys"),
    [("x", "t", ("k",)), (ID.upper(), "", ("k",)), (ID, "", ("k",)), (ID, "t", ("",)), (ID, "t", ()), (ID, "t", "k")],
)
def test_a_point_needs_an_id_a_tenant_and_keys(entry_id: str, tenant: str, keys: tuple[str, ...]) -> None:
    with pytest.raises(InvalidArgument):
        VectorPoint(entry_id, tenant, keys, 1.0, ONE)


@given(st.lists(st.floats(-10, 10, width=32), min_size=1, max_size=32))
def test_exactly_unit_vectors_pass(values: list[float]) -> None:
    length = math.sqrt(sum(value * value for value in values))
    packed = struct.pack(f"<{len(values)}f", *values)

    if abs(length - 1) < 0.005:
        check_vector("v", packed, len(values))
    elif abs(length - 1) > 0.02:
        with pytest.raises(InvalidArgument):
            check_vector("v", packed, len(values))


@given(st.lists(st.floats(-10, 10, width=32), min_size=1, max_size=32).filter(any))
def test_normalised_vectors_pass(values: list[float]) -> None:
    length = math.sqrt(sum(value * value for value in values))

    check_vector("v", struct.pack(f"<{len(values)}f", *(value / length for value in values)), len(values))


@pytest.mark.parametrize(
    "url",
    [
        "",
        "edge:",
        "edge://host/x",
        "edge:///x?y=z",
        "edge:///x#1/y",
        "qdrant://",
        "/tmp/x",
        "qdrant://h?x=y",
        "qdrant://h:port",
        "qdrant://h:65536",
        "qdrant://[",
        "qdrant://h/collection",
        "qdrant://h?collection=team#1",
        "qdrant://h?tls=yes",
        "qdrant://h?quantised=no",
        "qdrant://h?api_key_file=/nowhere/key",
    ],
)
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(InvalidArgument):
        open_vectors(url)
