"""A Qdrant server or cluster, through qdrant-client over gRPC; several gateways may share it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import ceil
from pathlib import Path
from typing import Any

from qdrant_client import QdrantClient, models

from pentimento.domain.errors import InvalidArgument
from pentimento.stores.errors import SchemaMismatch, StoreUnavailable
from pentimento.stores.vectors.index import VectorMatch, VectorPoint, VectorQuery, check_vector, floats

_OPTIONS = frozenset({"collection", "tls", "api_key_file"})
_TIMEOUT_S = 10
_BATCH_COUNT = 256


class QdrantVectorIndex:
    """One collection of points with two named vectors; a search waits whole seconds at least on the wire."""

    backend = "qdrant"

    def __init__(self, client: QdrantClient, collection: str) -> None:
        self._client = client
        self._collection = collection
        self._dimension_count = 0

    @classmethod
    def from_options(cls, host: str, port: int, options: Mapping[str, str]) -> "QdrantVectorIndex":
        """Build an index from the query of a `qdrant:` url. Nothing is connected yet."""
        if unknown := set(options) - _OPTIONS:
            raise InvalidArgument.of("index_url", f"qdrant urls take {sorted(_OPTIONS)}, got {sorted(unknown)}")
        api_key = Path(options["api_key_file"]).read_text().strip() if "api_key_file" in options else None
        client = QdrantClient(
            host=host,
            grpc_port=port,
            prefer_grpc=True,
            https=options.get("tls") == "true",
            api_key=api_key,
            timeout=_TIMEOUT_S,
            check_compatibility=False,
        )
        return cls(client, options.get("collection", "pentimento"))

    def prepare(self, dimension_count: int) -> None:
        """Make or open the collection. Raises SchemaMismatch when it holds vectors of another size."""
        with _typed_errors():
            if not self._client.collection_exists(self._collection):
                self._create(dimension_count)
            found = self._client.get_collection(self._collection).config.params.vectors
        sizes = {name: params.size for name, params in found.items()} if isinstance(found, dict) else {}
        if sizes != {"text": dimension_count, "image": dimension_count}:
            raise SchemaMismatch("vector index", f"it holds vectors {sizes}, not of {dimension_count} dimensions")
        self._dimension_count = dimension_count

    def search(self, query: VectorQuery, timeout_s: float) -> list[VectorMatch]:
        """Return the nearest points, best first. Raises StoreUnavailable after `timeout_s`."""
        if not self._dimension_count:
            return []
        check_vector("vector", query.vector, self._dimension_count)
        with _typed_errors():
            answer = self._client.query_points(
                self._collection,
                query=floats(query.vector),
                using=query.space.value,
                query_filter=models.Filter(must=[_match(*condition) for condition in query.conditions().items()]),
                limit=query.limit_count,
                with_payload=False,
                # The client counts whole seconds.
                timeout=ceil(timeout_s),
            )
        return [VectorMatch(str(point.id), point.score) for point in answer.points]

    def upsert(self, points: Sequence[VectorPoint]) -> None:
        """Insert or replace points."""
        for point in points:
            check_vector("text", point.text, self._dimension_count)
            if point.image is not None:
                check_vector("image", point.image, self._dimension_count)
        for start in range(0, len(points), _BATCH_COUNT):
            batch = [_point(point) for point in points[start : start + _BATCH_COUNT]]
            with _typed_errors():
                self._client.upsert(self._collection, batch, wait=True)

    def delete(self, entry_ids: Sequence[str]) -> None:
        """Delete points; ids that are not there are ignored."""
        for start in range(0, len(entry_ids), _BATCH_COUNT):
            batch: list[Any] = list(entry_ids[start : start + _BATCH_COUNT])
            with _typed_errors():
                self._client.delete(self._collection, models.PointIdsList(points=batch), wait=True)

    def entry_ids(self) -> Iterator[str]:
        """Yield every id, in no order."""
        offset: Any = None
        while self._dimension_count:
            with _typed_errors():
                page, offset = self._client.scroll(self._collection, limit=1000, offset=offset, with_payload=False)
            yield from (str(point.id) for point in page)
            if offset is None:
                return

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _create(self, dimension_count: int) -> None:
        parameters = models.VectorParams(size=dimension_count, distance=models.Distance.COSINE)
        self._client.create_collection(self._collection, {"text": parameters, "image": parameters})
        tenant = models.KeywordIndexParams(type=models.KeywordIndexType.KEYWORD, is_tenant=True)
        self._client.create_payload_index(self._collection, "tenant", tenant)
        self._client.create_payload_index(self._collection, "compatibility_key", models.PayloadSchemaType.KEYWORD)


def _match(name: str, values: list[str]) -> models.FieldCondition:
    return models.FieldCondition(key=name, match=models.MatchAny(any=values))


def _point(point: VectorPoint) -> models.PointStruct:
    vectors: dict[str, Any] = {"text": floats(point.text)}
    if point.image is not None:
        vectors["image"] = floats(point.image)
    payload = {
        "tenant": point.tenant,
        "compatibility_key": list(point.compatibility_keys),
        "created_at": point.created_at,
    }
    return models.PointStruct(id=point.entry_id, vector=vectors, payload=payload)


@contextmanager
def _typed_errors() -> Iterator[None]:
    """Raise the client's errors as ours: gRPC's, HTTP's and its own have no base in common."""
    try:
        yield
    except Exception as error:
        code = getattr(error, "code", None)
        words = str(code()) if callable(code) else type(error).__name__
        raise StoreUnavailable("vector index", words) from error
