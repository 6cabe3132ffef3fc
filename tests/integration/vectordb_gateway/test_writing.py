"""Test reserve, upload and commit: only data of an accepted attempt becomes findable."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from pentimento.domain.errors import FailedPrecondition, InvalidArgument, NotFound
from pentimento.domain.generation import CapturedEntries, FromNoise
from tests.support.gateways import RunningGateway, attempt, embedding, image_thresholds, running_gateway, scope


async def test_grant_has_an_opaque_key_per_kept_step(shared: RunningGateway) -> None:
    grant = await shared.client.reserve(scope(), attempt())

    assert grant is not None
    assert [slot.resume_step for slot in grant.latents] == [5, 10, 15, 20, 25]
    assert len({slot.key for slot in grant.latents}) == 5
    assert grant.image_key == ""
    assert grant.expires_in_ms == 900_000


async def test_hits_keep_no_later_latents(shared: RunningGateway) -> None:
    assert await shared.client.reserve(scope(), attempt(), 10) is None


@pytest.mark.parametrize(("flags", "kept"), [((), True), (("--admission", "large"), False)])
async def test_images_of_hits_are_kept_unless_switched_off(tmp_path: Path, flags: tuple[str, ...], kept: bool) -> None:
    async with running_gateway(tmp_path, *image_thresholds("0.3:0.4"), *flags) as imaging:
        of_miss = await imaging.client.reserve(scope(), attempt())
        of_hit = await imaging.client.reserve(scope(), attempt(), 10)

    assert of_miss is not None and of_miss.image_key
    assert (of_hit is not None and bool(of_hit.image_key)) is kept


async def test_what_was_uploaded_but_not_committed_is_not_found(shared: RunningGateway) -> None:
    await shared.store(embedding(0, 1))
    grant = await shared.client.reserve(scope(), attempt())
    assert grant is not None
    shared.upload(grant)

    assert (await shared.lookup(embedding(1))).start == FromNoise()


async def test_released_grant_s_objects_are_deleted(gateway: RunningGateway) -> None:
    by = attempt()
    grant = await gateway.client.reserve(scope(), by)
    assert grant is not None
    captured = gateway.upload(grant)

    await gateway.client.release(grant.grant_id)
    await gateway.client.release(grant.grant_id)
    gateway.maintain()

    with pytest.raises(NotFound):
        await gateway.client.commit(scope(), by, captured, embedding(1))
    assert list(gateway.process.stores.objects.keys()) == []
    assert gateway.problems() == []


async def test_another_attempt_cannot_commit_a_grant(shared: RunningGateway) -> None:
    first = attempt(token=1, request_id="r")
    grant = await shared.client.reserve(scope(), first)
    assert grant is not None
    captured = shared.upload(grant)

    with pytest.raises(FailedPrecondition):
        await shared.client.commit(scope(), replace(first, fencing_token=2), captured, embedding(1))
    with pytest.raises(FailedPrecondition):
        await shared.client.commit(scope(width_px=128), first, captured, embedding(1))

    assert shared.held().entry_count == 0


async def test_a_tenant_cannot_commit_another_tenants_grant(shared: RunningGateway) -> None:
    grant = await shared.client.reserve(scope(), attempt(request_id="r"))
    assert grant is not None
    captured = shared.upload(grant)

    with pytest.raises(FailedPrecondition):
        await shared.client.commit(scope("two"), attempt("two", request_id="r"), captured, embedding(1))


async def test_a_repeated_commit_answers_with_the_same_entry(shared: RunningGateway) -> None:
    by = attempt()
    grant = await shared.client.reserve(scope(), by)
    assert grant is not None
    captured = shared.upload(grant)

    calls = [shared.client.commit(scope(), by, captured, embedding(1)) for _ in range(5)]
    entry_ids = set(await asyncio.gather(*calls))

    assert len(entry_ids) == 1
    assert shared.held().entry_count == 1


async def test_only_captured_latents_are_stored(gateway: RunningGateway) -> None:
    by = attempt()
    grant = await gateway.client.reserve(scope(), by)
    assert grant is not None
    captured = gateway.upload(grant)

    await gateway.client.commit(scope(), by, CapturedEntries(grant.grant_id, captured.latents[:1]), embedding(1))
    gateway.maintain()

    assert list(gateway.process.stores.objects.keys()) == [captured.latents[0].object.key]
    assert gateway.problems() == []


async def test_objects_of_other_grants_cannot_be_committed(shared: RunningGateway) -> None:
    by = attempt()
    mine = await shared.client.reserve(scope(), by)
    other = await shared.client.reserve(scope("other"), attempt("other"))
    assert mine is not None
    assert other is not None
    stolen = CapturedEntries(mine.grant_id, shared.upload(other).latents)

    with pytest.raises(InvalidArgument):
        await shared.client.commit(scope(), by, stolen, embedding(1))


async def test_late_commit_does_not_bind_the_cache(gateway: RunningGateway) -> None:
    by = attempt()
    grant = await gateway.client.reserve(scope(), by)
    assert grant is not None
    captured = gateway.upload(grant)
    await gateway.client.release(grant.grant_id)

    with pytest.raises(NotFound):
        await gateway.client.commit(scope(), by, captured, embedding(1, encoder="sha256:another"))

    assert await gateway.store(embedding(1))


async def test_gateway_finds_the_first_entry_of_another_gateway(tmp_path: Path) -> None:
    ledger = ("--ledger-url", f"sqlite:///{tmp_path}/ledger.sqlite")
    objects = ("--objects-url", f"file://{tmp_path}/objects")
    async with (
        running_gateway(tmp_path / "one", *ledger, *objects) as one,
        running_gateway(tmp_path / "other", *ledger, *objects) as other,
    ):
        await one.store(embedding(1))

        other.maintain()

        assert other.process.guard.prepared
