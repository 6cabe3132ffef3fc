"""Run two frontdoors with separate journals over one object store by mistake: no image is lost."""

import logging
from pathlib import Path

import pytest

from lab.fixtures.frontdoor_suite import FrontdoorSuite, running_suite
from lab.fixtures.paced_worker import PacedWorker
from pentimento.domain.errors import FailedPrecondition


async def swept(suite: FrontdoorSuite) -> None:
    for _ in range(2):
        await suite.frontdoor.retention.sweep()


async def test_neither_journal_deletes_the_others_images(
    folder: Path, worker: PacedWorker, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_suite(folder) as suite:
        first = await suite.paint()
    caplog.set_level(logging.ERROR)
    async with running_suite(folder, ledger_url=f"sqlite:///{folder / 'another.sqlite'}") as suite:
        await suite.paint()
        with pytest.raises(FailedPrecondition, match="another journal"):
            await swept(suite)
    assert "the object store may hold another journal's objects" in caplog.text
    async with running_suite(folder) as suite:
        with pytest.raises(FailedPrecondition, match="another journal"):
            await swept(suite)
        assert (await suite.client.get_request(first.request_id)).completed == first
    assert len(list((folder / "objects" / "objects").rglob("results.*"))) == 2


async def test_adopted_store_is_swept_of_lost_journals_images(folder: Path, worker: PacedWorker) -> None:
    async with running_suite(folder) as suite:
        await suite.paint()
    new = {"ledger_url": f"sqlite:///{folder / 'another.sqlite'}"}
    async with running_suite(folder, **new) as suite:
        kept = await suite.paint()

    async with running_suite(folder, **new, adopt_objects=True) as suite:
        await swept(suite)
    async with running_suite(folder, **new) as suite:
        await swept(suite)
        assert (await suite.client.get_request(kept.request_id)).completed == kept

    assert len(list((folder / "objects" / "objects").rglob("results.*"))) == 1
