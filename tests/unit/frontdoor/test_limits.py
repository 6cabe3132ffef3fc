"""Limits of unfinished requests, disks and open calls, and whether requests are accepted."""

import asyncio
from contextlib import ExitStack
from math import nan
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import REGISTRY

from lab.fixtures.clocks import SetClock
from pentimento.domain.errors import ResourceExhausted, Unavailable
from pentimento.stores.errors import StoreFull, StoreUnavailable
from services.frontdoor.answers.audience import Audience
from services.frontdoor.requests.jobs import ClientRequest, Job, Jobs
from services.frontdoor.requests.limits import RETRY_S, Acceptance, Callers, HeldKeys, Quotas
from services.frontdoor.settings import QuotaLimits
from services.frontdoor.tenants.usage import UsageMeter

LIMITS = QuotaLimits(tenant_unfinished_requests=2, tenant_input_bytes=100, min_free_bytes=1000)


class CountedJobs:
    """Hold a given number of unfinished requests of a tenant."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def count_of(self, tenant: str) -> int:
        return self._count


def acceptance_by(clock: SetClock) -> Acceptance:
    return Acceptance(UsageMeter(None, clock), clock)  # type: ignore[arg-type]


async def quotas_of(
    count: int = 1, input_bytes: int = 0, store_free: int | None = 5000, journal_free: int | None = 5000
) -> Quotas:
    async def free_bytes() -> int | None:
        return store_free

    inputs = SimpleNamespace(size_bytes=lambda tenant: input_bytes)
    keeper = SimpleNamespace(free_bytes=free_bytes, check_room=lambda *_: None)
    journal = SimpleNamespace(free_bytes=lambda: journal_free)
    quotas = Quotas(LIMITS, CountedJobs(count), inputs, keeper, journal, acceptance_by(SetClock()))  # type: ignore[arg-type]
    await quotas.look_at_disks()
    return quotas


def refused_by(quotas: Quotas) -> str:
    """Return the quota that a request with an image is refused by; "" where it is not."""
    request = SimpleNamespace(tenant="acme", resolved=SimpleNamespace(inputs=("an image",)))
    try:
        quotas.check(SimpleNamespace(request=request))  # type: ignore[arg-type]
    except ResourceExhausted as error:
        return error.metadata["quota"]
    return ""


async def test_quota_refuses_beyond_its_limit_alone() -> None:
    for state, quota in (
        ({"count": 2}, ""),
        ({"count": 3}, "tenant-unfinished-requests"),
        ({"input_bytes": 100}, ""),
        ({"input_bytes": 101}, "tenant-input-bytes"),
        ({"store_free": 1000, "journal_free": 1000}, ""),
        ({"store_free": 999}, "min-free-bytes"),
        ({"journal_free": 999}, "min-free-bytes"),
        ({"store_free": None, "journal_free": None}, ""),
    ):
        assert refused_by(await quotas_of(**state)) == quota, state  # type: ignore[arg-type]


async def test_admit_over_quota_forgets_and_counts_all_images_of_the_call() -> None:
    jobs, quotas = Jobs(lambda event: None), await quotas_of()
    quotas.jobs = jobs
    resolved = SimpleNamespace(inputs=())
    call = [
        Job(ClientRequest(name, "acme", resolved, (), 0.0, 0.0, 60.0, 60.0), Audience(name))  # type: ignore[arg-type]
        for name in ("r1", "r2", "r3")
    ]

    with pytest.raises(ResourceExhausted, match="tenant-unfinished-requests"):
        quotas.admit(call)

    assert (len(jobs), jobs.count_of("acme"), all(job.ended.is_set() for job in call)) == (0, 0, True)
    assert dict(quotas.acceptance.rejections) == {"QUOTA_EXCEEDED": 3}


@pytest.mark.parametrize(
    ("store_free", "journal_free", "told"),
    [(None, None, nan), (None, 7, 7.0), (0, 7, 0.0)],
    ids=["none", "one", "full"],
)
async def test_free_bytes_are_nan_if_unknown_and_zero_if_full(
    store_free: int | None, journal_free: int | None, told: float
) -> None:
    await quotas_of(store_free=store_free, journal_free=journal_free)

    assert REGISTRY.get_sample_value("pentimento_frontdoor_free_bytes") == pytest.approx(told, nan_ok=True)


FULL = StoreFull("ledger", "no room")
AWAY = StoreUnavailable("ledger", "disk I/O error")


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def acceptance(clock: SetClock) -> Acceptance:
    return acceptance_by(clock)


def test_acceptance_counts_rejections_by_reason(acceptance: Acceptance) -> None:
    acceptance.reject("acme", "QUEUE_FULL")
    acceptance.reject("acme", "QUOTA_EXCEEDED", 3)
    acceptance.fail(FULL)

    assert acceptance.rejected_count == 5
    assert dict(acceptance.rejections) == {"QUEUE_FULL": 1, "QUOTA_EXCEEDED": 3, "STORE_FULL": 1}


@pytest.mark.parametrize(
    ("error", "blocked"),
    [
        (FULL, "STORE_FULL: ledger is full: no room"),
        (AWAY, "STORE_UNAVAILABLE: ledger cannot be reached: disk I/O error"),
    ],
)
def test_acceptance_failed_journal_blocks_until_retry(
    error: StoreFull | StoreUnavailable, blocked: str, acceptance: Acceptance, clock: SetClock
) -> None:
    acceptance.fail(error)
    before = acceptance.blocked
    clock.monotonic_s += RETRY_S

    assert (before, acceptance.blocked) == (blocked, "")


def test_acceptance_accepted_request_ends_block(acceptance: Acceptance) -> None:
    acceptance.fail(FULL)
    acceptance.journalled()

    assert acceptance.blocked == ""


def test_acceptance_other_errors_of_one_request_block_no_other(acceptance: Acceptance) -> None:
    acceptance.reject("acme", "QUOTA_EXCEEDED")
    acceptance.fail(Unavailable("TIMEOUT", "slow"))

    assert acceptance.blocked == ""


def test_acceptance_disk_and_beats_block_as_long_as_they_last(acceptance: Acceptance, clock: SetClock) -> None:
    acceptance.see_disk(FULL)
    full = acceptance.blocked
    acceptance.see_disk(None)
    acceptance.hear_beat(AWAY)
    clock.monotonic_s += 10 * RETRY_S
    away = acceptance.blocked
    acceptance.hear_beat(None)

    assert (full[:10], away[:17], acceptance.blocked) == ("STORE_FULL", "STORE_UNAVAILABLE", "")


def kept(counted: object) -> list[Any]:
    """Return the keys of its dictionaries."""
    return [key for held in vars(counted).values() if isinstance(held, dict) for key in held]


def test_a_call_leaves_nothing_behind_however_it_ends() -> None:
    callers = Callers()

    with pytest.raises(ZeroDivisionError), ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(callers.calling("acme", "key"))
        with pytest.raises(ResourceExhausted), callers.calling("acme", "key"):
            pass
        raise ZeroDivisionError

    assert kept(callers) == []


async def test_calls_of_one_key_arrive_one_after_the_other_and_leave_nothing_behind() -> None:
    held, order = HeldKeys(), list[str]()

    async def arrive(name: str) -> None:
        async with held.held("acme", "key"):
            order.append(f"{name} comes")
            await asyncio.sleep(0)
            order.append(f"{name} goes")

    await asyncio.gather(arrive("one"), arrive("another"))

    assert order == ["one comes", "one goes", "another comes", "another goes"]
    assert kept(held) == []


async def test_one_that_gives_up_waiting_leaves_nothing_behind() -> None:
    held = HeldKeys()

    async with held.held("acme", "key"):
        waiting = asyncio.create_task(held.held("acme", "key").__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])

    assert kept(held) == []
