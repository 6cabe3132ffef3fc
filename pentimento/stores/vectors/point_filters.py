"""Filter the points of the embedded index: a walk of the graph compares each point on its way.

A tenant is compared as text. Compatibility keys are texts of 64 characters, each somewhere else in memory: comparing
them took a quarter of a search's time at 100,000 entries. So a point also has 128 bits of a digest of each of its keys,
and is filtered by them. The keys themselves stay, for copies, and the ledger compares them again.
"""

import hashlib
import uuid
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import qdrant_edge as edge

_TENANT = "tenant"
_KEY = "compatibility_key"
_KEY_DIGEST = "compatibility_digest"


def index_fields(shard: "edge.EdgeShard") -> None:
    """Make a new shard's indexes of the fields that filter its points."""
    tenant = edge.KeywordIndexParams(is_tenant=True)
    shard.update(edge.UpdateOperation.create_field_index(_TENANT, tenant))
    shard.update(edge.UpdateOperation.create_field_index(_KEY_DIGEST, edge.PayloadSchemaType.Uuid))


def with_digests(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return a point's stored payload, and the digests of its keys."""
    return {**payload, _KEY_DIGEST: [_digest(key) for key in payload[_KEY]]}


def filter_of(conditions: Mapping[str, Sequence[str]]) -> "edge.Filter":
    """Return the filter that lets a point through which meets every condition: a field, and the values it may have."""
    return edge.Filter(must=[_condition(field, values) for field, values in conditions.items()])


def _condition(field: str, values: Sequence[str]) -> "edge.FieldCondition":
    if field == _KEY:
        field, values = _KEY_DIGEST, [_digest(key) for key in values]
    # A fifth of a search's time is spared where one value may be compared, not any of a set of one.
    match = edge.MatchValue(values[0]) if len(values) == 1 else edge.MatchAny(list(values))
    return edge.FieldCondition(field, match=match)


@lru_cache(maxsize=1024)
def _digest(key: str) -> str:
    """Return the digest as a UUID: an index keeps its bits, not the text."""
    return str(uuid.UUID(bytes=hashlib.sha256(key.encode()).digest()[:16]))
