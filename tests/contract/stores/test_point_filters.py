"""Test the filters of the embedded index by digests of keys."""

import struct
import uuid
from pathlib import Path

import pytest

from pentimento.stores.vectors import Space, VectorPoint, VectorQuery
from pentimento.stores.vectors.edge import EdgeVectorIndex
from pentimento.stores.vectors.frames import Frame
from pentimento.stores.vectors.index_shard import IndexShard
from pentimento.stores.vectors.point_filters import filter_of
from tests.support.searches import search_now

ONE = struct.pack("<2f", 1, 0)
OLD, NEW, OTHER = (str(uuid.UUID(int=number)) for number in (1, 2, 3))
UPSERT = Frame(
    {
        "op": "upsert",
        "id": 1,
        "points": [{"id": NEW, "spaces": ["text"], "payload": {"tenant": "t", "compatibility_key": ["k", "l"]}}],
    },
    ONE,
)


def test_new_shard_has_digests_of_every_key(tmp_path: Path) -> None:
    shard = IndexShard(tmp_path / "shard", 2)
    shard.answer(UPSERT)

    exported = shard.answer(Frame({"op": "export", "id": 2, "limit": 10})).header["points"]
    shard.close()

    (payload,) = [point["payload"] for point in exported]
    assert payload["compatibility_key"] == ["k", "l"]
    assert len({uuid.UUID(digest) for digest in payload["compatibility_digest"]}) == 2


def test_search_compares_digests() -> None:
    found = filter_of({"tenant": ["t"], "compatibility_key": ["k"]}).must or ()

    assert [condition.key for condition in found] == ["tenant", "compatibility_digest"]


@pytest.mark.parametrize(
    ("tenants", "keys", "expected"),
    [
        (("t",), ("k",), {OLD}),
        (("t",), ("k", "l"), {OLD, NEW}),
        (("t", "u"), ("l",), {NEW, OTHER}),
        (("t", "u"), ("k", "l"), {OLD, NEW, OTHER}),
        (("u", "x"), ("k", "x"), set()),
    ],
)
def test_a_point_is_found_that_has_any_of_the_tenants_and_any_of_the_keys(
    tmp_path: Path, tenants: tuple[str, ...], keys: tuple[str, ...], expected: set[str]
) -> None:
    index = EdgeVectorIndex(tmp_path)
    index.prepare(2)
    whose_and_what = ((OLD, "t", "k"), (NEW, "t", "l"), (OTHER, "u", "l"))
    index.upsert([VectorPoint(entry, tenant, (key,), 1.0, ONE) for entry, tenant, key in whose_and_what])

    matches = search_now(index, VectorQuery(Space.TEXT, ONE, tenants, keys, 10))
    index.close()

    assert {match.entry_id for match in matches} == expected
