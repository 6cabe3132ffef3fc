"""Test tenants of a real suite, made by the command: quotas, rotated and revoked keys, usage."""

import json
from typing import Any

import pytest
from click.testing import CliRunner

from pentimento.cli import cli
from pentimento.clients.retries import RetryPolicy
from pentimento.domain.errors import ResourceExhausted, Unauthenticated
from pentimento.domain.image_request import CacheMode, ImageRequest
from pentimento.sdk import AsyncClient
from tests.e2e.guarded.conftest import Guarded

REQUEST = ImageRequest("a red circle", num_inference_steps=2, cache=CacheMode.OFF)


def printed(guarded: Guarded, *arguments: str) -> list[Any]:
    """Return the JSON documents that the command prints."""
    whom = ("--state-dir", str(guarded.suite.state.path), "--token", guarded.tenant_admin)
    done = CliRunner().invoke(cli, ["tenant", *arguments, "--json", *whom], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


def tenant(guarded: Guarded, *arguments: str) -> Any:
    """Return the only document."""
    (document,) = printed(guarded, *arguments)
    return document


def key_of(guarded: Guarded, name: str) -> str:
    return str(tenant(guarded, "key", "create", name)["secret"])


async def generate(guarded: Guarded, secret: str) -> bytes:
    async with guarded.client(secret) as client:
        return (await client.generate(REQUEST)).data


# The command runs its own event loop, so fixtures call it before the test's loop starts.
@pytest.fixture(scope="module")
def greedy(guarded: Guarded) -> str:
    tenant(guarded, "create", "greedy", "--requests-per-s", "0.002", "--burst", "1")
    return key_of(guarded, "greedy")


@pytest.fixture(scope="module")
def modest(guarded: Guarded) -> str:
    tenant(guarded, "create", "modest", "--weight", "2")
    return key_of(guarded, "modest")


@pytest.fixture(scope="module")
def rotated(guarded: Guarded, modest: str) -> str:
    """Return the secret of a second key; the old key stays valid for an hour."""
    key = tenant(guarded, "key", "list", "modest")
    return str(tenant(guarded, "key", "rotate", key["key_id"], "--grace", "1h")["secret"])


@pytest.fixture(scope="module")
def revoked(guarded: Guarded, modest: str) -> str:
    made = tenant(guarded, "key", "create", "modest")
    tenant(guarded, "key", "revoke", made["key"]["key_id"])
    return str(made["secret"])


async def test_tenant_over_quota_gets_retry_time_and_other_tenant_is_served(
    guarded: Guarded, greedy: str, modest: str
) -> None:
    assert await generate(guarded, greedy)

    async with AsyncClient(guarded.suite.endpoint.public, token=greedy, retries=RetryPolicy(tries=1)) as client:
        with pytest.raises(ResourceExhausted) as refused:
            await client.generate(REQUEST)

    assert (refused.value.reason, refused.value.metadata["quota"]) == ("TENANT_QUOTA", "requests_per_s")
    assert 0 < (refused.value.retry_after_ms or 0) <= 500_000
    assert await generate(guarded, modest)


async def test_rotated_and_old_key_work_and_revoked_key_fails(
    guarded: Guarded, modest: str, rotated: str, revoked: str
) -> None:
    assert await generate(guarded, rotated)
    assert await generate(guarded, modest)
    with pytest.raises(Unauthenticated):
        await generate(guarded, revoked)


def test_usage_counts_images_and_requests(guarded: Guarded, modest: str) -> None:
    """Earlier tests decide how many requests there are."""
    (day, *_) = printed(guarded, "usage", "modest")

    assert day["image_count"] == day["request_count"] >= 1
    assert day["painted_cost"] > 0
    assert {one["name"] for one in printed(guarded, "list")} >= {"modest"}
