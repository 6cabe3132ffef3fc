"""When the index is built anew, and how long a failed build waits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pentimento.domain.errors import InvalidArgument
from pentimento.stores.vectors.index_building import (
    IndexBuilding,
    IndexCounts,
    build_is_due,
    needed_room_bytes,
    retry_delay_s,
)

BUILDING = IndexBuilding(least_points_count=1000, unindexed_share=0.1, most_unindexed_count=500)


@pytest.mark.parametrize(
    ("points", "changed", "due"),
    [
        (999, 999, False),  # small: compared vector by vector
        (1000, 1000, True),
        (1000, 99, False),
        (1000, 100, True),
        (4000, 399, False),
        (4000, 400, True),
        (100_000, 499, False),
        (100_000, 500, True),  # a twentieth of the share, but more than may be compared
        (1000, 0, False),
    ],
)
def test_a_build_is_due_by_share_and_by_number(points: int, changed: int, due: bool) -> None:
    assert build_is_due(IndexCounts(points, changed), BUILDING) is due


@given(points=st.integers(0, 10**7), changed=st.integers(0, 10**7), more=st.integers(0, 10**6))
def test_more_changes_never_make_a_build_less_due(points: int, changed: int, more: int) -> None:
    before = build_is_due(IndexCounts(points, changed), BUILDING)

    assert build_is_due(IndexCounts(points, changed + more), BUILDING) >= before


def test_failed_builds_wait_longer_up_to_a_limit() -> None:
    building = IndexBuilding(first_retry_s=60, max_retry_s=400)

    assert [retry_delay_s(count, building) for count in (0, 1, 2, 3, 4, 10_000)] == [0, 60, 120, 240, 400, 400]


def test_a_build_needs_room_for_its_vectors_twice_and_a_graph() -> None:
    vectors_bytes = 1000 * 2 * 512 * 4

    assert needed_room_bytes(1000, 512) == 2.5 * vectors_bytes


@pytest.mark.parametrize(
    "wrong",
    [
        {"unindexed_share": 0.0},
        {"unindexed_share": 1.1},
        {"unindexed_share": float("nan")},
        {"least_points_count": 0},
        {"most_unindexed_count": 0},
        {"threads_count": 0},
        {"search_candidates_count": 0},
        {"edges_count": 3},
        {"edges_count": 64, "candidates_count": 63},
    ],
)
def test_wrong_numbers_are_refused_by_name(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidArgument):
        IndexBuilding(**wrong)  # type: ignore[arg-type]
