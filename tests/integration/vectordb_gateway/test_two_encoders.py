"""Test a gateway with one encoder for texts and one for images, on the embedded index and on a Qdrant server's
engine."""

import logging
import shutil
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lab.fixtures.qdrant_double import running_qdrant_double
from pentimento.domain.cache import CandidateStart, LookupCandidate
from pentimento.domain.embedding import Embedding, Space
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import FromImage, FromLatent, FromNoise
from pentimento.domain.online_quality import ComparedHit
from pentimento.profiles.document import ReuseKind, profiles_to_json
from tests.support.gateways import (
    RunningGateway,
    attempt,
    embedding,
    image_thresholds,
    running_gateway,
    scope,
)
from tests.support.profiles import changed, reuse_step
from tests.unit.vectordb_gateway.test_lookup_profiles import PROFILE

CLIP = "sha256:clip"
IMAGES = image_thresholds("0.3:0.4")


def seen(*values: float, count: int = 4, encoder: str = CLIP) -> Embedding:
    """Return a vector of the encoder of images, in the direction of `values`."""
    padded = [*values, *([0.0] * (count - len(values)))]
    length = sum(value * value for value in padded) ** 0.5
    return Embedding(struct.pack(f"<{count}f", *(value / length for value in padded)), count, encoder)


@pytest.fixture(params=["edge", "qdrant"])
def index(request: pytest.FixtureRequest) -> Iterator[tuple[str, ...]]:
    """Return the flags of an index."""
    if request.param == "edge":
        yield ()
        return
    with running_qdrant_double() as (url, _):
        yield ("--index-url", url)


async def ask(
    gateway: RunningGateway, text: Embedding, image: Embedding | None, *, latents: bool = True, images: bool = True
) -> CandidateStart:
    asked = [LookupCandidate(scope(), latents, images)]
    return (await gateway.client.lookup(asked, text, image_query=image)).starts[0]


async def test_latents_are_found_by_texts_and_images_by_their_own_encoder(
    tmp_path: Path, index: tuple[str, ...]
) -> None:
    async with running_gateway(tmp_path, *IMAGES, *index) as gateway:
        red = await gateway.store(embedding(1), image=seen(0, 1))
        blue = await gateway.store(embedding(0, 1), image=seen(1))

        latent = await ask(gateway, embedding(1, 0.1), seen(1), images=False)
        image = await ask(gateway, embedding(1, 0.1), seen(1, 0.1), latents=False)
        near = await gateway.client.neighbours(LookupCandidate(scope()), embedding(1), 1, image_query=seen(1))
        problems = gateway.problems()

    assert isinstance(latent.start, FromLatent) and latent.start.donor.entry_id == red
    assert isinstance(image.start, FromImage) and image.start.donor.entry_id == blue
    assert image.start.donor.similarity == pytest.approx(1 / 1.01**0.5, abs=1e-5)
    assert [(one.entry_id, one.by_image) for one in near] == [(red, False), (blue, True)]
    assert problems == []


async def test_first_image_of_another_encoder_keeps_the_latents(tmp_path: Path, index: tuple[str, ...]) -> None:
    async with running_gateway(tmp_path, *IMAGES, *index) as gateway:
        stored = [await gateway.store(embedding(1)), await gateway.store(embedding(0, 1))]
        last = await gateway.store(embedding(0, 0, 1), image=seen(1))

        meanwhile = await ask(gateway, embedding(1), seen(1), images=False)
        first_image = await ask(gateway, embedding(1), seen(1), latents=False)
        gateway.maintain()
        after = await ask(gateway, embedding(0, 1), seen(1), images=False)
        held, problems = set(gateway.process.stores.index.entry_ids()), gateway.problems()
    async with running_gateway(tmp_path, *IMAGES, *index) as gateway:
        again = await ask(gateway, embedding(0, 1), seen(1), images=False)

    assert isinstance(meanwhile.start, FromLatent) and meanwhile.start.donor.entry_id == stored[0]
    assert isinstance(first_image.start, FromImage) and first_image.start.donor.entry_id == last
    assert isinstance(after.start, FromLatent) and after.start.donor.entry_id == stored[1]
    assert (held, problems) == ({*stored, last}, [])
    assert again.start == after.start


async def test_lookup_without_image_vector_finds_only_latents(gateway: RunningGateway) -> None:
    await gateway.store(embedding(1), image=seen(1))

    latent = await ask(gateway, embedding(1), None)
    near = await gateway.client.neighbours(LookupCandidate(scope()), embedding(1), 5)

    assert isinstance(latent.start, FromLatent)
    assert [one.by_image for one in near] == [False]


async def test_image_query_of_another_encoder_costs_images_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_gateway(tmp_path, *IMAGES) as gateway:
        await gateway.store(embedding(1), image=seen(1))
        with caplog.at_level(logging.WARNING):
            other = [await ask(gateway, embedding(1), seen(1, encoder="sha256:siglip")) for _ in range(2)]
            missed = await ask(gateway, embedding(0, 1), seen(1, encoder="sha256:siglip"), latents=False)

    assert all(isinstance(one.start, FromLatent) for one in other)
    assert missed.start == FromNoise()
    assert missed.reason.endswith("images have another encoder, which did not embed the prompt")
    assert [record.args for record in caplog.records if "siglip" in record.getMessage()] == [
        ("image", CLIP, "sha256:siglip")
    ]


BAD_QUERIES: list[tuple[str, Embedding]] = [
    (r"image_query\.dimension_count: must be 4, got 5", seen(1, count=5)),
    (r"image_query\.encoder_digest: must not be empty", replace(seen(1), encoder_digest="")),
    (r"image_query\.values: must be finite", Embedding(struct.pack("<4f", 0, 0, 0, 0), 4, CLIP)),
]


@pytest.mark.parametrize(("said", "image"), BAD_QUERIES, ids=[said for said, _ in BAD_QUERIES])
async def test_bad_image_query_is_refused_by_name(gateway: RunningGateway, said: str, image: Embedding) -> None:
    await gateway.store(embedding(1), image=seen(1))

    with pytest.raises(InvalidArgument, match=said):
        await ask(gateway, embedding(1), image)

    assert isinstance((await ask(gateway, embedding(1), seen(1))).start, FromLatent)


@pytest.mark.parametrize(
    ("said", "text", "image"),
    [
        (r"image_embedding\.encoder_digest: must be sha256:clip", embedding(1), seen(1, encoder="sha256:siglip")),
        (r"image_embedding\.dimension_count: must be 4, got 8", embedding(1), seen(1, count=8)),
        (r"text_embedding\.encoder_digest: must be sha256:encoder", seen(1), seen(1)),
    ],
)
async def test_commit_of_another_encoder_is_refused_by_name(
    gateway: RunningGateway, said: str, text: Embedding, image: Embedding
) -> None:
    await gateway.store(embedding(1), image=seen(1))
    by = attempt()
    grant = await gateway.client.reserve(scope(), by)
    assert grant is not None
    captured = gateway.upload(grant)

    with pytest.raises(InvalidArgument, match=said):
        await gateway.client.commit(scope(), by, captured, text, image)

    assert (await gateway.client.statistics()).entry_count == 1
    assert gateway.process.stores.ledger.binding(Space.IMAGE) is not None


async def test_each_kind_is_reused_by_profile_of_its_own_encoder(tmp_path: Path) -> None:
    images = changed(
        PROFILE,
        start=ReuseKind.IMAGES,
        encoder="clip",
        encoder_digest=CLIP,
        rows=(reuse_step(20, 80, 0.9, 0.6, 0.5),),
    )
    # Their similarities are those of the other encoder, so they permit no reuse.
    swapped = (
        changed(PROFILE, encoder="clip", encoder_digest=CLIP, rows=(reuse_step(5, 80, 0.1, 0.1, 0.1),)),
        changed(images, encoder="encoder", encoder_digest="sha256:encoder", rows=(reuse_step(20, 80, 0.1, 0.1, 0.1),)),
    )
    path = tmp_path / "profiles.json"
    path.write_text(profiles_to_json(PROFILE, images, *swapped))
    async with running_gateway(tmp_path, "--profiles", str(path)) as gateway:
        await gateway.store(embedding(1), steps=(5,), image=seen(1))
        latents = [await ask(gateway, embedding(1, far), seen(0, 1), images=False) for far in (0.5, 1.0)]
        found = [await ask(gateway, embedding(0, 1), seen(1, far), latents=False) for far in (1.0, 2.0)]
        hit = ComparedHit(
            request_id="r1",
            model_digest=scope().model_digest,
            reference_model_digest=PROFILE.of.reference_digest,
            encoder_digest="sha256:encoder",
            from_image=False,
            skipped_steps=5,
            step_count=50,
            similarity=0.9,
            quality=0.3,
            scratch_quality=0.3,
        )
        image_hit = replace(hit, request_id="r2", encoder_digest=CLIP, from_image=True, skipped_steps=20)
        counted = [await gateway.client.report_quality(one) for one in (hit, image_hit)]
        with pytest.raises(InvalidArgument, match="encoder_digest: must be that of the cache's encoder of images"):
            await gateway.client.report_quality(replace(image_hit, encoder_digest="sha256:encoder"))
        rows = await gateway.client.reuse_quality(scope().model_digest)

    assert [type(one.start) for one in latents] == [FromLatent, FromNoise]
    assert [type(one.start) for one in found] == [FromImage, FromNoise]
    assert counted == [True, True]
    assert [(row.from_image, row.achieved is not None) for row in rows] == [(False, True), (True, True)]


async def test_deleted_index_is_filled_from_the_ledger_with_dimensions_of_both_encoders(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, *IMAGES) as gateway:
        stored = await gateway.store(embedding(1), image=seen(1))
    shutil.rmtree(tmp_path / "index")

    async with running_gateway(tmp_path, *IMAGES) as gateway:
        image = await ask(gateway, embedding(0, 1), seen(1), latents=False)
        problems = gateway.problems()
    assert isinstance(image.start, FromImage) and image.start.donor.entry_id == stored
    assert problems == []
