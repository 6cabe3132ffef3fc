"""A DOUBLE of a Qdrant server: the few calls of its gRPC API that we make, answered by shards of qdrant-edge.

It is not Qdrant: no cluster, no quantisation, no optimiser; what it does not know it refuses as UNIMPLEMENTED. It is
here because a server cannot always be had; the same tests run on a real one when QDRANT_URL is set. Like a server it
speaks the wire of qdrant-client, keeps what a collection was asked to be (`request`, `indexed_fields`), refuses to
create a collection twice, and in a collection with shard keys takes no update without one.
"""

import signal
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import qdrant_edge as edge
from qdrant_client import grpc as wire
from qdrant_client.grpc import collections_service_pb2_grpc as collections_service
from qdrant_client.grpc import points_service_pb2_grpc as points_service

_NO_SHARD_KEY = ""
# A server's own values, which the client insists on reading.
_SERVER_OPTIMISER = wire.OptimizersConfigDiff(
    deleted_threshold=0.2, vacuum_min_vector_number=1000, default_segment_number=0, flush_interval_sec=5
)
_SERVER_GRAPH = wire.HnswConfigDiff(m=16, ef_construct=100, full_scan_threshold=10_000, max_indexing_threads=0)


class DoubledCollection:
    """A collection: what it was asked to be, and a shard for each shard key."""

    def __init__(self, request: Any, directory: Path) -> None:
        self.request = request
        self.indexed_fields: dict[str, Any] = {}
        self.shards: dict[str, edge.EdgeShard] = {}
        self._directory = directory
        if not self.is_grouped:
            self.add_shard(_NO_SHARD_KEY)

    @property
    def is_grouped(self) -> bool:
        return bool(self.request.sharding_method == wire.Custom)

    def add_shard(self, key: str) -> None:
        sizes = {name: params.size for name, params in self.request.vectors_config.params_map.map.items()}
        vectors = {
            name: edge.EdgeVectorParams(size=size, distance=edge.Distance.Cosine) for name, size in sizes.items()
        }
        # Nothing is kept: no log of writes.
        configuration = edge.EdgeConfig(vectors=vectors, max_search_threads=1, wal_enabled=False)
        path = self._directory / uuid.uuid4().hex
        path.mkdir(parents=True)
        self.shards[key] = edge.EdgeShard.create(str(path), configuration)
        for name in self.indexed_fields:
            self._index(self.shards[key], name)

    def index_field(self, name: str, params: Any) -> None:
        self.indexed_fields[name] = params
        for shard in self.shards.values():
            self._index(shard, name)

    def chosen(self, selector: Any) -> list["edge.EdgeShard"]:
        """The shards of a selector; all of them without one."""
        keys = [key.keyword for key in selector.shard_keys]
        return [self.shards[key] for key in keys] if keys else list(self.shards.values())

    def close(self) -> None:
        for shard in self.shards.values():
            shard.close()

    def _index(self, shard: "edge.EdgeShard", name: str) -> None:
        shard.update(edge.UpdateOperation.create_field_index(name, edge.PayloadSchemaType.Keyword))


class QdrantDouble:
    """The collections, by name. One call at a time."""

    def __init__(self, directory: Path) -> None:
        self.collections: dict[str, DoubledCollection] = {}
        self.directory = directory
        self.lock = threading.Lock()

    def collection(self, name: str, context: grpc.ServicerContext) -> DoubledCollection:
        if name not in self.collections:
            context.abort(grpc.StatusCode.NOT_FOUND, f"Collection `{name}` doesn't exist!")
        return self.collections[name]

    def close(self) -> None:
        for collection in self.collections.values():
            collection.close()


class CollectionsDouble(collections_service.CollectionsServicer):
    """`CollectionExists`, `Create`, `Get`, `Delete`, and shard keys."""

    def __init__(self, server: QdrantDouble) -> None:
        self._server = server

    def CollectionExists(self, request: Any, context: grpc.ServicerContext) -> Any:
        found = request.collection_name in self._server.collections
        return wire.CollectionExistsResponse(result=wire.CollectionExists(exists=found))

    def Create(self, request: Any, context: grpc.ServicerContext) -> Any:
        with self._server.lock:
            if request.collection_name in self._server.collections:
                context.abort(grpc.StatusCode.ALREADY_EXISTS, "Collection already exists!")
            self._server.collections[request.collection_name] = DoubledCollection(request, self._server.directory)
        return wire.CollectionOperationResponse(result=True)

    def Get(self, request: Any, context: grpc.ServicerContext) -> Any:
        collection = self._server.collection(request.collection_name, context)
        asked = collection.request
        params = wire.CollectionParams(vectors_config=asked.vectors_config, shard_number=1)
        if collection.is_grouped:
            params.sharding_method = asked.sharding_method
        config = wire.CollectionConfig(params=params, hnsw_config=_SERVER_GRAPH)
        config.hnsw_config.MergeFrom(asked.hnsw_config)
        config.optimizer_config.MergeFrom(_SERVER_OPTIMISER)
        config.wal_config.MergeFrom(wire.WalConfigDiff(wal_capacity_mb=32, wal_segments_ahead=0))
        info = wire.CollectionInfo(status=wire.Green, config=config)
        info.optimizer_status.ok = True
        for name, field_params in collection.indexed_fields.items():
            info.payload_schema[name].CopyFrom(wire.PayloadSchemaInfo(data_type=wire.Keyword, params=field_params))
        return wire.GetCollectionInfoResponse(result=info)

    def Delete(self, request: Any, context: grpc.ServicerContext) -> Any:
        with self._server.lock:
            collection = self._server.collections.pop(request.collection_name, None)
        if collection is not None:
            collection.close()
        return wire.CollectionOperationResponse(result=collection is not None)

    def CreateShardKey(self, request: Any, context: grpc.ServicerContext) -> Any:
        collection, key = self._server.collection(request.collection_name, context), request.request.shard_key.keyword
        with self._server.lock:
            if not collection.is_grouped or key in collection.shards:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no such sharding, or the shard key exists")
            collection.add_shard(key)
        return wire.CreateShardKeyResponse(result=True)

    def ListShardKeys(self, request: Any, context: grpc.ServicerContext) -> Any:
        collection = self._server.collection(request.collection_name, context)
        keys = [key for key in collection.shards if key != _NO_SHARD_KEY]
        described = [wire.ShardKeyDescription(key=wire.ShardKey(keyword=key)) for key in keys]
        return wire.ListShardKeysResponse(shard_keys=described)


class PointsDouble(points_service.PointsServicer):
    """`Upsert`, `Delete` by ids, `Query` by a dense vector and keywords, `Scroll`, `CreateFieldIndex`."""

    def __init__(self, server: QdrantDouble) -> None:
        self._server = server

    def Upsert(self, request: Any, context: grpc.ServicerContext) -> Any:
        collection = self._server.collection(request.collection_name, context)
        _refuse_update_without_key(collection, request, context)
        points = [_point(point) for point in request.points]
        return self._update(collection.chosen(request.shard_key_selector), edge.UpdateOperation.upsert_points(points))

    def Delete(self, request: Any, context: grpc.ServicerContext) -> Any:
        collection = self._server.collection(request.collection_name, context)
        _refuse_update_without_key(collection, request, context)
        ids: list[Any] = [uuid.UUID(each.uuid) for each in request.points.points.ids]
        return self._update(collection.chosen(request.shard_key_selector), edge.UpdateOperation.delete_points(ids))

    def Query(self, request: Any, context: grpc.ServicerContext) -> Any:
        collection = self._server.collection(request.collection_name, context)
        wanted = edge.QueryRequest(
            limit=request.limit,
            query=edge.Query.Nearest(list(request.query.nearest.dense.data), using=request.using),
            filter=_filter(request.filter, context),
        )
        with self._server.lock:
            found = [point for shard in collection.chosen(request.shard_key_selector) for point in shard.query(wanted)]
        best = sorted(found, key=lambda point: -point.score)[: request.limit]
        result = [wire.ScoredPoint(id=wire.PointId(uuid=str(point.id)), score=point.score) for point in best]
        return wire.QueryResponse(result=result)

    def Scroll(self, request: Any, context: grpc.ServicerContext) -> Any:
        collection = self._server.collection(request.collection_name, context)
        after: Any = uuid.UUID(request.offset.uuid) if request.HasField("offset") else None
        wanted = edge.ScrollRequest(offset=after, limit=request.limit + 1, with_payload=False, with_vector=False)
        with self._server.lock:
            chosen = collection.chosen(request.shard_key_selector)
            ids = sorted(str(record.id) for shard in chosen for record in shard.scroll(wanted)[0])
        page = [wire.RetrievedPoint(id=wire.PointId(uuid=each)) for each in ids[: request.limit]]
        following = wire.PointId(uuid=ids[request.limit]) if len(ids) > request.limit else None
        return wire.ScrollResponse(result=page, next_page_offset=following)

    def CreateFieldIndex(self, request: Any, context: grpc.ServicerContext) -> Any:
        collection = self._server.collection(request.collection_name, context)
        if request.field_type != wire.FieldTypeKeyword:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "the double indexes keywords")
        with self._server.lock:
            collection.index_field(request.field_name, request.field_index_params)
        return _done()

    def _update(self, shards: list["edge.EdgeShard"], operation: "edge.UpdateOperation") -> Any:
        with self._server.lock:
            for shard in shards:
                shard.update(operation)
        return _done()


@contextmanager
def running_qdrant_double(address: str = "127.0.0.1:0") -> Iterator[tuple[str, QdrantDouble]]:
    """Serve the double at the address: its `qdrant:` url, and what it holds."""
    with tempfile.TemporaryDirectory(prefix="qdrant-double-", ignore_cleanup_errors=True) as directory:
        double = QdrantDouble(Path(directory))
        server = grpc.server(ThreadPoolExecutor(4))
        collections_service.add_CollectionsServicer_to_server(CollectionsDouble(double), server)
        points_service.add_PointsServicer_to_server(PointsDouble(double), server)
        port = server.add_insecure_port(address)
        server.start()
        try:
            yield f"qdrant://{address.rpartition(':')[0]}:{port}", double
        finally:
            server.stop(None).wait()
            double.close()


def _refuse_update_without_key(collection: DoubledCollection, request: Any, context: grpc.ServicerContext) -> None:
    if collection.is_grouped and not request.shard_key_selector.shard_keys:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, "Shard key not specified")


def _point(point: Any) -> "edge.Point":
    named: Any = {
        name: list(vector.dense.data or vector.data) for name, vector in point.vectors.vectors.vectors.items()
    }
    payload: Any = {name: _value(value) for name, value in point.payload.items()}
    return edge.Point(uuid.UUID(point.id.uuid), named, payload)


def _value(value: Any) -> Any:
    kind = value.WhichOneof("kind")
    return [_value(each) for each in value.list_value.values] if kind == "list_value" else getattr(value, kind)


def _filter(given: Any, context: grpc.ServicerContext) -> "edge.Filter":
    """Conditions that all must hold, each of keywords of which one must match."""
    conditions = [condition.field for condition in given.must]
    understood = all(field.match.WhichOneof("match_value") == "keywords" for field in conditions)
    if not (conditions and understood) or given.should or given.must_not:
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "the double filters by keywords that must match")
    matches = [(field.key, list(field.match.keywords.strings)) for field in conditions]
    return edge.Filter(must=[edge.FieldCondition(key, match=edge.MatchAny(words)) for key, words in matches])


def _done() -> Any:
    return wire.PointsOperationResponse(result=wire.UpdateResult(operation_id=0, status=wire.Completed))


if __name__ == "__main__":
    with running_qdrant_double(sys.argv[1]):
        signal.sigwait({signal.SIGTERM, signal.SIGINT})
