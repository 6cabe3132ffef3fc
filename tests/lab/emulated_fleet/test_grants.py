"""Test that a worker stores only under a grant that the gateway signed for this attempt."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from pentimento.domain.cache import CacheScope, GrantBinding, sign
from pentimento.domain.execution import AttemptResult
from pentimento.domain.generation import Attempt, CacheGrant, FromNoise, GenerationSpec, Route, Scheduler
from tests.lab.emulated_fleet.conftest import Emulated, serve
from tests.support.gateways import attempt, running_gateway, scope

SPEC = GenerationSpec("a red circle", "", "heavy", 512, 512, 10, 3.0, Scheduler.DDIM, seed=7)


@pytest.fixture
def key_file(directory: Path) -> Path:
    (directory / "key").write_text("k" * 64 + "\n")
    return directory / "key"


@pytest.fixture
async def guarded(fleet_file: Path, key_file: Path) -> AsyncIterator[Emulated]:
    async with serve(fleet_file, grant_key_file=key_file) as worker:
        yield worker


def scope_of(worker: Emulated, tenant: str = "tenant") -> CacheScope:
    sizes = {"width_px": 512, "height_px": 512, "num_inference_steps": 10}
    return scope(tenant, model_digest=worker.held.model_digest, **sizes)


async def granted(worker: Emulated, by: Attempt, directory: Path, *flags: str) -> CacheGrant:
    async with running_gateway(directory / "gateway", *flags) as gateway:
        grant = await gateway.client.reserve(scope_of(worker, by.tenant), by)
    assert grant is not None and grant.latents
    return grant


async def execute(worker: Emulated, by: Attempt, grant: CacheGrant, spec: GenerationSpec = SPEC) -> AttemptResult:
    held = worker.held
    route = Route("route", FromNoise(), held.model, held.model_digest)
    events = [e async for e in worker.client.execute(by, spec, route, held.worker_generation, cache_grant=grant)]
    assert isinstance(events[-1], AttemptResult)
    return events[-1]


def assert_nothing_stored(result: AttemptResult, why: str, directory: Path) -> None:
    assert result.image
    assert (result.captured.latents, result.captured.image) == ((), None)
    assert f"cache: nothing stored, its grant {why}" in result.notes
    assert [path for path in (directory / "objects" / "objects").rglob("*") if path.is_file()] == []


async def test_signed_grant_is_stored_under(guarded: Emulated, directory: Path, key_file: Path) -> None:
    by = attempt()
    grant = await granted(guarded, by, directory, "--grant-key-file", str(key_file))

    result = await execute(guarded, by, grant)

    assert [latent.resume_step for latent in result.captured.latents] == [slot.resume_step for slot in grant.latents]


@pytest.mark.parametrize(
    "other",
    [{"tenant": "another"}, {"request_id": "another"}, {"fencing_token": 2}],
    ids=["tenant", "request", "attempt"],
)
async def test_another_tenants_or_attempts_grant_is_not_stored_under(
    guarded: Emulated, directory: Path, key_file: Path, other: dict[str, object]
) -> None:
    by = attempt()
    grant = await granted(guarded, by, directory, "--grant-key-file", str(key_file))

    result = await execute(guarded, replace(by, **other), grant)  # type: ignore[arg-type]

    assert_nothing_stored(result, "is not the gateway's for this attempt", directory)


async def test_a_grant_that_ran_out_is_not_stored_under(guarded: Emulated, directory: Path, key_file: Path) -> None:
    by = attempt()
    grant = await granted(guarded, by, directory, "--grant-key-file", str(key_file))
    binding = GrantBinding(by.tenant, by.request_id, by.fencing_token, guarded.held.model_digest, 512, 512, 10)
    ended = replace(grant, expires_at_ms=grant.expires_at_ms - 86_400_000)

    result = await execute(guarded, by, replace(ended, signature=sign(b"k" * 64, ended, binding)))

    assert_nothing_stored(result, "has expired", directory)


async def test_unsigned_grant_is_not_stored_under(guarded: Emulated, directory: Path) -> None:
    by = attempt()
    grant = await granted(guarded, by, directory)

    result = await execute(guarded, by, grant)

    assert_nothing_stored(result, "is not signed", directory)
