"""What nobody has a claim to leaves the object store, on files and on S3; what somebody may still need stays."""

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
    # Several pages of several batches, without thousands of objects.
    monkeypatch.setattr(s3, "_PAGE_COUNT", PAGE_COUNT)
    monkeypatch.setattr(maintenance, "_BATCH_COUNT", BATCH_COUNT)
    if request.param == "filesystem":
        yield f"file://{tmp_path}/objects"
        return
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    with running_s3_server() as endpoint:
        yield f"s3://sweep/objects?endpoint={endpoint}&create_bucket=true"


async def test_orphans_are_swept_and_nothing_else_is(tmp_path: Path, objects_url: str) -> None:
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


async def test_foreign_files_keep_no_orphan(tmp_path: Path, objects_url: str) -> None:
    async with running_gateway(tmp_path, "--objects-url", objects_url) as gateway:
        objects, cache_id = gateway.process.stores.objects, gateway.process.stores.ledger.cache_id
        for number in range(PAGE_COUNT):
            objects.put(f"cache/{cache_id}/orphan{number}", b"latent", durable=False)
        leave_something_foreign(objects, tmp_path, cache_id)

        gateway.maintain()

        assert list(objects.keys()) == []


def leave_something_foreign(objects: ObjectStore, directory: Path, cache_id: str) -> None:
    """A name below the cache's own that is no key, as of a folder that a console makes or an editor's copy."""
    if isinstance(objects, s3.S3ObjectStore):
        objects._client.put_object(**objects._place(f"cache/{cache_id}/"), Body=b"")
        return
    first = next(path for path in (directory / "objects" / "objects").rglob("*orphan*"))
    first.with_name(f"cache.{cache_id}.0~").write_bytes(b"")


async def test_uploads_of_an_expired_grant_are_swept(tmp_path: Path, objects_url: str) -> None:
    async with running_gateway(tmp_path, "--objects-url", objects_url, "--grant-ttl-s", "0.1") as gateway:
        grant = await gateway.client.reserve(scope(), attempt())
        assert grant is not None
        gateway.upload(grant)
        while gateway.process.stores.ledger.totals().open_grant_count:
            gateway.maintain()
        late = gateway.upload(grant)

        gateway.maintain()

        assert late.latents
        assert list(gateway.process.stores.objects.keys()) == []


async def test_uploads_of_dead_writers_are_swept(
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
    """Leave what a writer leaves that is killed on its way."""
    if isinstance(objects, s3.S3ObjectStore):
        objects._client.create_multipart_upload(**objects._place("cache/large"))
    else:
        (directory / "objects" / "staging" / "unfinished").write_bytes(b"half of")
