"""Test which requests and images each sweep of retention deletes, and which must stay."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lab.fixtures.clocks import SetClock
from pentimento.domain.errors import FailedPrecondition
from pentimento.domain.generation import ObjectReference
from pentimento.domain.jobs import RequestState
from pentimento.stores.ledger import open_journal
from pentimento.stores.ledger.journal.records import AcceptedRequest, KeptResults
from services.frontdoor.journal import retention
from services.frontdoor.journal.retention import Retention
from services.frontdoor.settings import RetentionLimits

# A minute, and finished requests of a tenant.
LIMITS = (RetentionLimits(result_retention_h=1 / 60, tenant_result_bytes=1000, sweep_interval_s=600.0), 100)


def done(value: Any) -> "Future[Any]":
    found: Future[Any] = Future()
    found.set_result(value)
    return found


class ListedObjects:
    """Keeper and journal of a frontdoor in one: stored objects, and rows that name them."""

    def __init__(self, *keys: str) -> None:
        self.stored = set(keys)
        self.named_keys: set[str] = set()
        self.pictures: list[ObjectReference] = []
        self.finished: list[Any] = []
        self.objects = self
        self.disputed = False

    async def check_owned(self) -> None:
        if self.disputed:
            raise FailedPrecondition("OBJECTS_DISPUTED", "another journal has objects here")

    async def keys(self, prefix: str) -> AsyncIterator[list[str]]:
        for key in sorted(key for key in self.stored if key.startswith(prefix)):
            yield [key]

    async def delete(self, key: str) -> None:
        self.stored.discard(key)

    def named(self, keys: Sequence[str]) -> "Future[set[str]]":
        return done(self.named_keys & set(keys))

    def kept(self) -> "Future[list[KeptResults]]":
        size = sum(picture.size_bytes for picture in self.pictures)
        return done([KeptResults("acme", len(self.pictures), size)])

    def forget_pictures(self, tenant: str, size_bytes: int) -> "Future[list[ObjectReference]]":
        """Delete the oldest images, `size_bytes` or a little more."""
        gone: list[ObjectReference] = []
        while self.pictures and sum(picture.size_bytes for picture in gone) < size_bytes:
            gone.append(self.pictures.pop(0))
        return done(gone)

    def forget_finished(
        self,
        before: float,
        count: int,
        tenant: str = "",
        after: float | None = None,
        but_tenants: Sequence[str] = (),
    ) -> "Future[list[Any]]":
        gone, self.finished = self.finished[:count], self.finished[count:]
        return done(gone)

    def give_back_pages(self) -> "Future[None]":
        return done(None)


class KeysUnderWay:
    """Keys that unfinished requests hold, as results or as inputs."""

    def __init__(self, *keys: str) -> None:
        self.uncommitted = set(keys)

    def keys(self) -> set[str]:
        return self.uncommitted


def retention_of(objects: ListedObjects, results: Sequence[str] = (), inputs: Sequence[str] = ()) -> Retention:
    held = KeysUnderWay(*results), KeysUnderWay(*inputs)
    return Retention(objects, objects, *held, SetClock(), *LIMITS)  # type: ignore[arg-type]


async def one_round(kept: Retention) -> None:
    """Run it until it waits for the next round."""
    running = asyncio.create_task(kept.run_forever())
    for _ in range(50):
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait([running])


@pytest.mark.parametrize(
    ("held", "named", "left"),
    [
        ({}, (), [True, False, False]),
        ({}, ("results/a",), [True, True, True]),
        ({"results": ["results/a"]}, (), [True, True, True]),
        ({"inputs": ["results/a"]}, (), [True, True, True]),
    ],
    ids=["unnamed", "named at the second sweep", "uncommitted result", "input in use"],
)
async def test_object_unnamed_in_two_sweeps_is_deleted(
    held: dict[str, list[str]], named: tuple[str, ...], left: list[bool]
) -> None:
    objects = ListedObjects("results/a")
    kept = retention_of(objects, **held)
    found = []
    for names in ((), named, ()):
        objects.named_keys = set(names)
        await kept.sweep()
        found.append("results/a" in objects.stored)

    assert found == left


async def test_store_shared_with_another_journal_is_not_swept() -> None:
    objects = ListedObjects("results/a", "inputs/t/b")
    kept = retention_of(objects)
    objects.disputed = True

    for _ in range(2):
        with pytest.raises(FailedPrecondition, match="another journal"):
            await kept.sweep()

    assert objects.stored == {"results/a", "inputs/t/b"}


async def test_tenant_over_its_bytes_loses_oldest_images_until_room() -> None:
    pictures = [ObjectReference(f"results/{number}", "sha256:", 10) for number in range(101)]
    objects = ListedObjects(*(picture.key for picture in pictures))
    objects.pictures = pictures
    kept = retention_of(objects)
    await kept.recover()

    await one_round(kept)

    # The limit is 1000 bytes, and 1010 shrink to 950: not every later image costs a commit.
    assert sorted(objects.stored) == sorted(f"results/{number}" for number in range(6, 101))


async def test_old_requests_are_forgotten_however_many_they_are() -> None:
    objects = ListedObjects()
    record = SimpleNamespace(request=SimpleNamespace(tenant="acme"), result=None)
    objects.finished = [record] * (2 * retention._FORGOTTEN_AT_ONCE + 1)

    await one_round(retention_of(objects))

    assert objects.finished == []


async def test_tenant_with_all_requests_kept_is_not_searched_at_every_end() -> None:
    """All its requests are pinned or still to be reported. A search reads them all, while other calls wait for the
    journal."""
    objects, clock, looks = ListedObjects(), SetClock(), list[str]()

    def forget_finished(
        before: float, count: int, tenant: str = "", after: float | None = None, but_tenants: Sequence[str] = ()
    ) -> "Future[list[Any]]":
        if after is None:
            looks.append(tenant or "old ones")
        return done([])

    objects.forget_finished = forget_finished  # type: ignore[method-assign]
    kept = Retention(objects, objects, KeysUnderWay(), KeysUnderWay(), clock, *LIMITS)  # type: ignore[arg-type]
    for _ in range(100):
        kept.keep("acme", 0)
    running = asyncio.create_task(kept.run_forever())
    for _ in range(5):
        kept.keep("acme", 0)
        for _ in range(50):
            await asyncio.sleep(0)
    at_once = list(looks)

    clock.monotonic_s += 60.0
    kept.keep("acme", 0)
    for _ in range(50):
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait([running])

    assert at_once == ["old ones", "acme"]
    assert looks == [*at_once, "old ones", "acme"]


async def test_newest_request_stays_after_clock_set_back(tmp_path: Path) -> None:
    """The first two requests, the tenant's limit, ended at times that are now in the future."""
    clock = SetClock(100_000.0)
    with closing(open_journal(f"sqlite:///{tmp_path}/journal.sqlite", clock)) as journal:
        objects = ListedObjects()
        kept = Retention(journal, objects, KeysUnderWay(), KeysUnderWay(), clock, LIMITS[0], 2)  # type: ignore[arg-type]
        for request_id in ("first", "second", "third"):
            if request_id == "third":
                clock.wall_s -= 20_000.0
            journal.accept(AcceptedRequest(request_id, "acme", b"", "", clock.wall())).result()
            journal.finish(request_id, RequestState.CANCELLED, "CANCELLED", "").result()
            clock.wall_s += 10.0
            kept.keep("acme", 0)

        await kept._forget_beyond_quotas()

        assert journal.known(("first", "second", "third"), "acme").result() == {"second", "third"}


async def test_forget_old_keeps_new_request_after_clock_set_back(tmp_path: Path) -> None:
    clock = SetClock(100_000.0)
    with closing(open_journal(f"sqlite:///{tmp_path}/journal.sqlite", clock)) as journal:
        objects = ListedObjects()
        kept = Retention(journal, objects, KeysUnderWay(), KeysUnderWay(), clock, *LIMITS)  # type: ignore[arg-type]
        clock.wall_s -= 20_000.0
        journal.accept(AcceptedRequest("r", "acme", b"", "", clock.wall())).result()
        journal.finish("r", RequestState.CANCELLED, "CANCELLED", "").result()

        await kept._forget_old()

        assert journal.known(("r",), "acme").result() == {"r"}


async def test_forget_old_follows_each_tenants_own_retention(tmp_path: Path) -> None:
    clock, objects = SetClock(100_000.0), ListedObjects()
    with closing(open_journal(f"sqlite:///{tmp_path}/journal.sqlite", clock)) as journal:
        own_s = {"brief": 10.0, "long": 1000.0}
        held = KeysUnderWay(), KeysUnderWay()
        kept = Retention(journal, objects, *held, clock, *LIMITS, lambda: own_s)  # type: ignore[arg-type]
        for tenant in ("brief", "default", "long"):
            for request_id in (f"old {tenant}", f"new {tenant}"):
                journal.accept(AcceptedRequest(request_id, tenant, b"", "", clock.wall())).result()
        for age_s, which in ((70.0, "old"), (30.0, "new")):
            clock.wall_s = clock.monotonic_s = 100_000.0 - age_s
            for tenant in ("brief", "default", "long"):
                journal.finish(f"{which} {tenant}", RequestState.CANCELLED, "CANCELLED", "").result()
        clock.wall_s = clock.monotonic_s = 100_000.0

        await kept._forget_old()

        ids = [f"{which} {tenant}" for which in ("old", "new") for tenant in ("brief", "default", "long")]
        left = {one for tenant in ("brief", "default", "long") for one in journal.known(ids, tenant).result()}
    assert left == {"new default", "old long", "new long"}
