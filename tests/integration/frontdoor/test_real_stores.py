"""Test inputs and images over S3 and PostgreSQL as over files and SQLite."""

import asyncio
from pathlib import Path

import boto3
import pytest

from lab.fixtures.frontdoor_suite import FrontdoorSuite, running_suite, until
from lab.fixtures.paced_worker import PacedWorker
from lab.fixtures.postgresql import PostgresqlServer
from pentimento.domain.generation import InitImage
from pentimento.domain.image_request import ImageRequest
from tests.integration.frontdoor.inputs import png

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
        await suite.frontdoor.parts.retention.sweep()


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
        await until(lambda: not suite.frontdoor.parts.journal.objects.spooled().result())
        status = await suite.client.get_request(completed.request_id)

    assert status.completed == completed
