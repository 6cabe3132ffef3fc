"""Test URLs of finished images: access, limits, and the signed content."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab.fixtures.frontdoor_suite import REQUEST, running_suite, settings_of
from lab.fixtures.paced_worker import PacedWorker
from pentimento.domain.errors import FailedPrecondition, InvalidArgument, NotFound, PermissionDenied
from pentimento.files.ed25519_keys import new_signing_key, read_signing_keys
from pentimento.rpc import watched_file
from pentimento.stores.objects import open_objects
from pentimento.stores.objects.store import FILES_PATH, PathSigner
from services.frontdoor.wiring import signing_keys


@pytest.fixture
def keys(folder: Path) -> Path:
    path = folder / "keys"
    path.write_text(new_signing_key())
    return path


async def test_url_returns_image_until_it_expires(folder: Path, keys: Path, worker: PacedWorker) -> None:
    async with running_suite(folder, signing_key_file=keys) as suite:
        completed = await suite.paint()
        result = await suite.client.result_url(completed.request_id, 60_000)

    key, _, query = result.url.removeprefix(FILES_PATH).partition("?")
    signer = PathSigner(*read_signing_keys(keys))
    signed = signer.verify(key, query, result.expires_at_ms / 1000 - 1)
    assert signed.media_type == "image/png"
    assert signed.expires_at * 1000 == result.expires_at_ms
    assert open_objects(f"file://{folder / 'objects'}").get(signed.reference) == completed.image


@pytest.mark.parametrize(
    ("changes", "made"),
    [
        ({}, True),
        ({"ledger_url": "postgresql+psycopg://user@host/database"}, False),
        ({"cells": ("a=127.0.0.1:1", "b=127.0.0.1:2"), "frontdoor_id": "a"}, False),
    ],
    ids=["sqlite", "postgresql", "cells"],
)
def test_missing_key_is_made_by_the_only_frontdoor(folder: Path, changes: dict[str, Any], made: bool) -> None:
    path = folder / "keys"
    settings = settings_of(folder, signing_key_file=path, **changes)

    if made:
        keys = signing_keys(settings)
        assert keys is not None and keys() == read_signing_keys(path) and path.stat().st_mode & 0o777 == 0o600
        return
    with pytest.raises(InvalidArgument, match=r"signing_key_file: must exist with cells, and over PostgreSQL: .*/keys"):
        signing_keys(settings)
    path.write_text(new_signing_key())
    keys = signing_keys(settings)
    assert keys is not None and keys() == read_signing_keys(path)


async def test_urls_are_signed_by_current_first_key(
    folder: Path, keys: Path, worker: PacedWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched_file, "CHECK_INTERVAL_S", 0.0)
    old, new = keys.read_text(), new_signing_key()
    async with running_suite(folder, signing_key_file=keys) as suite:
        request_id = (await suite.paint()).request_id

        async def signed_by(key: str) -> bool:
            path, _, query = (await suite.client.result_url(request_id)).url.removeprefix(FILES_PATH).partition("?")
            try:
                return bool(PathSigner(bytes.fromhex(key)).verify(path, query, 0.0))
            except PermissionDenied:
                return False

        before = await signed_by(old)
        keys.write_text(f"{new}\n{old}\n")
        changed = await signed_by(new)
        keys.write_text("")

        assert (before, changed, await signed_by(new)) == (True, True, True)


async def test_url_needs_one_finished_image_and_allowed_time(folder: Path, keys: Path, worker: PacedWorker) -> None:
    async with running_suite(folder, signing_key_file=keys) as suite:
        accepted = await suite.client.submit(replace(REQUEST, image_count=2))
        async for _ in suite.client.attach(accepted.request_id):
            pass
        image_id = accepted.image_request_ids[1]
        now_ms = suite.frontdoor.interpreter.clock.wall() * 1000
        usual = await suite.client.result_url(image_id)
        for wrong_ms in (0, -1, 86_400_001):
            with pytest.raises(InvalidArgument, match="expires_in_ms"):
                await suite.client.result_url(image_id, wrong_ms)
        with pytest.raises(InvalidArgument, match="request_id: must be the id of one image"):
            await suite.client.result_url(accepted.request_id)
        for unknown in ("r-unknown", f"p2-{'0' * 32}"):
            with pytest.raises(NotFound):
                await suite.client.result_url(unknown)
        worker.hold.clear()
        with pytest.raises(FailedPrecondition) as caught:
            await suite.client.result_url((await suite.client.submit(REQUEST)).request_id)

    assert usual.url.startswith(FILES_PATH)
    assert 3_599_000 < usual.expires_at_ms - now_ms < 3_660_000
    assert caught.value.reason == "NOT_COMPLETED"


async def test_url_is_refused_without_signing_key(folder: Path, worker: PacedWorker) -> None:
    async with running_suite(folder) as suite:
        request_id = (await suite.paint()).request_id
        with pytest.raises(FailedPrecondition) as caught:
            await suite.client.result_url(request_id)

    assert caught.value.reason == "URLS_OFF"
