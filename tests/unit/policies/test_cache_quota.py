"""Play evictions of a shared cache to their end, over all kinds of holdings."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from pentimento.domain.cache import CacheHolding
from pentimento.policies.cache_quota import CacheLimits, gives_way, has_room

TENANTS = "abcde"
# Sizes of the entries by tenant, oldest first.
entries = st.dictionaries(st.sampled_from(TENANTS), st.lists(st.integers(1, 100), max_size=12), max_size=5)
limits = st.builds(CacheLimits, st.integers(1, 30), st.integers(1, 1500), st.sampled_from([0.25, 0.5, 1.0]))


def holdings(held: dict[str, list[int]]) -> dict[str, CacheHolding]:
    return {tenant: CacheHolding(len(sizes), sum(sizes)) for tenant, sizes in held.items()}


def evicted(held: dict[str, list[int]], within: CacheLimits) -> dict[str, list[int]]:
    left = {tenant: list(sizes) for tenant, sizes in held.items()}
    while (tenant := gives_way(holdings(left), within)) is not None:
        left[tenant].pop(0)
    return left


@given(entries, limits)
def test_in_the_end_cache_and_tenants_are_within_their_limits(held: dict[str, list[int]], within: CacheLimits) -> None:
    left = holdings(evicted(held, within))

    assert sum(holding.entry_count for holding in left.values()) <= within.max_entry_count
    assert sum(holding.size_bytes for holding in left.values()) <= within.max_size_bytes
    for holding in left.values():
        assert holding.entry_count <= within.tenant_share * within.max_entry_count
        assert holding.size_bytes <= within.tenant_share * within.max_size_bytes


@given(entries, limits)
def test_a_tenant_within_an_equal_share_of_everything_loses_nothing(
    held: dict[str, list[int]], within: CacheLimits
) -> None:
    left = evicted(held, within)
    least = min(1 / max(len(held), 1), within.tenant_share)
    for tenant, holding in holdings(held).items():
        few, small = holding.entry_count <= least * within.max_entry_count, least * within.max_size_bytes
        if few and holding.size_bytes <= small:
            assert left[tenant] == held[tenant]


@given(st.dictionaries(st.sampled_from(TENANTS), st.integers(0, 40), max_size=5), st.integers(1, 60))
def test_tenant_that_lost_entry_holds_most_or_one_less(counts: dict[str, int], most: int) -> None:
    held = {tenant: [1] * count for tenant, count in counts.items()}

    left = evicted(held, CacheLimits(most, 10**9))

    largest = max((len(sizes) for sizes in left.values()), default=0)
    assert all(len(left[tenant]) >= largest - 1 for tenant in held if len(left[tenant]) < len(held[tenant]))


def test_a_flood_of_one_tenant_costs_that_tenant() -> None:
    held = {"quiet": [10], "loud": [10] * 26}

    assert gives_way(holdings(held), CacheLimits(26, 10**9)) == "loud"
    assert evicted(held, CacheLimits(26, 10**9)) == {"quiet": [10], "loud": [10] * 25}


def test_tenant_with_most_bytes_gives_way_when_bytes_are_short() -> None:
    held = {"many": [1] * 10, "large": [100]}

    assert gives_way(holdings(held), CacheLimits(100, 50)) == "large"


def test_tenant_with_most_entries_gives_way_when_entries_are_short() -> None:
    held = {"many": [1] * 10, "large": [100]}

    assert gives_way(holdings(held), CacheLimits(10, 10**9)) == "many"
    assert gives_way(holdings(held), CacheLimits(11, 101)) == "large"
    assert gives_way(holdings(held), CacheLimits(11, 110)) is None


def test_single_tenant_may_fill_cache() -> None:
    assert gives_way({"a": CacheHolding(10, 10)}, CacheLimits(10, 10)) is None


def test_a_tenant_has_room_below_its_share_of_both() -> None:
    within = CacheLimits(10, 100, 0.5)

    assert has_room(CacheHolding(4, 49), within)
    assert not has_room(CacheHolding(5, 0), within)
    assert not has_room(CacheHolding(0, 50), within)


def test_tenant_may_fill_cache_by_default() -> None:
    within = CacheLimits(10, 100)

    assert has_room(CacheHolding(9, 99), within)
    assert not has_room(CacheHolding(10, 0), within)


def test_a_tenant_with_just_its_share_keeps_it() -> None:
    within = CacheLimits(10, 100, 0.5)

    assert gives_way({"a": CacheHolding(5, 50)}, within) is None
    assert gives_way({"a": CacheHolding(6, 0)}, within) == "a"
    assert gives_way({"a": CacheHolding(1, 51)}, within) == "a"


@given(entries, limits, st.dictionaries(st.sampled_from(TENANTS), st.integers(0, 300), max_size=3))
def test_tenant_with_own_limit_keeps_to_it_and_costs_others_nothing(
    held: dict[str, list[int]], within: CacheLimits, own: dict[str, int]
) -> None:
    alone = CacheLimits(1000, 1_000_000, 1.0, own)

    left = evicted(held, alone)
    bounded = holdings(evicted(held, replace(within, tenant_bytes=own)))

    assert all(holding.size_bytes <= own.get(tenant, 1 << 60) for tenant, holding in bounded.items())
    for tenant, sizes in held.items():
        kept_bytes = sum(left[tenant])
        if sum(sizes) <= own.get(tenant, 1 << 60):
            assert left[tenant] == sizes
        else:
            lost = sizes[len(sizes) - len(left[tenant]) - 1]
            assert kept_bytes <= own[tenant] < kept_bytes + lost
