"""Where the limits on what is unfinished, and on what is left of the disks, lie exactly."""

from math import nan
from types import SimpleNamespace

import pytest
from prometheus_client import REGISTRY

from pentimento.domain.errors import ResourceExhausted
from services.frontdoor.requests.quotas import Quotas
from services.frontdoor.settings import QuotaLimits

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


async def test_quota_refuses_beyond_its_limit_alone() -> None:
    for state, quota in (
        ({"count": 2}, ""),
        ({"count": 3}, "tenant-unfinished-requests"),
        ({"input_bytes": 100}, ""),
        ({"input_bytes": 101}, "tenant-unfinished-bytes"),
        ({"store_free": 1000, "journal_free": 1000}, ""),
        ({"store_free": 999}, "min-free-bytes"),
        ({"journal_free": 999}, "min-free-bytes"),
        ({"store_free": None, "journal_free": None}, ""),
    ):
        assert refused_by(await quotas_of(**state)) == quota, state  # type: ignore[arg-type]


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
