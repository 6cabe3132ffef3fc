"""Test the calls to a Qdrant server with a double: the collection's parameters, and a missing server."""

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from qdrant_client import AsyncQdrantClient, QdrantClient, models
from qdrant_client import grpc as wire

from lab.fixtures.qdrant_double import QdrantDouble, running_qdrant_double
from pentimento.domain.errors import InvalidArgument
from pentimento.stores.errors import SchemaMismatch, StoreUnavailable
from pentimento.stores.vectors import Space, VectorPoint, VectorQuery, open_vectors
from pentimento.stores.vectors.index import Dimensions
from pentimento.stores.vectors.qdrant import QdrantLayout, QdrantVectorIndex
from tests.contract.stores.test_index_rebuild import clustered, id_of
from tests.support.searches import search_now

VECTORS = clustered(40)


@pytest.fixture
def double() -> Iterator[tuple[str, QdrantDouble]]:
    with running_qdrant_double() as running:
        yield running


class OvertakenClient(QdrantClient):
    """Create everything after another gateway that started at the same time."""

    def create_collection(self, *given: Any, **named: Any) -> bool:
        super().create_collection(*given, **named)
        return super().create_collection(*given, **named)

    def create_shard_key(self, *given: Any, **named: Any) -> bool:
        super().create_shard_key(*given, **named)
        return super().create_shard_key(*given, **named)


def point(number: int, tenant: str) -> VectorPoint:
    return VectorPoint(id_of(number), tenant, ("k",), 1000.0, VECTORS[number].tobytes())


def test_absent_server_is_unavailable() -> None:
    index = open_vectors("qdrant://127.0.0.1:1?collection=test")

    with pytest.raises(StoreUnavailable, match="UNAVAILABLE"):
        index.prepare(8)

    index.close()


def test_making_the_client_connects_to_nothing() -> None:
    open_vectors("qdrant://nowhere.invalid:6334").close()


def test_the_collection_is_made_for_searches_that_filter_by_tenant(double: tuple[str, QdrantDouble]) -> None:
    url, server = double
    index = open_vectors(f"{url}?collection=c&replicas=2")
    index.prepare(32)
    index.close()

    made = server.collections["c"]
    assert (made.request.hnsw_config.m, made.request.hnsw_config.payload_m) == (16, 16)
    assert made.request.quantization_config.scalar.type == wire.Int8
    assert made.request.quantization_config.scalar.always_ram
    assert made.request.replication_factor == 2
    assert made.request.vectors_config.params_map.map["image"].on_disk
    assert made.indexed_fields["tenant"].keyword_index_params.is_tenant
    assert not made.indexed_fields["compatibility_key"].keyword_index_params.is_tenant


def test_without_quantisation_vectors_stay_in_memory(double: tuple[str, QdrantDouble]) -> None:
    url, server = double
    index = open_vectors(f"{url}?collection=c&quantised=false")
    index.prepare(32)
    index.close()

    made = server.collections["c"].request
    assert not made.HasField("quantization_config")
    assert not made.vectors_config.params_map.map["text"].on_disk


def test_a_collection_that_was_left_half_made_is_completed(double: tuple[str, QdrantDouble]) -> None:
    url, server = double
    host, _, port = url.removeprefix("qdrant://").partition(":")
    layout = QdrantLayout(groups_count=2)
    client = QdrantClient(host=host, grpc_port=int(port), prefer_grpc=True, check_compatibility=False)
    client.create_collection("c", layout.vectors(Dimensions(32, 32)), sharding_method=models.ShardingMethod.CUSTOM)
    client.create_shard_key("c", layout.shard_keys()[0])
    client.close()

    index = open_vectors(f"{url}?collection=c&shard_groups=2")
    index.prepare(32)
    index.prepare(32)
    index.close()

    assert set(server.collections["c"].shards) == set(layout.shard_keys())
    assert set(server.collections["c"].indexed_fields) == {"tenant", "compatibility_key"}


def test_collection_made_by_another_gateway_is_used(double: tuple[str, QdrantDouble]) -> None:
    url, server = double
    host, _, port = url.removeprefix("qdrant://").partition(":")
    layout = QdrantLayout(groups_count=2)
    client = OvertakenClient(host=host, grpc_port=int(port), prefer_grpc=True, check_compatibility=False)

    index = QdrantVectorIndex(client, AsyncQdrantClient, "c", layout)
    index.prepare(32)
    index.upsert([point(0, "t0")])
    index.close()

    assert set(server.collections["c"].shards) == set(layout.shard_keys())


def test_points_of_a_tenant_are_stored_and_searched_in_one_shard(double: tuple[str, QdrantDouble]) -> None:
    url, server = double
    index = open_vectors(f"{url}?collection=c&shard_groups=4")
    index.prepare(32)
    tenants = [f"t{number}" for number in range(8)]
    index.upsert([point(number, tenants[number % 8]) for number in range(40)])

    layout = QdrantLayout(groups_count=4)
    for key, shard in server.collections["c"].shards.items():
        of_group = [tenant for tenant in tenants if layout.shard_key_of(tenant) == key]
        assert shard.info().points_count == 5 * len(of_group)
    for number in range(8):
        query = VectorQuery(Space.TEXT, VECTORS[number].tobytes(), (tenants[number],), ("k",), 1)
        assert search_now(index, query)[0].entry_id == id_of(number)
    index.close()


def test_two_pools_of_different_groups_are_searched_together(double: tuple[str, QdrantDouble]) -> None:
    url, _ = double
    index = open_vectors(f"{url}?collection=c&shard_groups=4")
    index.prepare(32)
    index.upsert([point(number, f"t{number}") for number in range(8)])
    everybody = tuple(f"t{number}" for number in range(8))

    found = search_now(index, VectorQuery(Space.TEXT, VECTORS[0].tobytes(), everybody, ("k",), 8))

    assert {match.entry_id for match in found} == {id_of(number) for number in range(8)}
    assert [match.similarity for match in found] == sorted((match.similarity for match in found), reverse=True)
    index.close()


@pytest.mark.parametrize(("first", "second"), [("", "&shard_groups=2"), ("&shard_groups=2", "")])
def test_another_sharding_is_refused(double: tuple[str, QdrantDouble], first: str, second: str) -> None:
    url, _ = double
    index = open_vectors(f"{url}?collection=c{first}")
    index.prepare(32)
    index.close()

    other = open_vectors(f"{url}?collection=c{second}")
    with pytest.raises(SchemaMismatch):
        other.prepare(32)
    other.close()


def test_open_vectors_refuses_wrong_options() -> None:
    for options in ["shard_groups=x", "shard_groups=-1", "shard_groups=1025", "replicas=0", "x=y"]:
        with pytest.raises(InvalidArgument):
            open_vectors(f"qdrant://h:1?{options}")


def test_groups_are_the_same_in_every_process() -> None:
    layout = QdrantLayout(groups_count=16)

    # The expected value is a literal: another hash would search a tenant's points in another shard.
    assert [layout.shard_key_of(tenant) for tenant in ("a", "b", "*shared*")] == [
        "tenants-0010",
        "tenants-0010",
        "tenants-0003",
    ]


def test_double_refuses_unknown_calls(double: tuple[str, QdrantDouble]) -> None:
    url, _ = double
    channel = grpc.insecure_channel(url.removeprefix("qdrant://"))
    from qdrant_client.grpc.points_service_pb2_grpc import PointsStub

    with pytest.raises(grpc.RpcError, match="UNIMPLEMENTED"):
        PointsStub(channel).Recommend(wire.RecommendPoints(collection_name="c"))
    channel.close()
