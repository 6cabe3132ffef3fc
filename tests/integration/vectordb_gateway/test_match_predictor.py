"""Test the match predictor in a real gateway, over gRPC: sure misses are not searched, all other lookups are."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from pentimento.domain.cache import LookupCandidate
from pentimento.domain.generation import FromLatent
from pentimento.stores.vectors import VectorMatch, VectorQuery
from services.vectordb_gateway.match_predictor import match_watch, predictor
from tests.support.gateways import RunningGateway, embedding, image_thresholds, running_gateway, scope

pytest.importorskip("sklearn")


@pytest.fixture(autouse=True)
def _quick_learner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Learn from 24 entries and lookups instead of 256: these tests check the gateway, not the learning."""
    monkeypatch.setattr(predictor, "_NEEDED_COUNT", 24)
    monkeypatch.setattr(match_watch, "_NEEDED_COUNT", 24)


async def teach(gateway: RunningGateway, count: int = 26, noise_s: float | None = None) -> None:
    """Entries around one direction, and as many lookups there as far from it; images take `noise_s`."""
    for number in range(count):
        await gateway.store(embedding(1, 0.01 * number))
    await asyncio.to_thread(gateway.maintain)
    for number in range(count):
        for text in (embedding(1, 0.01 * number, 0.1), embedding(-1, 0.01 * number)):
            await gateway.client.lookup([LookupCandidate(scope())], text, noise_s=noise_s)
    await asyncio.to_thread(gateway.maintain)


def delay_searches(gateway: RunningGateway, patch: pytest.MonkeyPatch, delay_s: float) -> None:
    """Have every search of the index take that much longer."""
    index = gateway.process.stores.index
    search = index.search

    async def far(query: VectorQuery, timeout_s: float) -> Sequence[VectorMatch]:
        await asyncio.sleep(delay_s)
        return await search(query, timeout_s)

    patch.setattr(index, "search", far)


async def skips(gateway: RunningGateway, count: int = 40) -> int:
    answers = [await gateway.ask(embedding(-1, 0, 0.01 * number), scope()) for number in range(count)]
    return sum(answer.search_skipped for answer in answers)


@pytest.mark.slow
async def test_predictor_skips_a_sure_miss_and_finds_hits(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, "--match-predictor", "always") as gateway:
        await teach(gateway)

        skipped = await skips(gateway)
        answers = [await gateway.ask(embedding(-1, 0, 0.01 * number), scope()) for number in range(20)]
        hit = await gateway.lookup(embedding(1, 0.05))

        assert skipped >= 25
        reasons = {answer.starts[0].reason for answer in answers if answer.search_skipped}
        assert reasons == {"miss: no near entry is likely"}
        assert isinstance(hit.start, FromLatent)


async def test_another_tenant_s_lookups_are_searched(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, "--match-predictor", "always") as gateway:
        await teach(gateway)

        answer = await gateway.ask(embedding(-1), scope("another"))

        assert not answer.search_skipped


async def test_by_default_an_embedded_index_is_always_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A machine that is busy with other tests must not make its searches worth a predictor.
    monkeypatch.setattr(match_watch, "_LEAST_SEARCH_S", 60.0)
    async with running_gateway(tmp_path) as gateway:
        await teach(gateway)

        assert await skips(gateway) == 0


@pytest.mark.slow
async def test_measured_prices_switch_it_on_and_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The time of the first searches decides nothing here; 64 searches would take seconds.
    monkeypatch.setattr(match_watch, "_TIMED_COUNT", 1)
    monkeypatch.setattr(match_watch, "_QUICK_COUNT", 0)
    monkeypatch.setattr(match_watch, "_STUDY_SHARE", 1e9)

    async def standing(gateway: RunningGateway) -> tuple[bool, str]:
        await asyncio.to_thread(gateway.maintain)
        now = (await gateway.client.statistics()).match_predictor
        return now.on, now.reason

    async with running_gateway(tmp_path, *image_thresholds("0.8:0.6")) as gateway:
        gateway.process.gateway.lookup._watch._random.seed(0)
        await gateway.lookup(embedding(1))
        delay_searches(gateway, monkeypatch, 0.05)
        await teach(gateway)
        unpriced = await standing(gateway)
        await teach(gateway, noise_s=0.5)
        priced = await standing(gateway)
        skipped = await skips(gateway)
        measured = (await gateway.client.statistics()).match_predictor
        # Near by its image alone, which the predictor does not know: searches that are made all the same find it.
        await gateway.store(embedding(1), image=embedding(-1))
        await skips(gateway, 80)
        lost = await standing(gateway)

    assert unpriced == (False, "no frontdoor says what an image takes")
    assert priced[0] and priced[1].startswith("skipping would gain ")
    assert skipped >= 25
    assert measured.image_s == 0.5 and 0.04 < measured.search_s < 5.0 and measured.skipped_count == skipped
    assert not lost[0] and lost[1].startswith("skipping lost ")
