"""Lookups over stored entries: tenants, scopes, thresholds and kinds of starts."""

import asyncio
from dataclasses import fields, replace
from pathlib import Path

import pytest
from sqlalchemy import text

from pentimento.domain.cache import CacheScope, CandidateStart, LookupAnswer, LookupCandidate
from pentimento.domain.generation import FromImage, FromLatent, FromNoise, NoiseForm, Start
from tests.support.gateways import (
    RunningGateway,
    at_similarity,
    attempt,
    embedding,
    image_thresholds,
    new_tenant,
    running_gateway,
    scope,
)

# A different value for every field of a scope that changes the image.
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
    "conditioning_digest": "sha256:edges",
    "control_digest": "sha256:scale",
}
# A final image is bound to these fields, too.
OF_IMAGES = {"width_px", "height_px", "conditioning_digest"}


async def test_a_stored_latent_is_found_and_readable(shared: RunningGateway) -> None:
    entry_id = await shared.store(embedding(1), ancestor_depth=3)

    answer = await shared.lookup(embedding(1))

    assert isinstance(answer.start, FromLatent)
    assert (answer.start.resume_step, answer.start.donor_steps, answer.start.sigma) == (25, 50, 0.5)
    assert answer.start.donor.entry_id == entry_id
    assert answer.start.donor.digest == answer.start.latent.digest
    assert answer.start.donor.ancestor_depth == 3
    assert answer.text_similarity == pytest.approx(1, abs=1e-5)
    data = shared.process.stores.objects.get(answer.start.latent)
    assert data == shared.uploaded[answer.start.latent.key]


async def test_miss_gives_the_nearest_similarity(shared: RunningGateway) -> None:
    await shared.store(embedding(1))

    answer = await shared.ask(at_similarity(0.4), scope())

    assert not answer.search_skipped
    (answer,) = answer.starts
    assert answer.start == FromNoise()
    assert answer.reason == "miss: nearest similarity 0.400, needed 0.650"
    assert answer.text_similarity == pytest.approx(0.4, abs=1e-5)


async def test_a_hole_is_served_by_the_next_lower_latent(shared: RunningGateway) -> None:
    await shared.store(embedding(1), steps=(5, 15))

    before = await shared.client.statistics()
    answer = await shared.lookup(at_similarity(0.92))
    none = await shared.lookup(at_similarity(0.92), scope("another"))
    after = await shared.client.statistics()

    assert isinstance(answer.start, FromLatent)
    assert (answer.start.resume_step, answer.hole_steps, none.hole_steps) == (15, 5, 0)
    assert answer.reason.startswith("latent at step 15 of 50: similarity 0.920 allows 20, a hole loses 5 steps")
    assert (after.hole_count - before.hole_count, after.hole_step_count - before.hole_step_count) == (1, 5)


@pytest.mark.parametrize(("bias", "steps"), [(-1, [None, 5, 20]), (2, [15, 20, 35])])
async def test_cache_bias_moves_k_of_every_similarity(tmp_path: Path, bias: int, steps: list[int | None]) -> None:
    async with running_gateway(tmp_path, "--cache-bias", str(bias)) as gateway:
        await gateway.store(embedding(1), steps=range(50))
        answers = [await gateway.lookup(at_similarity(similarity)) for similarity in (0.66, 0.76, 0.96)]

    assert [getattr(answer.start, "resume_step", None) for answer in answers] == steps
    assert answers[2].reason.endswith(f"cache bias {bias:+})")


async def test_largest_cache_bias_returns_the_stored_image(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, "--cache-bias", "10") as gateway:
        entry_id = await gateway.store(embedding(1), image=embedding(0, 1))
        near, far = await gateway.lookup(at_similarity(0.66)), await gateway.lookup(at_similarity(0.6))
        again = await gateway.client.reserve(scope(), attempt(), 50, 1, start_kind="image")

    assert isinstance(near.start, FromImage) and near.start.donor.entry_id == entry_id
    assert (near.start.start_step, near.start.saved_steps) == (50, 50)
    assert (far.start, far.reason) == (FromNoise(), "miss: nearest similarity 0.600, needed 0.650")
    assert again is None


async def test_an_empty_cache_is_not_searched(gateway: RunningGateway) -> None:
    answer = await gateway.ask(embedding(1), scope())

    assert answer == LookupAnswer((CandidateStart(FromNoise(), "miss: the cache is empty"),), search_skipped=True)


def test_every_field_of_a_scope_is_tried() -> None:
    assert set(OTHERS) == {each.name for each in fields(CacheScope)} - {"tenant", "shared_pool", "adapters_from_step"}


async def test_any_other_scope_forbids_reuse(shared: RunningGateway) -> None:
    await shared.store(embedding(1))

    for name, value in OTHERS.items():
        answer = await shared.lookup(embedding(1), replace(scope(), **{name: value}))  # type: ignore[arg-type]
        assert answer.start == FromNoise(), name


# The entry's scope, and the kind of start that each scope finds.
@pytest.mark.parametrize(
    ("shared_pool", "owner", "other", "other_sharing"),
    [
        pytest.param(False, FromLatent, FromNoise, FromNoise, id="an entry of a tenant"),
        pytest.param(True, FromNoise, FromNoise, FromLatent, id="an entry of the shared pool"),
    ],
)
async def test_lookup_finds_entries_of_its_own_pools_only(
    shared: RunningGateway, shared_pool: bool, owner: type[Start], other: type[Start], other_sharing: type[Start]
) -> None:
    mine = scope(model_digest=f"sha256:{new_tenant()}")
    others = replace(mine, tenant=new_tenant())
    await shared.store(embedding(1), replace(mine, shared_pool=shared_pool))

    asked = (mine, others, replace(others, shared_pool=True))
    found = [type((await shared.lookup(embedding(1), each)).start) for each in asked]

    assert found == [owner, other, other_sharing]


async def test_images_are_reused_by_text_to_image_similarity(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, *image_thresholds("0.25:0.1", "0.3:0.6")) as gateway:
        entry_id = await gateway.store(embedding(0, 1), image=embedding(1))

        answer = await gateway.lookup(at_similarity(0.35))

        assert isinstance(answer.start, FromImage)
        assert (answer.start.start_step, answer.start.noise_form) == (30, NoiseForm.VARIANCE_PRESERVING)
        assert answer.start.donor.entry_id == entry_id
        assert gateway.process.stores.objects.get(answer.start.image)


async def test_image_serves_every_model_of_its_size_and_conditioning(
    imaging: RunningGateway,
) -> None:
    await imaging.store(embedding(0, 1), image=embedding(1))

    for name, value in OTHERS.items():
        other = await imaging.lookup(embedding(1), replace(scope(), **{name: value}))  # type: ignore[arg-type]
        assert isinstance(other.start, FromNoise if name in OF_IMAGES else FromImage), name


async def test_images_of_other_tenants_are_not_found(imaging: RunningGateway) -> None:
    await imaging.store(embedding(0, 1), image=embedding(1))

    assert isinstance((await imaging.lookup(embedding(1), scope(new_tenant()))).start, FromNoise)
    assert isinstance((await imaging.lookup(embedding(1))).start, FromImage)


async def test_each_candidate_gets_the_best_start_of_its_own(imaging: RunningGateway) -> None:
    await imaging.store(embedding(1), image=embedding(0, 1))
    await imaging.store(embedding(0, 0, 1), image=embedding(1))
    own, light = scope(), scope(model_digest="sha256:light", num_inference_steps=10)

    answer = await imaging.ask(embedding(1), own, light)

    latent, image = (found.start for found in answer.starts)
    assert isinstance(latent, FromLatent) and (latent.resume_step, latent.donor_steps) == (25, 50)
    assert isinstance(image, FromImage) and image.start_step == 4
    assert "latent at step 25 of 50" in answer.starts[0].reason
    assert "image at step 4 of 10" in answer.starts[1].reason


async def test_candidate_gets_only_the_kinds_it_takes(imaging: RunningGateway) -> None:
    await imaging.store(embedding(1), image=embedding(1))
    kinds = [LookupCandidate(scope(), latents, images) for latents, images in ((True, False), (False, True))]

    answer = await imaging.client.lookup([*kinds, LookupCandidate(scope(), False, False)], embedding(1))

    assert [type(found.start) for found in answer.starts] == [FromLatent, FromImage, FromNoise]


async def test_latents_before_an_adapter_serve_other_adapters(shared: RunningGateway) -> None:
    await shared.store(embedding(1), scope(adapters_digest="sha256:lora", adapters_from_step=12))

    async def step(**changes: object) -> int:
        start = (await shared.lookup(embedding(1), scope(**changes))).start  # type: ignore[arg-type]
        return start.resume_step if isinstance(start, FromLatent) else 0

    assert await step() == 10
    assert await step(adapters_digest="sha256:another", adapters_from_step=6) == 5
    assert await step(adapters_digest="sha256:another", adapters_from_step=3) == 0
    assert await step(adapters_digest="sha256:another") == 0
    assert await step(adapters_digest="sha256:lora", adapters_from_step=12) == 25


async def test_plain_latents_serve_up_to_the_adapter_s_step(shared: RunningGateway) -> None:
    await shared.store(embedding(1))

    start = (await shared.lookup(embedding(1), scope(adapters_digest="sha256:lora", adapters_from_step=15))).start

    assert isinstance(start, FromLatent) and start.resume_step == 15


async def test_reuse_can_be_switched_off(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, "--thresholds", "") as gateway:
        answer = await gateway.lookup(embedding(1))

        assert answer.reason == "miss: reuse is switched off"
        assert await gateway.client.reserve(scope(), attempt()) is None


@pytest.mark.parametrize(("share", "start"), [("0", FromLatent), ("1", FromNoise)])
async def test_scratch_share_misses_on_purpose(tmp_path: Path, share: str, start: type[Start]) -> None:
    async with running_gateway(tmp_path, "--scratch-share", share) as gateway:
        await gateway.store(embedding(1))
        answer = await gateway.lookup(embedding(1))

    assert isinstance(answer.start, start)
    assert (answer.reason == "miss: from scratch, as a share of all are") is (share == "1")


async def test_statistics_count_lookups_and_entries(gateway: RunningGateway) -> None:
    await gateway.store(embedding(1))
    await gateway.lookup(embedding(1))
    await gateway.lookup(embedding(0, 1))

    statistics = await gateway.client.statistics()

    assert (statistics.entry_count, statistics.object_count, statistics.size_bytes) == (1, 5, 500)
    assert (statistics.lookup_count, statistics.hit_count, statistics.pending_grant_count) == (2, 1, 0)
    # The result of that start is not reported yet.
    assert (statistics.taken_count, statistics.passed_over_count) == (0, 0)
    assert (statistics.index_backend, statistics.object_backend) == ("qdrant-edge", "filesystem")
    assert not statistics.read_only


async def test_everything_is_still_there_after_a_restart(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway:
        await gateway.store(embedding(1))

    async with running_gateway(tmp_path) as gateway:
        assert isinstance((await gateway.lookup(embedding(1))).start, FromLatent)
        assert gateway.problems() == []


async def test_near_entry_that_saves_most_serves(shared: RunningGateway) -> None:
    await shared.store(embedding(1), steps=(5,))
    farther = await shared.store(at_similarity(0.99))

    answer = await shared.lookup(embedding(1))

    assert isinstance(answer.start, FromLatent)
    assert (answer.start.resume_step, answer.start.donor.entry_id) == (25, farther)
    assert answer.start.donor.similarity == pytest.approx(0.99, abs=1e-5)
    # The nearest entry's similarity is still reported.
    assert answer.text_similarity == pytest.approx(1, abs=1e-5)


async def test_image_at_maximum_depth_gets_no_grant(imaging: RunningGateway) -> None:
    # By default, a chain of five images may start from one another.
    granted = await imaging.client.reserve(scope(), attempt(), start_step=20, ancestor_depth=4)
    refused = await imaging.client.reserve(scope(), attempt(), start_step=20, ancestor_depth=5)

    assert granted is not None
    assert refused is None


async def test_grant_without_embedding_stores_no_image(imaging: RunningGateway) -> None:
    with_image = await imaging.client.reserve(scope(), attempt())
    without = await imaging.client.reserve(scope(), attempt(), keeps_image=False)

    assert with_image is not None and without is not None
    assert (bool(with_image.image_key), bool(without.image_key)) == (True, False)
    assert len(without.latents) == len(with_image.latents)


async def test_eviction_counts_the_uses_that_were_really_made(gateway: RunningGateway) -> None:
    await gateway.store(embedding(1))
    found = (await gateway.lookup(embedding(1))).start
    assert isinstance(found, FromLatent)

    await gateway.client.report_start(found.latent.key, from_image=False, taken=False)
    await asyncio.to_thread(gateway.process.gateway.uses.write)
    unused = _use_counts(gateway)
    for _ in range(2):
        await gateway.client.report_start(found.latent.key, from_image=False, taken=True)
    await asyncio.to_thread(gateway.process.gateway.uses.write)

    assert set(unused.values()) == {0}
    assert _use_counts(gateway) == unused | {found.latent.key: 2}
    statistics = await gateway.client.statistics()
    assert (statistics.taken_count, statistics.passed_over_count) == (2, 1)


def _use_counts(gateway: RunningGateway) -> dict[str, int]:
    with gateway.process.stores.ledger._engine.connect() as connection:
        return dict(connection.execute(text("SELECT key, use_count FROM cache_objects")).all())  # type: ignore[arg-type]
