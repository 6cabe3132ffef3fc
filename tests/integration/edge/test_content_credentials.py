"""Test that images carry a signed C2PA manifest from the frontdoor, the edge and the store."""

import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path

import c2pa
import httpx
import pytest
from PIL import Image

from lab.fixtures import paced_worker
from lab.fixtures.edge_suite import running_edge
from lab.fixtures.frontdoor_suite import REQUEST, running_suite
from lab.fixtures.paced_worker import PacedWorker
from pentimento.domain.generation import GenerationSpec
from pentimento.domain.image_request import ReplayRequest
from pentimento.settings import SettingsError
from pentimento.stores.objects.store import digest_of
from tests.support.calls import last_completed
from tests.support.signing_certificates import ContentAuthority


def generated(spec: GenerationSpec) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (spec.width_px, spec.height_px), (spec.seed % 256, 40, 40)).save(buffer, "png")
    return buffer.getvalue()


@pytest.fixture(autouse=True)
def real_images(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The paced worker's own images have no real format."""
    monkeypatch.setattr(paced_worker, "image_of", generated)
    yield


def manifest_of(data: bytes) -> dict[str, object]:
    """Return the manifest of an image that verifies."""
    settings = c2pa.Settings.from_dict({"verify": {"ocsp_fetch": False, "remote_manifest_fetch": False}})
    with c2pa.Reader("image/png", io.BytesIO(data), context=c2pa.Context(settings)) as reader:
        assert reader.get_validation_state() == "Valid"
        document = json.loads(reader.json())
        found: dict[str, object] = document["manifests"][document["active_manifest"]]
        return found


async def test_image_is_signed_at_frontdoor_edge_and_store_and_replays_equal(folder: Path, worker: PacedWorker) -> None:
    async with (
        running_suite(folder, c2pa_certificate_file=ContentAuthority().issue(folder)) as suite,
        running_edge(folder, f"unix:{folder / 'f'}") as edge,
        httpx.AsyncClient(base_url=f"http://{edge.listener.address}", timeout=60.0) as http,
    ):
        completed = await suite.paint()
        replayed = await last_completed(suite.client.replay(ReplayRequest(completed.request_id)))
        body = {"prompt": "a red circle", "seed": 1, "num_inference_steps": 3, "provenance": True}
        answer = (await http.post("/v1/images/generations", json=body)).raise_for_status().json()["data"][0]
        status = await suite.client.get_request(completed.request_id)
        stored = [path.read_bytes() for path in (folder / "objects").rglob("results.*")]

    over_http = base64.b64decode(answer["b64_json"])
    assert manifest_of(completed.image)["title"] == f"{completed.request_id}.png"
    assert manifest_of(over_http)["title"] == f"{answer['provenance']['request_id']}.png"
    assert status.completed == completed
    assert sorted(stored) == sorted([completed.image, replayed.image, over_http])
    # The signatures differ, the images are equal.
    assert replayed.image != completed.image and replayed.provenance.replay_equal
    unsigned = digest_of(generated(worker.executed[0]))
    assert {completed.provenance.unsigned_digest, replayed.provenance.unsigned_digest} == {unsigned}


async def test_certificate_without_key_is_rejected(folder: Path, worker: PacedWorker) -> None:
    certificate = folder / "chain.pem"
    certificate.write_bytes(ContentAuthority().parts()[0])
    with pytest.raises(SettingsError, match=r"--c2pa-certificate-file .*: must have one private key"):
        async with running_suite(folder, c2pa_certificate_file=certificate):
            pass
    async with running_suite(folder) as suite:
        completed = await suite.paint(REQUEST)
    assert completed.provenance.unsigned_digest == "" and b"caBX" not in completed.image
