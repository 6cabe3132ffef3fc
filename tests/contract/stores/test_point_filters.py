"""Searches of the embedded index are filtered by digests of keys, or by the keys where the shard has no digests yet."""

import struct
import uuid
from pathlib import Path

import pytest
import qdrant_edge as edge

from pentimento.stores.vectors import Space, VectorPoint, VectorQuery
from pentimento.stores.vectors.edge import EdgeVectorIndex
from pentimento.stores.vectors.frames import Frame
from pentimento.stores.vectors.index_shard import IndexShard
from pentimento.stores.vectors.point_filters import filter_of, has_digests
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


def old_shard(directory: Path) -> None:
    """A shard as it was made before there were digests, with one point."""
    parameters = edge.EdgeVectorParams(size=2, distance=edge.Distance.Cosine)
    directory.mkdir(parents=True)
    shard = edge.EdgeShard.create(str(directory), edge.EdgeConfig(vectors={"text": parameters, "image": parameters}))
    for field in ("tenant", "compatibility_key"):
        shard.update(edge.UpdateOperation.create_field_index(field, edge.PayloadSchemaType.Keyword))
    payload = {"tenant": "t", "compatibility_key": ["k"], "created_at": 1.0}
    shard.update(edge.UpdateOperation.upsert_points([edge.Point(uuid.UUID(OLD), {"text": [1.0, 0.0]}, payload)]))
    shard.close()


def found(index: EdgeVectorIndex, tenant: str, key: str) -> set[str]:
    query = VectorQuery(Space.TEXT, ONE, (tenant,), (key,), 10)
    return {match.entry_id for match in search_now(index, query)}


def test_a_new_shard_has_the_digests_of_every_key_beside_them(tmp_path: Path) -> None:
    shard = IndexShard(tmp_path / "shard", 2)
    shard.answer(UPSERT)

    exported = shard.answer(Frame({"op": "export", "id": 2, "limit": 10})).header["points"]
    shard.close()

    assert has_digests(edge.EdgeShard.load(str(tmp_path / "shard")))
    (payload,) = [point["payload"] for point in exported]
    assert payload["compatibility_key"] == ["k", "l"]
    assert len({uuid.UUID(digest) for digest in payload["compatibility_digest"]}) == 2


def test_only_where_there_are_digests_a_search_compares_them() -> None:
    conditions = {"tenant": ["t"], "compatibility_key": ["k"]}

    fields = [[condition.key for condition in filter_of(conditions, by).must or ()] for by in (True, False)]

    assert fields == [["tenant", "compatibility_digest"], ["tenant", "compatibility_key"]]


def test_a_shard_that_was_made_before_is_searched_by_its_keys(tmp_path: Path) -> None:
    old_shard(tmp_path / "v1-d2")
    index = EdgeVectorIndex(tmp_path)
    index.prepare(2)
    index.upsert([VectorPoint(NEW, "t", ("k", "l"), 1.0, ONE)])

    among = [found(index, *each) for each in (("t", "k"), ("t", "l"), ("t", "x"), ("u", "k"))]
    index.close()

    assert among == [{OLD, NEW}, {NEW}, set(), set()]


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


@pytest.mark.parametrize(("tenant", "key", "expected"), [("t", "k", {OLD}), ("t", "x", set()), ("u", "k", set())])
def test_points_that_are_copied_from_one_get_their_digests(
    tmp_path: Path, tenant: str, key: str, expected: set[str]
) -> None:
    old_shard(tmp_path / "old")
    old, new = IndexShard(tmp_path / "old", 2), IndexShard(tmp_path / "index" / "v1-d2", 2)
    page = old.answer(Frame({"op": "export", "id": 1, "limit": 10}))
    new.answer(Frame({"op": "upsert", "id": 2, "points": page.header["points"]}, page.body))
    old.close()
    new.close()
    index = EdgeVectorIndex(tmp_path / "index")
    index.prepare(2)

    assert found(index, tenant, key) == expected
    index.close()
