"""Sizes of buffers against all partitions, and best fit."""

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pentimento.policies.buffer_pools import best_fit, pool_sizes

USES = st.dictionaries(st.integers(1, 60), st.integers(1, 9), min_size=1, max_size=6)


def partitions(items: Sequence[int]) -> Iterator[list[list[int]]]:
    """Yield all partitions of a sequence into sets, neighbours or not."""
    if not items:
        yield []
        return
    first, rest = items[0], items[1:]
    for smaller in partitions(rest):
        yield [[first], *smaller]
        for index, group in enumerate(smaller):
            yield [*smaller[:index], [first, *group], *smaller[index + 1 :]]


def cost(groups: Sequence[Sequence[int]], uses: Mapping[int, int]) -> Fraction:
    total = Fraction(0)
    for group in groups:
        weight = sum(uses[size] for size in group)
        mean = Fraction(sum(uses[size] * size for size in group), weight)
        total += sum(uses[size] * (size - mean) ** 2 for size in group)
    return total


@given(USES, st.integers(1, 6))
def test_pool_sizes_are_the_best_of_all_partitions(uses: Mapping[int, int], count: int) -> None:
    found = pool_sizes(uses, count)
    least = min(cost(groups, uses) for groups in partitions(sorted(uses)) if len(groups) <= count)

    groups: dict[int, list[int]] = {}
    for size in uses:
        fitting = best_fit(found, size)
        assert fitting is not None
        groups.setdefault(fitting, []).append(size)
    assert len(found) <= count and set(found) <= uses.keys()
    assert float(cost(list(groups.values()), uses)) == pytest.approx(float(least), abs=1e-6)


def test_pool_sizes_follow_the_frequency_of_sizes() -> None:
    assert pool_sizes({10: 1, 20: 1, 40: 1}, 2) == (20, 40)
    assert pool_sizes({10: 100, 20: 1, 30: 1}, 2) == (10, 30)
    assert pool_sizes({}, 3) == ()


@pytest.mark.parametrize(("wanted", "size"), [(1, 10), (10, 10), (11, 20), (21, None)])
def test_best_fit_is_the_smallest_size_that_is_large_enough(wanted: int, size: int | None) -> None:
    assert best_fit((20, 10), wanted) == size
