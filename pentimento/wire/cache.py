"""pentimento.api.vectordb.v1 and pentimento.api.embedder.v1 beside pentimento.domain.cache and .embedding."""

from dataclasses import asdict

from pentimento.api.embedder.v1 import embedder_service_pb2 as embedder_pb
from pentimento.api.vectordb.v1 import vectordb_gateway_service_pb2 as pb
from pentimento.domain.cache import CacheScope
from pentimento.domain.embedding import Embedding
from pentimento.domain.errors import InvalidArgument


def scope_to_proto(scope: CacheScope) -> pb.CacheScope:
    return pb.CacheScope(**asdict(scope))


def scope_from_proto(message: pb.CacheScope) -> CacheScope:
    return CacheScope(**{name: getattr(message, name) for name in CacheScope.__dataclass_fields__})


def embedding_to_proto(embedding: Embedding) -> embedder_pb.Embedding:
    return embedder_pb.Embedding(values=embedding.values, dimension_count=embedding.dimension_count)


def embedding_from_proto(message: embedder_pb.Embedding, encoder_digest: str) -> Embedding:
    if not message.dimension_count or len(message.values) != 4 * message.dimension_count:
        size = f"{len(message.values)} bytes for {message.dimension_count} dimensions"
        raise InvalidArgument.of("embedding.values", f"must be 4 bytes a dimension, got {size}")
    return Embedding(message.values, message.dimension_count, encoder_digest)
