"""pentimento.api.vectordb.v1 and pentimento.api.embedder.v1 beside pentimento.domain.cache and .embedding."""

from pentimento.api.embedder.v1 import embedder_service_pb2 as embedder_pb
from pentimento.api.vectordb.v1 import vectordb_gateway_service_pb2 as pb
from pentimento.domain.cache import CacheScope
from pentimento.domain.embedding import Embedding
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.retrieval import CandidateStart, LookupAnswer, LookupCandidate
from pentimento.wire.generation import start_from_proto, start_to_proto


def scope_to_proto(scope: CacheScope) -> pb.CacheScope:
    return pb.CacheScope(**{name: getattr(scope, name) for name in CacheScope.__dataclass_fields__})


def scope_from_proto(message: pb.CacheScope) -> CacheScope:
    return CacheScope(**{name: getattr(message, name) for name in CacheScope.__dataclass_fields__})


def candidate_to_proto(candidate: LookupCandidate) -> pb.LookupCandidate:
    return pb.LookupCandidate(scope=scope_to_proto(candidate.scope), latents=candidate.latents, images=candidate.images)


def candidate_from_proto(message: pb.LookupCandidate) -> LookupCandidate:
    return LookupCandidate(scope_from_proto(message.scope), message.latents, message.images)


def answer_to_proto(answer: LookupAnswer) -> pb.LookupResponse:
    starts = [
        pb.CandidateStart(
            start=start_to_proto(found.start),
            reason=found.reason,
            text_similarity=found.text_similarity,
            image_similarity=found.image_similarity,
        )
        for found in answer.starts
    ]
    return pb.LookupResponse(starts=starts, search_skipped=answer.search_skipped)


def answer_from_proto(message: pb.LookupResponse) -> LookupAnswer:
    starts = tuple(
        CandidateStart(
            start_from_proto(found.start),
            found.reason,
            found.text_similarity if found.HasField("text_similarity") else None,
            found.image_similarity if found.HasField("image_similarity") else None,
        )
        for found in message.starts
    )
    return LookupAnswer(starts, message.search_skipped)


def embedding_to_proto(embedding: Embedding) -> embedder_pb.Embedding:
    return embedder_pb.Embedding(values=embedding.values, dimension_count=embedding.dimension_count)


def embedding_from_proto(message: embedder_pb.Embedding, encoder_digest: str) -> Embedding:
    if not message.dimension_count or len(message.values) != 4 * message.dimension_count:
        size = f"{len(message.values)} bytes for {message.dimension_count} dimensions"
        raise InvalidArgument.of("embedding.values", f"must be 4 bytes a dimension, got {size}")
    return Embedding(message.values, message.dimension_count, encoder_digest)
