"""ControlNets of a registry at an address of S3: over HTTP, into the component store, and from there to streams."""

import json
from dataclasses import replace
from pathlib import Path

import boto3
import pytest
import torch

from pentimento.diffusion.checkpoint import BadCheckpoint, digest_directory
from pentimento.diffusion.controlnets import ControlNet
from pentimento.diffusion.controlnets.unet_controlnet import UNetControlNet
from pentimento.domain.errors import FailedPrecondition, InvalidArgument
from pentimento.rpc import RpcChannelSettings, RpcServerSettings
from services.controlnet_svc.networks import shelved_networks
from services.controlnet_svc.settings import ControlNetSettings
from services.controlnet_svc.stored_networks import stored_networks
from tests.integration.controlnet_svc.conftest import EDGES, REGISTRY

LOCAL = REGISTRY.parent / EDGES
CPU = torch.device("cpu")


@pytest.fixture
def url(s3_endpoint: str, request: pytest.FixtureRequest) -> str:
    client = boto3.client("s3", endpoint_url=s3_endpoint, region_name="us-east-1")
    bucket = f"networks-{abs(hash(request.node.name)) % 10**12}"
    client.create_bucket(Bucket=bucket)
    for file in LOCAL.iterdir():
        client.put_object(Bucket=bucket, Key=f"edges/{file.name}", Body=file.read_bytes())
    return f"s3://{bucket}/edges?endpoint={s3_endpoint}"


def settings_of(folder: Path, url: str, *, digest: str = "", cached: bool = True) -> ControlNetSettings:
    (entry,) = (one for one in json.loads(REGISTRY.read_text())["models"] if one["name"] == EDGES)
    entry = {**entry, "path": url, "digest": digest or entry["digest"]}
    (registry := folder / "registry.json").write_text(json.dumps({"models": [entry]}))
    components = folder / "components" if cached else None
    return ControlNetSettings(
        RpcServerSettings(), RpcChannelSettings(), controlnets=registry, component_cache_dir=components
    )


def tensors_of(network: ControlNet) -> dict[str, torch.Tensor]:
    assert isinstance(network, UNetControlNet)
    return dict(network._embedder.state_dict()) | dict(network._forward._network.state_dict())  # type: ignore[attr-defined]


def test_network_of_an_address_loads_as_from_its_directory_and_again_after_eviction(url: str, tmp_path: Path) -> None:
    settings = settings_of(tmp_path, url)
    stored = stored_networks(settings)
    shelved = shelved_networks(stored.registered, CPU, torch.float32, held=stored.load)
    first = tensors_of(shelved[EDGES].load())
    blobs = list((tmp_path / "components" / "blobs").iterdir())
    for blob in blobs:
        blob.unlink()

    again = tensors_of(shelved[EDGES].load())

    local = shelved_networks({EDGES: replace(stored.registered[EDGES], directory=LOCAL)}, CPU, torch.float32)
    assert digest_directory(stored.registered[EDGES].directory) == settings.registered[EDGES].adapter.digest
    expected = tensors_of(local[EDGES].load())
    for name, tensor in expected.items():
        assert torch.equal(first[name], tensor) and torch.equal(again[name], tensor), name
    assert {blob.name for blob in blobs} == {one.name for one in (tmp_path / "components" / "blobs").iterdir()}


def test_address_with_another_digest_is_rejected(url: str, tmp_path: Path) -> None:
    with pytest.raises(FailedPrecondition) as raised:
        stored_networks(settings_of(tmp_path, url, digest=f"sha256:{'0' * 64}"))

    assert raised.value.reason == "MODEL_DIGEST_MISMATCH"


def test_address_without_weights_is_rejected(url: str, tmp_path: Path) -> None:
    with pytest.raises(BadCheckpoint, match="no safetensors files"):
        stored_networks(settings_of(tmp_path, url.replace("/edges?", "/nothing?")))


def test_address_needs_a_component_directory(url: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="component_cache_dir"):
        stored_networks(settings_of(tmp_path, url, cached=False))
