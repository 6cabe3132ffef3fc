"""Test the gateway on PostgreSQL, an S3-compatible store and a Qdrant with grouped tenants."""

from pathlib import Path

from lab.fixtures.postgresql import PostgresqlServer
from lab.fixtures.qdrant_double import running_qdrant_double
from pentimento.domain.generation import FromLatent, FromNoise
from tests.support.gateways import attempt, embedding, running_gateway, scope


async def test_entry_life_cycle_on_server_stores(
    tmp_path: Path, postgresql: PostgresqlServer, s3_endpoint: str
) -> None:
    objects_url = f"s3://pentimento/objects?endpoint={s3_endpoint}&create_bucket=true"
    flags = ("--ledger-url", postgresql.new_database(), "--objects-url", objects_url, "--max-entries", "1")
    async with running_gateway(tmp_path, *flags) as gateway:
        await gateway.store(embedding(1))
        await gateway.store(embedding(0, 1))
        grant = await gateway.client.reserve(scope(), attempt())
        assert grant is not None
        gateway.upload(grant)
        await gateway.client.release(grant.grant_id)
        gateway.maintain()

        start = (await gateway.lookup(embedding(0, 1))).start
        assert isinstance(start, FromLatent)
        assert gateway.process.stores.objects.get(start.latent) == gateway.uploaded[start.latent.key]
        assert (await gateway.lookup(embedding(1))).start == FromNoise()
        assert len(list(gateway.process.stores.objects.keys())) == 5
        assert gateway.problems() == []
        assert (await gateway.client.statistics()).object_backend == "s3"


async def test_evicted_entry_leaves_a_grouped_index_and_the_store(tmp_path: Path) -> None:
    tenants = [f"tenant-{number}" for number in range(6)]
    with running_qdrant_double() as (url, _):
        flags = ("--index-url", f"{url}?shard_groups=3", "--max-entries", "2")
        async with running_gateway(tmp_path, *flags) as gateway:
            entry_ids = [await gateway.store(embedding(1), scope(tenant)) for tenant in tenants]
            gateway.maintain()

            left = set(gateway.process.stores.index.entry_ids())
            assert len(left) == 2 and left < set(entry_ids)
            assert len(list(gateway.process.stores.objects.keys())) == 10
            assert gateway.problems() == []
