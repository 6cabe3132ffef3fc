"""Tenants of a real suite, made by the command: quotas, keys that rotate and end, what was used."""

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


def told(guarded: Guarded, *arguments: str) -> list[Any]:
    """The JSON documents that the command prints, called as an operator calls it."""
    whom = ("--state-dir", str(guarded.suite.state.path), "--token", guarded.tenant_admin)
    done = CliRunner().invoke(cli, ["tenant", *arguments, "--json", *whom], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


def tenant(guarded: Guarded, *arguments: str) -> Any:
    """The only document."""
    (document,) = told(guarded, *arguments)
    return document


def key_of(guarded: Guarded, name: str) -> str:
    return str(tenant(guarded, "key", "create", name)["secret"])


async def paint(guarded: Guarded, secret: str) -> bytes:
    async with guarded.client(secret) as client:
        return (await client.generate(REQUEST)).data


# The command runs an event loop of its own: what it does is arranged before a test's.
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
    """A key beside the old one."""
    key = tenant(guarded, "key", "list", "modest")
    return str(tenant(guarded, "key", "rotate", key["key_id"], "--grace", "1h")["secret"])


@pytest.fixture(scope="module")
def revoked(guarded: Guarded, modest: str) -> str:
    made = tenant(guarded, "key", "create", "modest")
    tenant(guarded, "key", "revoke", made["key"]["key_id"])
    return str(made["secret"])


async def test_a_tenant_over_its_quota_is_told_when_to_come_back_while_another_is_served(
    guarded: Guarded, greedy: str, modest: str
) -> None:
    assert await paint(guarded, greedy)

    async with AsyncClient(guarded.suite.endpoint.public, token=greedy, retries=RetryPolicy(tries=1)) as client:
        with pytest.raises(ResourceExhausted) as refused:
            await client.generate(REQUEST)

    assert (refused.value.reason, refused.value.metadata["quota"]) == ("TENANT_QUOTA", "requests_per_s")
    assert 0 < (refused.value.retry_after_ms or 0) <= 500_000
    assert await paint(guarded, modest)


async def test_a_rotated_key_works_beside_the_old_one_and_a_revoked_one_does_not(
    guarded: Guarded, modest: str, rotated: str, revoked: str
) -> None:
    assert await paint(guarded, rotated)
    assert await paint(guarded, modest)
    with pytest.raises(Unauthenticated):
        await paint(guarded, revoked)


def test_what_they_used_is_told(guarded: Guarded, modest: str) -> None:
    """Whatever was asked for before."""
    (day, *_) = told(guarded, "usage", "modest")

    assert day["image_count"] == day["request_count"] >= 1
    assert day["painted_cost"] > 0
    assert {one["name"] for one in told(guarded, "list")} >= {"modest"}
