"""Test that another encoder replaces one without vectors for ten minutes, only in its own space."""

from pathlib import Path

import pytest

from pentimento.domain.cache import LookupCandidate
from pentimento.domain.embedding import Embedding, Space
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import FromImage, FromLatent, FromNoise
from services.vectordb_gateway.lookup.encoder import REPLACED_AFTER_S
from tests.integration.vectordb_gateway.test_two_encoders import IMAGES, ask, index, seen
from tests.support.gateways import RunningGateway, embedding, running_gateway, scope

__all__ = ["index"]
SIGLIP, OTHER_TEXTS = "sha256:siglip", "sha256:sentences"


class LateGuard:
    """Advance the clock of a gateway's encoder guard."""

    def __init__(self, gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch) -> None:
        guard = gateway.process.guard
        self.late_s, now = 0.0, guard._now
        monkeypatch.setattr(guard, "_now", lambda: now() + self.late_s)


def looks(*values: float) -> Embedding:
    """Return a vector of the new encoder of images, which has another size."""
    return seen(*values, count=5, encoder=SIGLIP)


async def test_unused_image_encoder_is_replaced_while_latents_are_found(
    tmp_path: Path, index: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_gateway(tmp_path, *IMAGES, *index) as gateway:
        clock = LateGuard(gateway, monkeypatch)
        old = await gateway.store(embedding(1), image=seen(1))
        clock.late_s = REPLACED_AFTER_S - 60
        with pytest.raises(InvalidArgument, match=r"image_embedding\.encoder_digest: must be sha256:clip"):
            await gateway.store(embedding(0, 1), image=looks(1))
        clock.late_s = REPLACED_AFTER_S + 1

        new = await gateway.store(embedding(0, 1), image=looks(1))
        latent = await ask(gateway, embedding(1), looks(1), images=False)
        image = await ask(gateway, embedding(1), looks(1), latents=False)
        gateway.maintain()
        after = await ask(gateway, embedding(1), looks(1), images=False)
        found = await gateway.client.neighbours(LookupCandidate(scope()), embedding(1), 5, image_query=looks(1))
        bound, problems = gateway.process.stores.ledger.binding(Space.IMAGE), gateway.problems()

    assert isinstance(latent.start, FromLatent) and latent.start.donor.entry_id == old
    assert isinstance(image.start, FromImage) and image.start.donor.entry_id == new
    assert after.start == latent.start
    assert [one.entry_id for one in found if one.by_image] == [new]
    assert bound is not None and (bound.encoder_digest, bound.dimension_count) == (SIGLIP, 5)
    assert problems == []


async def test_unused_text_encoder_is_replaced_with_its_entries(
    tmp_path: Path, index: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = seen(1, count=8, encoder=OTHER_TEXTS)
    async with running_gateway(tmp_path, *index) as gateway:
        clock = LateGuard(gateway, monkeypatch)
        await gateway.store(embedding(1))
        clock.late_s = REPLACED_AFTER_S + 1

        new = await gateway.store(other)
        found = await gateway.lookup(other)
        with pytest.raises(InvalidArgument, match=r"text_embedding\.encoder_digest: must be sha256:sentences"):
            await gateway.lookup(embedding(1))
        gateway.maintain()
        held, problems = list(gateway.process.stores.index.entry_ids()), gateway.problems()

    assert isinstance(found.start, FromLatent) and found.start.donor.entry_id == new
    assert (held, problems) == ([new], [])


async def test_encoder_in_use_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_gateway(tmp_path, *IMAGES) as gateway:
        clock = LateGuard(gateway, monkeypatch)
        await gateway.store(embedding(1), image=seen(1))
        clock.late_s = REPLACED_AFTER_S + 1
        await ask(gateway, embedding(1), seen(1))

        with pytest.raises(InvalidArgument, match="image_embedding"):
            await gateway.store(embedding(0, 1), image=looks(1))
        kept = await ask(gateway, embedding(0, 1), seen(1), latents=False)

    assert isinstance(kept.start, FromImage)


async def test_entry_without_image_embedding_is_not_found_by_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new encoder's vectors have the old one's size, so the index still has both."""
    async with running_gateway(tmp_path, *IMAGES) as gateway:
        clock = LateGuard(gateway, monkeypatch)
        await gateway.store(embedding(1), image=seen(1))
        clock.late_s = REPLACED_AFTER_S + 1
        monkeypatch.setattr(gateway.process.indexing, "index_new", lambda: None)

        await gateway.store(embedding(0, 1), image=seen(0, 1, encoder=SIGLIP))
        near = await ask(gateway, embedding(1), seen(1, 0.1, encoder=SIGLIP), latents=False)

    assert near.start == FromNoise()
