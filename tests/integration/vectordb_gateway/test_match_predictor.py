"""The match predictor in a real gateway, over gRPC: what is surely a miss is not searched for, and the rest is."""

import asyncio
from pathlib import Path

import pytest

from pentimento.domain.generation import FromLatent
from services.vectordb_gateway.match_predictor import match_watch, predictor
from tests.support.gateways import RunningGateway, embedding, running_gateway, scope

pytest.importorskip("sklearn")


@pytest.fixture(autouse=True)
def _quick_learner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Learns from 24 entries and lookups what it takes 256 of: the way through the gateway is what is tested here."""
    monkeypatch.setattr(predictor, "_NEEDED_COUNT", 24)
    monkeypatch.setattr(match_watch, "_NEEDED_COUNT", 24)


async def teach(gateway: RunningGateway, count: int = 26) -> None:
    """Entries around one direction, and as many lookups there as far from it."""
    for number in range(count):
        await gateway.store(embedding(1, 0.01 * number))
    await asyncio.to_thread(gateway.maintain)
    for number in range(count):
        await gateway.lookup(embedding(1, 0.01 * number, 0.1))
        await gateway.lookup(embedding(-1, 0.01 * number))
    await asyncio.to_thread(gateway.maintain)


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


async def test_a_training_that_fails_costs_no_lookup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: object, live: object) -> None:
        raise MemoryError

    monkeypatch.setattr(match_watch.MatchPredictor, "retrain", fail)
    async with running_gateway(tmp_path, "--match-predictor", "always") as gateway:
        await teach(gateway)
        hit = await gateway.lookup(embedding(1, 0.05))

        assert isinstance(hit.start, FromLatent)
        assert await skips(gateway) == 0
