"""Who gives way in a shared cache: evictions played to their end, over all kinds of holdings."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from pentimento.domain.cache import CacheHolding
from pentimento.policies.cache_quota import CacheLimits, gives_way, has_room

TENANTS = "abcde"
# By tenant the sizes of its entries, oldest first.
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
def test_whoever_lost_an_entry_holds_as_many_as_anybody_but_for_one(counts: dict[str, int], most: int) -> None:
    held = {tenant: [1] * count for tenant, count in counts.items()}

    left = evicted(held, CacheLimits(most, 10**9))

    largest = max((len(sizes) for sizes in left.values()), default=0)
    assert all(len(left[tenant]) >= largest - 1 for tenant in held if len(left[tenant]) < len(held[tenant]))


def test_a_flood_of_one_tenant_costs_that_tenant() -> None:
    held = {"quiet": [10], "loud": [10] * 26}

    assert gives_way(holdings(held), CacheLimits(26, 10**9)) == "loud"
    assert evicted(held, CacheLimits(26, 10**9)) == {"quiet": [10], "loud": [10] * 25}


def test_of_bytes_that_are_short_the_one_with_most_bytes_gives_way_whoever_has_more_entries() -> None:
    held = {"many": [1] * 10, "large": [100]}

    assert gives_way(holdings(held), CacheLimits(100, 50)) == "large"


def test_of_entries_that_are_short_the_one_with_most_entries_gives_way_whoever_has_more_bytes() -> None:
    held = {"many": [1] * 10, "large": [100]}

    assert gives_way(holdings(held), CacheLimits(10, 10**9)) == "many"
    assert gives_way(holdings(held), CacheLimits(11, 101)) == "large"
    assert gives_way(holdings(held), CacheLimits(11, 110)) is None


def test_whoever_is_alone_may_have_all() -> None:
    assert gives_way({"a": CacheHolding(10, 10)}, CacheLimits(10, 10)) is None


def test_a_tenant_has_room_below_its_share_of_both() -> None:
    within = CacheLimits(10, 100, 0.5)

    assert has_room(CacheHolding(4, 49), within)
    assert not has_room(CacheHolding(5, 0), within)
    assert not has_room(CacheHolding(0, 50), within)


def test_a_tenant_may_hold_all_where_nobody_says_less() -> None:
    within = CacheLimits(10, 100)

    assert has_room(CacheHolding(9, 99), within)
    assert not has_room(CacheHolding(10, 0), within)


def test_a_tenant_with_just_its_share_keeps_it() -> None:
    within = CacheLimits(10, 100, 0.5)

    assert gives_way({"a": CacheHolding(5, 50)}, within) is None
    assert gives_way({"a": CacheHolding(6, 0)}, within) == "a"
    assert gives_way({"a": CacheHolding(1, 51)}, within) == "a"


@given(entries, limits, st.dictionaries(st.sampled_from(TENANTS), st.integers(0, 300), max_size=3))
def test_a_tenant_with_bytes_of_its_own_keeps_no_more_and_costs_nobody_else_anything(
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
