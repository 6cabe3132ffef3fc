"""Test journals and object stores that fail for a while; the stores themselves are real."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import boto3
import pytest

from lab.fixtures.frontdoor_suite import FrontdoorSuite, running_suite, until
from lab.fixtures.paced_worker import PacedWorker
from lab.fixtures.postgresql import PostgresqlServer
from pentimento.domain.errors import Unavailable
from pentimento.domain.generation import InitImage
from pentimento.domain.image_request import ImageRequest
from pentimento.stores.errors import StoreUnavailable, UnansweredCommit
from tests.integration.frontdoor.inputs import png


def failing_first(method: Callable[..., "Future[Any]"], times: int) -> Callable[..., "Future[Any]"]:
    """Return a method of a journal that first fails that number of calls."""
    left = [StoreUnavailable("ledger", "away")] * times

    def call(*arguments: Any) -> "Future[Any]":
        if not left:
            return method(*arguments)
        failed: Future[Any] = Future()
        failed.set_exception(left.pop())
        return failed

    return call


@pytest.mark.parametrize("method", ["route_and_start", "commit_result"])
async def test_an_accepted_request_waits_for_its_journal(
    suite: FrontdoorSuite, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    journal = suite.frontdoor.journal
    monkeypatch.setattr(journal, method, failing_first(getattr(journal, method), times=2))

    completed = await suite.paint()

    assert (await suite.client.get_request(completed.request_id)).completed == completed


async def test_a_request_that_cannot_be_journalled_is_not_accepted(
    suite: FrontdoorSuite, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = suite.frontdoor.journal
    monkeypatch.setattr(journal, "accept", failing_first(journal.accept, times=1))

    with pytest.raises(Unavailable) as caught:
        await suite.paint()

    assert caught.value.reason == "STORE_UNAVAILABLE"
    assert (await suite.operator.status()).accepted_count == 0
    assert (await suite.paint()).image


async def test_uncertain_journal_write_is_checked_until_known(
    suite: FrontdoorSuite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it were refused, its row and key would stay without an image."""
    journal = suite.frontdoor.journal
    accept, lost = journal.accept, [UnansweredCommit("ledger", "away"), StoreUnavailable("ledger", "away")]

    def accept_without_answer(*arguments: Any) -> "Future[Any]":
        if not lost:
            return accept(*arguments)
        error = lost.pop(0)
        if isinstance(error, UnansweredCommit):
            accept(*arguments).result()
        failed: Future[Any] = Future()
        failed.set_exception(error)
        return failed

    monkeypatch.setattr(journal, "accept", accept_without_answer)

    generated = await suite.paint(idempotency_key="key")

    assert (await suite.paint(idempotency_key="key")).request_id == generated.request_id
    assert await asyncio.wrap_future(journal.unfinished()) == []


REQUEST = ImageRequest("a red circle", num_inference_steps=4, seed=1, init_image=InitImage(png(), 0.5))


@pytest.fixture
def ledger_url(postgresql: PostgresqlServer) -> str:
    return postgresql.new_database()


def keys(endpoint: str, bucket: str) -> list[str]:
    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
    found = [each["Key"] for each in client.list_objects_v2(Bucket=bucket).get("Contents", ())]
    return [key for key in found if key != "owner/journal"]


async def swept(suite: FrontdoorSuite) -> None:
    for _ in range(2):
        await suite.frontdoor.retention.sweep()


async def test_inputs_are_swept_and_images_stay(
    folder: Path, worker: PacedWorker, s3_endpoint: str, ledger_url: str
) -> None:
    objects_url = f"s3://inputs?endpoint={s3_endpoint}&create_bucket=true"
    worker.hold.clear()
    async with running_suite(folder, ledger_url=ledger_url, objects_url=objects_url) as suite:
        stream = suite.client.generate(REQUEST)
        await suite.accepted(stream)
        await swept(suite)
        (held,) = await asyncio.to_thread(keys, s3_endpoint, "inputs")
        worker.hold.set()
        *_, completed = [event async for event in stream]
        await until(lambda: held not in keys(s3_endpoint, "inputs"))
        await swept(suite)
        left = await asyncio.to_thread(keys, s3_endpoint, "inputs")

        status = await suite.client.get_request(completed.request_id)  # type: ignore[union-attr]

    assert held.startswith("inputs/")
    assert [key.partition("/")[0] for key in left] == ["results"]
    assert status.completed == completed
    assert worker.executed[0].init_image == REQUEST.init_image


async def test_images_wait_in_postgresql_while_s3_is_away(
    folder: Path, worker: PacedWorker, ledger_url: str, s3_endpoint: str
) -> None:
    nowhere = "s3://pictures?endpoint=http://127.0.0.1:9"
    async with running_suite(folder, ledger_url=ledger_url, objects_url=nowhere, store_timeout_s=0.5) as suite:
        completed = await suite.paint(REQUEST)

    there = f"s3://pictures?endpoint={s3_endpoint}&create_bucket=true"
    async with running_suite(folder, ledger_url=ledger_url, objects_url=there) as suite:
        await until(lambda: not suite.frontdoor.journal.objects.spooled().result())
        status = await suite.client.get_request(completed.request_id)

    assert status.completed == completed
