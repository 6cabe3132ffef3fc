"""Lay out the collection on a Qdrant server: graph, quantisation, payload indexes, and the shard of each tenant.

Every search is filtered by tenant, so the payload index is made for it (`is_tenant` puts a tenant's points next to one
another, and the graph keeps edges within a tenant). Vectors are also kept as int8 in memory: the graph is walked by
int8, and twice the wanted number is compared again by float32.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from qdrant_client import models

from pentimento.domain.errors import InvalidArgument
from pentimento.stores.url_options import switch

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

    def vectors(self, dimension_count: int) -> dict[str, models.VectorParams]:
        """Return the named vectors of a point. The float32 ones stay on disk where there are quantised ones."""
        one = models.VectorParams(size=dimension_count, distance=models.Distance.COSINE, on_disk=self.quantised)
        return {"text": one, "image": one}

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
