"""Test reports of hits generated again to a gateway: counted once, with thresholds that follow them and persist."""

import asyncio
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY

from pentimento.domain.errors import InvalidArgument
from pentimento.domain.fleet import CachePlan, Plan
from pentimento.domain.generation import FromLatent, FromNoise, PlanVersion
from pentimento.domain.online_quality import ComparedHit, ReuseQuality, ThresholdPosition
from pentimento.policies.online_quality import HIGHEST
from tests.integration.vectordb_gateway.test_selector_profiles import written
from tests.support.gateways import ENCODER, RunningGateway, at_similarity, embedding, running_gateway, scope
from tests.support.profiles import reuse_step

MODEL = scope().model_digest
STEPS = (reuse_step(5, 80, 0.9, 0.8, 0.7), reuse_step(10, 80, 0.95, 0.9, 0.85))
GOOD, BAD = 0.29, 0.15
HIT = ComparedHit(
    request_id="r",
    model_digest=MODEL,
    reference_model_digest=MODEL,
    encoder_digest=ENCODER,
    from_image=False,
    skipped_steps=5,
    step_count=50,
    similarity=0.85,
    quality=GOOD,
    scratch_quality=0.3,
)


def flags(folder: Path) -> tuple[str, ...]:
    return ("--profiles", written(folder, rows=STEPS))


async def report(gateway: RunningGateway, count: int, prefix: str = "r", **changes: object) -> list[bool]:
    """Report that number of hits, each of a different request."""
    hits = [replace(HIT, request_id=f"{prefix}-{number}", **changes) for number in range(count)]  # type: ignore[arg-type]
    return list(await asyncio.gather(*(gateway.client.report_quality(hit) for hit in hits)))


async def rows(gateway: RunningGateway) -> tuple[ReuseQuality, ...]:
    return await gateway.client.reuse_quality(MODEL)


async def test_compared_hit_is_counted_once_and_shown(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, *flags(tmp_path)) as gateway:
        empty = await rows(gateway)
        await gateway.store(embedding(1), steps=(5,))
        first, again = await gateway.client.report_quality(HIT), await gateway.client.report_quality(HIT)
        five, ten = await rows(gateway)

    assert (empty, first, again) == ((), True, False)
    assert (five.saved_share, five.profiled_similarity, five.similarity) == (0.1, 0.8, 0.8)
    assert five.source == "latents of heavy, alpha 0.9 by lower_bound"
    assert five.achieved is not None
    assert (five.achieved.sample_count, five.achieved.kept_share) == (1, 1.0)
    assert five.achieved.alpha == pytest.approx(GOOD / 0.3)
    assert (ten.saved_share, ten.achieved) == (0.2, None)


async def test_threshold_follows_broken_and_kept_promises(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, *flags(tmp_path)) as gateway:
        await gateway.store(embedding(1), steps=(5,))
        before = await gateway.lookup(at_similarity(0.86))
        await report(gateway, 20, "bad", quality=BAD)
        raised = await gateway.lookup(at_similarity(0.86))
        same = await gateway.lookup(at_similarity(0.99999))
        # Every sample was measured at 0.85, and the row that skips ten steps needs at least as much.
        at = [*(row.similarity for row in await rows(gateway)), figure("threshold_similarity", "0.2", "in_force")]
        await report(gateway, 59, "good", similarity=1.0)
        lowered = await rows(gateway)

    assert isinstance(before.start, FromLatent)
    assert isinstance(raised.start, FromNoise)
    assert isinstance(same.start, FromLatent)
    assert same.reason.endswith("by lower_bound, raised by what hits kept)")
    assert at == [HIGHEST] * 3
    # Half of the way to 0.8, and what skips more stays above.
    assert [row.similarity for row in lowered] == pytest.approx([0.9, 0.9], abs=1e-3)


def figure(name: str, saved_share: str, which: str) -> float | None:
    labels = {"model": MODEL, "reference": MODEL, "kind": "latents", "saved_share": saved_share, "which": which}
    return REGISTRY.get_sample_value(f"pentimento_gateway_reuse_{name}", labels)


def kept_share() -> float | None:
    return figure("kept_share", "0.1", "high")


async def test_figures_leave_out_hits_below_a_raised_threshold(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, *flags(tmp_path)) as gateway:
        await gateway.store(embedding(1), steps=(5,))
        await report(gateway, 9, "first", quality=BAD)
        before = kept_share()
        await report(gateway, 11, "then", quality=BAD)
        five, _ = await rows(gateway)

    assert before is not None and before < 0.95
    assert (five.similarity, five.achieved) == (HIGHEST, None)
    assert kept_share() is None


async def test_figures_leave_out_thresholds_that_a_plan_removed(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, *flags(tmp_path)) as gateway:
        await gateway.store(embedding(1), steps=(5,))
        await report(gateway, 9, quality=BAD)
        gateway.maintain()
        before = kept_share()
        gateway.process.planned.take(Plan(PlanVersion(7, 1), cache=CachePlan(bias=1)))
        gateway.maintain()

    assert before is not None and before < 0.95
    assert (kept_share(), figure("threshold_similarity", "0.1", "in_force")) == (None, None)


async def test_restarted_gateway_keeps_its_thresholds(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, *flags(tmp_path)) as gateway:
        await gateway.store(embedding(1), steps=(5,))
        await report(gateway, 20, quality=BAD)
        before = await rows(gateway)
    async with running_gateway(tmp_path, *flags(tmp_path)) as gateway:
        after = await rows(gateway)
        missed = await gateway.lookup(at_similarity(0.86))
        counted = await report(gateway, 21, quality=BAD)

    assert after == before
    assert isinstance(missed.start, FromNoise)
    assert counted == [False] * 20 + [True]


async def test_gateway_reads_samples_of_another_gateway(tmp_path: Path) -> None:
    """In its next round of maintenance."""
    async with running_gateway(tmp_path, *flags(tmp_path)) as gateway:
        await gateway.store(embedding(1), steps=(5,))
        url = f"sqlite:///{tmp_path}/ledger.sqlite"
        (tmp_path / "other").mkdir()
        other_flags = (*flags(tmp_path), "--ledger-url", url)
        async with running_gateway(tmp_path / "other", *other_flags) as other:
            await report(other, 20, quality=BAD)
        unaware = await rows(gateway)
        gateway.maintain()
        aware = await rows(gateway)

    assert (unaware[0].similarity, aware[0].similarity) == (0.8, HIGHEST)


@pytest.mark.parametrize(
    "changes",
    [{"skipped_steps": 7}, {"from_image": True}, {"reference_model_digest": "sha256:large"}, {"model_digest": "x"}],
)
async def test_hit_of_an_unknown_threshold_is_not_counted(tmp_path: Path, changes: dict[str, object]) -> None:
    async with running_gateway(tmp_path, *flags(tmp_path)) as gateway:
        await gateway.store(embedding(1), steps=(5,))
        assert await report(gateway, 1, **changes) == [False]
        assert [row.achieved for row in await rows(gateway)] == [None, None]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"request_id": ""}, "request_id"),
        ({"encoder_digest": "sha256:another"}, "encoder_digest"),
        ({"skipped_steps": 0}, "skipped_steps"),
        ({"skipped_steps": 51}, "skipped_steps"),
        ({"step_count": 0}, "step_count"),
        ({"similarity": 1.1}, "similarity"),
        ({"quality": float("nan")}, "quality"),
        ({"scratch_quality": float("-inf")}, "scratch_quality"),
    ],
)
async def test_what_is_no_report_is_refused_by_its_field(
    tmp_path: Path, changes: dict[str, object], field: str
) -> None:
    async with running_gateway(tmp_path, *flags(tmp_path)) as gateway:
        await gateway.store(embedding(1), steps=(5,))
        with pytest.raises(InvalidArgument, match=rf"^{field}: must"):
            await gateway.client.report_quality(replace(HIT, **changes))  # type: ignore[arg-type]


async def test_hit_counts_though_a_plan_removes_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_gateway(tmp_path, *flags(tmp_path)) as gateway:
        await gateway.store(embedding(1), steps=(5,))
        ledger = gateway.process.stores.ledger
        note_quality = ledger.note_quality

        def beside_a_plan(*arguments: Any) -> "Future[ThresholdPosition | None]":
            gateway.process.planned.take(Plan(PlanVersion(7, 1), cache=CachePlan(bias=1)))
            return note_quality(*arguments)

        monkeypatch.setattr(ledger, "note_quality", beside_a_plan)

        counted = await asyncio.wait_for(gateway.client.report_quality(HIT), 60)

    assert counted
