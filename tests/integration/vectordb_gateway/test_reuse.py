"""What is stored is found, by those who may, as far as the thresholds go."""

from dataclasses import fields, replace
from pathlib import Path

import pytest

from pentimento.domain.cache import CacheScope
from pentimento.domain.generation import FromImage, FromLatent, FromNoise, NoiseForm
from tests.gateways import RunningGateway, at_similarity, attempt, embedding, running_gateway, scope

# Another value for every field of a scope that changes the picture.
OTHERS: dict[str, object] = {
    "model_digest": "sha256:other",
    "vae_digest": "sha256:other",
    "scheduler_digest": "sha256:other",
    "prediction_type": "v_prediction",
    "width_px": 128,
    "height_px": 128,
    "guidance_scale": 7.0,
    "negative_prompt": "blurry",
    "num_inference_steps": 30,
    "adapters_digest": "sha256:lora",
}


async def test_a_stored_latent_is_found_and_readable(gateway: RunningGateway) -> None:
    entry_id = await gateway.store(embedding(1), ancestor_depth=3)

    answer = await gateway.lookup(embedding(1))

    assert isinstance(answer.start, FromLatent)
    assert (answer.start.resume_step, answer.start.donor_steps, answer.start.sigma) == (25, 50, 0.5)
    assert answer.start.donor.entry_id == entry_id
    assert answer.start.donor.digest == answer.start.latent.digest
    assert answer.start.donor.ancestor_depth == 3
    assert answer.nearest_similarity == pytest.approx(1, abs=1e-5)
    data = gateway.process.stores.objects.get(answer.start.latent)
    assert data == gateway.uploaded[answer.start.latent.key]


@pytest.mark.parametrize(("similarity", "step"), [(0.66, 5), (0.76, 10), (0.86, 15), (0.91, 20), (0.96, 25)])
async def test_the_nearer_the_entry_the_more_steps_are_saved(
    gateway: RunningGateway, similarity: float, step: int
) -> None:
    await gateway.store(embedding(1))

    answer = await gateway.lookup(at_similarity(similarity))

    assert isinstance(answer.start, FromLatent)
    assert answer.start.resume_step == step


async def test_an_entry_that_is_too_far_is_a_miss_that_says_how_far(gateway: RunningGateway) -> None:
    await gateway.store(embedding(1))

    answer = await gateway.lookup(at_similarity(0.4))

    assert answer.start == FromNoise()
    assert answer.reason == "miss: nearest similarity 0.400, needed 0.650"
    assert answer.nearest_similarity == pytest.approx(0.4, abs=1e-5)
    assert not answer.search_skipped


async def test_a_hole_is_served_by_the_next_lower_latent(gateway: RunningGateway) -> None:
    await gateway.store(embedding(1), steps=(5, 15))

    answer = await gateway.lookup(at_similarity(0.92))

    assert isinstance(answer.start, FromLatent)
    assert answer.start.resume_step == 15


async def test_an_empty_cache_is_not_searched(gateway: RunningGateway) -> None:
    answer = await gateway.lookup(embedding(1))

    assert answer.start == FromNoise()
    assert answer.search_skipped
    assert answer.nearest_similarity is None


async def test_more_quality_than_was_profiled_for_is_painted_from_scratch(gateway: RunningGateway) -> None:
    await gateway.store(embedding(1))

    assert isinstance((await gateway.lookup(embedding(1), quality=0.95)).start, FromNoise)
    assert isinstance((await gateway.lookup(embedding(1), quality=0.9)).start, FromLatent)


def test_every_field_of_a_scope_is_tried() -> None:
    assert set(OTHERS) == {each.name for each in fields(CacheScope)} - {"tenant", "shared_pool"}


async def test_whatever_changes_the_picture_forbids_the_reuse(gateway: RunningGateway) -> None:
    await gateway.store(embedding(1))

    for name, value in OTHERS.items():
        answer = await gateway.lookup(embedding(1), replace(scope(), **{name: value}))  # type: ignore[arg-type]
        assert answer.start == FromNoise(), name


async def test_nobody_finds_another_tenants_entries(gateway: RunningGateway) -> None:
    await gateway.store(embedding(1), scope("one"))

    assert isinstance((await gateway.lookup(embedding(1), scope("other"))).start, FromNoise)
    assert isinstance((await gateway.lookup(embedding(1), scope("other", shared_pool=True))).start, FromNoise)
    assert isinstance((await gateway.lookup(embedding(1), scope("one"))).start, FromLatent)


async def test_the_shared_pool_is_for_those_who_opted_in(gateway: RunningGateway) -> None:
    await gateway.store(embedding(1), scope("one", shared_pool=True))

    assert isinstance((await gateway.lookup(embedding(1), scope("other", shared_pool=True))).start, FromLatent)
    assert isinstance((await gateway.lookup(embedding(1), scope("other"))).start, FromNoise)
    assert isinstance((await gateway.lookup(embedding(1), scope("one"))).start, FromNoise)


async def test_images_are_neither_kept_nor_used_until_thresholds_are_configured(gateway: RunningGateway) -> None:
    await gateway.store(embedding(0, 1), image=embedding(1))

    answer = await gateway.lookup(embedding(1))

    assert answer.start == FromNoise()
    assert (await gateway.client.statistics()).object_count == 5


async def test_images_are_reused_by_text_to_image_similarity(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, "--image-thresholds", "0.25:0.1,0.3:0.6") as gateway:
        entry_id = await gateway.store(embedding(0, 1), image=embedding(1))

        answer = await gateway.lookup(at_similarity(0.35))

        assert isinstance(answer.start, FromImage)
        assert (answer.start.start_step, answer.start.noise_form) == (30, NoiseForm.VARIANCE_PRESERVING)
        assert answer.start.donor.entry_id == entry_id
        assert gateway.process.stores.objects.get(answer.start.image)


async def test_reuse_can_be_switched_off(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, "--latent-thresholds", "") as gateway:
        answer = await gateway.lookup(embedding(1))

        assert answer.reason == "miss: reuse is switched off"
        assert await gateway.client.reserve(scope(), attempt(), (5, 10), image=True) is None


async def test_statistics_count_what_happened(gateway: RunningGateway) -> None:
    await gateway.store(embedding(1))
    await gateway.lookup(embedding(1))
    await gateway.lookup(embedding(0, 1))

    statistics = await gateway.client.statistics()

    assert (statistics.entry_count, statistics.object_count, statistics.size_bytes) == (1, 5, 500)
    assert (statistics.lookup_count, statistics.hit_count, statistics.pending_grant_count) == (2, 1, 0)
    assert (statistics.index_backend, statistics.object_backend) == ("qdrant-edge", "filesystem")
    assert not statistics.read_only


async def test_everything_is_still_there_after_a_restart(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway:
        await gateway.store(embedding(1))

    async with running_gateway(tmp_path) as gateway:
        assert isinstance((await gateway.lookup(embedding(1))).start, FromLatent)
        assert gateway.problems() == []
