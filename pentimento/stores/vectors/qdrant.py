"""Use a Qdrant server or cluster, through qdrant-client over gRPC; several gateways may share it.

The collection is set up here; the next `prepare` completes a set-up that a crash interrupted. Vectors of other
dimensions get a collection of their own, and the one before serves until the new one is complete. Every search is
filtered by tenant, so the payload index is made for it (`is_tenant` puts a tenant's points next to one another, and the
graph keeps edges within a tenant). Vectors are also kept as int8 in memory: the graph is walked by int8, and twice the
wanted number is compared again by float32.
"""

import asyncio
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any

from qdrant_client import AsyncQdrantClient, QdrantClient, models

from pentimento.domain.embedding import Space
from pentimento.domain.errors import InvalidArgument
from pentimento.stores.errors import SchemaMismatch, StoreUnavailable
from pentimento.stores.url_options import switch
from pentimento.stores.vectors.index import Dimensions, VectorMatch, VectorPoint, VectorQuery, floats, ids_between
from pentimento.stores.vectors.unit_vectors import check_points, check_vector

PAYLOAD_FIELDS = ("tenant", "compatibility_key")
_EDGES_COUNT = 16
_BUILD_CANDIDATES_COUNT = 100
_SEARCH_CANDIDATES_COUNT = 128
_EXACT_BELOW_KB = 2_000
_OVERSAMPLING = 2.0
_QUANTILE = 0.99
_MOST_GROUPS = 1024


@dataclass(frozen=True)
class QdrantLayout:
    """Configure `groups_count` groups of tenants, a shard key each: only on a cluster; 0: the server spreads points by
    their ids.

    `replicas_count` is of every shard.
    """

    quantised: bool = True
    groups_count: int = 0
    replicas_count: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.groups_count <= _MOST_GROUPS:
            raise InvalidArgument.of("index_url", f"shard_groups must be between 0 and {_MOST_GROUPS}")
        if self.replicas_count < 1:
            raise InvalidArgument.of("index_url", "replicas must be at least 1")

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> "QdrantLayout":
        """Return the layout in the query of a `qdrant:` url. Raises InvalidArgument for a wrong number or switch."""
        try:
            groups_count, replicas_count = int(options.get("shard_groups", "0")), int(options.get("replicas", "1"))
        except ValueError:
            raise InvalidArgument.of("index_url", "shard_groups and replicas must be whole numbers") from None
        return cls(switch("index_url", options, "quantised", default=True), groups_count, replicas_count)

    def shard_keys(self) -> list[str]:
        """Return the key of every group; none where the server spreads the points."""
        return [_key(number) for number in range(self.groups_count)]

    def shard_key_of(self, tenant: str) -> str | None:
        """Return the key of the tenant's group, the same in every process; None where the server spreads the points."""
        if not self.groups_count:
            return None
        digest = hashlib.sha256(tenant.encode()).digest()
        return _key(int.from_bytes(digest[:8], "big") % self.groups_count)

    def vectors(self, dimensions: Dimensions) -> dict[str, models.VectorParams]:
        """Return the named vectors of a point. The float32 ones stay on disk where there are quantised ones."""
        how: dict[str, Any] = {"distance": models.Distance.COSINE, "on_disk": self.quantised}
        return {space.value: models.VectorParams(size=dimensions.of(space), **how) for space in Space}

    def graph(self) -> models.HnswConfigDiff:
        """Return the graph's configuration: edges within a tenant, besides those among all."""
        return models.HnswConfigDiff(
            m=_EDGES_COUNT,
            payload_m=_EDGES_COUNT,
            ef_construct=_BUILD_CANDIDATES_COUNT,
            full_scan_threshold=_EXACT_BELOW_KB,
        )

    def quantisation(self) -> models.ScalarQuantization | None:
        """Return the configuration of the int8 vectors, kept in memory."""
        if not self.quantised:
            return None
        return models.ScalarQuantization(
            scalar=models.ScalarQuantizationConfig(type=models.ScalarType.INT8, quantile=_QUANTILE, always_ram=True)
        )

    def search_parameters(self) -> models.SearchParams:
        """Return how a search walks the graph, and that it compares the best again by their float32 vectors."""
        again = models.QuantizationSearchParams(rescore=True, oversampling=_OVERSAMPLING) if self.quantised else None
        return models.SearchParams(hnsw_ef=_SEARCH_CANDIDATES_COUNT, quantization=again)

    def payload_indexes(self) -> dict[str, models.KeywordIndexParams]:
        """Return the index of every payload field that searches filter by."""
        keyword = models.KeywordIndexType.KEYWORD
        return {
            name: models.KeywordIndexParams(type=keyword, is_tenant=True if name == "tenant" else None)
            for name in PAYLOAD_FIELDS
        }


def _key(number: int) -> str:
    return f"tenants-{number:04d}"


_OPTIONS = frozenset({"collection", "tls", "api_key_file", "quantised", "shard_groups", "replicas"})
_TIMEOUT_S = 10
_BATCH_COUNT = 256
DEFAULT_LAYOUT = QdrantLayout()


@dataclass(frozen=True)
class SizedCollection:
    """Name a collection, with the dimensions of its vectors."""

    name: str
    dimensions: Dimensions


class QdrantVectorIndex:
    """Use one collection of points with two named vectors. Each event loop has its own client for searches."""

    backend = "qdrant"

    def __init__(
        self,
        client: QdrantClient,
        open_searching: Callable[[], AsyncQdrantClient],
        collection: str,
        layout: QdrantLayout = DEFAULT_LAYOUT,
    ) -> None:
        """Use these clients. `open_searching` makes a client of the same server for searches; the first search connects
        it."""
        self._client = client
        self._open_searching = open_searching
        self._searching: tuple[asyncio.AbstractEventLoop, AsyncQdrantClient] | None = None
        self._collection = collection
        self._layout = layout
        self._used: SizedCollection | None = None
        # Collections of other dimensions; the former one is searched until the new one is settled.
        self._others: list[SizedCollection] = []
        self._before: SizedCollection | None = None
        self._changes_count = 0

    @property
    def starts_count(self) -> int:
        """Return how often another collection came into use; the server does not report its own starts."""
        return self._changes_count

    @classmethod
    def from_options(cls, host: str, port: int, options: Mapping[str, str]) -> "QdrantVectorIndex":
        """Build an index from the query of a `qdrant:` url. Nothing is connected yet."""
        if unknown := set(options) - _OPTIONS:
            raise InvalidArgument.of("index_url", f"qdrant urls take {sorted(_OPTIONS)}, got {sorted(unknown)}")
        try:
            api_key = Path(options["api_key_file"]).read_text().strip() if "api_key_file" in options else None
        except OSError as error:
            raise InvalidArgument.of("index_url", f"api_key_file cannot be read: {error.strerror}") from None
        server: dict[str, Any] = {
            "host": host,
            "grpc_port": port,
            "prefer_grpc": True,
            "https": switch("index_url", options, "tls", default=False),
            "api_key": api_key,
            "timeout": _TIMEOUT_S,
            "check_compatibility": False,
        }
        layout, collection = QdrantLayout.from_options(options), options.get("collection", "pentimento")
        return cls(QdrantClient(**server), partial(AsyncQdrantClient, **server), collection, layout)

    def prepare(self, text: int, image: int | None = None) -> None:
        """Make or open the collection for the dimensions. Raises SchemaMismatch for one that is spread otherwise."""
        dimensions = Dimensions.given(text, image)
        with _typed_errors():
            found = self._made()
            used = next((one for one in found if one.dimensions == dimensions), None)
            if used is None:
                is_first = not any(one.name == self._collection for one in found)
                name = self._collection if is_first else f"{self._collection}-{dimensions.name}"
                used = SizedCollection(name, dimensions)
                with _may_be_made_by_another(partial(self._client.collection_exists, name)):
                    self._create(name, dimensions)
            collection = self._client.get_collection(used.name)
        is_grouped = collection.config.params.sharding_method == models.ShardingMethod.CUSTOM
        if is_grouped != bool(self._layout.groups_count):
            raise SchemaMismatch(
                "vector index", "its points are spread by ids where groups are asked for, or the reverse"
            )
        with _typed_errors():
            self._complete(used.name, collection)
        self._use(used, [one for one in found if one != used])

    def settle(self) -> None:
        """Delete the collections of other dimensions."""
        if not self._others:
            return
        self._before = None
        with _typed_errors():
            for one in self._made():
                if one != self._used:
                    self._client.delete_collection(one.name)
        self._others = []

    async def search(self, query: VectorQuery, timeout_s: float) -> list[VectorMatch]:
        """Return the nearest points, best first. The server counts `timeout_s` in whole seconds; the caller bounds the
        wait."""
        used, before = self._used, self._before
        if used is None:
            return []
        dimension_count = used.dimensions.of(query.space)
        check_vector("vector", query.vector, dimension_count)
        if before is not None and before.dimensions.of(query.space) == dimension_count:
            # Until the new one is complete.
            used = before
        with _typed_errors():
            answer = await self._searching_client().query_points(
                used.name,
                query=floats(query.vector),
                using=query.space.value,
                query_filter=models.Filter(must=[_match(*condition) for condition in query.conditions().items()]),
                limit=query.limit_count,
                search_params=self._layout.search_parameters(),
                shard_key_selector=self._shard_keys(query.tenants),
                with_payload=False,
                # The client counts whole seconds.
                timeout=ceil(timeout_s),
            )
        return [VectorMatch(str(point.id), point.score) for point in answer.points]

    def upsert(self, points: Sequence[VectorPoint]) -> None:
        """Insert or replace points."""
        used = self._prepared()
        check_points(points, used.dimensions)
        for shard_key, of_shard in self._by_shard(points).items():
            for start in range(0, len(of_shard), _BATCH_COUNT):
                batch = [_point(point) for point in of_shard[start : start + _BATCH_COUNT]]
                with _typed_errors():
                    self._client.upsert(used.name, batch, wait=True, shard_key_selector=shard_key)

    def delete(self, entry_ids: Sequence[str]) -> None:
        """Delete points; ids that are not there are ignored."""
        # An id does not tell its group, and a grouped collection has no shard for an update that names none.
        groups: list[str | int] | None = list(self._layout.shard_keys()) or None
        for start in range(0, len(entry_ids), _BATCH_COUNT):
            batch: list[Any] = list(entry_ids[start : start + _BATCH_COUNT])
            with _typed_errors():
                for one in (self._prepared(), self._before):
                    if one is not None:
                        points = models.PointIdsList(points=batch)
                        self._client.delete(one.name, points, wait=True, shard_key_selector=groups)

    def entry_ids(self, after: str = "", until: str | None = None) -> Iterator[str]:
        """Yield the ids above `after` up to `until` (None: to the end), in ascending order."""
        first: Any = after or None
        while (used := self._used) is not None:
            with _typed_errors():
                page, first = self._client.scroll(used.name, limit=1000, offset=first, with_payload=False)
            yield from ids_between([str(point.id) for point in page], after, until)
            if first is None or (until is not None and str(first) > until):
                return

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
        # Its channel closes with it: `close` would need the event loop, which may have ended.
        self._searching = None

    def _searching_client(self) -> AsyncQdrantClient:
        """Return the running event loop's client; gRPC binds a channel to its loop."""
        loop = asyncio.get_running_loop()
        if self._searching is None or self._searching[0] is not loop:
            self._searching = loop, self._open_searching()
        return self._searching[1]

    def _made(self) -> list[SizedCollection]:
        """Return the existing collections of this index: the first one, and those of other dimensions. Raises
        SchemaMismatch for one with other vectors than ours."""
        names = sorted(one.name for one in self._client.get_collections().collections)
        ours = (name for name in names if name == self._collection or self._is_later(name))
        return [SizedCollection(name, _dimensions_of(self._client.get_collection(name))) for name in ours]

    def _is_later(self, name: str) -> bool:
        before, separator, dimensions = name.rpartition(f"{self._collection}-")
        return bool(separator) and not before and Dimensions.named(dimensions) is not None

    def _prepared(self) -> SizedCollection:
        if self._used is None:
            raise SchemaMismatch("vector index", "it was not prepared for any vector size")
        return self._used

    def _use(self, used: SizedCollection, others: list[SizedCollection]) -> None:
        served = self._before or self._used
        if self._used is None:
            # A former process may not have seen it replaced.
            served = next(iter(others), None)
        elif self._used != used:
            # Others see that the points may be fewer than before.
            self._changes_count += 1
        self._before = served if served in others else None
        self._used, self._others = used, others

    def _create(self, name: str, dimensions: Dimensions) -> None:
        layout = self._layout
        self._client.create_collection(
            name,
            layout.vectors(dimensions),
            hnsw_config=layout.graph(),
            quantization_config=layout.quantisation(),
            replication_factor=layout.replicas_count,
            sharding_method=models.ShardingMethod.CUSTOM if layout.groups_count else None,
        )

    def _complete(self, used: str, collection: models.CollectionInfo) -> None:
        """Make the missing payload indexes and shards: all in a new collection."""
        for name, wanted in self._layout.payload_indexes().items():
            if name not in collection.payload_schema:
                self._client.create_payload_index(used, name, wanted)
        if self._layout.groups_count:
            for key in sorted(set(self._layout.shard_keys()) - self._made_shard_keys(used)):
                with _may_be_made_by_another(partial(self._has_shard_key, used, key)):
                    self._client.create_shard_key(used, key)

    def _has_shard_key(self, used: str, key: str) -> bool:
        return key in self._made_shard_keys(used)

    def _made_shard_keys(self, used: str) -> set[str]:
        return {str(each.key) for each in self._client.list_shard_keys(used).shard_keys or ()}

    def _by_shard(self, points: Sequence[VectorPoint]) -> dict[str | None, list[VectorPoint]]:
        of_shard: dict[str | None, list[VectorPoint]] = {}
        for point in points:
            of_shard.setdefault(self._layout.shard_key_of(point.tenant), []).append(point)
        return of_shard

    def _shard_keys(self, tenants: Sequence[str]) -> list[str | int] | None:
        """Return the shards that hold these tenants' points; None for all."""
        keys = {self._layout.shard_key_of(tenant) for tenant in tenants}
        return sorted(key for key in keys if key is not None) or None


def _dimensions_of(collection: models.CollectionInfo) -> Dimensions:
    found = collection.config.params.vectors
    sizes = {name: params.size for name, params in found.items()} if isinstance(found, dict) else {}
    if sizes.keys() != {space.value for space in Space}:
        raise SchemaMismatch("vector index", f"a collection of its name holds vectors {sizes}, not of text and image")
    return Dimensions(sizes[Space.TEXT.value], sizes[Space.IMAGE.value])


def _match(name: str, values: list[str]) -> models.FieldCondition:
    return models.FieldCondition(key=name, match=models.MatchAny(any=values))


def _point(point: VectorPoint) -> models.PointStruct:
    vectors: dict[str, Any] = {"text": floats(point.text)}
    if point.image is not None:
        vectors["image"] = floats(point.image)
    return models.PointStruct(id=point.entry_id, vector=vectors, payload=point.payload())


@contextmanager
def _may_be_made_by_another(is_made: Callable[[], bool]) -> Iterator[None]:
    """Accept the error if another gateway, which started at the same time, has created it first."""
    try:
        yield
    except Exception:
        # The words of a server's answer change from version to version.
        if not is_made():
            raise


@contextmanager
def _typed_errors() -> Iterator[None]:
    """Raise the client's errors as ours: gRPC's, HTTP's and its own have no base in common."""
    try:
        yield
    except Exception as error:
        code = getattr(error, "code", None)
        words = str(code()) if callable(code) else type(error).__name__
        raise StoreUnavailable("vector index", words) from error
