"""Store latents and images of attempts: latents without LoRAs, lost objects, a silent store, and signed grants."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pentimento.domain.clock import SystemClock
from pentimento.domain.execution import AttemptResult
from pentimento.domain.generation import CacheGrant, CapturedEntries, LatentSlot, ObjectReference
from pentimento.stores.errors import StoreUnavailable
from pentimento.stores.objects import open_objects
from services.unet_worker.attempts.cache_objects import GrantGuard, Uploads
from services.unet_worker.attempts.order import ExecuteOrder
from services.unet_worker.attempts.runner import AttemptImage, AttemptRunner
from tests.unit.unet_worker.orders import HELD, ORDER, order_with

GRANT = CacheGrant("grant", (LatentSlot(2, "latents/k2"), LatentSlot(6, "latents/k6")), "images/one", 60_000)
STEPS = (5, 10, 15)
WIDE_GRANT = CacheGrant("grant", tuple(LatentSlot(step, f"cache/{step}") for step in STEPS), "cache/image", 1000)


class FullStore:
    """Takes nothing."""

    def put(self, key: str, data: bytes, *, durable: bool) -> ObjectReference:
        raise StoreUnavailable("object store", "it is away")


class ShutStore:
    """Stores nothing until it is opened, and one object at a time."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.asked = threading.Event()
        self.is_open = threading.Event()

    def put(self, key: str, data: bytes, *, durable: bool = True) -> ObjectReference:
        self.asked.set()
        assert self.is_open.wait(60)
        self.keys.append(key)
        return ObjectReference(key, f"sha256:{len(data)}", len(data))


@pytest.fixture
def store() -> ShutStore:
    return ShutStore()


@pytest.fixture
def thread(store: ShutStore) -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool
        store.is_open.set()


class KeptLatent(bytearray):
    """A latent that a weak reference can watch."""


def uploads_over(store: Any, thread: ThreadPoolExecutor) -> "tuple[Uploads, weakref.ref[KeptLatent]]":
    """Return uploads of two latents; the second waits for the first."""
    uploads, latent = Uploads(GRANT, store, thread), KeptLatent(8)
    uploads.add_latent(2, 3.0, lambda: b"first")
    uploads.add_latent(6, 1.0, lambda: bytes(latent))
    return uploads, weakref.ref(latent)


async def test_upload_that_waits_beyond_time_limit_is_released(store: ShutStore, thread: ThreadPoolExecutor) -> None:
    uploads, latent = uploads_over(store, thread)
    assert await asyncio.to_thread(store.asked.wait, 60)

    captured, notes = await uploads.collect(0.0)
    uploads.close()
    gc.collect()

    assert (captured, notes) == (CapturedEntries("grant"), ("cache: 2 of 2 objects could not be stored",))
    assert latent() is None
    store.is_open.set()
    thread.shutdown()
    assert store.keys == ["latents/k2"]


async def test_of_an_attempt_that_is_over_nothing_more_is_stored(store: ShutStore, thread: ThreadPoolExecutor) -> None:
    uploads, _ = uploads_over(store, thread)
    assert await asyncio.to_thread(store.asked.wait, 60)

    uploads.close()
    uploads.add_latent(6, 1.0, lambda: b"too late")
    store.is_open.set()
    thread.shutdown()

    assert store.keys == ["latents/k2"]


@pytest.mark.parametrize(
    "first_step, adapter_free", [(None, [True, True, True]), (10, [True, True, False]), (0, [False, False, False])]
)
async def test_latents_before_first_step_with_loras_are_adapter_free(
    thread: ThreadPoolExecutor, tmp_path: Path, first_step: int | None, adapter_free: list[bool]
) -> None:
    uploads = Uploads(WIDE_GRANT, open_objects(f"file://{tmp_path}"), thread)
    uploads.adapters_from_step = first_step
    for step in STEPS:
        uploads.add_latent(step, 1.0, lambda: b"latent")

    captured, notes = await uploads.collect(30.0)

    assert [latent.adapter_free for latent in captured.latents] == adapter_free
    assert notes == ()


async def test_failed_uploads_are_counted(thread: ThreadPoolExecutor) -> None:
    uploads = Uploads(WIDE_GRANT, FullStore(), thread)  # type: ignore[arg-type]
    uploads.add_latent(5, 1.0, lambda: b"latent")
    uploads.add_image(b"png")

    captured, notes = await uploads.collect(30.0)

    assert (captured.latents, captured.image) == ((), None)
    assert notes == ("cache: 2 of 2 objects could not be stored",)


@pytest.mark.parametrize("open_to_all", [False, True])
def test_grant_without_key_is_taken_from_everybody_or_from_none(open_to_all: bool) -> None:
    guard = GrantGuard(None, SystemClock(), open_to_all=open_to_all)

    admitted = guard.admitted(replace(order_with(), cache_grant=GRANT))

    assert admitted.cache_grant == (GRANT if open_to_all else None)
    assert admitted.notes == (() if open_to_all else ("cache: nothing stored, its grant is not signed",))


THINNED_ORDER = replace(ORDER, cache_grant=CacheGrant("g", (), "cache/image", 1000))


class Generated:
    """A finished image with these steps left out."""

    def __init__(self, thinned_steps: tuple[int, ...]) -> None:
        self._thinned_steps = thinned_steps

    async def generate(self, order: ExecuteOrder, *_: Any) -> AttemptImage:
        nothing = CapturedEntries("")
        result = AttemptResult(order.attempt, b"png", 64, 64, "sha256:p", nothing, 12, 0, HELD.model_digest, 1)
        return AttemptImage(replace(result, thinned_steps=self._thinned_steps), b"png", 0.0)


@pytest.mark.parametrize(
    ("thinned_steps", "told", "is_kept"), [((), False, True), ((4, 8), False, False), ((4, 8), True, True)]
)
async def test_a_thinned_image_is_a_donor_where_the_order_says_so(
    tmp_path: Path, thinned_steps: tuple[int, ...], told: bool, is_kept: bool
) -> None:
    objects = open_objects(f"file://{tmp_path}")
    with ThreadPoolExecutor(1) as threads:
        runner = AttemptRunner(Generated(thinned_steps), objects, threads, 10.0, lambda: None)
        outcome = await runner.run(replace(THINNED_ORDER, cache_thinned_picture=told), lambda event: None)

    assert outcome.result.thinned_steps == thinned_steps
    assert (outcome.result.captured.image is not None) is is_kept
    assert list(objects.keys("cache/")) == (["cache/image"] if is_kept else [])
