"""Where the limits on what is unfinished, and on what is left of the disks, lie exactly."""

from math import nan
from types import SimpleNamespace

import pytest
from prometheus_client import REGISTRY

from pentimento.domain.errors import ResourceExhausted
from services.frontdoor.requests.quotas import QuotaLimits, Quotas

LIMITS = QuotaLimits(tenant_unfinished_requests=2, tenant_unfinished_bytes=100, min_free_bytes=1000)


class CountedJobs:
    """As many unfinished requests of the tenant as it is told."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def count_of(self, tenant: str) -> int:
        return self._count


async def quotas_of(
    count: int = 1, input_bytes: int = 0, store_free: int | None = 5000, journal_free: int | None = 5000
) -> Quotas:
    async def free_bytes() -> int | None:
        return store_free

    inputs = SimpleNamespace(size_bytes=lambda tenant: input_bytes)
    keeper = SimpleNamespace(free_bytes=free_bytes, check_room=lambda *_: None)
    journal = SimpleNamespace(free_bytes=lambda: journal_free)
    quotas = Quotas(LIMITS, CountedJobs(count), inputs, keeper, journal)  # type: ignore[arg-type]
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


@pytest.mark.parametrize("count, quota", [(2, ""), (3, "tenant-unfinished-requests")])
async def test_as_many_requests_as_the_limit_says_may_be_unfinished(count: int, quota: str) -> None:
    assert refused_by(await quotas_of(count=count)) == quota


@pytest.mark.parametrize("input_bytes, quota", [(100, ""), (101, "tenant-unfinished-bytes")])
async def test_as_many_bytes_as_the_limit_says_may_wait(input_bytes: int, quota: str) -> None:
    assert refused_by(await quotas_of(input_bytes=input_bytes)) == quota


@pytest.mark.parametrize("free, quota", [(1000, ""), (999, "min-free-bytes")])
async def test_as_many_bytes_as_the_limit_says_are_left_on_the_disk(free: int, quota: str) -> None:
    assert refused_by(await quotas_of(store_free=free, journal_free=free)) == quota


@pytest.mark.parametrize("free", [{"store_free": 999}, {"journal_free": 999}])
async def test_the_fuller_one_of_two_disks_decides(free: dict[str, int]) -> None:
    assert refused_by(await quotas_of(**free)) == "min-free-bytes"


async def test_a_disk_that_nobody_can_tell_of_refuses_nobody() -> None:
    assert refused_by(await quotas_of(store_free=None, journal_free=None)) == ""


@pytest.mark.parametrize(
    ("store_free", "journal_free", "told"),
    [(None, None, nan), (None, 7, 7.0), (0, 7, 0.0)],
    ids=["none", "one", "full"],
)
async def test_room_that_nobody_can_tell_of_is_no_number_and_a_full_disk_has_none(
    store_free: int | None, journal_free: int | None, told: float
) -> None:
    await quotas_of(store_free=store_free, journal_free=journal_free)

    assert REGISTRY.get_sample_value("pentimento_frontdoor_free_bytes") == pytest.approx(told, nan_ok=True)
