"""Test sweeps on files and on S3: orphans are deleted, and objects in use stay."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.fixtures.s3_server import running_s3_server
from pentimento.domain.generation import FromLatent
from pentimento.stores.objects import ObjectStore, s3
from services.vectordb_gateway.upkeep import maintenance
from tests.support.gateways import attempt, embedding, running_gateway, scope

PAGE_COUNT, BATCH_COUNT = 10, 4


@pytest.fixture(params=["filesystem", pytest.param("s3", marks=pytest.mark.server)])
def objects_url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    # Make pages and batches small, so that few objects fill several.
    monkeypatch.setattr(s3, "_PAGE_COUNT", PAGE_COUNT)
    monkeypatch.setattr(maintenance, "_BATCH_COUNT", BATCH_COUNT)
    if request.param == "filesystem":
        yield f"file://{tmp_path}/objects"
        return
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    with running_s3_server() as endpoint:
        yield f"s3://sweep/objects?endpoint={endpoint}&create_bucket=true"


async def test_sweep_deletes_only_orphans(tmp_path: Path, objects_url: str) -> None:
    async with running_gateway(tmp_path, "--objects-url", objects_url) as gateway:
        objects, cache_id = gateway.process.stores.objects, gateway.process.stores.ledger.cache_id
        await gateway.store(embedding(1))
        grant = await gateway.client.reserve(scope(), attempt())
        assert grant is not None
        uploading = gateway.upload(grant)
        for number in range(3 * PAGE_COUNT):
            objects.put(f"cache/{cache_id}/orphan{number}", b"latent", durable=False)
        others = {"results/picture", "cache/another/latent"}
        for key in others:
            objects.put(key, b"not this cache's")

        gateway.maintain()

        left = set(objects.keys())
        assert not [key for key in left if "orphan" in key]
        assert others | {latent.object.key for latent in uploading.latents} <= left
        assert isinstance((await gateway.lookup(embedding(1))).start, FromLatent)
        assert gateway.problems() == []


async def test_sweep_with_foreign_file_deletes_orphans(tmp_path: Path, objects_url: str) -> None:
    async with running_gateway(tmp_path, "--objects-url", objects_url) as gateway:
        objects, cache_id = gateway.process.stores.objects, gateway.process.stores.ledger.cache_id
        for number in range(PAGE_COUNT):
            objects.put(f"cache/{cache_id}/orphan{number}", b"latent", durable=False)
        create_foreign_file(objects, tmp_path, cache_id)

        gateway.maintain()

        assert list(objects.keys()) == []


def create_foreign_file(objects: ObjectStore, directory: Path, cache_id: str) -> None:
    """Create a name below the cache's prefix that is no key: a console's folder, or an editor's backup file."""
    if isinstance(objects, s3.S3ObjectStore):
        objects._client.put_object(**objects._place(f"cache/{cache_id}/"), Body=b"")
        return
    first = next(path for path in (directory / "objects" / "objects").rglob("*orphan*"))
    first.with_name(f"cache.{cache_id}.0~").write_bytes(b"")


async def test_sweep_deletes_uploads_of_expired_grant(tmp_path: Path, objects_url: str) -> None:
    async with running_gateway(tmp_path, "--objects-url", objects_url, grant_ttl_s=0.1) as gateway:
        grant = await gateway.client.reserve(scope(), attempt())
        assert grant is not None
        gateway.upload(grant)
        while gateway.process.stores.ledger.totals().open_grant_count:
            gateway.maintain()
        late = gateway.upload(grant)

        gateway.maintain()

        assert late.latents
        assert list(gateway.process.stores.objects.keys()) == []


async def test_sweep_deletes_uploads_of_killed_writer(
    tmp_path: Path, objects_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "UNFINISHED_UPLOAD_S", 60.0)
    async with running_gateway(tmp_path, "--objects-url", objects_url) as gateway:
        await gateway.store(embedding(1))
        begin_upload(gateway.process.stores.objects, tmp_path)
        begun = gateway.problems()

        gateway.maintain()

        assert [problem.split()[:2] for problem in begun] in ([["unfinished", "upload"]], [["abandoned", "upload"]])
        assert gateway.problems() == []
        assert isinstance((await gateway.lookup(embedding(1))).start, FromLatent)


def begin_upload(objects: ObjectStore, directory: Path) -> None:
    """Leave an unfinished upload, like a killed writer."""
    if isinstance(objects, s3.S3ObjectStore):
        objects._client.create_multipart_upload(**objects._place("cache/large"))
    else:
        (directory / "objects" / "staging" / "unfinished").write_bytes(b"half of")
