"""Spoil objects in every way, on files and on S3: lookups then miss, wrong bytes are never read, and no reference
dangles."""

from collections.abc import Callable
from pathlib import Path

import pytest

from lab.fixtures.frontdoor_suite import until
from pentimento.domain.generation import FromNoise, ObjectReference
from pentimento.stores.errors import ObjectCorrupt, ObjectMissing
from pentimento.stores.objects import ObjectStore
from tests.support.gateways import RunningGateway, embedding, image_thresholds, running_gateway

SPOILT: dict[str, Callable[[bytes], bytes | None]] = {
    "gone": lambda sound: None,
    "empty": lambda sound: b"",
    "torn": lambda sound: sound[:-1],
    "grown": lambda sound: sound + b"x",
    "one bit": lambda sound: bytes([sound[0] ^ 1]) + sound[1:],
}


FLAGS = image_thresholds("0.9:0.1")


@pytest.fixture(params=["filesystem", pytest.param("s3", marks=pytest.mark.server)])
def objects_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "filesystem":
        return f"file://{tmp_path}/objects"
    endpoint = request.getfixturevalue("s3_endpoint")
    return f"s3://spoilt/objects?endpoint={endpoint}&create_bucket=true"


@pytest.mark.parametrize("kind", ["latent", "image"])
async def test_corrupt_object_takes_its_entry_away(tmp_path: Path, objects_url: str, kind: str) -> None:
    async with running_gateway(tmp_path, "--objects-url", objects_url, *FLAGS, quarantine_s=0.01) as gateway:
        objects = gateway.process.stores.objects
        texts = [embedding(*([0] * number), 1) for number in range(len(SPOILT) + 1)]
        ids = [await gateway.store(text, image=text) for text in texts]
        for entry_id, spoil in zip(ids[1:], SPOILT.values(), strict=True):
            reference = object_of(gateway, entry_id, kind)
            spoil_object(objects, reference, spoil)
            with pytest.raises((ObjectMissing, ObjectCorrupt)):
                objects.get(reference)

            await gateway.client.report_bad_object(entry_id, reference.key, "as a worker found it")

        await until(lambda: live_count(gateway, ids) == 1)
        gateway.maintain()
        found = [(await gateway.lookup(text)).start for text in texts]
        assert found[0] != FromNoise()
        assert found[1:] == [FromNoise()] * len(SPOILT)
        assert gateway.problems() == []
        assert (await gateway.client.statistics()).entry_count == 1


def live_count(gateway: RunningGateway, entry_ids: list[str]) -> int:
    """Return how many of the entries are live after a round of maintenance."""
    gateway.maintain()
    return len(gateway.process.stores.ledger.live_entries(entry_ids))


def object_of(gateway: RunningGateway, entry_id: str, kind: str) -> ObjectReference:
    entry = gateway.process.stores.ledger.live_entry(entry_id)
    assert entry is not None
    assert entry.image is not None
    return entry.image if kind == "image" else entry.latents[0].object


def spoil_object(objects: ObjectStore, reference: ObjectReference, spoil: Callable[[bytes], bytes | None]) -> None:
    data = spoil(objects.get(reference))
    if data is None:
        objects.delete(reference.key)
    else:
        objects.put(reference.key, data)
