"""No search without a tenant; no vector without a direction."""

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pentimento.domain.errors import InvalidArgument
from pentimento.stores.vectors import Space, VectorPoint, VectorQuery, open_vectors
from pentimento.stores.vectors.unit_vectors import check_vector
from tests.support.refusals import raises

ONE = struct.pack("<2f", 1, 0)
ID = "00000000-0000-4000-8000-000000000000"


def test_vector_query_needs_tenants_keys_and_a_limit() -> None:
    tenants = [(), ("",), ("a", ""), ("a\0b",), ("a" * 257,), "tenant"]
    others = [((), 1), (("",), 1), (("k", ""), 1), ("k", 1), (("k",), 0), (("k",), -1), (("k",), 101)]

    wrong = [(each, ("k",)) for each in tenants] + [(("t",), *each) for each in others]
    assert [each for each in wrong if not raises(InvalidArgument, VectorQuery, Space.TEXT, ONE, *each)] == []


def test_query_conditions_name_tenants_and_keys() -> None:
    query = VectorQuery(Space.TEXT, ONE, ("a", "b"), ("k", "l"))

    assert query.conditions() == {"tenant": ["a", "b"], "compatibility_key": ["k", "l"]}


def test_vector_point_needs_id_tenant_and_keys() -> None:
    wrong = [
        ("x", "t", ("k",)),
        (ID.upper(), "", ("k",)),
        (ID, "", ("k",)),
        (ID, "t", ("",)),
        (ID, "t", ()),
        (ID, "t", "k"),
    ]

    assert [each for each in wrong if not raises(InvalidArgument, VectorPoint, *each, 1.0, ONE)] == []


@given(st.lists(st.floats(-10, 10, width=32), min_size=1, max_size=32))
def test_check_vector_takes_unit_vectors_only(values: list[float]) -> None:
    length = math.sqrt(sum(value * value for value in values))
    packed = struct.pack(f"<{len(values)}f", *values)

    if abs(length - 1) < 0.005:
        check_vector("v", packed, len(values))
    elif abs(length - 1) > 0.02:
        with pytest.raises(InvalidArgument):
            check_vector("v", packed, len(values))


@given(st.lists(st.floats(-10, 10, width=32), min_size=1, max_size=32).filter(any))
def test_check_vector_takes_normalised_vectors(values: list[float]) -> None:
    length = math.sqrt(sum(value * value for value in values))

    check_vector("v", struct.pack(f"<{len(values)}f", *(value / length for value in values)), len(values))


OTHER_URLS: list[str] = [
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
]


def test_open_vectors_refuses_other_urls() -> None:
    assert [url for url in OTHER_URLS if not raises(InvalidArgument, open_vectors, url)] == []
