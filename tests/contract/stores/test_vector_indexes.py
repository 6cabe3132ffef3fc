"""Test the contract of vector indexes on the embedded one, qdrant-client's local mode, and a double of a Qdrant server
over gRPC, with points spread by ids and by groups of tenants. QDRANT_URL (qdrant://host:port) adds a real server."""

import math
import os
import random
import secrets
import struct
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pentimento.domain.errors import InvalidArgument
from pentimento.stores.vectors import Space, VectorIndex, VectorPoint, VectorQuery, open_vectors
from tests.support.searches import search_now

if TYPE_CHECKING:
    from qdrant_client import AsyncQdrantClient, QdrantClient

QDRANT_URL = os.environ.get("QDRANT_URL", "")
DIMENSION_COUNT = 8

pytestmark = pytest.mark.filterwarnings("ignore:Local mode:UserWarning")


def make_index(backend: str, directory: Path, double_url: str) -> VectorIndex:
    if backend == "edge":
        return open_vectors(f"edge://{directory}/index")
    if backend in ("server", "double", "grouped double"):
        url = QDRANT_URL if backend == "server" else double_url
        groups = "&shard_groups=3" if backend == "grouped double" else ""
        return open_vectors(f"{url}?collection=test-{secrets.token_hex(4)}{groups}")
    from qdrant_client import QdrantClient

    from pentimento.stores.vectors.qdrant import QdrantVectorIndex

    client = QdrantClient(":memory:")
    return QdrantVectorIndex(client, lambda: cast("AsyncQdrantClient", AwaitedClient(client)), "test")


class AwaitedClient:
    """Search as an AsyncQdrantClient over the points of a local client: each local client has its own points."""

    def __init__(self, client: "QdrantClient") -> None:
        self._client = client

    async def query_points(self, *given: Any, **named: Any) -> Any:
        return self._client.query_points(*given, **named)


@pytest.fixture(scope="module")
def double_url() -> Iterator[str]:
    from lab.fixtures.qdrant_double import running_qdrant_double

    with running_qdrant_double() as (url, _):
        yield url


@pytest.fixture(params=["edge", "local", "double", "grouped double", *(["server"] if QDRANT_URL else [])])
def unprepared(request: pytest.FixtureRequest, tmp_path: Path, double_url: str) -> Iterator[VectorIndex]:
    index = make_index(request.param, tmp_path, double_url)
    yield index
    index.close()


@pytest.fixture
def index(unprepared: VectorIndex) -> VectorIndex:
    with warnings.catch_warnings():
        # The local mode warns that payload indexes have no effect there.
        warnings.simplefilter("ignore", UserWarning)
        unprepared.prepare(DIMENSION_COUNT)
    return unprepared


def unit(*values: float) -> bytes:
    """Return a unit vector in the direction of `values`, padded with zeros."""
    padded = [*values, *([0.0] * (DIMENSION_COUNT - len(values)))]
    length = math.sqrt(sum(value * value for value in padded))
    return struct.pack(f"<{DIMENSION_COUNT}f", *(value / length for value in padded))


def point(text: bytes, tenant: str = "t", key: str = "k", image: bytes | None = None) -> VectorPoint:
    return VectorPoint(str(uuid.uuid4()), tenant, (key,), 1000.0, text, image)


def query(vector: bytes, *tenants: str, space: Space = Space.TEXT, key: str = "k", limit: int = 1) -> VectorQuery:
    return VectorQuery(space, vector, tenants or ("t",), (key,), limit)


def test_search_before_prepare_finds_nothing(unprepared: VectorIndex) -> None:
    assert search_now(unprepared, query(unit(1))) == []
    assert list(unprepared.entry_ids()) == []


def test_nearest_point_comes_first_with_its_cosine(index: VectorIndex) -> None:
    near, far = point(unit(1, 0.1)), point(unit(0, 1))
    index.upsert([far, near])

    first, second = search_now(index, query(unit(1), limit=5))

    assert (first.entry_id, second.entry_id) == (near.entry_id, far.entry_id)
    assert first.similarity == pytest.approx(1 / math.sqrt(1.01), abs=1e-5)
    assert second.similarity == pytest.approx(0, abs=1e-5)


def test_tenants_never_see_each_other(index: VectorIndex) -> None:
    index.upsert([point(unit(1), tenant="other")])

    assert search_now(index, query(unit(1), "t")) == []
    assert search_now(index, query(unit(1), "t", "other")) != []


def test_incompatible_entries_are_not_found(index: VectorIndex) -> None:
    index.upsert([point(unit(1), key="other")])

    assert search_now(index, query(unit(1))) == []


def test_spaces_are_apart(index: VectorIndex) -> None:
    with_image = point(unit(1), image=unit(0, 1))
    index.upsert([with_image, point(unit(0, 1))])

    (found,) = search_now(index, query(unit(0, 1), space=Space.IMAGE, limit=5))

    assert found.entry_id == with_image.entry_id
    assert found.similarity == pytest.approx(1, abs=1e-5)


def test_upsert_replaces(index: VectorIndex) -> None:
    first = point(unit(1))
    index.upsert([first])
    index.upsert([VectorPoint(first.entry_id, "t", ("k",), 1000.0, unit(0, 1))])

    (found,) = search_now(index, query(unit(1), limit=5))

    assert found.similarity == pytest.approx(0, abs=1e-5)
    assert list(index.entry_ids()) == [first.entry_id]


def test_delete_is_repeatable(index: VectorIndex) -> None:
    kept, deleted = point(unit(1)), point(unit(1))
    index.upsert([kept, deleted])

    index.delete([deleted.entry_id])
    index.delete([deleted.entry_id])

    assert list(index.entry_ids()) == [kept.entry_id]


def test_batches_of_any_size(index: VectorIndex) -> None:
    points = [point(unit(1, number / 1000)) for number in range(1500)]
    index.upsert(points)
    index.upsert([])

    assert set(index.entry_ids()) == {each.entry_id for each in points}
    index.delete([each.entry_id for each in points[1:]])
    assert list(index.entry_ids()) == [points[0].entry_id]


def test_entry_ids_of_range_are_in_ascending_order(index: VectorIndex) -> None:
    """No index reads 2,500 points in one call."""
    points = [point(unit(1, number / 2500), chr(97 + number % 3)) for number in range(2500)]
    index.upsert(points)
    ids = sorted(each.entry_id for each in points)

    assert list(index.entry_ids()) == ids
    assert list(index.entry_ids(ids[700])) == ids[701:]
    assert list(index.entry_ids("", ids[2100])) == ids[:2101]
    assert list(index.entry_ids(ids[999], ids[1999])) == ids[1000:2000]
    assert list(index.entry_ids(ids[5], ids[5])) == []


def test_another_dimension_is_refused(index: VectorIndex) -> None:
    with pytest.raises(InvalidArgument):
        index.upsert([point(struct.pack("<2f", 1, 0))])
    with pytest.raises(InvalidArgument):
        search_now(index, query(struct.pack("<2f", 1, 0)))


SMALL_COUNT = 4


def small(*values: float) -> bytes:
    """Return a unit vector of an encoder with fewer dimensions."""
    return unit(*values)[: 4 * SMALL_COUNT]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_spaces_have_their_own_dimensions(unprepared: VectorIndex) -> None:
    unprepared.prepare(DIMENSION_COUNT, SMALL_COUNT)
    stored = point(unit(1), image=small(0, 1))
    unprepared.upsert([stored, point(unit(0, 1))])

    by_text = search_now(unprepared, query(unit(1)))
    by_image = search_now(unprepared, query(small(0, 1), space=Space.IMAGE, limit=5))

    assert ([match.entry_id for match in by_text], [match.entry_id for match in by_image]) == (
        [stored.entry_id],
        [stored.entry_id],
    )
    assert by_image[0].similarity == pytest.approx(1, abs=1e-5)
    with pytest.raises(InvalidArgument, match="image: must be 4 float32 values"):
        unprepared.upsert([point(unit(1), image=unit(1))])
    with pytest.raises(InvalidArgument, match="vector: must be 4 float32 values"):
        search_now(unprepared, query(unit(1), space=Space.IMAGE))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_index_of_other_dimensions_is_searched_until_the_new_one_is_settled(index: VectorIndex) -> None:
    kept, deleted = point(unit(1), image=unit(1)), point(unit(1, 0.1))
    index.upsert([kept, deleted])
    starts_count = index.starts_count

    index.prepare(DIMENSION_COUNT, SMALL_COUNT)
    index.delete([deleted.entry_id])
    while_empty = (search_now(index, query(unit(1), limit=5)), list(index.entry_ids()))
    of_images = search_now(index, query(small(1), space=Space.IMAGE))
    index.upsert([point(unit(0, 1), image=small(1))])
    first_image = search_now(index, query(small(1), space=Space.IMAGE))

    assert index.starts_count != starts_count
    assert ([match.entry_id for match in while_empty[0]], while_empty[1], of_images) == ([kept.entry_id], [], [])
    assert len(first_image) == 1
    index.settle()
    index.settle()
    assert len(search_now(index, query(unit(1), limit=5))) == 1
    assert search_now(index, query(unit(1), limit=5))[0].similarity == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize("backend", ["edge", "double"])
def test_index_of_other_dimensions_serves_after_restart(backend: str, tmp_path: Path, double_url: str) -> None:
    url = f"edge://{tmp_path}/index" if backend == "edge" else f"{double_url}?collection=test-{secrets.token_hex(4)}"
    stored = point(unit(1))
    for dimensions in ((DIMENSION_COUNT,), (DIMENSION_COUNT, SMALL_COUNT), (DIMENSION_COUNT, SMALL_COUNT)):
        index = open_vectors(url)
        index.prepare(*dimensions)
        if len(dimensions) == 1:
            index.upsert([stored])
        found = search_now(index, query(unit(1)))
        index.close()
        assert [match.entry_id for match in found] == [stored.entry_id]

    index = open_vectors(url)
    index.prepare(DIMENSION_COUNT, SMALL_COUNT)
    index.settle()
    index.close()
    index = open_vectors(url)
    index.prepare(DIMENSION_COUNT, SMALL_COUNT)
    assert search_now(index, query(unit(1))) == []
    index.close()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_index_returns_to_former_dimensions_without_loss(index: VectorIndex) -> None:
    stored = point(unit(1))
    index.upsert([stored])

    for dimensions in ((DIMENSION_COUNT, SMALL_COUNT), (SMALL_COUNT, SMALL_COUNT), (DIMENSION_COUNT, DIMENSION_COUNT)):
        index.prepare(*dimensions)

    assert list(index.entry_ids()) == [stored.entry_id]
    index.settle()
    assert [match.entry_id for match in search_now(index, query(unit(1)))] == [stored.entry_id]


def test_index_refuses_vectors_without_a_direction(index: VectorIndex) -> None:
    for value in [0.0, math.nan, math.inf, -math.inf, 1e-30, 3e38]:
        bad = struct.pack(f"<{DIMENSION_COUNT}f", value, *([0.0] * (DIMENSION_COUNT - 1)))

        with pytest.raises(InvalidArgument):
            index.upsert([point(bad)])
        with pytest.raises(InvalidArgument):
            index.upsert([point(unit(1), image=bad)])
        with pytest.raises(InvalidArgument):
            search_now(index, query(bad))
        assert list(index.entry_ids()) == []


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), limit=st.integers(1, 10))
def test_searches_agree_with_brute_force(index: VectorIndex, seed: int, limit: int) -> None:
    chance = random.Random(seed)
    key = str(seed)
    points = [point(unit(*directions(chance)), chance.choice("ab"), key) for _ in range(chance.randint(1, 40))]
    index.upsert(points)
    wanted = unit(*directions(chance))

    found = search_now(index, query(wanted, "a", key=key, limit=limit))

    mine = sorted((cosine(each.text, wanted) for each in points if each.tenant == "a"), reverse=True)
    assert [match.similarity for match in found] == pytest.approx(mine[:limit], abs=1e-5)
    index.delete([each.entry_id for each in points])


def directions(chance: random.Random) -> list[float]:
    return [chance.gauss(0, 1) for _ in range(DIMENSION_COUNT)]


def cosine(one: bytes, other: bytes) -> float:
    pairs = zip(struct.unpack(f"<{DIMENSION_COUNT}f", one), struct.unpack(f"<{DIMENSION_COUNT}f", other), strict=True)
    return sum(a * b for a, b in pairs)
