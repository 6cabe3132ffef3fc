"""Test a gateway without a profile: misses have trials, compared trials open a threshold, and a restart keeps it."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from pentimento.domain.cache import CandidateStart, LookupCandidate
from pentimento.domain.embedding import PromptEmbedding
from pentimento.domain.generation import FromImage, FromLatent, FromNoise
from tests.integration.vectordb_gateway.test_online_quality import BAD, HIT, report, rows
from tests.integration.vectordb_gateway.test_selector_profiles import written
from tests.support.gateways import RunningGateway, at_similarity, attempt, embedding, running_gateway, scope

FLAGS = ("--thresholds", "", "--earned-reuse", "yes")
TRIAL = replace(HIT, skipped_steps=25, similarity=0.96)


async def trials(gateway: RunningGateway, count: int, prefix: str, **changes: object) -> list[bool]:
    seen = [replace(TRIAL, request_id=f"{prefix}-{number}", **changes) for number in range(count)]  # type: ignore[arg-type]
    return list(await asyncio.gather(*(gateway.client.report_quality(one) for one in seen)))


async def test_miss_names_start_of_cell_under_test(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, *FLAGS) as gateway:
        grant = await gateway.client.reserve(scope(), attempt())
        await gateway.store(embedding(1))
        near, far = await gateway.lookup(at_similarity(0.96)), await gateway.lookup(at_similarity(0.94))

    assert grant is not None and [slot.resume_step for slot in grant.latents] == [5, 10, 15, 20, 25]
    assert isinstance(near.start, FromNoise) and isinstance(far.start, FromNoise)
    assert isinstance(near.trial, FromLatent) and far.trial is None
    assert near.trial.resume_step == 25
    assert near.trial.donor.similarity == pytest.approx(0.96, abs=1e-3)
    assert near.reason.startswith("miss: reuse that is not earned yet; the prior of NIRVANA")


async def test_trials_open_threshold_that_restart_keeps(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, *FLAGS) as gateway:
        await gateway.store(embedding(1))
        before = await gateway.lookup(at_similarity(0.96))
        assert all(await trials(gateway, 80, "good"))
        found, below = await gateway.lookup(at_similarity(0.96)), await gateway.lookup(at_similarity(0.94))
        shown = await rows(gateway)
        earned = (await gateway.client.statistics()).earned
    async with running_gateway(tmp_path, *FLAGS) as gateway:
        again = await gateway.lookup(at_similarity(0.96))
        kept = await rows(gateway)
        await trials(gateway, 30, "bad", quality=BAD)
        closed = await gateway.lookup(at_similarity(0.96))

    assert isinstance(before.start, FromNoise)
    assert isinstance(found.start, FromLatent) and found.start.resume_step == 25
    assert found.trial is None and below.trial is not None
    assert isinstance(again.start, FromLatent)
    assert kept == shown
    assert all(row.earned and row.similarity == (1.0 if row.from_image else 0.95) for row in shown)
    assert (earned.row_count, earned.open_count) == (11, 5)
    assert isinstance(closed.start, FromNoise)


async def test_profile_is_widened_by_trials_of_next_cell(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, *FLAGS, "--profiles", written(tmp_path)) as gateway:
        await gateway.store(embedding(1))
        near, far = await gateway.lookup(at_similarity(0.79)), await gateway.lookup(at_similarity(0.77))
        await report(gateway, 80, "good", similarity=0.79)
        wider = await gateway.lookup(at_similarity(0.79))

    assert isinstance(near.start, FromNoise)
    assert isinstance(near.trial, FromLatent) and near.trial.resume_step == 5
    assert far.trial is None
    assert isinstance(wider.start, FromLatent)


async def test_own_entry_is_no_trial(tmp_path: Path) -> None:
    """The trial would generate the same image again."""
    async with running_gateway(tmp_path, *FLAGS) as gateway:
        of, by = scope(), attempt()
        grant = await gateway.client.reserve(of, by)
        assert grant is not None
        await gateway.client.commit(of, by, gateway.upload(grant), embedding(1), None, 0, repeat_key="own")
        await asyncio.to_thread(gateway.process.indexing.index_new)
        search = gateway.process.gateway.lookup
        candidate = [LookupCandidate(of)]
        own = (await search.lookup(candidate, PromptEmbedding(embedding(1)), None, "own")).starts[0]
        other = (await search.lookup(candidate, PromptEmbedding(embedding(1)), None, "other")).starts[0]

    assert own.trial is None and other.trial is not None


async def test_image_trials_open_threshold_of_their_pair_that_restart_keeps(tmp_path: Path) -> None:
    """A cached image at a cosine of 0.32 to the prompt; the pair's misses are another model's."""
    pair = replace(TRIAL, from_image=True, skipped_steps=30, similarity=0.32, reference_model_digest="sha256:large")

    async def starts(gateway: RunningGateway) -> list[CandidateStart]:
        asked = [
            LookupCandidate(scope(), latents=False, images=True, reference_model_digest=reference)
            for reference in ("sha256:large", "sha256:other", "")
        ]
        return list((await gateway.client.lookup(asked, at_similarity(0.32))).starts)

    async with running_gateway(tmp_path, *FLAGS) as gateway:
        await gateway.store(embedding(0, 0, 1), image=embedding(1))
        before = await starts(gateway)
        good = [replace(pair, request_id=f"good-{number}") for number in range(80)]
        assert all([await gateway.client.report_quality(one) for one in good])
        found = await starts(gateway)
        shown = [row for row in await rows(gateway) if row.from_image and row.similarity < 1.0]
    async with running_gateway(tmp_path, *FLAGS) as gateway:
        again = await starts(gateway)

    assert all(isinstance(one.start, FromNoise) for one in before)
    trial, other, unknown = (one.trial for one in before)
    assert isinstance(trial, FromImage) and isinstance(other, FromImage) and unknown is None
    assert (trial.start_step, trial.reference_model_digest) == (30, "sha256:large")
    assert before[0].reason.startswith("miss: reuse that is not earned yet; the prior of MoDM")
    for seen in (found, again):
        assert [isinstance(one.start, FromImage) for one in seen] == [True, False, False]
    assert {(row.similarity, row.reference_model_digest, row.earned) for row in shown} == {(0.3, "sha256:large", True)}
