"""Test workers with models from a bucket: S3 over HTTP, the component store on a disk, real checkpoints."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
import pytest
from safetensors.torch import load_file, save_file

from pentimento.diffusion.allow_list import check_checkpoint
from pentimento.diffusion.checkpoint import BadCheckpoint, digest_checkpoint
from pentimento.domain.errors import FailedPrecondition, NotFound
from pentimento.files.file_sums import CorruptComponent
from pentimento.rpc import RpcChannelSettings, RpcServerSettings
from pentimento.stores.errors import StoreFull, StoreUnavailable
from services.unet_worker.describe import described
from services.unet_worker.models.stored_models import StoredModels, with_stored
from services.unet_worker.settings import DescribeSettings, SkipMissing, UnetWorkerSettings
from tests.integration.unet_worker.conftest import serve
from tests.integration.unet_worker.requests import execute
from tests.integration.unet_worker.test_switching import credits_where, generate
from tests.support.calls import result_of


class Bucket:
    """Create a bucket with the files of a checkpoint below `models/tiny`."""

    def __init__(self, endpoint: str, name: str) -> None:
        self.client: Any = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
        self.client.create_bucket(Bucket=name)
        self.name = name
        self._query = f"?endpoint={endpoint}"

    def url(self, path: str = "models/tiny") -> str:
        return f"s3://{self.name}/{path}{self._query}"

    def put(self, checkpoint: Path, path: str = "models/tiny") -> str:
        for file in checkpoint.rglob("*"):
            if file.is_file():
                key = f"{path}/{file.relative_to(checkpoint).as_posix()}"
                self.client.put_object(Bucket=self.name, Key=key, Body=file.read_bytes())
        return self.url(path)


@pytest.fixture
def bucket(s3_endpoint: str, request: pytest.FixtureRequest) -> Iterator[Bucket]:
    yield Bucket(s3_endpoint, f"bucket-{abs(hash(request.node.name)) % 10**12}")


def settings_of(directory: Path, model: str = "tiny", **changed: Any) -> UnetWorkerSettings:
    kept = {"component_cache_dir": directory / "components", "objects_url": f"file://{directory}/objects"}
    rpc = RpcServerSettings(listen=(f"unix:{directory}/w",))
    return UnetWorkerSettings(rpc, RpcChannelSettings(), Path(model), **{**kept, **changed})


def digest_of(checkpoint: Path) -> str:
    return digest_checkpoint(check_checkpoint(checkpoint)).model


def blobs(directory: Path) -> set[str]:
    return {path.name for path in (directory / "components" / "blobs").iterdir()}


def partial_files(directory: Path) -> list[Path]:
    return list((directory / "components" / "partial").iterdir())


async def found(directory: Path, sources: dict[str, str], **changed: Any) -> tuple[UnetWorkerSettings, StoredModels]:
    given = tuple(Path(f"{name}={source}") for name, source in sources.items())
    return await with_stored(settings_of(directory, other_models=given, **changed))


async def test_worker_of_a_bucket_generates_as_from_the_directory(
    bucket: Bucket, checkpoint: Path, directory: Path
) -> None:
    source = f"{bucket.put(checkpoint)}@{digest_of(checkpoint)}"
    async with serve(checkpoint, directory) as worker:
        local = await result_of(execute(worker))

    settings, stored = await with_stored(settings_of(directory, f"tiny={source}"))
    kept = {"component_cache_dir": settings.component_cache_dir}
    async with serve(settings.model, directory, stored, **kept) as worker:
        fetched = await result_of(execute(worker))

    assert (fetched.model_digest, fetched.image) == (local.model_digest, local.image)
    assert partial_files(directory) == []


async def test_plan_switches_to_a_model_that_is_then_fetched(
    bucket: Bucket, checkpoint: Path, directory: Path, tmp_path: Path
) -> None:
    other = with_other_weights(checkpoint, tmp_path / "other")
    sources = {
        "tiny": f"{bucket.put(checkpoint)}@{digest_of(checkpoint)}",
        "other": f"{bucket.put(other, 'models/other')}@{digest_of(other)}",
    }
    settings, stored = await found(directory, sources)
    model = stored.models[Path(str(settings.other_models[0]).partition("@")[0])]
    weights = next(file for file in model.files if file.path == "unet/diffusion_pytorch_model.safetensors")
    (directory / "components" / "blobs" / weights.sha256).unlink()
    kept = {"component_cache_dir": settings.component_cache_dir, "other_models": settings.other_models}

    async with serve(settings.model, directory, stored, **kept) as worker:
        worker.switch.assign("other", 8)
        await credits_where(worker, served=True, model="other")
        generated = await generate(worker, "request-other")

    assert generated.model_digest == digest_of(other)
    assert weights.sha256 in blobs(directory)


def with_other_weights(checkpoint: Path, target: Path) -> Path:
    """Write a checkpoint with one different tensor in its UNet."""
    for file in checkpoint.rglob("*"):
        if file.is_file():
            (target / file.relative_to(checkpoint)).parent.mkdir(parents=True, exist_ok=True)
            (target / file.relative_to(checkpoint)).write_bytes(file.read_bytes())
    path = target / "unet" / "diffusion_pytorch_model.safetensors"
    tensors = load_file(path)
    first = min(tensors)
    save_file({**tensors, first: tensors[first] + 0.5}, path, metadata={"format": "pt"})
    return target


def test_described_address_has_the_digest_of_its_directory(bucket: Bucket, checkpoint: Path, directory: Path) -> None:
    url = bucket.put(checkpoint)
    bucket.client.put_object(Bucket=bucket.name, Key="models/tiny/unet/weights.bin", Body=b"a pickle")
    bucket.client.put_object(Bucket=bucket.name, Key="models/tiny/sample.safetensors", Body=b"another file")

    variant = described(DescribeSettings(url, component_cache_dir=directory / "components", name="mine"))

    local = described(DescribeSettings(str(checkpoint), name="mine"))
    assert (variant.digest, variant.family, variant.default_steps) == (local.digest, local.family, local.default_steps)
    assert {file.path: file.blocks for file in variant.files} == {file.path: file.blocks for file in local.files}
    assert variant.source == url


async def test_second_start_reads_nothing_from_the_bucket(bucket: Bucket, checkpoint: Path, directory: Path) -> None:
    source = f"{bucket.put(checkpoint)}@{digest_of(checkpoint)}"
    await found(directory, {"tiny": source})
    address = urlsplit(source)
    away = source.replace(address.query.partition("@")[0], "endpoint=http://127.0.0.1:9")

    settings, _ = await found(directory, {"tiny": away})

    assert digest_of(settings.model) == digest_of(checkpoint)


def without_index(bucket: Bucket) -> None:
    bucket.client.delete_object(Bucket=bucket.name, Key="models/tiny/model_index.json")


def with_pickles(bucket: Bucket) -> None:
    for page in bucket.client.get_paginator("list_objects_v2").paginate(Bucket=bucket.name):
        for key in [found["Key"] for found in page["Contents"] if found["Key"].endswith(".safetensors")]:
            bucket.client.copy_object(
                Bucket=bucket.name, Key=f"{key}.bin", CopySource={"Bucket": bucket.name, "Key": key}
            )
            bucket.client.delete_object(Bucket=bucket.name, Key=key)


def of_another_family(bucket: Bucket) -> None:
    index = b'{"_class_name": "KandinskyPipeline"}'
    bucket.client.put_object(Bucket=bucket.name, Key="models/tiny/model_index.json", Body=index)


def without_vae(bucket: Bucket) -> None:
    for name in ("config.json", "diffusion_pytorch_model.safetensors"):
        bucket.client.delete_object(Bucket=bucket.name, Key=f"models/tiny/vae/{name}")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without_index, "there is no model_index.json"),
        (with_pickles, "no safetensors files"),
        (of_another_family, "KandinskyPipeline"),
        (without_vae, "vae"),
    ],
)
def test_address_without_a_model_is_rejected(
    bucket: Bucket, checkpoint: Path, directory: Path, change: Any, words: str
) -> None:
    url = bucket.put(checkpoint)
    change(bucket)

    with pytest.raises(BadCheckpoint, match=words):
        described(DescribeSettings(url, component_cache_dir=directory / "components"))


async def test_address_with_another_digest_is_rejected(bucket: Bucket, checkpoint: Path, directory: Path) -> None:
    source = f"{bucket.put(checkpoint)}@sha256:{'0' * 64}"

    with pytest.raises(FailedPrecondition, match=digest_of(checkpoint)) as raised:
        await found(directory, {"tiny": source})

    assert raised.value.reason == "MODEL_DIGEST_MISMATCH"


async def test_address_that_changes_under_its_digest_is_rejected_when_it_is_fetched_again(
    bucket: Bucket, checkpoint: Path, directory: Path
) -> None:
    url = bucket.put(checkpoint)
    settings, stored = await found(directory, {"tiny": f"{url}@{digest_of(checkpoint)}"})
    key = "unet/diffusion_pytorch_model.safetensors"
    weights = (checkpoint / key).read_bytes()
    (settings.model / key).resolve().unlink()
    bucket.client.put_object(Bucket=bucket.name, Key=f"models/tiny/{key}", Body=weights[:-1] + b"?")

    with pytest.raises(CorruptComponent, match=rf"s3://{bucket.name}/models/tiny"):
        stored.load(lambda settings: None, settings)

    bucket.client.put_object(Bucket=bucket.name, Key=f"models/tiny/{key}", Body=weights)
    assert stored.load(lambda settings: digest_of(settings.model), settings) == digest_of(checkpoint)


async def test_model_beyond_the_disk_is_rejected_before_its_weights_are_fetched(
    bucket: Bucket, checkpoint: Path, directory: Path, tmp_path: Path
) -> None:
    large = with_other_weights(checkpoint, tmp_path / "large")
    path = large / "unet" / "diffusion_pytorch_model.safetensors"
    save_file(load_file(path) | {"padding": load_file(path)[min(load_file(path))].new_zeros(2**19)}, path)
    url = bucket.put(large)

    with pytest.raises(StoreFull, match="the local disk"):
        await found(directory, {"tiny": f"{url}@{digest_of(large)}"}, component_disk_mib=1)

    assert len(blobs(directory)) == 1


async def test_store_that_is_away_stops_the_start_and_a_missing_model_may_be_left_out(directory: Path) -> None:
    source = f"s3://bucket/tiny?endpoint=http://127.0.0.1:9@sha256:{'0' * 64}"
    with pytest.raises(StoreUnavailable):
        await found(directory, {"tiny": source})

    settings, stored = await found(directory, {"tiny": source}, skip_missing=SkipMissing.ALL)

    assert (settings.missing, dict(stored.models)) == (f"no such file or directory: {Path('tiny')}", {})


async def test_name_that_no_source_has_is_rejected(directory: Path) -> None:
    with pytest.raises(NotFound, match="tiny"):
        await found(directory, {"other": f"s3://bucket/tiny@sha256:{'0' * 64}"})


def test_processes_of_a_host_fetch_a_model_once(bucket: Bucket, checkpoint: Path, directory: Path) -> None:
    """Run real processes that start together, and one that is killed while it fetches."""
    url = bucket.put(checkpoint)
    command = [sys.executable, "-m", "services.unet_worker.describe", "--model", url, "--name", "tiny"]
    command += ["--component-cache-dir", str(directory / "components")]
    killed = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    threading.Timer(1.0, killed.kill).start()
    done: list[subprocess.CompletedProcess[str]] = []
    run = partial(subprocess.run, command, capture_output=True, text=True, check=False)
    threads = [threading.Thread(target=lambda: done.append(run())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    killed.communicate()

    assert [one.returncode for one in done] == [0, 0], [one.stderr for one in done]
    assert digest_of(checkpoint) in done[0].stdout
    assert done[0].stdout == done[1].stdout
    assert partial_files(directory) == []
